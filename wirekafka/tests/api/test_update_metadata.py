"""UpdateMetadata: which requests of controllers are taken."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.member_topics import open_member_topics
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.api.members import BROKER_EPOCH, join, topic, update
from wirekafka.wire.messages.update_metadata import UpdateMetadataTopicState

UNKNOWN_EPOCH = -1
NEWEST = 8
LATER_CORRELATION_ID = 1
END = object()


def test_request_fills_the_image_and_the_table_of_topics(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        response = caller.ask(update(topic("flights", 1, 2), controller_epoch=4), NEWEST)
        assert response.error_code == ErrorCode.NONE
        assert [*member.image.brokers] == [1, 2, 3]
        assert len(caller.broker.topics.get("flights").partitions) == 2
        assert member.replicas.controller_epoch == 4

    run(body, tmp_path)


def test_image_is_whole_after_a_request_with_partitions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        caller.ask(update(), NEWEST)
        assert member.has_brokers.is_set() and not member.has_image.is_set()
        caller.ask(update(topic("flights", 1), controller_epoch=2), NEWEST)
        assert member.has_image.is_set()

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("broker_epoch", "expected"),
    [
        (BROKER_EPOCH - 1, ErrorCode.STALE_BROKER_EPOCH),
        (BROKER_EPOCH, None),
        (BROKER_EPOCH + 1, None),
        (UNKNOWN_EPOCH, None),
    ],
)
def test_request_for_an_earlier_registration_is_refused(tmp_path: Path, broker_epoch: int, expected: ErrorCode | None) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        assert refused(caller, broker_epoch=broker_epoch) is expected
        assert (member.image.controller_id is None) is (expected is not None)

    run(body, tmp_path)


@pytest.mark.parametrize("forged", [UNKNOWN_EPOCH, BROKER_EPOCH + 1])
def test_topics_stay_if_a_forged_request_names_one_of_them(tmp_path: Path, forged: int) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        caller.ask(update(topic("flights", 1), topic("arrivals", 1), broker_epoch=BROKER_EPOCH), NEWEST)
        caller.ask(update(topic("flights", 2), broker_epoch=forged), NEWEST)
        caller.ask(update(topic("arrivals", 2), broker_epoch=BROKER_EPOCH), NEWEST)
        assert [*member.image.topics] == ["flights", "arrivals"]

    run(body, tmp_path)


@pytest.mark.parametrize(("known", "expected"), [(0, None), (1, None), (2, ErrorCode.STALE_CONTROLLER_EPOCH)])
def test_request_of_a_controller_older_than_that_of_any_request_is_refused(
    tmp_path: Path, known: int, expected: ErrorCode | None
) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.replicas.controller_epoch = known
        assert refused(caller, broker_epoch=BROKER_EPOCH) is expected
        assert member.replicas.controller_epoch == max(known, 1)

    run(body, tmp_path)


def test_request_that_a_later_one_has_overtaken_ends_its_connection(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        newer = update(topic("flights", 1))
        assert member.replicas.controller_order.take(newer, LATER_CORRELATION_ID, caller.client.number + 1)
        with pytest.raises(ProtocolError):
            refused(caller, broker_epoch=BROKER_EPOCH)
        assert member.image.controller_id is None

    run(body, tmp_path)


def test_broker_without_a_cluster_takes_no_request(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert refused(caller, broker_epoch=UNKNOWN_EPOCH) is ErrorCode.UNSUPPORTED_VERSION

    run(body, tmp_path)


def refused(caller: Caller, broker_epoch: int) -> ErrorCode | None:
    """Returns the error of a request of a controller of epoch 1; None if it is taken."""
    try:
        caller.ask(update(topic("flights", 1), broker_epoch=broker_epoch), NEWEST)
    except KafkaError as error:
        return ErrorCode(error.code)
    return None


MOST_STEP_MS = 50
"""The time that one request may hold the loop; the longest step takes about 10 ms (2026-11)."""


@pytest.mark.parametrize(
    "topics",
    [[topic("flights", *[1] * 10_000)], [topic(f"topic-{number}", 1) for number in range(10_000)]],
    ids=["one topic", "10,000 topics"],
)
def test_request_with_10_000_partitions_is_taken_in_short_steps(topics: list[UpdateMetadataTopicState]) -> None:
    image = ClusterImage()
    table = open_member_topics(BrokerConfig(), image)
    work = image.update(update(*topics))
    longest_ms, count = 0.0, 0
    gc.disable()
    try:
        while True:
            began = time.thread_time()
            if next(work, END) is END:
                break
            longest_ms, count = max(longest_ms, (time.thread_time() - began) * 1000), count + 1
    finally:
        gc.enable()
    assert sum(len(each.partitions) for each in table) == 10_000
    assert count >= 50
    assert longest_ms < MOST_STEP_MS
