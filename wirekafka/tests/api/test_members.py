"""The answers of a member of a cluster: from the image of the cluster, and never in the controller's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from wirekafka.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wirekafka.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wirekafka.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wirekafka.api.describe_cluster import DescribeClusterRequest
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.elect_leaders import ElectLeadersRequest
from wirekafka.api.elect_leaders import TopicPartitions as ElectedPartitions
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.list_partition_reassignments import ListPartitionReassignmentsRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.update_features import UpdateFeaturesRequest
from wirekafka.coordinator.hashing import partition_for
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import Caller, batch, run
from wirekafka.tests.api.members import NODE_ID, id_of, join, topic
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wirekafka.wire.messages.alter_partition import AlterPartitionRequest
from wirekafka.wire.messages.controlled_shutdown import ControlledShutdownRequest
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wirekafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wirekafka.wire.types import Message

NEWEST_METADATA = 12


def ask_metadata(caller: Caller, *names: str, version: int = NEWEST_METADATA) -> Any:
    asked = [MetadataRequestTopic(name=name) for name in names] if names else None
    return caller.ask(MetadataRequest(topics=asked), version)


def test_metadata_has_the_brokers_of_the_clients_listener_and_the_controller(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(controller_id=2)
        response = ask_metadata(caller)
        assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(1, "host1", 9001), (2, "host2", 9002)]
        assert response.controller_id == 2
        caller.client.listener = "INSIDE"
        assert [each.node_id for each in ask_metadata(caller).brokers] == [3]

    run(body, tmp_path)


def test_metadata_before_the_first_word_of_the_controller_is_empty(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller)
        response = ask_metadata(caller)
        assert (response.brokers, response.topics, response.controller_id) == ([], [], -1)

    run(body, tmp_path)


LEADERS = (1, 2, 3, 4, -1)
"""Broker 3 has another listener only, broker 4 is not live."""


@pytest.mark.parametrize(
    ("version", "of_listener", "of_others"),
    [
        (12, ErrorCode.LISTENER_NOT_FOUND, ErrorCode.NONE),
        (6, ErrorCode.LISTENER_NOT_FOUND, ErrorCode.NONE),
        (5, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE),
        (0, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE),
    ],
)
def test_metadata_names_the_leaders_that_the_client_can_reach(
    tmp_path: Path, version: int, of_listener: ErrorCode, of_others: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(topic("flights", *LEADERS))
        [described] = ask_metadata(caller, "flights", version=version).topics
        late = ErrorCode.LEADER_NOT_AVAILABLE
        assert [each.error_code for each in described.partitions] == [of_others, of_others, of_listener, late, late]
        assert [each.leader_id for each in described.partitions] == [1, 2, -1, -1, -1]
        assert [each.replica_nodes for each in described.partitions] == [[1, 2] if version == 0 else [1, 2, 3]] * 5

    run(body, tmp_path)


def test_metadata_finds_topics_by_id_and_all_topics(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(topic("flights", 1), topic("cities", 2), topic(GROUP_METADATA_TOPIC, 2))
        described = ask_metadata(caller).topics
        assert [(each.name, each.is_internal) for each in described] == [
            (GROUP_METADATA_TOPIC, True),
            ("cities", False),
            ("flights", False),
        ]
        asked = [MetadataRequestTopic(name=None, topic_id=each) for each in (id_of("cities"), b"?" * 16)]
        by_id = caller.ask(MetadataRequest(topics=asked), NEWEST_METADATA).topics
        assert [(each.error_code, each.name) for each in by_id] == [(0, "cities"), (ErrorCode.UNKNOWN_TOPIC_ID, None)]

    run(body, tmp_path)


def test_metadata_of_a_large_topic_is_whole(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(topic("flights", *[1] * 1_000))
        [described] = ask_metadata(caller, "flights").topics
        assert [each.partition_index for each in described.partitions] == [*range(1_000)]

    run(body, tmp_path)


def test_metadata_asks_the_controller_for_a_topic_that_does_not_exist(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        response = ask_metadata(caller, "flights", "no/name", TRANSACTION_STATE_TOPIC)
        assert [each.error_code for each in response.topics] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert member.asked == ["flights", TRANSACTION_STATE_TOPIC]
        member.refused = ErrorCode.INVALID_REPLICATION_FACTOR
        assert [each.error_code for each in ask_metadata(caller, "flights").topics] == [member.refused]
        assert caller.broker.topics.find("flights") is None

    run(body, tmp_path)


def test_metadata_of_a_topic_that_the_controller_has_not_told_yet_asks_for_patience(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.image.untold = {"flights", "cities"}
        early = ErrorCode.LEADER_NOT_AVAILABLE
        assert [each.error_code for each in ask_metadata(caller, "flights", "cities").topics] == [early, early]
        assert member.asked == []
        member.tell(topic("flights", 1))
        told = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [each.error_code for each in ask_metadata(caller, "flights", "cities").topics] == told

    run(body, tmp_path)


def test_metadata_asks_for_no_topic_that_the_client_does_not_want(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        asked = [MetadataRequestTopic(name="flights")]
        response = caller.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), NEWEST_METADATA)
        assert [each.error_code for each in response.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert member.asked == []

    run(body, tmp_path)


def test_describe_cluster_has_the_brokers_of_the_image(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(controller_id=2)
        response = caller.ask(DescribeClusterRequest(), 1)
        assert [(each.broker_id, each.host) for each in response.brokers] == [(1, "host1"), (2, "host2")]
        assert response.controller_id == 2

    run(body, tmp_path)


@pytest.mark.parametrize(("key_type", "state_topic"), [(0, GROUP_METADATA_TOPIC), (1, TRANSACTION_STATE_TOPIC)])
def test_coordinator_is_the_leader_of_the_partition_of_the_key(tmp_path: Path, key_type: int, state_topic: str) -> None:
    async def body(caller: Caller) -> None:
        leaders = [1, 2, 3, 4, -1]
        join(caller).tell(topic(state_topic, *leaders))
        keys = [f"key-{number}" for number in range(30)]
        response = caller.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys), 4)
        for found in response.coordinators:
            leader = leaders[partition_for(found.key, 5)]
            expected = (leader, f"host{leader}", 0) if leader in (1, 2) else (-1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE)
            assert (found.node_id, found.host, found.error_code) == expected

    run(body, tmp_path)


def test_coordinator_is_found_by_the_partition_count_of_zookeeper_before_the_controller_tells_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.image.stored_counts[GROUP_METADATA_TOPIC] = 7
        keys = [f"key-{number}" for number in range(30)]
        early = caller.ask(FindCoordinatorRequest(coordinator_keys=keys), 4)
        assert {each.error_code for each in early.coordinators} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert member.asked == []
        member.tell(topic(GROUP_METADATA_TOPIC, 1, 2, 1))
        for found in caller.ask(FindCoordinatorRequest(coordinator_keys=keys), 4).coordinators:
            index = partition_for(found.key, 7)
            assert found.node_id == ([1, 2, 1][index] if index < 3 else -1)

    run(body, tmp_path)


def test_partitions_that_are_added_to_the_topic_of_state_move_no_coordinator(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.image.stored_counts[GROUP_METADATA_TOPIC] = 3
        member.tell(topic(GROUP_METADATA_TOPIC, 1, 2, 1, 2, 2))
        keys = [f"key-{number}" for number in range(30)]
        found = caller.ask(FindCoordinatorRequest(coordinator_keys=keys), 4)
        assert [each.node_id for each in found.coordinators] == [(1, 2, 1)[partition_for(key, 3)] for key in keys]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("request_", "version", "error"),
    [
        (AlterPartitionRequest(), 3, ErrorCode.NOT_CONTROLLER),
        (AllocateProducerIdsRequest(), 0, ErrorCode.NOT_CONTROLLER),
        (ControlledShutdownRequest(), 3, ErrorCode.STALE_CONTROLLER_EPOCH),
    ],
)
def test_broker_that_takes_a_member_for_the_controller_is_told(
    tmp_path: Path, request_: Message, version: int, error: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        join(caller)
        assert caller.ask(request_, version).error_code == error

    run(body, tmp_path)


def test_coordinator_of_a_topic_that_does_not_exist_is_asked_of_the_controller(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        response = caller.ask(FindCoordinatorRequest(key="group"), 3)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert member.asked == [GROUP_METADATA_TOPIC]
        share = caller.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"]), 6)
        assert [each.error_code for each in share.coordinators] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert len(member.asked) == 1

    run(body, tmp_path)


def codes_of(message: Message | Any) -> list[int]:
    """Returns all error codes of a response."""
    if isinstance(message, list):
        return [code for each in message for code in codes_of(each)]
    if not isinstance(message, Message):
        return []
    own = [getattr(message, name) for name in message.field_defaults if name == "error_code"]
    return own + [code for name in message.field_defaults for code in codes_of(getattr(message, name))]


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (CreateTopicsRequest(topics=[CreatableTopic(name="cities", num_partitions=1, replication_factor=1)]), 7),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="flights")]), 6),
        (DeleteTopicsRequest(topic_names=["flights"]), 1),
        (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="flights", count=9)]), 3),
        (ElectLeadersRequest(topic_partitions=[ElectedPartitions(topic="flights", partitions=[0])]), 2),
        (AlterPartitionReassignmentsRequest(), 0),
        (ListPartitionReassignmentsRequest(), 0),
        (UpdateFeaturesRequest(), 1),
    ],
)
def test_member_that_is_not_the_controller_says_so(tmp_path: Path, request_: Message, version: int) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(topic("flights", 1))
        try:
            codes = [code for code in codes_of(caller.ask(request_, version)) if code]
        except KafkaError as error:
            codes = [error.code]
        assert codes == [ErrorCode.NOT_CONTROLLER]

    run(body, tmp_path)


READS = [
    (ListOffsetsRequest(topics=[ListOffsetsTopic(name="flights", partitions=[ListOffsetsPartition(timestamp=-1)])]), 9),
    (OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="flights", partitions=[OffsetForLeaderPartition()])]), 4),
    (DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="flights", partitions=[DeleteRecordsPartition(offset=-1)])]), 2),
    (
        FetchRequest(
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=id_of("flights"), partitions=[FetchPartition(partition_max_bytes=1 << 20)])],
        ),
        17,
    ),
]


@pytest.mark.parametrize(
    ("request_", "version", "is_hosted"),
    [(*each, False) for each in READS] + [(*each, True) for each in READS if not isinstance(each[0], FetchRequest)],
)
def test_partition_that_another_broker_leads_is_not_served(
    tmp_path: Path, request_: Message, version: int, is_hosted: bool
) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", 2))
        if is_hosted:
            member.host(caller, id_of("flights"), "flights", 0, leader=2)
        assert [code for code in codes_of(caller.ask(request_, version)) if code] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run(body, tmp_path)


@pytest.mark.parametrize(("request_", "version"), READS)
def test_partition_that_this_broker_leads_is_served(tmp_path: Path, request_: Message, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", NODE_ID))
        partition = member.host(caller, id_of("flights"), "flights", 0)
        partition.append(memoryview(batch(b"value")), now_ms=caller.now_ms)
        assert not any(codes_of(caller.ask(request_, version)))

    run(body, tmp_path)


def produce_to(*indexes: int) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=bytes(batch(b"value"))) for index in indexes]
    return ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[TopicProduceData(name="flights", partition_data=data)])


def fetch_from(*indexes: int, leader_epoch: int = -1) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, current_leader_epoch=leader_epoch, partition_max_bytes=1 << 20) for index in indexes
    ]
    return FetchRequest(session_id=0, session_epoch=-1, topics=[FetchTopic(topic_id=id_of("flights"), partitions=partitions)])


def leaders_told(response: Any) -> tuple[list[tuple[int, int] | None], list[tuple[int, str, int]]]:
    """Returns the leader and its epoch for each partition of a response to Produce or Fetch, and the addresses."""
    [told] = response.responses
    partitions = told.partition_responses if hasattr(told, "partition_responses") else told.partitions
    leaders = [each.current_leader and (each.current_leader.leader_id, each.current_leader.leader_epoch) for each in partitions]
    return leaders, [(each.node_id, each.host, each.port) for each in response.node_endpoints]


@pytest.mark.parametrize(
    ("make", "version", "has_leaders"), [(produce_to, 10, True), (produce_to, 9, False), (fetch_from, 16, True)]
)
def test_answer_names_the_leaders_of_partitions_of_other_brokers(
    tmp_path: Path, make: Any, version: int, has_leaders: bool
) -> None:
    """Partition 0 is led here; the others by a broker that can be reached, twice, by one that cannot, and by none."""

    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", NODE_ID, 2, 2, 3, -1))
        member.host(caller, id_of("flights"), "flights", 0)
        leaders, nodes = leaders_told(caller.ask(make(0, 1, 2, 3, 4), version))
        told = [(2, 5), (2, 5), (3, 5), (-1, 5)]
        assert leaders[1:] == (told if has_leaders else [None] * 4)
        assert nodes == ([(2, "host2", 9002)] if has_leaders else [])

    run(body, tmp_path)


@pytest.mark.parametrize(("request_", "version"), [(produce_to(0), 10), (fetch_from(0, leader_epoch=5), 16)])
def test_replica_of_this_broker_may_know_the_leader_before_the_image(tmp_path: Path, request_: Message, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", NODE_ID))
        member.host(caller, id_of("flights"), "flights", 0, leader=2).leader_epoch = 6
        assert leaders_told(caller.ask(request_, version)) == ([(2, 6)], [(2, "host2", 9002)])

    run(body, tmp_path)


def describe_topic(caller: Caller, name: str) -> Any:
    asked = DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=["segment.bytes"])
    reply = caller.ask(DescribeConfigsRequest(resources=[asked]), 4)
    told: list[Any] = []
    reply.then(told.append) if isinstance(reply, Pending) else told.append(reply)
    [result] = told[0].results
    return result


def test_settings_of_a_topic_are_those_in_zookeeper(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", 2))
        member.stored = {"flights": {"segment.bytes": "2000000"}}
        [described] = describe_topic(caller, "flights").configs
        assert (described.value, described.is_default) == ("2000000", False)
        assert describe_topic(caller, "cities").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        member.stored = None
        assert describe_topic(caller, "flights").error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(body, tmp_path)
