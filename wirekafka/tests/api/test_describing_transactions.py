"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.api.list_transactions import ListTransactionsRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, run
from wirekafka.tests.api.transactions import add, end, initialize


def listed(caller: Caller, version: int = 2, **fields: Any) -> list[str]:
    answer = caller.ask(ListTransactionsRequest(**fields), version)
    assert answer.error_code == 0
    return sorted(each.transactional_id for each in answer.transaction_states)


def test_transactions_are_described_each(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        caller.broker.topics.create("u", 1)
        initialize(caller)
        add(caller, (0, 0), ("u", 0), ("t", 1), ("t", 0))
        initialize(caller, "idle", transaction_timeout_ms=77)
        open_, idle, unknown, empty = caller.ask(
            DescribeTransactionsRequest(transactional_ids=["x", "idle", "y", ""]), 0
        ).transaction_states
        assert (open_.error_code, open_.transactional_id, open_.transaction_state) == (0, "x", "Ongoing")
        assert (open_.producer_id, open_.producer_epoch) == (0, 0)
        assert (open_.transaction_timeout_ms, open_.transaction_start_time_ms) == (10_000, NOW_MS)
        assert [(topic.topic, topic.partitions) for topic in open_.topics] == [("t", [0, 1]), ("u", [0])]
        assert (idle.transaction_state, idle.transaction_timeout_ms, idle.transaction_start_time_ms) == ("Empty", 77, -1)
        assert idle.topics == []
        assert (unknown.error_code, unknown.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "y")
        assert empty.error_code == ErrorCode.INVALID_REQUEST

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed_by_state_and_producer(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        for transactional_id in ("a", "b", "c"):
            initialize(caller, transactional_id)
        add(caller, (1, 0), ("t", 0), transactional_id="b")
        add(caller, (2, 0), ("t", 0), transactional_id="c")
        end(caller, (2, 0), transactional_id="c")
        assert listed(caller, version) == ["a", "b", "c"]
        assert listed(caller, version, state_filters=["Ongoing", "CompleteCommit"]) == ["b", "c"]
        assert listed(caller, version, producer_id_filters=[0, 2]) == ["a", "c"]
        assert listed(caller, version, state_filters=["Empty"], producer_id_filters=[1]) == []
        found = caller.ask(ListTransactionsRequest(state_filters=["Empty", "Sleeping"]), version)
        assert found.unknown_state_filters == ["Sleeping"]
        assert [(each.transactional_id, each.producer_id, each.transaction_state) for each in found.transaction_states] == [
            ("a", 0, "Empty")
        ]

    run(body, tmp_path)


def test_transactions_are_listed_by_pattern(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        for transactional_id in ("orders-1", "orders-2", "mail"):
            initialize(caller, transactional_id)
        assert listed(caller, transactional_id_pattern="orders-.") == ["orders-1", "orders-2"]
        assert listed(caller, transactional_id_pattern="orders") == []
        assert listed(caller, transactional_id_pattern="") == ["mail", "orders-1", "orders-2"]
        answer = caller.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    run(body, tmp_path)


def test_transactions_are_listed_by_duration(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 1)
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        assert listed(caller, 1, duration_filter=0) == []
        assert listed(caller, 1, duration_filter=-1) == ["x"]

    run(body, tmp_path)
