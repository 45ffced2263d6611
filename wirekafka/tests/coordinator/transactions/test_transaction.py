from __future__ import annotations

import pytest

from wirekafka.coordinator.transactions.coordinator import EXAMINED_AT_ONCE, TransactionCoordinator
from wirekafka.coordinator.transactions.records import TransactionRecord
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import (
    EXHAUSTED_EPOCH,
    NEVER_TIMES_OUT_MS,
    TRANSITIONS,
    Transaction,
    TransactionState,
)
from wirekafka.names import TopicPartition
from wirekafka.pending import Work, finish

PREVIOUS_IN_KAFKA = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "PrepareEpochFence", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
    "Dead": {"Empty", "CompleteAbort", "CompleteCommit"},
    "PrepareEpochFence": {"Ongoing"},
}
"""TransactionState.VALID_PREVIOUS_STATES of Apache Kafka 4.3.1."""


def transaction(state: TransactionState, **fields: object) -> Transaction:
    return Transaction("x", 7, 3, state, 1000, 50, **fields)  # type: ignore[arg-type]


def test_transitions_are_those_of_kafka() -> None:
    previous = {
        state.title: {each.title for each in TransactionState if state in TRANSITIONS[each]} for state in TransactionState
    }
    assert previous == PREVIOUS_IN_KAFKA


def test_states_have_the_names_that_clients_know() -> None:
    assert [state.title for state in TransactionState] == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence")
    ]


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_transaction_that_is_decided_takes_no_more_partitions(state: TransactionState) -> None:
    with pytest.raises(AssertionError):
        transaction(state).with_partitions(frozenset({TopicPartition("t", 0)}), client_version=2, now_ms=60)


def test_transition_leaves_the_former_state_as_it_was() -> None:
    before = transaction(TransactionState.EMPTY)
    after = before.with_partitions(frozenset({TopicPartition("t", 0)}), client_version=2, now_ms=60)
    assert before == transaction(TransactionState.EMPTY)
    assert after.start_timestamp_ms == after.update_timestamp_ms == 60


@pytest.mark.parametrize(("now_ms", "is_late"), [(1050, False), (1051, True)])
def test_open_transaction_times_out_after_its_timeout(now_ms: int, is_late: bool) -> None:
    assert transaction(TransactionState.ONGOING, start_timestamp_ms=50).has_timed_out(now_ms) is is_late
    assert not transaction(TransactionState.COMPLETE_COMMIT, start_timestamp_ms=50).has_timed_out(now_ms)


def test_transaction_of_a_two_phase_commit_never_times_out() -> None:
    waiting = Transaction("x", 7, 3, TransactionState.ONGOING, NEVER_TIMES_OUT_MS, 50, start_timestamp_ms=50)
    assert not waiting.has_timed_out(50 + NEVER_TIMES_OUT_MS + 1)


@pytest.mark.parametrize(("next_producer_id", "greatest"), [(None, 7), (9, 9)])
def test_a_producer_id_that_is_about_to_be_had_is_taken(next_producer_id: int | None, greatest: int) -> None:
    coordinator = TransactionCoordinator(TransactionSettings(), lambda: 0, lambda: 2)
    assert coordinator.greatest_producer_id == -1
    coordinator.replay(TransactionRecord("x", transaction(TransactionState.PREPARE_ABORT, next_producer_id=next_producer_id)))
    assert coordinator.greatest_producer_id == greatest


@pytest.mark.parametrize("state", TransactionState)
def test_id_expires_where_no_transaction_is_open(state: TransactionState) -> None:
    can_expire = state.title in ("Empty", "CompleteCommit", "CompleteAbort")
    assert transaction(state).has_expired(150, 100) is can_expire
    assert not transaction(state).has_expired(149, 100)


def test_fence_of_an_older_client_takes_the_former_epoch_from_its_producer() -> None:
    fenced = transaction(TransactionState.ONGOING, last_producer_epoch=2).fenced_v1(60)
    assert (fenced.producer_epoch, fenced.last_producer_epoch) == (4, None)


def test_last_epoch_is_kept_for_fencing() -> None:
    assert EXHAUSTED_EPOCH == 32766
    fenced = transaction(TransactionState.ONGOING)
    fenced.producer_epoch = 32767
    assert fenced.prepared(TransactionState.PREPARE_ABORT, client_version=2, now_ms=1).producer_epoch == 32767


@pytest.mark.parametrize("what", ["timed out", "expired"])
def test_many_transactional_ids_are_examined_in_steps_between_which_they_may_change(what: str) -> None:
    coordinator = TransactionCoordinator(TransactionSettings(), lambda: 0, lambda: 2)
    state = TransactionState.ONGOING if what == "timed out" else TransactionState.EMPTY

    def put(name: str) -> None:
        value = Transaction(name, 7, 3, state, 1000, 50, start_timestamp_ms=50)
        coordinator.replay(TransactionRecord(name, value))

    def remove(name: str) -> None:
        coordinator.replay(TransactionRecord(name, None))

    count = 2 * EXAMINED_AT_ONCE + 1
    for number in range(count):
        put(f"x{number}")
    now_ms = 50 + NEVER_TIMES_OUT_MS
    work: Work[list[str]] = coordinator.timed_out(now_ms) if what == "timed out" else coordinator.expired(now_ms)
    next(work)
    put("new")
    remove("x0")
    remove(f"x{count - 1}")
    next(work)
    found = finish(work)
    has = coordinator.has_timed_out if what == "timed out" else coordinator.has_expired
    assert [name for name in found if has(name, now_ms)] == [f"x{number}" for number in range(1, count - 1)]
