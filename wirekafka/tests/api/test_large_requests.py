"""Large requests: their limits, and that the loop runs other tasks meanwhile."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.alter_configs import AlterConfigsRequest, AlterConfigsResource
from wirekafka.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wirekafka.api.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from wirekafka.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wirekafka.api.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from wirekafka.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.api.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from wirekafka.api.describe_producers import DescribeProducersRequest, TopicRequest
from wirekafka.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from wirekafka.api.describe_topic_partitions import DescribeTopicPartitionsRequest
from wirekafka.api.describe_topic_partitions import TopicRequest as NamedTopic
from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.api.elect_leaders import ElectLeadersRequest
from wirekafka.api.elect_leaders import TopicPartitions as ElectedTopic
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.incremental_alter_configs import AlterConfigsResource as IncrementalAlterConfigsResource
from wirekafka.api.incremental_alter_configs import IncrementalAlterConfigsRequest
from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.api.list_transactions import ListTransactionsRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.api.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wirekafka.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.transactions.requests import InitRequest
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.journal import Journal
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.pending import Pending
from wirekafka.slices import SLICE_SECONDS, Slices
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, wait_for
from wirekafka.tests.api.sharing import ACCEPT, Member, errors
from wirekafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wirekafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wirekafka.wire.types import Message

pytestmark = pytest.mark.time_limits

STEPS_A_SLICE = 10


def cut_into_slices(caller: Caller) -> None:
    numbers = count()
    caller.broker.slices = Slices(caller.broker.clock, seconds=lambda: next(numbers) * SLICE_SECONDS / STEPS_A_SLICE)


class CountingStorage(Storage):
    """Storage that counts how often a file is synced."""

    sync_count = 0

    def sync(self, fd: int) -> None:
        self.sync_count += 1
        super().sync(fd)


def creation(name: str, partition_count: int = 1) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partition_count, replication_factor=1)


def test_metadata_with_many_unknown_names_syncs_the_journal_once_for_a_slice(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        journal = caller.broker.topics._store
        assert isinstance(journal, Journal)
        storage = journal._storage = CountingStorage()
        names = [f"topic-{number}" for number in range(200)]
        response = caller.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]), 9)
        assert [topic.error_code for topic in response.topics] == [0] * 200
        assert storage.sync_count == 1

    run(body, tmp_path)


def test_metadata_that_creates_more_topics_than_a_request_may_leaves_the_rest_unknown(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(3)]
        response = caller.ask(MetadataRequest(topics=names), 9)
        assert [topic.error_code for topic in response.topics] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert len(caller.broker.topics) == 2

    run(body, tmp_path, num_partitions="4000")


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ([5000, 4998], 0),
        ([5000, 4999], ErrorCode.POLICY_VIOLATION),
        ([9999, 9999, 9999], ErrorCode.POLICY_VIOLATION),
    ],
)
def test_create_topics_limits_the_partitions_of_the_whole_request(tmp_path: Path, sizes: list[int], code: int) -> None:
    async def body(caller: Caller) -> None:
        asked = [creation(f"topic-{number}", size) for number, size in enumerate(sizes)]
        response = caller.ask(CreateTopicsRequest(topics=asked, validate_only=True), 7)
        assert [topic.error_code for topic in response.topics] == [code] * len(sizes)

    run(body, tmp_path)


def test_create_topics_of_too_many_names_is_refused_without_describing_them(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        asked = [creation(f"topic-{number}") for number in range(20_000)]
        response = caller.ask(CreateTopicsRequest(topics=asked, validate_only=True), 7)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.POLICY_VIOLATION}
        assert not any(topic.configs for topic in response.topics)

    run(body, tmp_path)


def test_create_partitions_limits_the_partitions_of_the_whole_request(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        for name in ("a", "b"):
            caller.broker.topics.create(name, 1)
        asked = [CreatePartitionsTopic(name=name, count=6000, assignments=None) for name in ("a", "b")]
        response = caller.ask(CreatePartitionsRequest(topics=asked, validate_only=True), 3)
        assert [result.error_code for result in response.results] == [0, ErrorCode.POLICY_VIOLATION]

    run(body, tmp_path)


def ask_for_much(caller: Caller, what: str) -> Any:
    match what:
        case "CreateTopics":
            return caller.ask(CreateTopicsRequest(topics=[creation("new", 100)]), 7)
        case "CreatePartitions":
            return caller.ask(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="old", count=100, assignments=None)]), 3)
        case "DeleteTopics":
            return caller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="large")]), 6)
        case _:
            names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(100)]
            return caller.ask(MetadataRequest(topics=names), 9)


@pytest.mark.parametrize("what", ["CreateTopics", "CreatePartitions", "DeleteTopics", "Metadata"])
def test_request_that_asks_for_much_lets_the_loop_go_on_and_is_answered_in_the_end(tmp_path: Path, what: str) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("old", 1)
        caller.broker.topics.create("large", 100)
        cut_into_slices(caller)
        pending = ask_for_much(caller, what)
        assert isinstance(pending, Pending)
        response = await wait_for(pending)
        answers = (
            response.results if what == "CreatePartitions" else response.responses if what == "DeleteTopics" else response.topics
        )
        assert {answer.error_code for answer in answers} == {0}
        sizes = {topic.name: len(topic.partitions) for topic in caller.broker.topics}
        expected = {
            "CreateTopics": {"old": 1, "large": 100, "new": 100},
            "CreatePartitions": {"old": 100, "large": 100},
            "DeleteTopics": {"old": 1},
            "Metadata": {"old": 1, "large": 100} | {f"topic-{number}": 1 for number in range(100)},
        }
        assert sizes == expected[what]

    run(body, tmp_path)


def test_topic_that_is_being_created_has_its_name_and_cannot_be_found(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        cut_into_slices(caller)
        pending = ask_for_much(caller, "CreateTopics")
        assert caller.broker.topics.find("new") is None
        again = caller.ask(CreateTopicsRequest(topics=[creation("new")]), 7)
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        asked = caller.ask(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 9)
        assert asked.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (await wait_for(pending)).topics[0].error_code == 0
        assert len(caller.broker.find_partition("new", 99).topic) == 3

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ("CreateTopics", {"old": 1, "large": 100, "new": 100}),
        ("CreatePartitions", {"old": 100, "large": 100}),
        ("DeleteTopics", {"old": 1}),
    ],
)
def test_change_whose_client_goes_away_goes_on_to_its_end(tmp_path: Path, what: str, left: dict[str, int]) -> None:
    async def change(caller: Caller) -> None:
        caller.broker.topics.create("old", 1)
        caller.broker.topics.create("large", 100)
        cut_into_slices(caller)
        pending = ask_for_much(caller, what)
        assert isinstance(pending, Pending)
        log_count = len(caller.broker.logs)
        pending.abandon()
        assert len(caller.broker.logs) == log_count, "nothing is done or undone at once"
        await trio.sleep(1)
        assert {topic.name: len(topic.partitions) for topic in caller.broker.topics} == left
        for name in ("new", "large"):
            if name not in left:
                caller.broker.topics.create(name, 1)
                caller.broker.topics.delete(caller.broker.topics.get(name))

    async def look(caller: Caller) -> None:
        assert {topic.name: len(topic.partitions) for topic in caller.broker.topics} == left

    run(change, tmp_path)
    run(look, tmp_path)


def test_topic_that_is_deleted_while_it_grows_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("old", 1)
        cut_into_slices(caller)
        pending = ask_for_much(caller, "CreatePartitions")
        assert isinstance(pending, Pending)
        caller.broker.topics.delete(caller.broker.topics.get("old"))
        response = await wait_for(pending)
        assert response.results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not [log for log in caller.broker.logs if log.topic_partition.topic == "old"]

    run(body, tmp_path)


@pytest.mark.parametrize("asks_for_all", [True, False])
def test_metadata_of_a_large_topic_lets_the_loop_go_on_and_remembers_what_it_described(
    tmp_path: Path, asks_for_all: bool
) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("large", 5000)
        cut_into_slices(caller)
        request = MetadataRequest(topics=None if asks_for_all else [MetadataRequestTopic(name="large")])
        pending = caller.ask(request, 9)
        assert isinstance(pending, Pending)
        [described] = (await wait_for(pending)).topics
        assert [partition.partition_index for partition in described.partitions] == list(range(5000))
        assert topic.described is not None
        assert not isinstance(caller.ask(request, 9), Pending)

    run(body, tmp_path)


MANY = range(100)

LARGE_QUESTIONS: dict[str, tuple[Message, int]] = {
    "DescribeConfigs": (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=32, resource_name=f"g{each}", configuration_keys=None) for each in MANY
            ]
        ),
        4,
    ),
    "FindCoordinator": (FindCoordinatorRequest(coordinator_keys=[f"group-{each}" for each in MANY]), 4),
    "DeleteRecords": (
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="large", partitions=[DeleteRecordsPartition(partition_index=each) for each in MANY])]
        ),
        2,
    ),
    "OffsetForLeaderEpoch": (
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="large", partitions=[OffsetForLeaderPartition(partition=each) for each in MANY])]
        ),
        4,
    ),
    "DescribeProducers": (
        DescribeProducersRequest(topics=[TopicRequest(name="large", partition_indexes=list(MANY))]),
        0,
    ),
    "OffsetFetch": (
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g", topics=[OffsetFetchRequestTopics(name="large", partition_indexes=list(MANY))]
                )
            ]
        ),
        9,
    ),
    "OffsetFetch of one group": (
        OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="large", partition_indexes=list(MANY))]),
        7,
    ),
    "OffsetCommit": (
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="large",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=each // 2 + 60, committed_offset=1) for each in MANY
                    ],
                )
            ],
        ),
        9,
    ),
    "OffsetDelete": (
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="large", partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in range(60, 160)]
                )
            ],
        ),
        0,
    ),
    "ListOffsets": (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="large", partitions=[ListOffsetsPartition(partition_index=each, timestamp=-1) for each in MANY]
                )
            ]
        ),
        9,
    ),
    "DescribeTopicPartitions": (
        DescribeTopicPartitionsRequest(topics=[NamedTopic(name="large"), NamedTopic(name="unknown")]),
        0,
    ),
    "DescribeGroups": (DescribeGroupsRequest(groups=[f"g{each}" for each in MANY], include_authorized_operations=True), 5),
    "DeleteGroups": (DeleteGroupsRequest(groups_names=[f"g{each}" for each in MANY]), 2),
    "ConsumerGroupDescribe": (ConsumerGroupDescribeRequest(group_ids=[f"g{each}" for each in MANY]), 1),
    "ShareGroupDescribe": (ShareGroupDescribeRequest(group_ids=[f"g{each}" for each in MANY]), 1),
    "DescribeShareGroupOffsets": (
        DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id=f"g{each}") for each in MANY]),
        0,
    ),
    "DescribeTransactions": (DescribeTransactionsRequest(transactional_ids=[f"t{each}" for each in MANY]), 0),
    "AddPartitionsToTxn": (
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="t", topics=[AddPartitionsToTxnTopic(name="large", partitions=list(MANY))]
                )
            ]
        ),
        5,
    ),
    "AlterConfigs": (
        AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name=f"t{each}") for each in MANY]),
        2,
    ),
    "IncrementalAlterConfigs": (
        IncrementalAlterConfigsRequest(
            resources=[IncrementalAlterConfigsResource(resource_type=2, resource_name=f"t{each}") for each in MANY]
        ),
        1,
    ),
    "ElectLeaders": (
        ElectLeadersRequest(topic_partitions=[ElectedTopic(topic="large", partitions=list(MANY))]),
        2,
    ),
    "AlterPartitionReassignments": (
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="large", partitions=[ReassignablePartition(partition_index=each) for each in MANY])]
        ),
        0,
    ),
    "TxnOffsetCommit": (
        TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="large", partitions=[TxnOffsetCommitRequestPartition(partition_index=each) for each in range(60, 160)]
                )
            ],
        ),
        5,
    ),
    "AlterReplicaLogDirs": (
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/nowhere", topics=[AlterReplicaLogDirTopic(name=f"t{each}", partitions=[0]) for each in MANY]
                )
            ]
        ),
        2,
    ),
    "DescribeLogDirs": (
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="large", partitions=list(MANY))]),
        4,
    ),
}


def without_disk_space(response: Any) -> Any:
    """Returns the response without the free space on the disk, which other programs change."""
    if isinstance(response, DescribeLogDirsResponse):
        for result in response.results:
            result.usable_bytes = 0
    return response


@pytest.mark.parametrize("name", LARGE_QUESTIONS)
def test_large_question_is_answered_in_slices_as_at_once(tmp_path: Path, name: str) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("large", len(MANY))
        request, version = LARGE_QUESTIONS[name]
        at_once = caller.ask(request, version)
        assert not isinstance(at_once, Pending)
        cut_into_slices(caller)
        pending = caller.ask(request, version)
        assert isinstance(pending, Pending)
        assert without_disk_space(await wait_for(pending)) == without_disk_space(at_once)

    run(body, tmp_path)


def test_producers_of_one_partition_are_described_in_slices(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        for number in range(5000):
            sent = batch(b"a", producer_id=number, producer_epoch=0, base_sequence=0)
            partition.append(memoryview(sent), now_ms=NOW_MS)
        cut_into_slices(caller)
        pending = caller.ask(DescribeProducersRequest(topics=[TopicRequest(name="flights", partition_indexes=[0])]), 0)
        assert isinstance(pending, Pending)
        [topic] = (await wait_for(pending)).topics
        assert [producer.producer_id for producer in topic.partitions[0].active_producers] == list(range(5000))

    run(body, tmp_path)


def test_internal_topic_that_a_client_is_creating_makes_coordinators_tell_clients_to_ask_again(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        cut_into_slices(caller)
        pending = caller.ask(MetadataRequest(topics=[MetadataRequestTopic(name=GROUP_METADATA_TOPIC)]), 9)
        assert isinstance(pending, Pending)
        with pytest.raises(KafkaError) as refusal:
            caller.broker.topics.create_internal(GROUP_METADATA_TOPIC)
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await wait_for(pending)).topics[0].error_code == 0
        assert caller.broker.topics.find(GROUP_METADATA_TOPIC) is not None

    run(body, tmp_path)


def with_many_groups_and_transactions(caller: Caller) -> None:
    caller.broker.topics.create("large", 1)
    for number in range(20):
        caller.broker.groups.commit_offsets(CommitRequest(f"group-{number}", [PartitionCommit("large", 0, 5)]))
        caller.broker.transactions.init_producer_id(InitRequest(f"id-{number}", 60_000))


LISTS: dict[str, tuple[Message, int]] = {
    "ListGroups": (ListGroupsRequest(), 5),
    "ListGroups in a state": (ListGroupsRequest(states_filter=["Stable", "Empty"]), 5),
    "ListTransactions": (ListTransactionsRequest(), 2),
    "ListTransactions of producers": (ListTransactionsRequest(producer_id_filters=[*range(1000)]), 2),
    "ListTransactions by a pattern": (ListTransactionsRequest(transactional_id_pattern="id-.*"), 2),
}


@pytest.mark.parametrize("name", LISTS)
def test_list_of_many_is_made_in_slices_and_lets_what_it_lists_change(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.groups.coordinator.EXAMINED_AT_ONCE", 1)
    monkeypatch.setattr("wirekafka.coordinator.transactions.coordinator.EXAMINED_AT_ONCE", 1)

    async def body(caller: Caller) -> None:
        with_many_groups_and_transactions(caller)
        request, version = LISTS[name]
        at_once = caller.ask(request, version)
        assert not isinstance(at_once, Pending)
        cut_into_slices(caller)
        pending = caller.ask(request, version)
        assert isinstance(pending, Pending)
        caller.broker.groups.commit_offsets(CommitRequest("new", [PartitionCommit("large", 0, 5)]))
        caller.broker.transactions.init_producer_id(InitRequest("new", 60_000))
        response = await wait_for(pending)
        assert response == at_once
        assert len(response.groups if "Groups" in name else response.transaction_states) == 20

    run(body, tmp_path)


def test_offsets_of_a_large_transaction_are_committed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.api.txn_offset_commit.COMMITS_AT_ONCE", 10)

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("large", len(MANY))
        producer = caller.broker.transactions.init_producer_id(InitRequest("t", 60_000))
        partitions = [TxnOffsetCommitRequestPartition(partition_index=each, committed_offset=each) for each in range(101)]
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name="large", partitions=partitions)],
        )
        cut_into_slices(caller)
        pending = caller.ask(request, 5)
        assert isinstance(pending, Pending)
        (topic,) = (await wait_for(pending)).topics
        assert [each.error_code for each in topic.partitions] == [0] * 100 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        caller.broker.transactions.end("t", producer, is_commit=True, client_version=2)
        committed = caller.broker.groups.fetch_offsets("g")["large"]
        assert {index: offset.offset for index, offset in committed.items()} == {index: index for index in MANY}

    run(body, tmp_path)


def test_offsets_of_a_transaction_that_ends_between_two_slices_begin_no_other_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.api.txn_offset_commit.COMMITS_AT_ONCE", 10)

    async def body(caller: Caller) -> None:
        broker = caller.broker
        broker.topics.create("large", len(MANY))
        producer = broker.transactions.init_producer_id(InitRequest("t", 60_000))
        partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_of("g"))
        broker.transactions.add_partitions("t", producer, [partition])
        partitions = [TxnOffsetCommitRequestPartition(partition_index=each, committed_offset=each) for each in MANY]
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name="large", partitions=partitions)],
        )

        def is_open() -> bool:
            return broker.groups.has_open_transaction("g", producer.producer_id, producer.producer_epoch)

        numbers = count()
        ended: list[bool] = []

        def seconds() -> float:
            """Ends the transaction once it has offsets; the slices ask for the time between two steps."""
            if is_open() and not ended:
                ended.append(True)
                broker.transactions.end("t", producer, is_commit=True, client_version=0)
            return next(numbers) * SLICE_SECONDS / STEPS_A_SLICE

        broker.slices = Slices(broker.clock, seconds=seconds)
        pending = caller.ask(request, 3)
        (topic,) = (await wait_for(pending)).topics

        committed = broker.groups.fetch_offsets("g")["large"]
        codes = [each.error_code for each in topic.partitions]
        assert 0 < len(committed) < len(MANY)
        assert codes == [0] * len(committed) + [ErrorCode.INVALID_TXN_STATE] * (len(MANY) - len(committed))
        assert not is_open()

    run(body, tmp_path)


def test_large_groups_and_their_offsets_are_described_in_slices(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 30)
        members = [Member(caller, f"m{number}") for number in range(30)]
        assert len(members) == 30
        for number in range(30):
            caller.ask(
                ConsumerGroupHeartbeatRequest(
                    group_id="c",
                    member_id=f"{number:022}",
                    rebalance_timeout_ms=60_000,
                    subscribed_topic_names=["flights"],
                    topic_partitions=[],
                ),
                1,
            )
        requests: list[tuple[Message, int]] = [
            (ShareGroupDescribeRequest(group_ids=["g"]), 1),
            (ConsumerGroupDescribeRequest(group_ids=["c"]), 1),
            (DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)]), 1),
        ]
        at_once = [caller.ask(*request) for request in requests]
        cut_into_slices(caller)
        for request, expected in zip(requests, at_once, strict=True):
            pending = caller.ask(*request)
            assert isinstance(pending, Pending)
            assert await wait_for(pending) == expected

    run(body, tmp_path)


def share_partitions_of(caller: Caller) -> dict[int, tuple[int | None, int]]:
    """The start offset and the snapshot epoch of each share partition of `flights` in the group `g`."""
    states = caller.broker.share_groups.states
    topic = caller.broker.topics.get("flights")
    found = {index: states.get(ShareKey("g", topic.topic_id, index)) for index in range(len(topic.partitions))}
    return {index: (state.start_offset, state.snapshot_epoch) for index, state in found.items() if state is not None}


def test_share_partitions_of_a_large_topic_are_initialized_once_though_two_members_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.share_state.state_log.CHANGED_AT_ONCE", 2)

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 30)
        cut_into_slices(caller)
        joins = [ShareGroupHeartbeatRequest(group_id="g", member_id=name, subscribed_topic_names=["flights"]) for name in "ab"]
        pendings = [caller.ask(join, 1) for join in joins]
        assert all(isinstance(pending, Pending) for pending in pendings)
        assert len(share_partitions_of(caller)) < 30
        answers = [await wait_for(pending) for pending in pendings]
        assert [answer.error_code for answer in answers] == [0, 0]
        assert share_partitions_of(caller) == dict.fromkeys(range(30), (None, 0))

    run(body, tmp_path)


def test_topic_that_is_deleted_while_a_share_group_initializes_it_is_not_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.share_state.state_log.CHANGED_AT_ONCE", 2)

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 30)
        cut_into_slices(caller)
        pending = caller.ask(ShareGroupHeartbeatRequest(group_id="g", member_id="a", subscribed_topic_names=["flights"]), 1)
        assert isinstance(pending, Pending)
        caller.broker.topics.delete(caller.broker.topics.get("flights"))
        answer = await wait_for(pending)
        assert (answer.error_code, answer.assignment.topic_partitions) == (0, [])

    run(body, tmp_path)


def test_share_fetch_acknowledgements_and_offsets_of_many_partitions_are_handled_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.share_state.state_log.CHANGED_AT_ONCE", 2)
    every = range(30)

    async def body(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter("g", {"share.auto.offset.reset": "earliest"})
        topic = caller.broker.topics.create("flights", len(every))
        for partition in topic.partitions:
            partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
        member = Member(caller)
        cut_into_slices(caller)
        pending = member.ask(member.fetch_request(*every), 2)
        assert isinstance(pending, Pending)
        (fetched,) = (await wait_for(pending)).responses
        assert len([each for each in fetched.partitions if each.acquired_records]) == len(every)
        member.session_epoch = 1
        pending = member.acknowledge(*[(index, 0, 0, [ACCEPT]) for index in every])
        assert isinstance(pending, Pending)
        assert set(errors(await wait_for(pending)).values()) == {0}
        assert {start for start, _ in share_partitions_of(caller).values()} == {1}
        member.member_epoch = -1
        member.heartbeat()
        partitions = [AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0) for index in every]
        altered = AlterShareGroupOffsetsRequestTopic(topic_name="flights", partitions=partitions)
        pending = caller.ask(AlterShareGroupOffsetsRequest(group_id="g", topics=[altered]), 0)
        assert isinstance(pending, Pending)
        await wait_for(pending)
        assert {start for start, _ in share_partitions_of(caller).values()} == {0}
        deleted = DeleteShareGroupOffsetsRequestTopic(topic_name="flights")
        pending = caller.ask(DeleteShareGroupOffsetsRequest(group_id="g", topics=[deleted]), 0)
        assert isinstance(pending, Pending)
        (answer,) = (await wait_for(pending)).responses
        assert answer.error_code == 0
        assert share_partitions_of(caller) == {}

    run(body, tmp_path)
