"""Writes of transactions to partitions whose broker is not the coordinator of the transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode
from wirekafka.names import GROUP_METADATA_TOPIC, NO_LEADER_ID, TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.pending import Pending
from wirekafka.testing.data_plane import wait_for
from wirekafka.tests.coordinator.two_brokers import TOPIC, TwoBrokers, partitions, run
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

VERIFICATION = "add-partitions-to-txn"


def init(cluster: TwoBrokers, transactional_id: str = "x") -> ProducerIdentity:
    return cluster.members[1].broker.transactions.init_producer_id(InitRequest(transactional_id, 60_000))


def add(cluster: TwoBrokers, producer: ProducerIdentity, *indexes: int, transactional_id: str = "x") -> None:
    cluster.members[1].broker.transactions.add_partitions(transactional_id, producer, partitions(*indexes))


def ask_produce(
    cluster: TwoBrokers, producer: ProducerIdentity, sequence: int = 0, *, version: int = 11, transactional_id: str = "x"
) -> Any:
    """Sends a record of a transaction to t-1, which broker 2 leads."""
    batch = build_batch(
        [Record(value=b"a")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=1, records=memoryview(batch))])
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])
    return cluster.members[2].caller.ask(request, version)


async def answer_of(response: Any) -> ErrorCode:
    if isinstance(response, Pending):
        with trio.fail_after(60):
            response = await wait_for(response)
    assert not isinstance(response, Exception)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


async def produce(cluster: TwoBrokers, producer: ProducerIdentity, sequence: int = 0, **settings: Any) -> ErrorCode:
    return await answer_of(ask_produce(cluster, producer, sequence, **settings))


def end_offset(cluster: TwoBrokers) -> int:
    return cluster.members[2].partition(TOPIC, 1).log.log_end_offset


def questions(cluster: TwoBrokers) -> list[AddPartitionsToTxnRequest]:
    channel = cluster.members[2].channels.get(VERIFICATION)
    sent = channel.sent if channel else []
    return [request for request, _ in sent if isinstance(request, AddPartitionsToTxnRequest)]


def test_first_record_of_a_transaction_is_appended_after_the_coordinator_has_verified_it(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        response = ask_produce(cluster, producer)
        assert isinstance(response, Pending)
        assert end_offset(cluster) == 0
        assert await answer_of(response) is ErrorCode.NONE
        assert end_offset(cluster) == 1
        [question] = questions(cluster)
        assert question.transactions[0].verify_only

    run(body, tmp_path)


def test_next_records_of_the_transaction_are_not_verified_again(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        await produce(cluster, producer)
        response = ask_produce(cluster, producer, 1)
        assert not isinstance(response, Pending)
        assert len(questions(cluster)) == 1

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(11, ErrorCode.TRANSACTION_ABORTABLE), (10, ErrorCode.INVALID_TXN_STATE)])
def test_record_for_a_partition_that_was_not_added_is_refused(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 0)
        assert await produce(cluster, producer, version=version) is error
        assert end_offset(cluster) == 0

    run(body, tmp_path)


def test_fenced_producer_is_refused(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        former = init(cluster)
        add(cluster, init(cluster), 1)
        assert await produce(cluster, former) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert end_offset(cluster) == 0

    run(body, tmp_path)


def test_record_of_transactions_v2_adds_its_partition(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        assert await produce(cluster, producer, version=12) is ErrorCode.NONE
        _, found = cluster.members[1].broker.transactions.describe("x")
        assert found == partitions(1)

    run(body, tmp_path)


def test_producer_sends_again_if_the_coordinator_does_not_answer(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        response = ask_produce(cluster, producer)
        await trio.lowlevel.checkpoint()
        cluster.members[2].channels[VERIFICATION].is_cut = True
        assert await answer_of(response) is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.members[2].channels[VERIFICATION].is_cut = False
        assert await produce(cluster, producer) is ErrorCode.NONE

    run(body, tmp_path)


def test_producer_sends_again_at_once_if_the_coordinator_leaves_the_cluster(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        await produce(cluster, init(cluster, "y"), transactional_id="y")
        cluster.members[2].channels[VERIFICATION].is_silent = True
        responses = [ask_produce(cluster, producer)]
        await trio.sleep(1)
        responses.append(ask_produce(cluster, producer))
        started = trio.current_time()
        cluster.tell_brokers(2)
        assert [await answer_of(each) for each in responses] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        assert trio.current_time() - started < 1
        assert await produce(cluster, producer) is ErrorCode.NOT_ENOUGH_REPLICAS

    run(body, tmp_path)


def test_producer_sends_again_if_nobody_coordinates_the_transaction(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        cluster.tell(TRANSACTION_STATE_TOPIC, 0, NO_LEADER_ID)
        assert await produce(cluster, producer) is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.members[1].take_role(TRANSACTION_STATE_TOPIC, 0, 3, 9)
        cluster.tell(TRANSACTION_STATE_TOPIC, 0, 1)
        assert await produce(cluster, producer) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert end_offset(cluster) == 0

    run(body, tmp_path)


def test_record_whose_transaction_ends_during_the_verification_is_refused(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        response = ask_produce(cluster, producer)
        settings: dict[str, Any] = {"coordinator_epoch": 5, "is_commit": False, "now_ms": 0, "transaction_version": 0}
        cluster.members[2].partition(TOPIC, 1).write_marker(*producer, **settings)
        assert await answer_of(response) is ErrorCode.INVALID_TXN_STATE
        assert end_offset(cluster) == 1

    run(body, tmp_path)


def test_record_whose_partition_moves_during_the_verification_is_refused(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        response = ask_produce(cluster, producer)
        cluster.members[2].partition(TOPIC, 1).is_gone = True
        assert await answer_of(response) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert end_offset(cluster) == 0

    run(body, tmp_path)


def test_questions_of_one_moment_go_in_one_request(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        names = [f"x{number}" for number in range(10)]
        producers = {name: init(cluster, name) for name in names}
        for name, producer in producers.items():
            add(cluster, producer, 1, transactional_id=name)
        responses = [ask_produce(cluster, producer, transactional_id=name) for name, producer in producers.items()]
        assert {await answer_of(response) for response in responses} == {ErrorCode.NONE}
        [question] = questions(cluster)
        assert [each.transactional_id for each in question.transactions] == names

    run(body, tmp_path)


def test_question_that_cannot_be_written_does_not_hold_the_next_ones(tmp_path: Path, logged_faults: list[str]) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 1)
        await produce(cluster, producer)
        channel, other = cluster.members[2].channels[VERIFICATION], init(cluster, "y")
        add(cluster, other, 1, transactional_id="y")

        def refuse(*_: object) -> None:
            raise ValueError("a string is too long")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channel, "send", refuse)
            assert await produce(cluster, other, transactional_id="y") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(cluster, other, transactional_id="y") is ErrorCode.NONE

    run(body, tmp_path)
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_two_producers_with_one_transactional_id_do_not_mix(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        former = init(cluster)
        producer = ProducerIdentity(former.producer_id + 1_000, 0)
        add(cluster, former, 1)
        first, second = ask_produce(cluster, former), ask_produce(cluster, producer)
        assert await answer_of(first) is ErrorCode.NONE
        assert await answer_of(second) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert end_offset(cluster) == 1

    run(body, tmp_path)


def test_cluster_with_brokers_that_cannot_verify_does_not_ask(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        cluster.members[2].view.verifies_transactions = False
        assert await produce(cluster, init(cluster)) is ErrorCode.NONE
        assert questions(cluster) == []

    run(body, tmp_path)


def test_verification_that_is_switched_off_sends_no_request(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        assert await produce(cluster, init(cluster)) is ErrorCode.NONE
        assert questions(cluster) == []

    run(body, tmp_path, transaction_partition_verification_enable="false")


def test_coordinator_verifies_its_own_transactions_without_a_request(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        cluster.tell(TRANSACTION_STATE_TOPIC, 0, 2)
        cluster.members[1].take_role(TRANSACTION_STATE_TOPIC, 0, 2, 6)
        cluster.members[2].take_role(TRANSACTION_STATE_TOPIC, 0, 2, 6)
        await trio.sleep(1)
        transactions = cluster.members[2].broker.transactions
        producer = transactions.init_producer_id(InitRequest("x", 60_000))
        transactions.add_partitions("x", producer, partitions(1))
        assert await produce(cluster, producer) is ErrorCode.NONE
        assert questions(cluster) == []

    run(body, tmp_path)


def ask_commit(cluster: TwoBrokers, producer: ProducerIdentity, version: int = 4) -> Any:
    """Commits an offset of a group, which broker 2 coordinates."""
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    return cluster.members[2].caller.ask(request, version)


async def commit(cluster: TwoBrokers, producer: ProducerIdentity, version: int = 4) -> ErrorCode:
    return await answer_of_commit(ask_commit(cluster, producer, version))


async def answer_of_commit(response: Any) -> ErrorCode:
    if isinstance(response, Pending):
        response = await wait_for(response)
    assert not isinstance(response, Exception)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_offsets_whose_transaction_ends_during_the_verification_are_refused(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        cluster.members[1].broker.transactions.add_partitions("x", producer, [TopicPartition(GROUP_METADATA_TOPIC, 0)])
        response = ask_commit(cluster, producer)
        cluster.members[2].broker.groups.complete_transaction(
            0, *producer, coordinator_epoch=5, is_commit=False, transaction_version=0
        )
        assert await answer_of_commit(response) is ErrorCode.INVALID_TXN_STATE
        assert cluster.members[2].partition(GROUP_METADATA_TOPIC, 0).log.producers.first_unstable_offset is None

    run(body, tmp_path)


def test_offsets_whose_coordinator_moves_during_the_verification_are_refused(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        cluster.members[1].broker.transactions.add_partitions("x", producer, [TopicPartition(GROUP_METADATA_TOPIC, 0)])
        response = ask_commit(cluster, producer)
        cluster.members[2].take_role(GROUP_METADATA_TOPIC, 0, 1, 2)
        assert await answer_of_commit(response) is ErrorCode.NOT_COORDINATOR

    run(body, tmp_path)


def test_offsets_are_committed_after_the_coordinator_has_verified_the_transaction(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 0)
        assert await commit(cluster, producer) is ErrorCode.TRANSACTION_ABORTABLE
        assert await commit(cluster, producer, version=3) is ErrorCode.INVALID_TXN_STATE
        transactions = cluster.members[1].broker.transactions
        transactions.add_partitions("x", producer, [TopicPartition(GROUP_METADATA_TOPIC, 0)])
        assert await commit(cluster, producer) is ErrorCode.NONE
        transactions.end("x", producer, is_commit=True, client_version=0)
        await trio.sleep(1)
        assert cluster.members[2].broker.groups.fetch_offsets("g")[TOPIC][0].offset == 7

    run(body, tmp_path)


def test_offsets_wait_for_a_coordinator_that_does_not_answer(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        add(cluster, producer, 0)
        await commit(cluster, producer)
        cluster.members[2].channels[VERIFICATION].is_cut = True
        assert await commit(cluster, producer) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(body, tmp_path)


def test_offsets_of_a_group_elsewhere_are_refused_before_the_transaction_is_verified(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = init(cluster)
        cluster.members[2].take_role(GROUP_METADATA_TOPIC, 0, 1, 2)
        assert await commit(cluster, producer) is ErrorCode.NOT_COORDINATOR
        assert questions(cluster) == []

    run(body, tmp_path)
