"""The states of share partitions that another broker stores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.coordinator.share_delivery.persisted_states import PersistedStates
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange
from wirekafka.coordinator.share_state.coordinator import ReadState
from wirekafka.coordinator.share_state.operations import READ
from wirekafka.coordinator.share_state.persister import SharePersister
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending

KEY = ShareKey("g", b"i" * 16, 0)


class Stage:
    """The states, over a persister whose operations the test ends.

    Attributes:
        writes: the changes that were sent, each with its Pending.
        noted: the numbers that the gate was told.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[StateChange, Pending[Any]]] = []
        self.noted: list[int] = []
        gate = SimpleNamespace(note=lambda topic, number: self.noted.append(number))
        self.states = PersistedStates(cast(SharePersister, self), cast(ReplyGate, gate))
        self.unloaded: list[ShareKey] = []
        self.states.on_unload.append(self.unloaded.extend)

    def submit(self, kind: object, key: ShareKey, **asked: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        if kind is READ:
            pending.complete(ReadState(1, 0, []))
        else:
            self.writes.append((asked["change"], pending))
        return pending

    def read(self) -> None:
        self.states.read({KEY: 0})

    def write(self, offset: int) -> list[ErrorCode | None]:
        """Makes a change that accepts a record; returns a list that gets the outcome."""
        self.states.write(KEY, StateChange(0, 1, [StateBatch(offset, offset, RecordState.ACKNOWLEDGED, 1)]), 0)
        told: list[ErrorCode | None] = []
        self.states.await_commit(self.noted[-1], told.append)
        return told


def test_changes_wait_for_the_write_that_is_on_its_way_and_go_together() -> None:
    stage = Stage()
    stage.read()
    told = [stage.write(offset) for offset in (1, 2, 4)]
    [(first, pending)] = stage.writes
    assert [batch.first_offset for batch in first.batches] == [1]
    pending.complete(None)
    assert told == [[None], [], []]
    (_, (second, pending)) = stage.writes
    assert [batch[:2] for batch in second.batches] == [(2, 2), (4, 4)]
    pending.complete(None)
    assert told == [[None]] * 3


def test_state_is_dropped_after_a_write_that_failed_and_late_requests_are_told() -> None:
    stage = Stage()
    stage.read()
    told = [stage.write(1), stage.write(2)]
    stage.writes[0][1].complete(KafkaError(ErrorCode.FENCED_LEADER_EPOCH))
    assert told == [[ErrorCode.NOT_COORDINATOR]] * 2
    assert stage.unloaded == [KEY]
    assert stage.states.get(KEY) is None
    late: list[ErrorCode | None] = []
    stage.states.await_commit(stage.noted[0], late.append)
    assert late == [ErrorCode.NOT_COORDINATOR]


def test_state_that_is_forgotten_is_read_again_only_after_its_changes_are_stored() -> None:
    stage = Stage()
    stage.read()
    stage.write(1)
    stage.states.forget(KEY)
    assert stage.states.get(KEY) is None
    done: list[object] = []
    stage.states.read({KEY: 0}).then(done.append)
    assert done == []
    stage.writes[0][1].complete(None)
    assert done == [None]
    assert stage.states.get(KEY) is not None


def test_numbers_of_the_gate_are_used_again() -> None:
    stage = Stage()
    for _ in range(5):
        stage.read()
        stage.write(1)
        stage.writes[-1][1].complete(None)
        stage.states.forget(KEY)
    assert set(stage.noted) == {0}
