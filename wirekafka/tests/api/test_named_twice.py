"""A name that a request repeats is described once, so that a small request cannot cause a response of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.describe_producers import DescribeProducersRequest, TopicRequest
from wirekafka.api.describe_share_group_offsets import DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequestGroup
from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.wire.types import Message

TOPIC = "flights"
SETTINGS = DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=TOPIC, configuration_keys=None)
SETTING = DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=TOPIC, configuration_keys=["retention.ms"])


@pytest.mark.parametrize(
    ("request_", "version", "field"),
    [
        (ConsumerGroupDescribeRequest(group_ids=["a", "b", "a"]), 1, "groups"),
        (ShareGroupDescribeRequest(group_ids=["a", "b", "a"]), 1, "groups"),
        (DescribeTransactionsRequest(transactional_ids=["a", "b", "a"]), 0, "transaction_states"),
        (DescribeConfigsRequest(resources=[SETTINGS, DescribeConfigsResource(), SETTING]), 4, "results"),
        (
            DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in ("a", "b", "a")]
            ),
            1,
            "groups",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_what_is_named_twice_is_described_once(tmp_path: Path, request_: Message, version: int, field: str) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create(TOPIC, 1)
        assert len(getattr(caller.ask(request_, version), field)) == 2

    run(body, tmp_path)


def test_settings_are_those_that_are_asked_for_first(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create(TOPIC, 1)
        for resources, is_one in ([SETTING, SETTINGS], True), ([SETTINGS, SETTING], False):
            (described,) = caller.ask(DescribeConfigsRequest(resources=resources), 4).results
            assert (len(described.configs) == 1) is is_one

    run(body, tmp_path)


def test_producers_of_a_partition_are_described_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create(TOPIC, 2)
        asked = [TopicRequest(name=TOPIC, partition_indexes=indexes) for indexes in ([1, 1, 0], [0], [7])]
        answers: Any = caller.ask(DescribeProducersRequest(topics=asked), 0).topics
        assert [(each.name, [one.partition_index for one in each.partitions]) for each in answers] == [(TOPIC, [1, 0, 7])]

    run(body, tmp_path)
