"""The endings of decided transactions: markers, and markers that cannot be written at first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.broker import Broker
from wirekafka.coordinator.transactions.endings import MARKERS_AT_ONCE
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.tests.coordinator.transactions.test_runtime import run, state_of
from wirekafka.wire.batch import Record, build_batch

STUCK = "A transaction is decided, but cannot be ended yet; it is tried again"


def topic_of(broker: Broker) -> list[Partition]:
    """Returns the partitions of a topic, which is created if needed."""
    return (broker.topics.find("t") or broker.topics.create("t", 2)).partitions


@contextmanager
def first_partition_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Partition]]:
    """Makes the first partition of topics refuse markers; returns the list of attempts."""
    tried: list[Partition] = []
    write_marker = Partition.write_marker

    def write(self: Partition, *args: Any, **kwargs: Any) -> Any:
        if self.index == 0:
            tried.append(self)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")
        return write_marker(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "write_marker", write)
        yield tried


def commit(broker: Broker, transactional_id: str = "x", index: int = 0) -> None:
    """Commits a transaction that has t-`index` and the next partition."""
    count = len(topic_of(broker))
    producer = broker.transactions.init_producer_id(InitRequest(transactional_id, 60_000))
    partitions = [TopicPartition("t", each) for each in range(index, count)]
    broker.transactions.add_partitions(transactional_id, producer, partitions, client_version=2)
    broker.transactions.end(transactional_id, producer, is_commit=True, client_version=2)


def test_partitions_that_take_their_markers_do_not_wait_for_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(broker: Broker) -> None:
        with first_partition_fails(monkeypatch):
            commit(broker)
            assert [partition.log.log_end_offset for partition in topic_of(broker)] == [0, 1]
            assert broker.transactions.describe("x")[1] == [("t", 0)]
        await trio.sleep(1)
        assert state_of(broker) == "CompleteCommit"
        assert [partition.log.log_end_offset for partition in topic_of(broker)] == [1, 1]

    run(tmp_path, body)


def test_transactions_that_are_stuck_are_tried_again_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        with first_partition_fails(monkeypatch) as tried:
            for transactional_id in "xyz":
                commit(broker, transactional_id)
            del tried[:]
            await trio.sleep(2.1)
            assert len(tried) == 4 * 3

    run(tmp_path, body)


def test_each_transaction_that_gets_stuck_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        for _ in range(2):
            with first_partition_fails(monkeypatch), capture_logs() as logs:
                commit(broker)
                await trio.sleep(3)
            assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [STUCK]
            await trio.sleep(1)
            assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), [(7, 0), (0, 7)])
def test_a_partition_where_others_have_gone_on_needs_no_marker(tmp_path: Path, epoch: int, coordinator_epoch: int) -> None:
    async def body(broker: Broker) -> None:
        partition = topic_of(broker)[1]
        producer_id = broker.transactions.init_producer_id(InitRequest("x", 1000)).producer_id
        partition.write_marker(
            producer_id, epoch, coordinator_epoch=coordinator_epoch, is_commit=False, now_ms=0, transaction_version=0
        )
        commit(broker, index=1)
        assert state_of(broker) == "CompleteCommit"
        assert partition.log.log_end_offset == 1

    run(tmp_path, body)


def test_a_stuck_transaction_goes_with_the_topic_that_held_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        with first_partition_fails(monkeypatch):
            commit(broker)
            topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
            assert topic is not None
            broker.topics.delete(topic)
        await trio.sleep(1)
        assert broker.topics.find(TRANSACTION_STATE_TOPIC) is None
        assert topic_of(broker)[0].log.log_end_offset == 0
        commit(broker)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def test_ids_are_where_the_number_of_partitions_that_there_are_says(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        commit(broker)
        assert broker.transactions.partition_of("orders-1") == 2

    async def second(broker: Broker) -> None:
        assert broker.transactions.partition_of("orders-1") == 2
        assert state_of(broker) == "CompleteCommit"
        topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        broker.topics.delete(topic)
        assert broker.transactions.partition_of("orders-1") == 49

    run(tmp_path, first, transaction_state_log_num_partitions="3")
    run(tmp_path, second)


def test_a_partition_that_can_store_transactions_again_is_told_of_and_so_is_its_next_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")

    async def body(broker: Broker) -> None:
        commit(broker)
        with capture_logs() as logs:
            for _ in range(2):
                with monkeypatch.context() as patch, pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
                    patch.setattr(Partition, "append", refuse)
                    commit(broker)
                commit(broker)
        told = [entry["event"] for entry in logs if "stored" in entry["event"]]
        assert told == ["State cannot be stored", "State can be stored again"] * 2

    run(tmp_path, body)


def test_many_ids_of_a_partition_expire_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.coordinator.transactions.runtime.MOST_EXPIRED_AT_ONCE", 2)

    async def body(broker: Broker) -> None:
        for number in range(5):
            broker.transactions.init_producer_id(InitRequest(f"x{number}", 1000))
        await trio.sleep(90)
        for number in range(5):
            with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
                broker.transactions.describe(f"x{number}")
        topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        assert len(list(topic.partitions[0].log.batches(0))) == 5 + 3

    settings = {
        "transaction_state_log_num_partitions": "1",
        "transactional_id_expiration_ms": "60000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "10000",
    }
    run(tmp_path, body, **settings)


def transactional_batch(producer: ProducerIdentity, sequence: int = 0) -> memoryview:
    return memoryview(
        build_batch(
            [Record(value=b"v")],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
    )


def test_fenced_marker_of_an_open_transaction_does_not_count_as_written(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        partition = topic_of(broker)[0]
        producer = broker.transactions.init_producer_id(InitRequest("x", 60_000))

        def write_marker_of_another_coordinator() -> None:
            epoch = producer.producer_epoch
            partition.write_marker(
                producer.producer_id, epoch, coordinator_epoch=7, is_commit=False, now_ms=0, transaction_version=0
            )

        write_marker_of_another_coordinator()
        broker.transactions.add_partitions("x", producer, [TopicPartition("t", 0)])
        partition.append(transactional_batch(producer), now_ms=0)
        broker.transactions.end("x", producer, is_commit=True, client_version=0)
        await trio.sleep(1)
        assert (state_of(broker), partition.log.last_stable_offset) == ("PrepareCommit", 1)
        write_marker_of_another_coordinator()
        await trio.sleep(1)
        assert (state_of(broker), partition.log.last_stable_offset) == ("CompleteCommit", 3)

    run(tmp_path, body)


def test_markers_of_many_partitions_are_written_some_at_a_time(tmp_path: Path) -> None:
    count = 2 * MARKERS_AT_ONCE + 10

    async def body(broker: Broker) -> None:
        partitions = broker.topics.create("t", count).partitions
        commit(broker)
        written = [partition.log.log_end_offset for partition in partitions]
        assert sum(written) == MARKERS_AT_ONCE
        commit_of_another = broker.topics.create("u", 1).partitions[0]
        producer = broker.transactions.init_producer_id(InitRequest("y", 60_000))
        broker.transactions.add_partitions("y", producer, [TopicPartition("u", 0)], client_version=2)
        broker.transactions.end("y", producer, is_commit=True, client_version=2)
        assert state_of(broker, "y") == "CompleteCommit", "a short transaction does not wait for a long one"
        assert commit_of_another.log.log_end_offset == 1
        with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS"):
            broker.transactions.init_producer_id(InitRequest("x", 60_000))
        await trio.sleep(0.1)
        assert state_of(broker) == "CompleteCommit"
        assert [partition.log.log_end_offset for partition in partitions] == [1] * count

    run(tmp_path, body)


def test_unexpected_exception_of_a_marker_costs_its_own_transaction_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(broker: Broker) -> None:
        write_marker = Partition.write_marker

        def fail(self: Partition, *args: Any, **kwargs: Any) -> Any:
            if self.index == 0:
                raise ZeroDivisionError
            return write_marker(self, *args, **kwargs)

        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(Partition, "write_marker", fail)
            commit(broker)
            commit(broker, "y", 1)
        assert (state_of(broker), state_of(broker, "y")) == ("PrepareCommit", "CompleteCommit")
        assert "A marker cannot be written" in [entry["event"] for entry in logs]
        await trio.sleep(1)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def test_unexpected_exception_of_the_completion_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(broker.transactions._coordinator, "complete", lambda *args: 1 // 0)
            commit(broker)
        assert "A transaction cannot be completed" in [entry["event"] for entry in logs]
        await trio.sleep(1)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def replicated(broker: Broker) -> Partition:
    """Returns the only partition of __transaction_state, with a follower in sync."""
    topic = broker.topics.find(TRANSACTION_STATE_TOPIC) or broker.topics.create_internal(TRANSACTION_STATE_TOPIC)
    [partition] = topic.partitions
    partition.set_replicas((partition.leader, 99), (partition.leader, 99))
    return partition


def test_markers_wait_for_the_commit_of_the_decision_and_the_completion_for_theirs(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        first, second = topic_of(broker)
        first.set_replicas((first.leader, 99), (first.leader, 99))
        state = replicated(broker)
        commit(broker)
        assert second.log.log_end_offset == 0
        state.advance_high_watermark(state.log.log_end_offset)
        assert (first.log.log_end_offset, second.log.log_end_offset) == (1, 1)
        assert state_of(broker) == "PrepareCommit"
        first.advance_high_watermark(1)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body, transaction_state_log_num_partitions="1")


def test_decision_that_is_lost_before_its_commit_writes_no_marker(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        partitions = topic_of(broker)
        state = replicated(broker)
        commit(broker)
        state.close()
        await trio.sleep(1)
        assert [partition.log.log_end_offset for partition in partitions] == [0, 0]
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            state_of(broker)
        assert not len(broker.transactions._endings)

    run(tmp_path, body, transaction_state_log_num_partitions="1")


def test_ids_with_long_names_expire(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        for number in range(40):
            broker.transactions.init_producer_id(InitRequest(f"{number}" + "x" * 30_000, 1000))
        await trio.sleep(90)
        assert not broker.transactions._coordinator.transactions

    settings = {
        "transaction_state_log_num_partitions": "1",
        "transactional_id_expiration_ms": "60000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "10000",
    }
    run(tmp_path, body, **settings)
