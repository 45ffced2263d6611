"""Coordinators whose partitions have a follower: in each API, a reply waits for the commit of the records that it depends on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from wirekafka.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from wirekafka.api.cluster_versions import SHARE_STATE_REQUESTS
from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequestTopic
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.api.end_txn import EndTxnRequest
from wirekafka.api.gated import GATED
from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.leave_group import LeaveGroupRequest, MemberIdentity
from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.api.list_transactions import ListTransactionsRequest
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.api.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wirekafka.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.registry import all_apis
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.api.sync_group import SyncGroupRequest
from wirekafka.api.txn_offset_commit import (
    FIRST_VERSION_WITH_TRANSACTIONS_V2,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.tests.api import data_plane
from wirekafka.tests.api.data_plane import Caller, batch, wait_for
from wirekafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wirekafka.wire.messages.share_group_state import (
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteTopic,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeTopic,
    ReadPartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadTopic,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteTopic,
)
from wirekafka.wire.types import Message

INTERNAL = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC)
FOLLOWER = 99


def run(body: Callable[[Caller], Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test over a broker whose three internal topics have one partition each, with a follower."""

    async def replicated(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        for name in INTERNAL:
            caller.broker.topics.create_internal(name)
            partition = partition_of(caller, name)
            partition.set_replicas((partition.leader, FOLLOWER), (partition.leader, FOLLOWER))
        await body(caller)

    one = {
        "offsets_topic_num_partitions": "1",
        "transaction_state_log_num_partitions": "1",
        "share_coordinator_state_topic_num_partitions": "1",
    }
    data_plane.run(replicated, path, group_initial_rebalance_delay_ms="0", **one, **settings)


def partition_of(caller: Caller, topic: str) -> Partition:
    found = caller.broker.topics.find(topic)
    assert found is not None
    return found.partitions[0]


def commit(caller: Caller, topic: str) -> None:
    partition = partition_of(caller, topic)
    partition.advance_high_watermark(partition.log.log_end_offset)


def commit_all(caller: Caller) -> None:
    for name in INTERNAL:
        commit(caller, name)


def leave_uncommitted(caller: Caller) -> None:
    """Appends a record that is not committed to each of the internal topics."""
    caller.broker.groups.commit_offsets(CommitRequest("other", [PartitionCommit("flights", 0, 1)]))
    caller.broker.transactions.init_producer_id(InitRequest("other", 1000))
    caller.broker.share_groups.coordinator.initialize(ShareKey("s", SHARED, 0), 1, 0)


TOPIC = "flights"
SHARED = b"i" * 16
"""The id of a topic with state of the share group `s`."""
REQUESTS: dict[int, tuple[Message, int]] = {
    8: (
        OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[OffsetCommitRequestPartition(committed_offset=1)])],
        ),
        8,
    ),
    9: (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8),
    11: (
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        3,
    ),
    12: (HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 4),
    13: (LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]), 4),
    14: (SyncGroupRequest(group_id="g", member_id="m", generation_id=1), 4),
    15: (DescribeGroupsRequest(groups=["g"]), 5),
    16: (ListGroupsRequest(), 4),
    22: (InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4),
    24: (
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
        ),
        3,
    ),
    25: (AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, group_id="g"), 3),
    26: (EndTxnRequest(transactional_id="x", producer_id=1, committed=True), 4),
    28: (
        TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[TxnOffsetCommitRequestPartition(committed_offset=1)])],
        ),
        3,
    ),
    42: (DeleteGroupsRequest(groups_names=["g"]), 2),
    47: (
        OffsetDeleteRequest(
            group_id="g", topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[OffsetDeleteRequestPartition()])]
        ),
        0,
    ),
    65: (DescribeTransactionsRequest(transactional_ids=["x"]), 0),
    66: (ListTransactionsRequest(), 0),
    68: (
        ConsumerGroupHeartbeatRequest(
            group_id="c",
            member_id="m",
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[TOPIC],
            topic_partitions=[],
        ),
        1,
    ),
    69: (ConsumerGroupDescribeRequest(group_ids=["c"]), 0),
    76: (ShareGroupHeartbeatRequest(group_id="s", member_id="m", subscribed_topic_names=[TOPIC]), 1),
    77: (ShareGroupDescribeRequest(group_ids=["s"]), 1),
    83: (
        InitializeShareGroupStateRequest(
            group_id="s", topics=[InitializeTopic(topic_id=SHARED, partitions=[InitializePartition(state_epoch=2)])]
        ),
        0,
    ),
    84: (ReadShareGroupStateRequest(group_id="s", topics=[ReadTopic(topic_id=SHARED, partitions=[ReadPartition()])]), 0),
    85: (
        WriteShareGroupStateRequest(
            group_id="s", topics=[WriteTopic(topic_id=SHARED, partitions=[WritePartition(state_epoch=1)])]
        ),
        1,
    ),
    86: (DeleteShareGroupStateRequest(group_id="s", topics=[DeleteTopic(topic_id=SHARED, partitions=[DeletePartition()])]), 0),
    87: (ReadShareGroupStateSummaryRequest(group_id="s", topics=[ReadTopic(topic_id=SHARED, partitions=[ReadPartition()])]), 1),
    90: (DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=None)]), 0),
    91: (
        AlterShareGroupOffsetsRequest(
            group_id="s",
            topics=[AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[AlterShareGroupOffsetsRequestPartition()])],
        ),
        0,
    ),
    92: (DeleteShareGroupOffsetsRequest(group_id="s", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)]), 0),
}
"""A request of each gated API, with its version. ShareFetch and ShareAcknowledge are sent in test_share_acknowledge."""

OF_TRANSACTIONS = {22, 24, 25, 26, 28, 65}


def errors_in(message: Any) -> Iterator[int]:
    """Returns every error code in a response."""
    for name in type(message).__annotations__:
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                yield from errors_in(each)


def test_every_api_of_a_coordinator_has_a_request_here() -> None:
    assert set(REQUESTS) | {78, 79} == GATED
    assert {api.key for api in all_apis()} >= GATED


@pytest.mark.parametrize("key", REQUESTS)
def test_response_waits_for_the_commit_of_the_state_that_it_saw(tmp_path: Path, key: int) -> None:
    async def body(caller: Caller) -> None:
        leave_uncommitted(caller)
        response = caller.ask(*REQUESTS[key])
        assert isinstance(response, Pending)
        assert not response.is_done
        for _ in range(3):
            commit_all(caller)
            await trio.sleep(0.01)
        assert response.is_done

    run(body, tmp_path)


@pytest.mark.parametrize("key", set(REQUESTS) - {16, 66})
def test_coordinator_that_loses_its_partition_before_the_commit_says_so_and_forgets(tmp_path: Path, key: int) -> None:
    async def body(caller: Caller) -> None:
        leave_uncommitted(caller)
        message, version = REQUESTS[key]
        response = caller.ask(message, version)
        assert isinstance(response, Pending)
        for name in INTERNAL:
            partition_of(caller, name).close()
        found = await wait_for(response)
        assert ErrorCode.NOT_COORDINATOR in ([found.code] if isinstance(found, KafkaError) else set(errors_in(found)))
        if key in OF_TRANSACTIONS:
            assert not caller.broker.transactions._coordinator.transactions
        elif key in SHARE_STATE_REQUESTS:
            assert caller.broker.share_groups.states.get(ShareKey("s", SHARED, 0)) is None
        else:
            assert not caller.broker.groups.coordinator.groups
            assert not caller.broker.groups._timers

    run(body, tmp_path)


def test_response_of_a_group_waits_no_longer_than_the_setting(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        leave_uncommitted(caller)
        response = caller.ask(*REQUESTS[9])
        assert isinstance(response, Pending)
        await trio.sleep(1.9)
        assert not response.is_done
        await trio.sleep(0.2)
        assert response.is_done
        assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in set(errors_in(await wait_for(response)))

    run(body, tmp_path, offsets_commit_timeout_ms="2000")


def test_committed_state_answers_at_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        leave_uncommitted(caller)
        commit_all(caller)
        response = caller.ask(ListGroupsRequest(), 4)
        assert response.is_done
        assert [group.group_id for group in (await wait_for(response)).groups] == ["other"]

    run(body, tmp_path)


def offset_commit_of(producer: ProducerIdentity, partition_count: int) -> TxnOffsetCommitRequest:
    partitions = [TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(partition_count)]
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="many", partitions=partitions)],
    )


async def begin_offset_commit(caller: Caller, partition_count: int) -> Pending[TxnOffsetCommitResponse]:
    """Sends a TxnOffsetCommit that adds the group's partition to the transaction; the addition is not committed."""
    caller.broker.topics.create("many", partition_count)
    producer = caller.broker.transactions.init_producer_id(InitRequest("x", 1000))
    commit_all(caller)
    response = caller.ask(offset_commit_of(producer, partition_count), FIRST_VERSION_WITH_TRANSACTIONS_V2)
    await trio.sleep(1)
    assert isinstance(response, Pending)
    assert partition_of(caller, GROUP_METADATA_TOPIC).log.log_end_offset == 0
    return response


async def continue_offset_commit(caller: Caller) -> None:
    """Commits the addition of the group's partition, so that the offsets are written; these are not committed."""
    commit(caller, TRANSACTION_STATE_TOPIC)
    await trio.sleep(1)
    assert partition_of(caller, GROUP_METADATA_TOPIC).log.log_end_offset > 0


@pytest.mark.parametrize("partition_count", [1, 3000], ids=["at once", "in slices"])
def test_offset_commit_that_continues_after_a_commit_waits_for_the_offsets_too(tmp_path: Path, partition_count: int) -> None:
    async def body(caller: Caller) -> None:
        response = await begin_offset_commit(caller, partition_count)
        await continue_offset_commit(caller)
        assert not response.is_done
        commit(caller, GROUP_METADATA_TOPIC)
        assert response.is_done
        assert set(errors_in(await wait_for(response))) == {0}

    run(body, tmp_path)


def test_offset_commit_that_continues_after_a_commit_says_that_its_offsets_are_lost(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        response = await begin_offset_commit(caller, 1)
        await continue_offset_commit(caller)
        partition_of(caller, GROUP_METADATA_TOPIC).close()
        assert set(errors_in(await wait_for(response))) == {ErrorCode.NOT_COORDINATOR}

    run(body, tmp_path)


def test_offset_commit_whose_addition_to_the_transaction_is_lost_writes_no_offset(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        response = await begin_offset_commit(caller, 1)
        partition_of(caller, TRANSACTION_STATE_TOPIC).close()
        assert set(errors_in(await wait_for(response))) == {ErrorCode.NOT_COORDINATOR}
        assert partition_of(caller, GROUP_METADATA_TOPIC).log.log_end_offset == 0

    run(body, tmp_path)


def test_produce_that_continues_after_a_commit_appends_once_its_partition_is_in_the_transaction(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        producer = caller.broker.transactions.init_producer_id(InitRequest("x", 1000))
        commit_all(caller)
        records = batch(
            b"a",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])]
        request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=data)
        response = caller.ask(request, 12)
        flights = partition_of(caller, TOPIC)
        assert (response.is_done, flights.log.log_end_offset) == (False, 0)
        commit(caller, TRANSACTION_STATE_TOPIC)
        assert (response.is_done, flights.log.log_end_offset) == (True, 1)
        assert set(errors_in(await wait_for(response))) == {0}

    run(body, tmp_path)
