"""Requests between brokers that a stranger sends: replicas that are none, nonsense epochs, markers and questions of nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import append, at, partitions_of, request_of
from wirekafka.tests.api.members import id_of, join, topic
from wirekafka.tests.api.test_fetch_by_replicas import EPOCH, FOLLOWER, LAG_MS, Session, Stage, at_end
from wirekafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from wirekafka.wire.messages.fetch import FetchPartition, ReplicaState
from wirekafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wirekafka.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


def fetch_as(stage: Stage, replica_id: int, asked: FetchPartition, version: int = 17, broker_epoch: int = 20) -> Any:
    fields: dict[str, Any] = {"replica_id": replica_id}
    if version >= 15:
        fields = {"replica_state": ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch)}
    answer = stage.caller.ask(request_of(stage.caller, asked, **fields), version)
    return partitions_of(answer)[asked.partition]


@pytest.mark.parametrize("version", [4, 11, 14, 17])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_fetch_by_a_broker_that_is_no_replica_changes_nothing(tmp_path: Path, version: int, is_known: bool, is_own: bool) -> None:
    """Source: kafka.cluster.Partition.followerReplicaOrThrow."""

    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        append(caller, batch(b"a"))
        replica_id = stage.node_id if is_own else 999
        if is_known and not is_own:
            stage.broker_epochs[replica_id] = 20
        watermark = stage.partitions[0].log.high_watermark
        assert fetch_as(stage, replica_id, at_end(1), version).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert stage.proposals == []
        assert stage.partitions[0].log.high_watermark == watermark

    run(body, tmp_path)


@pytest.mark.parametrize(("broker_epoch", "joins"), [(19, False), (21, False), (1 << 62, False), (20, True)])
def test_only_a_fetch_of_the_present_registration_lets_a_replica_join(tmp_path: Path, broker_epoch: int, joins: bool) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        append(caller, batch(b"a"))
        fetch_as(stage, FOLLOWER, at_end(1), broker_epoch=broker_epoch)
        assert bool(stage.proposals) is joins

    run(body, tmp_path)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 3, (1 << 63) - 1])
@pytest.mark.parametrize("version", [4, 11, 17])
def test_offset_that_the_log_does_not_have_is_refused_and_noted_nowhere(tmp_path: Path, version: int, offset: int) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a", b"b"))
        assert fetch_as(stage, FOLLOWER, at(offset), version).error_code == OUT_OF_RANGE
        assert stage.partitions[0].log.high_watermark == 0
        assert stage.leaders[0].leadership.followers[FOLLOWER].log_end_offset is None

    run(body, tmp_path)


@pytest.mark.parametrize(
    "asked",
    [
        at_end(1, last_fetched_epoch=EPOCH + 7),
        at_end(1, last_fetched_epoch=(1 << 31) - 1),
        at_end(1, max_bytes=-5),
        at_end(1, log_start_offset=-(1 << 63)),
        at_end(1, log_start_offset=(1 << 63) - 1),
        at(1, current_leader_epoch=-7),
        at(1, current_leader_epoch=(1 << 31) - 1),
    ],
)
def test_nonsense_in_a_replicas_fetch_is_answered(tmp_path: Path, asked: FetchPartition) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a", b"b"))
        data = fetch_as(stage, FOLLOWER, asked)
        assert data.error_code in (0, OUT_OF_RANGE, ErrorCode.UNKNOWN_LEADER_EPOCH)
        stage.leaders[0].check_lag()
        assert stage.partitions[0].log.high_watermark <= 1

    run(body, tmp_path)


def test_session_of_a_replica_that_another_broker_uses_helps_neither(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        append(caller, batch(b"a"))
        session = Session(stage, at_end(0))
        request = stage.request(session_id=session.session_id, session_epoch=1)
        request.replica_state = ReplicaState(replica_id=999, replica_epoch=20)
        assert partitions_of(caller.ask(request, 17))[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert stage.proposals == []
        stage.leaders[0].check_lag()

    run(body, tmp_path)


@pytest.mark.parametrize("replica_id", [-3, 999, FOLLOWER])
@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_nonsense_in_offset_for_leader_epoch_is_answered(tmp_path: Path, replica_id: int, version: int) -> None:
    async def body(caller: Caller) -> None:
        Stage(caller)
        append(caller, batch(b"a"))
        asked = [
            OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
            for index in (0, -1, 5, (1 << 31) - 1)
            for current in (-9, 0, (1 << 31) - 1)
            for epoch in (-9, 0, EPOCH, (1 << 31) - 1)
        ]
        request = OffsetForLeaderEpochRequest(
            replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="flights", partitions=asked)]
        )
        answer = caller.ask(request, version)
        [answered] = answer.topics
        assert len(answered.partitions) == len(asked)
        assert all(each.end_offset <= 1 for each in answered.partitions)

    run(body, tmp_path)


def write_markers(caller: Caller, *markers: WritableTxnMarker, version: int = 1) -> Any:
    return caller.ask(WriteTxnMarkersRequest(markers=list(markers)), version)


def codes_of(answer: Any) -> list[int]:
    return [each.error_code for marker in answer.markers for topic in marker.topics for each in topic.partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_markers_for_partitions_that_a_member_does_not_lead_are_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        names = ("flights", "__consumer_offsets", "__transaction_state")
        member.tell(*(topic(name, 2, -1) for name in names))
        followed = member.host(caller, id_of("flights"), "flights", 0, leader=2)
        topics = [WritableTxnMarkerTopic(name=name, partition_indexes=[0, 1, 7, -1]) for name in (*names, "unknown", "")]
        answer = write_markers(caller, WritableTxnMarker(producer_id=7, producer_epoch=0, topics=topics), version=version)
        assert set(codes_of(answer)) <= {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert followed.log.log_end_offset == 0

    run(body, tmp_path)


def test_markers_with_nonsense_epochs_are_answered(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", 1))
        led = member.host(caller, id_of("flights"), "flights", 0)
        topics = [WritableTxnMarkerTopic(name="flights", partition_indexes=[0, 0])]
        markers = [
            WritableTxnMarker(producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, topics=topics)
            for producer_id in (-(1 << 63), -1, 0, (1 << 63) - 1)
            for epoch in (-(1 << 15), -1, 0, (1 << 15) - 1)
            for coordinator_epoch in (-(1 << 31), 0, (1 << 31) - 1)
        ]
        answer = write_markers(caller, *markers)
        assert sorted(each.producer_id for each in answer.markers) == [-(1 << 63), -1, 0, (1 << 63) - 1]
        append(caller, batch(b"a"))
        assert led.log.last_stable_offset == led.log.log_end_offset

    run(body, tmp_path)


def test_ten_thousand_markers_are_written_in_turns(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("flights", 1))
        member.host(caller, id_of("flights"), "flights", 0)
        markers = [
            WritableTxnMarker(
                producer_id=number, producer_epoch=0, topics=[WritableTxnMarkerTopic(name="flights", partition_indexes=[0])]
            )
            for number in range(6_000)
        ]
        assert set(codes_of(await wait_for(write_markers(caller, *markers)))) == {0}

    run(body, tmp_path)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("verify_only", [False, True])
def test_questions_about_transactions_of_nobody_are_refused(tmp_path: Path, version: int, verify_only: bool) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        asked = [AddPartitionsToTxnTopic(name="t", partitions=[0, 0, -1, 7]), AddPartitionsToTxnTopic(name="", partitions=[0])]
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, verify_only=verify_only, topics=topics
            )
            for name in ("", "nobody", "nobody", "x" * 30_000)
            for producer_id in (-1, 0, (1 << 63) - 1)
            for epoch in (-1, (1 << 15) - 1)
            for topics in (asked, [], [AddPartitionsToTxnTopic(name="t", partitions=[0])])
        ]
        answer = caller.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
        assert len(answer.results_by_transaction) == len(transactions)
        codes = {
            each.partition_error_code
            for result in answer.results_by_transaction
            for found in result.topic_results
            for each in found.results_by_partition
        }
        assert codes <= {
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        }

    run(body, tmp_path)


def test_replica_that_only_a_stranger_plays_leaves_the_in_sync_replicas(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a"))
        await trio.sleep(3 * LAG_MS / 1_000)
        assert fetch_as(stage, 999, at_end(1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert fetch_as(stage, FOLLOWER, at_end(1), broker_epoch=19).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        stage.leaders[0].check_lag()
        assert [change.proposed for change in stage.proposals] == [{stage.node_id}]
        assert stage.partitions[0].log.high_watermark == 0

    run(body, tmp_path)
