"""Short ways to write histories and logs of one topic, `t`."""

from __future__ import annotations

from dataclasses import replace

from wirekafka.simulation.checker.files import Batch, Record, Replica
from wirekafka.simulation.history import (
    CommittedOffset,
    Event,
    History,
    OffsetsAcknowledged,
    OffsetsRead,
    OffsetsSent,
    RecordRead,
    RecordSent,
    SendAcknowledged,
    TransactionBegun,
    TransactionEndRequested,
)

NO_PRODUCER = (-1, -1, -1)
KEY = ("t", 0)


def history(*events: Event) -> History:
    """Returns the events as a history, in their order."""
    found = History()
    for at_ms, event in enumerate(events):
        found.add(event, at_ms)
    return found


def sent(
    payload: str,
    *,
    partition: int = 0,
    key: str | None = None,
    acks: int = -1,
    producer: tuple[int, int, int] | None = None,
    transaction: str | None = None,
) -> RecordSent:
    """Returns the sending of a record. `producer` is the id, the epoch and the sequence."""
    producer_id, epoch, sequence = producer or (None, None, None)
    return RecordSent("p", "t", partition, payload, key, acks, producer_id, epoch, sequence, transaction)


def acked(payload: str, offset: int | None) -> SendAcknowledged:
    """Returns the acknowledgement of a record."""
    return SendAcknowledged(payload, offset)


def delivered(payload: str, offset: int | None, **options: object) -> tuple[Event, Event]:
    """Returns the sending and the acknowledgement of a record."""
    return sent(payload, **options), acked(payload, offset)  # type: ignore[arg-type]


def read(payload: str, offset: int, *, position: int | None = None, committed: bool = False, partition: int = 0) -> RecordRead:
    """Returns the reading of a record, by default without a gap before it."""
    return RecordRead("c", "t", partition, offset, payload, committed, offset if position is None else position)


def begun(name: str, *, version: int = 2, epoch: int | None = None) -> TransactionBegun:
    """Returns the beginning of a transaction of the transactional id `x`."""
    return TransactionBegun(name, "x", None if epoch is None else 7, epoch, version)


def ending(name: str, *, commit: bool = True) -> TransactionEndRequested:
    """Returns the request to end a transaction."""
    return TransactionEndRequested(name, commit)


def commits(name: str, offset: int, *, generation: int | None = 1, transaction: str | None = None) -> OffsetsSent:
    """Returns the sending of an offset of partition 0 for the group `g`."""
    return OffsetsSent(name, "g", generation, (CommittedOffset("t", 0, offset, name),), transaction)


def committed(name: str, offset: int, *, generation: int | None = 1) -> tuple[Event, Event]:
    """Returns the sending and the acknowledgement of an offset."""
    return commits(name, offset, generation=generation), OffsetsAcknowledged(name)


def group_has(
    name: str | None, offset: int | None, *, asked: int = 1000, stable: bool = False, stale: bool = False
) -> OffsetsRead:
    """Returns the reading of the offset of partition 0; by default it was asked for after all that precedes it."""
    return OffsetsRead("g", (CommittedOffset("t", 0, offset, name),), asked, stable, stale)


def batch(
    offset: int,
    *payloads: str,
    epoch: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
    key: str | None = None,
    transactional: bool = False,
) -> Batch:
    """Returns a batch of the log."""
    key_bytes = None if key is None else key.encode()
    records = tuple(Record(offset + number, key_bytes, payload.encode()) for number, payload in enumerate(payloads))
    return Batch(offset, offset + len(payloads) - 1, epoch, *producer, transactional, False, None, records)


def marker(offset: int, *, commit: bool, producer: tuple[int, int] = (7, 0), epoch: int = 0) -> Batch:
    """Returns a batch with the marker of a transaction."""
    record = Record(offset, b"\0\0\0\1" if commit else b"\0\0\0\0", bytes(6))
    return Batch(offset, offset, epoch, *producer, -1, True, True, commit, (record,))


def log(
    *batches: Batch,
    broker: int = 1,
    high_watermark: int | None = None,
    start: int = 0,
    epochs: tuple[tuple[int, int], ...] | None = None,
    unsound: str | None = None,
) -> Replica:
    """Returns a replica of partition 0. By default all is committed, and the checkpoint has the epochs of the batches."""
    end_offset = batches[-1].last_offset + 1 if batches else start
    starts: dict[int, int] = {}
    for each in batches:
        starts.setdefault(each.leader_epoch, each.base_offset)
    committed_end = end_offset if high_watermark is None else high_watermark
    found = tuple(starts.items()) if epochs is None else epochs
    return Replica(broker, "t", 0, batches, start, end_offset, committed_end, found, unsound)


def on_brokers(count: int, *batches: Batch) -> tuple[Replica, ...]:
    """Returns equal replicas."""
    return tuple(replace(log(*batches), broker_id=number + 1) for number in range(count))
