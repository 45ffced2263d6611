"""The runtime of transactions in a whole broker without sockets: its log, its timers, and the state after a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.transactions.coordinator import TransactionCoordinator
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.producer_ids import FILE_NAME
from wirekafka.names import TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.wire.batch import LENGTH_OFFSET, Record, build_batch, iterate_records

T0 = TopicPartition("t", 0)
WALL_SECONDS = 1_700_000_000


def run(path: Path, *bodies: Callable[[Broker], Awaitable[None]], **settings: str) -> None:
    """Runs each body with a broker of its own, one after the other, over the same data."""

    async def main() -> None:
        for body in bodies:
            config = BrokerConfig({"log.dirs": str(path), **{name.replace("_", "."): text for name, text in settings.items()}})
            broker = await Broker.open(config, Clock(wall=lambda: WALL_SECONDS + trio.current_time()))
            async with trio.open_nursery() as nursery:
                broker.start(nursery)
                await body(broker)
                nursery.cancel_scope.cancel()
            await broker.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def begin(broker: Broker, transactional_id: str = "x", timeout_ms: int = 60_000) -> ProducerIdentity:
    """Makes a producer with an open transaction in t-0."""
    if broker.topics.find("t") is None:
        broker.topics.create("t", 1)
    producer = broker.transactions.init_producer_id(InitRequest(transactional_id, timeout_ms))
    assert broker.transactions.check_produce(transactional_id, *producer, [T0], adds=True) == {}
    return producer


def state_of(broker: Broker, transactional_id: str = "x") -> str:
    return broker.transactions.describe(transactional_id)[0].state.title


def records_of(broker: Broker, transactional_id: str = "x") -> list[Record]:
    topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
    assert topic is not None
    partition = topic.partitions[broker.transactions.partition_of(transactional_id)]
    return [record for batch in partition.log.batches(0) for record in iterate_records(batch)]


def refuse_appends(patch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")

    patch.setattr(Partition, name, refuse)


def test_transactions_are_there_after_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        producer = begin(broker)
        assert broker.transactions.end("x", producer, is_commit=True, client_version=2) == (producer.producer_id, 1)
        begin(broker, "y")

    async def second(broker: Broker) -> None:
        assert state_of(broker) == "CompleteCommit"
        assert state_of(broker, "y") == "Ongoing"
        assert broker.transactions.init_producer_id(InitRequest("new", 1000)).producer_id >= 1000

    run(tmp_path, first, second)


def test_transactional_id_is_where_kafka_looks_for_it(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        # In Java, Utils.abs("orders-1".hashCode()) % 50.
        assert broker.transactions.partition_of("orders-1") == 49
        broker.transactions.init_producer_id(InitRequest("x", 1000))
        assert [record.key for record in records_of(broker)] == [b"\0\0\0\x01x"]

    run(tmp_path, body)


def test_a_decided_transaction_is_ended_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(broker: Broker) -> None:
        producer = begin(broker)
        with monkeypatch.context() as patch:
            refuse_appends(patch, "write_marker")
            broker.transactions.end("x", producer, is_commit=True, client_version=2)
        assert state_of(broker) == "PrepareCommit"

    async def second(broker: Broker) -> None:
        assert state_of(broker) == "CompleteCommit"
        topic = broker.topics.find("t")
        assert topic is not None
        assert topic.partitions[0].log.log_end_offset == 1

    run(tmp_path, first, second)


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker, timeout_ms=5000)
        await trio.sleep(4)
        assert state_of(broker) == "Ongoing"
        with capture_logs() as logs:
            await trio.sleep(8)
        assert state_of(broker) == "CompleteAbort"
        assert [entry["transactional_id"] for entry in logs if "timed out" in entry["event"]] == ["x"]
        with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
            broker.transactions.end("x", producer, is_commit=True, client_version=2)

    run(tmp_path, body)


def test_a_transaction_that_its_producer_ends_right_after_the_broker_stood_still_is_not_aborted(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker)
        mock_clock = trio.lowlevel.current_clock()
        assert isinstance(mock_clock, trio.testing.MockClock)
        mock_clock.jump(600)
        await trio.sleep(0.9)
        broker.transactions.end("x", producer, is_commit=True, client_version=2)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def test_many_transactions_that_take_too_long_are_aborted_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.coordinator.transactions.runtime.MOST_ABORTED_AT_ONCE", 2)

    async def body(broker: Broker) -> None:
        producers = {transactional_id: begin(broker, transactional_id, timeout_ms=5000) for transactional_id in "vwxyz"}
        await trio.sleep(10.001)
        assert [state_of(broker, each) for each in "vwxyz"] == ["CompleteAbort"] * 2 + ["Ongoing"] * 3
        broker.transactions.end("x", producers["x"], is_commit=True, client_version=2)
        await trio.sleep(1)
        assert [state_of(broker, each) for each in "vwxyz"] == [*["CompleteAbort"] * 2, "CompleteCommit", *["CompleteAbort"] * 2]
        begin(broker, "v", timeout_ms=5000)
        await trio.sleep(20)
        assert state_of(broker, "v") == "CompleteAbort"

    run(tmp_path, body)


def test_a_timed_out_transaction_is_tried_again_while_its_abort_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(broker: Broker) -> None:
        begin(broker, timeout_ms=5000)
        with monkeypatch.context() as patch:
            refuse_appends(patch, "append")
            await trio.sleep(15)
            assert state_of(broker) == "Ongoing"
        await trio.sleep(10)
        assert state_of(broker) == "CompleteAbort"

    run(tmp_path, body)


def test_transactions_time_out_and_ids_expire_again_after_something_has_gone_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(broker: Broker) -> None:
        begin(broker, timeout_ms=5000)
        broker.transactions.init_producer_id(InitRequest("unused", 1000))
        with monkeypatch.context() as patch, capture_logs() as logs:
            for name in ("timed_out", "expired"):
                patch.setattr(TransactionCoordinator, name, lambda self, now_ms: 1 // 0)
            await trio.sleep(61)
        assert {"Transactional ids cannot be expired", "Transactions that timed out cannot be aborted"} <= {
            entry["event"] for entry in logs
        }
        assert state_of(broker) == "Ongoing"
        await trio.sleep(61)
        assert state_of(broker) == "CompleteAbort"
        with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            broker.transactions.describe("unused")

    settings = {
        "transactional_id_expiration_ms": "60000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "60000",
    }
    run(tmp_path, body, **settings)


def test_transactional_ids_that_are_not_used_expire(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        begin(broker, "open", timeout_ms=900_000)
        broker.transactions.init_producer_id(InitRequest("x", 1000))
        await trio.sleep(90)
        with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            broker.transactions.describe("x")
        assert records_of(broker)[-1].value is None
        assert state_of(broker, "open") == "Ongoing"

    settings = {
        "transactional_id_expiration_ms": "60000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "10000",
    }
    run(tmp_path, body, **settings)


def test_check_produce_verifies_partitions_of_older_clients(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker)
        other = TopicPartition("t", 1)
        check = broker.transactions.check_produce
        assert check("x", *producer, [T0], adds=False) == {}
        assert check("x", *producer, [T0, other], adds=False) == {other: ErrorCode.TRANSACTION_ABORTABLE}
        assert check("x", *producer, [other], adds=False, knows_abortable=False) == {other: ErrorCode.INVALID_TXN_STATE}
        assert check("x", producer.producer_id, 7, [T0], adds=False) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert check("y", *producer, [T0], adds=True) == {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    run(tmp_path, body)


def test_check_produce_verifies_nothing_where_that_is_switched_off(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        check = broker.transactions.check_produce
        assert check("x", 1, 0, [T0], adds=False) == {}
        assert check("x", 1, 0, [T0], adds=True) == {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    run(tmp_path, body, transaction_partition_verification_enable="false")


def test_what_cannot_be_stored_has_not_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker)
        with monkeypatch.context() as patch, capture_logs() as logs:
            refuse_appends(patch, "append")
            for _ in range(2):
                with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
                    broker.transactions.end("x", producer, is_commit=True, client_version=2)
        assert [entry["log_level"] for entry in logs] == ["error"]
        assert state_of(broker) == "Ongoing"
        broker.transactions.end("x", producer, is_commit=True, client_version=2)

    run(tmp_path, body)


def test_transactions_go_with_their_topic(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker)
        topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        broker.topics.delete(topic)
        with pytest.raises(KafkaError, match="INVALID_PRODUCER_ID_MAPPING"):
            broker.transactions.end("x", producer, is_commit=True, client_version=2)
        broker.transactions.init_producer_id(InitRequest("x", 1000))
        assert state_of(broker) == "Empty"

    run(tmp_path, body)


def test_records_that_are_not_understood_are_passed_over(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        begin(broker)
        topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        strange = [Record(b"\0\1\0\1x", b""), Record(b"\0\0\0\1z", b"\0"), Record(b"\0\0\0\1y", b"\0\7")]
        for record in strange:
            topic.partitions[0].append(memoryview(build_batch([record])), now_ms=0)

    async def second(broker: Broker) -> None:
        assert state_of(broker) == "Ongoing"
        for unknown in "yz":
            with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
                broker.transactions.describe(unknown)

    run(tmp_path, first, second)


def test_markers_among_the_records_of_transactions_mean_nothing(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        producer = begin(broker)
        place = TopicPartition(TRANSACTION_STATE_TOPIC, broker.transactions.partition_of("x"))
        broker.transactions.add_partitions("x", producer, [place])
        broker.transactions.end("x", producer, is_commit=True, client_version=0)

    async def second(broker: Broker) -> None:
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, first)
    with capture_logs() as logs:
        run(tmp_path, second)
    assert not [entry for entry in logs if entry["log_level"] in ("warning", "error")]


def test_ids_of_an_offline_partition_are_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(broker: Broker) -> None:
        begin(broker)

    async def second(broker: Broker) -> None:
        assert not broker.transactions.is_available("x")
        for ask in (
            lambda: broker.transactions.init_producer_id(InitRequest("x", 1000)),
            lambda: broker.transactions.describe("x"),
            lambda: broker.transactions.add_partitions("x", ProducerIdentity(0, 0), [T0]),
        ):
            with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
                ask()

    run(tmp_path, first)
    check_online = Partition.check_online

    def check(partition: Partition) -> None:
        if partition.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")
        check_online(partition)

    monkeypatch.setattr(Partition, "is_offline", property(lambda self: self.topic == TRANSACTION_STATE_TOPIC))
    monkeypatch.setattr(Partition, "check_online", check)
    run(tmp_path, second)


def test_a_partition_that_turns_out_to_be_damaged_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        begin(broker)
        begin(broker, "y")
        topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        topic.partitions[broker.transactions.partition_of("x")].writable_log.roll()

    async def second(broker: Broker) -> None:
        assert not broker.transactions.is_available("x")
        assert state_of(broker, "y") == "Ongoing"

    run(tmp_path, first)
    (damaged,) = (path for path in tmp_path.glob(f"{TRANSACTION_STATE_TOPIC}-*/*.log") if b"\0\0\0\1x" in path.read_bytes())
    with damaged.open("r+b") as file:
        file.seek(LENGTH_OFFSET)
        file.write(b"\0\0\0\1")
    run(tmp_path, second)


def test_producer_ids_of_transactions_are_not_given_again_where_the_note_of_them_is_lost(tmp_path: Path) -> None:
    """Data directories of Apache Kafka have no such note, because Kafka keeps it elsewhere."""

    async def first(broker: Broker) -> None:
        broker.transactions.init_producer_id(InitRequest("x", 1000))
        assert broker.transactions.init_producer_id(InitRequest("y", 1000)).producer_id == 1

    async def second(broker: Broker) -> None:
        assert broker.producer_ids.take() == 2

    run(tmp_path, first)
    (tmp_path / FILE_NAME).unlink()
    run(tmp_path, second)


def test_groups_are_whole_where_only_transactions_were_there_before(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        begin(broker)

    async def second(broker: Broker) -> None:
        broker.groups.commit_offsets(CommitRequest("g", [PartitionCommit("t", 0, 5)]))
        topic = broker.topics.find("t")
        assert topic is not None
        broker.topics.delete(topic)
        assert not broker.groups.fetch_offsets("g")

    run(tmp_path, first, second)


def test_transactions_that_are_being_loaded_neither_time_out_nor_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(broker: Broker) -> None:
        begin(broker, timeout_ms=1000)
        broker.transactions.init_producer_id(InitRequest("y", 1000))
        partition = broker.transactions.state.partition(0)
        broker.transactions.state.resign(0)
        await trio.sleep(1)
        monkeypatch.setattr("wirekafka.coordinator.state_topic.RECORDS_IN_SLICE", 1)
        monkeypatch.setattr(broker.clock, "call_later", lambda delay_ms, callback: held.append(callback))
        with capture_logs() as lines:
            broker.transactions.state.elect(partition, 9)
            while len(broker.transactions._coordinator.transactions) < 2:
                held.pop()()
            await trio.sleep(100)
            broker.transactions._expire()
            assert lines == []
            while held and not broker.transactions.state.is_active(0):
                held.pop(0)()
        monkeypatch.undo()
        await trio.sleep(20)
        assert state_of(broker) == "CompleteAbort"

    held: list[Callable[[], object]] = []
    settings = {
        "transaction_state_log_num_partitions": "1",
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": "10000",
        "transactional_id_expiration_ms": "60000",
    }
    run(tmp_path, body, **settings)
