"""Legal runs of a sequential model are not reported; each kind of damage to such a run is.

The model has one partition. Its operations write the log and the history together. Damage then changes the log or the history in
one place, as a bug of a broker would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.files import Batch, Record, Replica
from wirekafka.simulation.checker.violations import Property
from wirekafka.simulation.history import (
    CommittedOffset,
    Entry,
    Event,
    History,
    OffsetsAcknowledged,
    OffsetsRead,
    OffsetsSent,
    OffsetsUnknown,
    RecordRead,
    SendAcknowledged,
    SendFailed,
    SendUnknown,
    TopicCreated,
    TransactionAborted,
    TransactionBegun,
    TransactionCommitted,
    TransactionEndRequested,
    TransactionUnknown,
)
from wirekafka.tests.simulation.checker.worlds import log, marker, sent

MODERATE = settings(max_examples=60, deadline=None)


@dataclass
class Model:
    """A log and a history that belong together.

    Attributes:
        fates: whether the transaction at the offset of each of its records was committed.
        committed_offset: the offset of the group, and the name of its commit.
    """

    batches: list[Batch] = field(default_factory=list)
    events: list[Event] = field(default_factory=lambda: [TopicCreated("t", 1)])
    leader_epoch: int = 0
    sequence: int = 0
    count: int = 0
    fates: dict[int, bool] = field(default_factory=dict)
    committed_offset: tuple[int, str] | None = None
    generation: int = 1

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def replicas(self) -> tuple[Replica, ...]:
        return tuple(replace(log(*self.batches), broker_id=number) for number in (1, 2, 3))

    def history(self) -> History:
        return History(Entry(number, number, event) for number, event in enumerate(self.events, 1))

    # Operations

    def _append(self, payloads: list[str], *, producer: tuple[int, int, int], transactional: bool = False) -> int:
        base_offset = self.end_offset
        records = tuple(Record(base_offset + number, None, payload.encode()) for number, payload in enumerate(payloads))
        batch = Batch(
            base_offset, base_offset + len(payloads) - 1, self.leader_epoch, *producer, transactional, False, None, records
        )
        self.batches.append(batch)
        return base_offset

    def _names(self, count: int) -> list[str]:
        self.count += count
        return [f"r{self.count - number}" for number in reversed(range(count))]

    def send(self, size: int) -> None:
        """An idempotent producer sends a batch, and is told."""
        names = self._names(size)
        self.events += [sent(name, producer=(3, 0, self.sequence + number)) for number, name in enumerate(names)]
        base_offset = self._append(names, producer=(3, 0, self.sequence))
        self.sequence += size
        self.events += [SendAcknowledged(name, base_offset + number) for number, name in enumerate(names)]

    def retry_without_idempotence(self, size: int) -> None:
        """A producer that has no id sends until it is told; each attempt is appended."""
        (name,) = self._names(1)
        self.events.append(sent(name))
        for _ in range(size):
            offset = self._append([name], producer=(-1, -1, -1))
        self.events.append(SendAcknowledged(name, offset))

    def give_up(self, size: int) -> None:
        """A producer does not know whether its record was appended; it was if `size` is even."""
        (name,) = self._names(1)
        self.events.append(sent(name))
        if size % 2 == 0:
            self._append([name], producer=(-1, -1, -1))
        self.events.append(SendUnknown(name, "timeout"))

    def fail(self, size: int) -> None:
        """A record is refused."""
        (name,) = self._names(1)
        self.events += [sent(name), SendFailed(name, "MESSAGE_TOO_LARGE")]

    def elect(self, size: int) -> None:
        """There is another leader, which has no other records."""
        self.leader_epoch += size

    def transact(self, size: int) -> None:
        """A transaction with two records ends: committed, aborted, or one of both and its producer does not know."""
        names, transaction = self._names(2), f"x{self.count}"
        is_commit, is_known = size in (1, 3), size < 3
        sequence = len(self.fates)
        self.events.append(TransactionBegun(transaction, "x", 9, 0, 2))
        self.events += [
            sent(name, producer=(9, 0, sequence + number), transaction=transaction) for number, name in enumerate(names)
        ]
        offset = self._append(names, producer=(9, 0, sequence), transactional=True)
        self.events += [SendAcknowledged(name, offset + number) for number, name in enumerate(names)]
        self.fates |= {offset: is_commit, offset + 1: is_commit}
        self.events.append(TransactionEndRequested(transaction, is_commit or not is_known))
        self.batches.append(marker(self.end_offset, commit=is_commit, producer=(9, 0), epoch=self.leader_epoch))
        if not is_known:
            self.events.append(TransactionUnknown(transaction, "timeout"))
        else:
            self.events.append(TransactionCommitted(transaction) if is_commit else TransactionAborted(transaction))

    def read_all(self, size: int) -> None:
        """A consumer reads all records, or all that are committed."""
        position, is_read_committed = 0, size % 2 == 0
        for batch in self.batches:
            for record in batch.records:
                if not batch.is_control and not (is_read_committed and self.fates.get(record.offset) is False):
                    payload = (record.value or b"").decode()
                    self.events.append(RecordRead("c", "t", 0, record.offset, payload, is_read_committed, position))
                    position = record.offset + 1

    def commit_offset(self, size: int) -> None:
        """A member commits the offset `size`; with 3 it does not know the outcome, and the offset is stored."""
        self.count += 1
        name = f"m{self.count}"
        self.events.append(OffsetsSent(name, "g", self.generation, (CommittedOffset("t", 0, size, name),)))
        self.events.append(OffsetsUnknown(name, "timeout") if size == 3 else OffsetsAcknowledged(name))
        self.committed_offset = size, name

    def rebalance(self, size: int) -> None:
        """The group has another generation."""
        self.generation += 1

    def read_offset(self, size: int) -> None:
        """A client reads the offset of the group."""
        offset, name = self.committed_offset or (None, None)
        self.events.append(OffsetsRead("g", (CommittedOffset("t", 0, offset, name),), len(self.events)))


OPERATIONS: tuple[Callable[[Model, int], None], ...] = (
    Model.send,
    Model.retry_without_idempotence,
    Model.give_up,
    Model.fail,
    Model.elect,
    Model.transact,
    Model.read_all,
    Model.commit_offset,
    Model.rebalance,
    Model.read_offset,
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Plays random operations, and enough fixed ones that each kind of damage finds something to change."""
    model = Model()
    for operation, size in draw(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 4)), max_size=25)):
        operation(model, size)
    for operation, size in ((Model.send, 2), (Model.send, 1), (Model.transact, 1), (Model.transact, 2), (Model.fail, 1)):
        operation(model, size)
    model.commit_offset(1)
    model.commit_offset(2)
    model.read_offset(1)
    model.read_all(1)
    model.read_all(2)
    return model


# Damage


@dataclass
class Damaged:
    """A run in which one thing was changed."""

    history: History
    replicas: list[Replica]
    expected: Property


def _with_batches(replica: Replica, batches: list[Batch]) -> Replica:
    return replace(log(*batches), broker_id=replica.broker_id)


def _choose_data(data: st.DataObject, model: Model) -> int:
    """Returns the number of a batch of the idempotent producer."""
    return data.draw(st.sampled_from([number for number, batch in enumerate(model.batches) if batch.producer_id == 3]))


def drop_acknowledged_record(data: st.DataObject, model: Model) -> Damaged:
    """All replicas lose a batch whose records were acknowledged."""
    lost = _choose_data(data, model)
    batches = [batch for number, batch in enumerate(model.batches) if number != lost]
    return Damaged(model.history(), [_with_batches(each, batches) for each in model.replicas()], Property.ACKNOWLEDGED_STAYS)


def swap_records(data: st.DataObject, model: Model) -> Damaged:
    """Two records change their places in all replicas."""
    first, second = data.draw(st.permutations([n for n, batch in enumerate(model.batches) if batch.producer_id == 3]))[:2]
    batches = list(model.batches)
    ours, theirs = batches[first].records[0], batches[second].records[0]
    batches[first] = replace(batches[first], records=(replace(ours, value=theirs.value), *batches[first].records[1:]))
    batches[second] = replace(batches[second], records=(replace(theirs, value=ours.value), *batches[second].records[1:]))
    return Damaged(model.history(), [_with_batches(each, batches) for each in model.replicas()], Property.ONE_CONTENT)


def replace_content_on_a_replica(data: st.DataObject, model: Model) -> Damaged:
    """One replica has other bytes in a record."""
    number, broker = _choose_data(data, model), data.draw(st.integers(0, 2))
    batches = list(model.batches)
    first, *others = batches[number].records
    batches[number] = replace(batches[number], records=(replace(first, value=b"other"), *others))
    replicas = list(model.replicas())
    replicas[broker] = _with_batches(replicas[broker], batches)
    return Damaged(model.history(), replicas, Property.REPLICAS_AGREE)


def shorten_a_replica(data: st.DataObject, model: Model) -> Damaged:
    """One replica lacks the end."""
    replicas = list(model.replicas())
    broker, kept = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(model.batches) - 1))
    replicas[broker] = _with_batches(replicas[broker], model.batches[:kept])
    return Damaged(model.history(), replicas, Property.REPLICAS_AGREE)


def repeat_sequence(data: st.DataObject, model: Model) -> Damaged:
    """A batch of an idempotent producer is appended once more, at the end of all replicas."""
    batch = model.batches[_choose_data(data, model)]
    base_offset, shift = model.end_offset, model.end_offset - batch.base_offset
    again = replace(
        batch,
        base_offset=base_offset,
        last_offset=batch.last_offset + shift,
        leader_epoch=model.leader_epoch,
        records=tuple(replace(record, offset=record.offset + shift) for record in batch.records),
    )
    replicas = [_with_batches(each, [*model.batches, again]) for each in model.replicas()]
    return Damaged(model.history(), replicas, Property.SEQUENCES)


def miss_sequence(data: st.DataObject, model: Model) -> Damaged:
    """A batch has a greater sequence than the one before it has left, from the second batch of the producer on."""
    numbers = [number for number, batch in enumerate(model.batches) if batch.producer_id == 3][1:]
    number = data.draw(st.sampled_from(numbers))
    batches = list(model.batches)
    batches[number] = replace(batches[number], base_sequence=batches[number].base_sequence + data.draw(st.integers(1, 9)))
    return Damaged(model.history(), [_with_batches(each, batches) for each in model.replicas()], Property.SEQUENCES)


def show_aborted_record(data: st.DataObject, model: Model) -> Damaged:
    """A consumer of committed records gets one of a transaction whose producer was told that it is aborted."""
    history = model.history()
    aborted = {event.transaction for event in model.events if isinstance(event, TransactionAborted)}
    places = {event.payload: event.offset for event in model.events if isinstance(event, SendAcknowledged)}
    names = [
        event.payload for event in model.events if getattr(event, "transaction", None) in aborted and hasattr(event, "payload")
    ]
    name = data.draw(st.sampled_from(names))
    offset = places[name]
    assert offset is not None
    history.add(RecordRead("d", "t", 0, offset, name, True, offset))
    return Damaged(history, list(model.replicas()), Property.ALL_OR_NOTHING)


def hide_committed_record(data: st.DataObject, model: Model) -> Damaged:
    """A consumer of committed records is led past one of a committed transaction."""
    history = model.history()
    reads = [event for event in model.events if isinstance(event, RecordRead) and event.is_read_committed]
    numbers = [
        n for n, event in enumerate(reads) if model.fates.get(event.offset) and n + 1 < len(reads) and reads[n + 1].position > 0
    ]
    hidden = data.draw(st.sampled_from(numbers))
    history.add(replace(reads[hidden + 1], consumer="d", position=reads[hidden].position))
    return Damaged(history, list(model.replicas()), Property.ALL_OR_NOTHING)


def abort_in_the_log(data: st.DataObject, model: Model) -> Damaged:
    """The marker of a committed transaction is one of an abort in all replicas."""
    numbers = [number for number, batch in enumerate(model.batches) if batch.is_commit]
    number = data.draw(st.sampled_from(numbers))
    batches = list(model.batches)
    batches[number] = replace(batches[number], is_commit=False)
    return Damaged(model.history(), [_with_batches(each, batches) for each in model.replicas()], Property.ALL_OR_NOTHING)


def move_offset_back(data: st.DataObject, model: Model) -> Damaged:
    """The group has an offset whose commit was followed by another one that was acknowledged."""
    history = model.history()
    known = {event.commit for event in model.events if isinstance(event, OffsetsAcknowledged)}
    commits = [event for event in model.events if isinstance(event, OffsetsSent) and event.commit in known]
    former = data.draw(st.sampled_from(commits[:-1]))
    history.add(OffsetsRead("g", former.offsets, history.last_order))
    return Damaged(history, list(model.replicas()), Property.COMMITS_STAY)


def lead_past_acknowledged_record(data: st.DataObject, model: Model) -> Damaged:
    """A consumer gets a record although there is an acknowledged one between its position and this record."""
    history = model.history()
    batch = model.batches[_choose_data(data, model)]
    later = [
        record for each in model.batches if not each.is_control for record in each.records if record.offset > batch.last_offset
    ]
    assume(later)
    record = data.draw(st.sampled_from(later))
    history.add(RecordRead("d", "t", 0, record.offset, (record.value or b"").decode(), False, batch.base_offset))
    return Damaged(history, list(model.replicas()), Property.ACKNOWLEDGED_STAYS)


def show_failed_record(data: st.DataObject, model: Model) -> Damaged:
    """A consumer gets a record whose producer was told that it failed, after the end of the log."""
    history = model.history()
    failed = [event.payload for event in model.events if isinstance(event, SendFailed)]
    history.add(RecordRead("d", "t", 0, model.end_offset, data.draw(st.sampled_from(failed)), False, model.end_offset))
    return Damaged(history, [], Property.ONE_CONTENT)


DAMAGES = (
    drop_acknowledged_record,
    swap_records,
    replace_content_on_a_replica,
    shorten_a_replica,
    repeat_sequence,
    miss_sequence,
    show_aborted_record,
    hide_committed_record,
    abort_in_the_log,
    move_offset_back,
    lead_past_acknowledged_record,
    show_failed_record,
)


@given(models())
@MODERATE
def test_random_legal_run_is_not_reported(model: Model) -> None:
    violations = check(model.history(), model.replicas(), is_settled=True)

    assert [str(violation) for violation in violations] == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@given(data=st.data())
@settings(MODERATE, max_examples=20)
def test_random_damage_is_found(damage: Callable[[st.DataObject, Model], Damaged], data: st.DataObject) -> None:
    damaged = damage(data, data.draw(models()))

    found = {violation.kind.violated for violation in check(damaged.history, damaged.replicas, is_settled=True)}

    assert damaged.expected in found


@given(models())
@MODERATE
def test_first_half_of_a_legal_history_is_legal(model: Model) -> None:
    history = model.history()

    violations = check(History(history.entries[: len(history) // 2]))

    assert [str(violation) for violation in violations] == []
