"""The requests about a cluster's replicas, as one broker answers them; and ListConfigResources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wirekafka.api.elect_leaders import ElectionType, ElectLeadersRequest, TopicPartitions
from wirekafka.api.list_config_resources import CLIENT_METRICS, ListConfigResourcesRequest
from wirekafka.api.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.tests.api.data_plane import Caller, run


def elected(caller: Caller, version: int, **fields: Any) -> dict[tuple[str, int], int]:
    response = caller.ask(ElectLeadersRequest(**fields), version)
    assert response.error_code == 0
    return {
        (result.topic, each.partition_id): each.error_code
        for result in response.replica_election_results
        for each in result.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_finds_each_partition_led(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        wanted = [TopicPartitions(topic="t", partitions=[0, 1, 2]), TopicPartitions(topic="u", partitions=[0])]
        assert elected(caller, version, topic_partitions=wanted) == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert elected(caller, version, topic_partitions=None) == {}

    run(body, tmp_path)


def test_elect_leaders_finds_nobody_for_a_partition_that_is_offline(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("t", 2)
        topic.partitions[1].log.take_offline("it is damaged")
        assert elected(caller, 2, topic_partitions=None) == {("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        found = elected(caller, 2, topic_partitions=None, election_type=ElectionType.UNCLEAN)
        assert found == {("t", 1): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    run(body, tmp_path)


def test_elect_leaders_refuses_an_election_of_no_known_type(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        with pytest.raises(KafkaError, match="type 7") as caught:
            caller.ask(ElectLeadersRequest(election_type=7, topic_partitions=None), 1)
        assert caught.value.code is ErrorCode.INVALID_REQUEST

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("name", "index", "replicas", "expected"),
    [
        ("t", 0, [1], ErrorCode.NONE),
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_reassignment_to_other_replicas_is_refused(
    tmp_path: Path, version: int, name: str, index: int, replicas: list[int] | None, expected: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        assert caller.broker.node_id == 1
        wish = ReassignableTopic(name=name, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
        response = caller.ask(AlterPartitionReassignmentsRequest(topics=[wish]), version)
        (topic,) = response.responses
        (answer,) = topic.partitions
        assert (response.error_code, topic.name, answer.partition_index) == (0, name, index)
        assert answer.error_code == expected
        assert (answer.error_message is None) == (expected is ErrorCode.NONE)

    run(body, tmp_path)


def test_no_reassignment_is_ever_under_way(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        asked = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
        for topics in (None, asked):
            response = caller.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
            assert (response.error_code, response.topics) == (0, [])

    run(body, tmp_path)


def test_list_config_resources_names_what_has_settings(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topics = caller.broker.topics
        topics.create("t", 1)
        topics.group_configs.alter("g", {"share.session.timeout.ms": "50000"})

        def listed(version: int, *types: int) -> list[tuple[int, str]]:
            response = caller.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
            assert response.error_code == 0
            return [(each.resource_type, each.resource_name) for each in response.config_resources]

        everything = [(ResourceType.TOPIC, "t"), (ResourceType.BROKER, "1"), (ResourceType.GROUP, "g")]
        assert listed(1) == everything
        assert listed(1, ResourceType.GROUP, ResourceType.TOPIC) == [everything[2], everything[0]]
        assert listed(1, CLIENT_METRICS) == []
        assert listed(0) == []
        with pytest.raises(KafkaError, match="type 99") as caught:
            listed(1, 99)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    run(body, tmp_path)
