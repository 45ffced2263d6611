from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.api import write_txn_markers
from wirekafka.coordinator.transactions.endings import MARKERS_AT_ONCE
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller, wait_for
from wirekafka.tests.api.fetching import at, partitions_of, request_of
from wirekafka.tests.api.transacting import Transactor, run
from wirekafka.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest


def marker(
    producer: Transactor, *indexes: int, topic: str = "flights", epoch: int | None = None, **fields: Any
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch if epoch is None else epoch,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes))],
        **fields,
    )


def write(caller: Caller, *markers: WritableTxnMarker, version: int = 2) -> dict[tuple[int, str, int], int]:
    answer = caller.ask(WriteTxnMarkersRequest(markers=list(markers)), version)
    results = [
        ((each.producer_id, topic.name, partition.partition_index), partition.error_code)
        for each in answer.markers
        for topic in each.topics
        for partition in topic.partitions
    ]
    assert len({each.producer_id for each in answer.markers}) == len(answer.markers)
    assert len(dict(results)) == len(results)
    return dict(results)


def log_of(caller: Caller, index: int = 0) -> Any:
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    return topic.partitions[index].log


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("is_commit", [True, False])
def test_markers_end_a_transaction_in_every_version(tmp_path: Path, version: int, is_commit: bool) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller)
        producer.send(b"a")
        producer.send(b"b", index=1)
        codes = write(caller, marker(producer, 0, 1, transaction_result=is_commit), version=version)
        assert codes == {(producer.producer_id, "flights", index): 0 for index in (0, 1)}
        for index in (0, 1):
            assert log_of(caller, index).last_stable_offset == 2
            assert len(log_of(caller, index).aborted_transactions(0, 2)) == (not is_commit)

    run(body, tmp_path)


def test_marker_of_transactions_v2_needs_the_next_epoch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        producer.send(b"a")
        key = (producer.producer_id, "flights", 0)
        same = marker(producer, 0, transaction_version=2)
        assert write(caller, same) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}
        following = marker(producer, 0, epoch=producer.epoch + 1, transaction_version=2)
        assert write(caller, following) == {key: 0}
        assert log_of(caller).last_stable_offset == 2

    run(body, tmp_path)


def test_markers_that_do_not_fit_are_refused_each_for_itself(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller)
        producer.epoch += 1
        assert write(caller, marker(producer, 0, coordinator_epoch=5))[(producer.producer_id, "flights", 0)] == 0
        fenced = marker(producer, 0, coordinator_epoch=4)
        assert list(write(caller, fenced).values()) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        old = marker(producer, 0, 1, 2, epoch=0, coordinator_epoch=5)
        assert list(write(caller, old).values()) == [
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        gone = marker(producer, 0, topic="gone")
        assert list(write(caller, gone).values()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run(body, tmp_path)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (7, -1), (-1, -1)])
def test_a_marker_of_nobody_is_not_written(tmp_path: Path, producer_id: int, epoch: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        topics = [WritableTxnMarkerTopic(name="flights", partition_indexes=[0])]
        nobodys = WritableTxnMarker(producer_id=producer_id, producer_epoch=epoch, topics=topics)
        assert write(caller, nobodys) == {(producer_id, "flights", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
        assert log_of(caller).log_end_offset == 0
        assert not list(log_of(caller).producers)

    run(body, tmp_path)


def test_markers_of_one_producer_are_answered_together(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer, other = Transactor(caller), Transactor(caller, "other")
        codes = write(caller, marker(producer, 0), marker(other, 0), marker(producer, 1))
        assert set(codes.values()) == {0}
        assert len(codes) == 3
        assert write(caller) == {}

    run(body, tmp_path)


def test_markers_wake_who_waits_with_one_answer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller)
        producer.send(b"a")
        producer.send(b"b", index=1)
        asked = request_of(caller, at(0), at(0, 1), max_wait_ms=60_000, isolation_level=1)
        pending = caller.ask(asked, 17)
        write(caller, marker(producer, 0, 1, transaction_result=True))
        found = partitions_of(await wait_for(pending))
        assert all(len(found[index].records) for index in (0, 1))

    run(body, tmp_path)


def replicate(caller: Caller) -> Any:
    """Gives the partition a follower that has no record yet."""
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    partition = topic.partitions[0]
    partition.is_sole_replica = False
    partition.replicas = partition.in_sync_replicas = (partition.leader, 2)
    return partition


def test_marker_that_is_not_committed_in_time_gets_an_answer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        producer.send(b"a")
        partition = replicate(caller)
        started = trio.current_time()
        answer = await wait_for(caller.ask(WriteTxnMarkersRequest(markers=[marker(producer, 0)]), 1))
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - started == pytest.approx(20, abs=1)
        partition.advance_high_watermark(2)

    run(body, tmp_path, request_timeout_ms="20000")


def test_marker_that_is_committed_in_time_gets_no_error(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        producer.send(b"a")
        partition = replicate(caller)
        pending = caller.ask(WriteTxnMarkersRequest(markers=[marker(producer, 0)]), 1)
        await trio.sleep(10)
        partition.advance_high_watermark(2)
        answer = await wait_for(pending)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0

    run(body, tmp_path)


def test_markers_of_a_client_that_has_gone_away_are_not_written_any_more(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        request = WriteTxnMarkersRequest(markers=[marker(producer, *[0] * 1_000)])
        caller.ask(request, 1).abandon()
        written = log_of(caller).log_end_offset
        await trio.sleep(1)
        assert 0 < log_of(caller).log_end_offset == written < 1_000

    run(body, tmp_path)


def test_many_markers_of_strangers_are_answered_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TopicPartition] = []

    class Noted(TopicPartition):
        def __new__(cls, topic: str, partition: int) -> Noted:
            noted = super().__new__(cls, topic, partition)
            made.append(noted)
            return noted

    monkeypatch.setattr(write_txn_markers, "TopicPartition", Noted)

    async def body(caller: Caller) -> None:
        topics = [WritableTxnMarkerTopic(name=f"unknown-{number}", partition_indexes=[0, 1]) for number in range(1_000)]
        markers = [WritableTxnMarker(producer_id=number, producer_epoch=0, topics=topics) for number in range(3)]
        pending = caller.ask(WriteTxnMarkersRequest(markers=markers), 1)
        assert len(made) <= MARKERS_AT_ONCE
        answer = await wait_for(pending)
        assert [each.producer_id for each in answer.markers] == [0, 1, 2]
        assert [len(each.topics) for each in answer.markers] == [1_000] * 3
        assert len(made) == 6_000

    run(body, tmp_path)


def test_marker_that_a_defect_prevents_gets_an_error_after_which_coordinators_send_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(partition: Partition, *arguments: object, **settings: object) -> None:
        raise ZeroDivisionError

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        monkeypatch.setattr(Partition, "write_marker", fail)
        with capture_logs() as logs:
            assert [*write(caller, marker(producer, 0)).values()] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert [line["event"] for line in logs] == ["A marker cannot be written"]

    run(body, tmp_path)
