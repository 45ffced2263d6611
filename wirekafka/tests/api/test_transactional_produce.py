from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.produce import produce_pass
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller, batch, wait_for
from wirekafka.tests.api.transacting import V1, V2, Transactor, run


def partition_of(caller: Caller, index: int = 0) -> Partition:
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    return topic.partitions[index]


@pytest.mark.parametrize("version", range(3, 14))
def test_transaction_is_written_and_ended_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        for number in range(3):
            if version < V2:
                assert producer.add(0) == 0
            first, second = producer.send(b"a", b"b"), producer.send(b"c")
            assert (first.error_code, first.base_offset) == (0, 4 * number)
            assert (second.error_code, second.base_offset) == (0, 4 * number + 2)
            assert partition_of(caller).log.last_stable_offset == 4 * number
            assert producer.end(is_commit=number != 1) == 0
        log = partition_of(caller).log
        assert (log.log_end_offset, log.last_stable_offset) == (12, 12)
        assert [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, 12)] == [(4, 7)]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_batch_to_a_partition_that_was_not_added_is_refused(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller, version=version)
        producer.add(0)
        answers = producer.ask({0: producer.batch(b"a", sequence=0), 1: producer.batch(b"b", sequence=0)})
        assert [answers[index].error_code for index in (0, 1)] == [0, code]
        assert partition_of(caller, 1).log.log_end_offset == 0

    run(body, tmp_path)


def test_batch_to_a_partition_that_was_not_added_is_taken_without_verification(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V1)
        assert producer.send(b"a").error_code == 0

    run(body, tmp_path, transaction_partition_verification_enable="false")


def test_late_batch_of_a_transaction_that_has_ended_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        old = Transactor(caller, version=V1)
        old.add(0)
        old.send(b"a")
        old.end()
        assert old.send(b"late").error_code == ErrorCode.TRANSACTION_ABORTABLE
        new = Transactor(caller, "other", version=V2)
        epoch = new.epoch
        new.send(b"a")
        new.end()
        assert new.send(b"late", sequence=1, producer_epoch=epoch).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert partition_of(caller).log.log_end_offset == 4

    run(body, tmp_path)


@pytest.mark.parametrize("version", [10, V1, V2])
def test_fenced_producer_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        fenced = Transactor(caller, version=version)
        Transactor(caller, version=version)
        assert fenced.send(b"a").error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(body, tmp_path)


@pytest.mark.parametrize("version", [10, V1, V2])
def test_transactional_id_of_another_producer_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        Transactor(caller, "other", version=version)
        answers = producer.ask({0: producer.batch(b"a", sequence=0)}, transactional_id="other")
        assert answers[0].error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert not partition_of(caller).log.producers._beginnings

    run(body, tmp_path)


@pytest.mark.parametrize("version", [10, V1, V2])
def test_empty_transactional_id_is_refused_and_leaves_nothing_behind(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        producer.transactional_id = ""
        assert producer.send(b"a").error_code == ErrorCode.INVALID_REQUEST
        assert not partition_of(caller).log.producers._beginnings

    run(body, tmp_path)


@pytest.mark.parametrize("version", [1, 3, V1, 13])
def test_transactional_batch_without_a_transactional_id_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller, version=version)
        answers = producer.ask({0: producer.batch(b"a", sequence=0), 1: batch(b"b")}, transactional_id=None)
        assert answers[0].error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert answers[1].error_code == 0
        assert partition_of(caller).log.log_end_offset == 0

    run(body, tmp_path)


def test_plain_batches_beside_a_transactional_id_are_taken(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V1)
        assert producer.ask({0: batch(b"a")})[0].error_code == 0
        assert partition_of(caller).log.last_stable_offset == 1

    run(body, tmp_path)


def test_batches_of_two_producers_are_refused_whole(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer, other = Transactor(caller, version=V1), Transactor(caller, "other", version=V1)
        producer.add(0, 1)
        answers = producer.ask({0: producer.batch(b"a", sequence=0), 1: other.batch(b"b", sequence=0)})
        assert {each.error_code for each in answers.values()} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert partition_of(caller).log.log_end_offset == 0

    run(body, tmp_path)


@pytest.mark.parametrize("version", [V1, V2])
def test_control_batch_of_a_client_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        producer.add(0)
        assert producer.send(b"a", is_control=True).error_code == ErrorCode.INVALID_RECORD

    run(body, tmp_path)


@pytest.mark.parametrize("version", [V1, V2])
def test_batch_outside_of_the_open_transaction_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        producer.add(0)
        producer.send(b"a")
        assert producer.send(b"b", is_transactional=False).error_code == ErrorCode.INVALID_TXN_STATE
        assert producer.send(b"b").error_code == 0

    run(body, tmp_path)


def test_first_batch_of_an_unknown_producer_has_sequence_zero_in_transactions_v2(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V2)
        assert producer.send(b"b", sequence=1).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send(b"a").error_code == 0
        assert producer.send(b"b").error_code == 0

    run(body, tmp_path)


def test_batch_that_comes_again_within_its_transaction_is_answered_with_its_offset(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V2)
        producer.send(b"a")
        again = producer.send(b"a", sequence=0)
        assert (again.error_code, again.base_offset, partition_of(caller).log.log_end_offset) == (0, 0, 1)

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("told", "version", "code"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, V1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, V2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, V1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, V2, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, V2, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_coordinator_that_cannot_say_has_the_producer_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: ErrorCode, version: int, code: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=version)
        producer.add(0)
        with monkeypatch.context() as patch:
            patch.setattr(type(caller.broker.transactions), "check_produce", lambda *about, **_: dict.fromkeys(about[4], told))
            assert producer.send(b"a").error_code == code
            assert producer.send(b"b", sequence=1).error_code == code
        assert producer.send(b"b", sequence=1).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send(b"a").error_code == 0
        assert producer.send(b"b").error_code == 0

    run(body, tmp_path)


def test_partition_that_is_refused_anyway_is_not_added(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V2)
        assert producer.ask({5: producer.batch(b"a", sequence=0)})[5].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert producer.ask({0: bytearray(70)})[0].error_code == ErrorCode.INVALID_RECORD
        _, partitions = caller.broker.transactions.describe("pilot")
        assert partitions == []

    run(body, tmp_path)


def test_transactional_batch_with_acks_0_that_is_refused_closes_the_connection(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller, version=V1)
        with pytest.raises(ProtocolError):
            producer.ask({0: producer.batch(b"a", sequence=0)}, acks=0)

    run(body, tmp_path)


def test_transactional_produce_of_a_topic_that_is_gone_asks_nobody(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        data = TopicProduceData(name="gone", partition_data=[PartitionProduceData(index=0, records=batch(b"a"))])
        answer = caller.ask(ProduceRequest(transactional_id="nobody", acks=1, topic_data=[data]), V1)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, tmp_path)


async def send_later(producer: Transactor, *indexes: int, meanwhile: Callable[[], object]) -> list[int]:
    """Produces one record to each partition, all but the first of them after a thread has validated them; returns the errors."""
    data = [PartitionProduceData(index=index, records=producer.batch(b"a", sequence=0)) for index in indexes]
    request = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="flights", partition_data=data)],
    )
    pending = producer.caller.ask(request, producer.version)
    assert isinstance(pending, Pending)
    meanwhile()
    response: Any = await wait_for(pending)
    return [each.error_code for each in response.responses[0].partition_responses]


def test_batch_whose_transaction_ends_during_its_validation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_pass, "SECONDS_ON_LOOP", -1)

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller, version=V1)
        producer.add(0, 1)
        errors = await send_later(producer, 0, 1, meanwhile=lambda: producer.end(is_commit=False))
        assert errors == [0, ErrorCode.INVALID_TXN_STATE]
        log = partition_of(caller, 1).log
        assert (log.log_end_offset, log.last_stable_offset) == (1, 1), "the marker is the only batch"

    run(body, tmp_path)


def test_batch_that_the_coordinator_refused_is_refused_whatever_object_the_partition_has_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_pass, "SECONDS_ON_LOOP", -1)

    async def body(caller: Caller) -> None:
        topics = caller.broker.topics

        def create_again() -> None:
            topic = topics.find("flights")
            assert topic is not None
            topics.delete(topic)
            topics.create("flights", 3)

        topics.create("flights", 3)
        producer = Transactor(caller, version=V1)
        producer.add(0, 1)
        errors = await send_later(producer, 0, 1, 2, meanwhile=create_again)
        assert errors == [0, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE]
        assert [partition_of(caller, index).log.log_end_offset for index in (1, 2)] == [0, 0]

    run(body, tmp_path)
