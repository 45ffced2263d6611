from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.api.members import id_of, join, topic
from wirekafka.tests.api.transactions import add, errors_of, initialize
from wirekafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        _, *producer = initialize(caller)
        assert add(caller, (producer[0], producer[1]), ("t", 0), ("t", 1), version=version) == {("t", 0): NONE, ("t", 1): NONE}
        transaction, partitions = caller.broker.transactions.describe("x")
        assert transaction.state.title == "Ongoing"
        assert transaction.client_version == (2 if version >= 4 else 0)
        assert partitions == [TopicPartition("t", 0), TopicPartition("t", 1)]

    run(body, tmp_path)


def test_a_request_without_partitions_opens_a_transaction_too(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        assert add(caller, (0, 0)) == {}
        assert caller.broker.transactions.describe("x")[0].state.title == "Ongoing"

    run(body, tmp_path)


@pytest.mark.parametrize("version", [3, 4])
def test_none_is_added_if_one_does_not_exist(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        initialize(caller)
        assert add(caller, (0, 0), ("t", 0), ("t", 1), ("u", 0), version=version) == {
            ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert caller.broker.transactions.describe("x")[1] == []

    run(body, tmp_path)


def test_new_partition_is_not_added_before_the_controller_has_told_its_leader(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = join(caller)
        member.tell(topic("u", 1))
        member.host(caller, id_of("t"), "t", 0)
        assert caller.broker.topics.find_partition("t", 0).is_hosted
        assert add(caller, (0, 0), ("t", 0), ("u", 0)) == {
            ("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        }

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, FENCED), (5, FENCED)])
def test_a_fenced_producer_is_told_in_words_that_it_knows(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        initialize(caller)
        initialize(caller)
        assert add(caller, (0, 0), ("t", 0), version=version) == {("t", 0): error}
        assert add(caller, (7, 1), ("t", 0), version=version) == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert add(caller, (0, 1), ("t", 0), version=version, transactional_id="") == {("t", 0): ErrorCode.INVALID_REQUEST}

    run(body, tmp_path)


def test_verification_adds_nothing_and_tells_what_is_missing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        assert add(caller, (0, 0), ("t", 0), ("t", 1), version=4, verify_only=True) == {
            ("t", 0): NONE,
            ("t", 1): ErrorCode.TRANSACTION_ABORTABLE,
        }
        assert caller.broker.transactions.describe("x")[1] == [TopicPartition("t", 0)]

    run(body, tmp_path)


def test_transactions_in_one_request_are_answered_each(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        initialize(caller, "x")
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=each, producer_id=0, topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])]
            )
            for each in ("x", "y")
        ]
        results = caller.ask(AddPartitionsToTxnRequest(transactions=transactions), 4).results_by_transaction
        assert {result.transactional_id: errors_of(result.topic_results) for result in results} == {
            "x": {("t", 0): NONE},
            "y": {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING},
        }

    run(body, tmp_path)
