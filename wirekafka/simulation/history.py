"""The requests and responses of the clients of a cluster, in one order, for the checker.

A `History` is a list of entries. An entry is an event with its time and its place in the global order. Histories of the
simulator and of real processes have the same events, and the same JSON lines on disk.

Rules for who records:
    The payload of a record is unique in the history, and is the value of the record in the log, in UTF-8. It is the name of the
    send. The retries of a client library belong to the same send.
    A request that may reach the broker is recorded before it is sent, and its outcome after it is known. A request without an
    outcome counts as unknown, for example because the client was killed.
    A timeout or a lost connection is unknown, never failed. "Failed" means that the request has no effect and will have none.

How it works: the order decides what came before what. If entry a precedes entry b, then a's event had happened before b's began.
A recorder for several processes must therefore take the order from one clock, and record a request early and an outcome late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic exists from now on, with these settings.

    Attributes:
        is_compacted: `cleanup.policy` includes compact: a record may be removed if a later one has its key.
        has_retention: the start of a log may move by itself, by time or size.
    """

    topic: str
    partition_count: int
    min_insync_replicas: int = 1
    is_compacted: bool = False
    has_retention: bool = False


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """A client has deleted the records before `log_start_offset`, or tries to; they may be missing from now on."""

    topic: str
    partition: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """A broker said that it leads a partition: it acted as the leader, or a client got it from its metadata."""

    topic: str
    partition: int
    leader_epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class LossPermitted:
    """The faults so far are such that Apache Kafka may lose acknowledged records of this partition too.

    Examples: an unclean election, or a power loss of the last in-sync replica.
    """

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordSent:
    """A producer is about to send a record.

    Attributes:
        payload: the value of the record, unique in the history.
        acks: -1 for acks=all.
        producer_id, producer_epoch, sequence: of an idempotent producer; None if there are none, or the library hides them.
        transaction: the name of the transaction of which the record is a part.
    """

    producer: str
    topic: str
    partition: int
    payload: str
    key: str | None = None
    acks: int = -1
    producer_id: int | None = None
    producer_epoch: int | None = None
    sequence: int | None = None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class SendAcknowledged:
    """A record was acknowledged.

    Attributes:
        offset: None if the broker did not say it, as for a duplicate that it no longer remembers.
    """

    payload: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A record was not appended, and will never be."""

    payload: str
    error: str


@dataclass(frozen=True, slots=True)
class SendUnknown:
    """The producer has given up on a record, and does not know whether it was appended or will be."""

    payload: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordRead:
    """A consumer got a record.

    Attributes:
        is_read_committed: the isolation level of the fetch.
        position: the offset from which the consumer asked, or one past the record that the same response had before this one. The
            broker says by this record that there is none to read from `position` up to `offset`.
    """

    consumer: str
    topic: str
    partition: int
    offset: int
    payload: str
    is_read_committed: bool
    position: int


@dataclass(frozen=True, slots=True)
class EndOffsetRead:
    """A client got the end of what it may read of a partition, by ListOffsets.

    Attributes:
        leader_epoch: of the leader that answered; None if it did not say.
        is_read_committed: the end is the last stable offset, not the high watermark.
        asked: the order of the entry that was the last one when the request was sent.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    is_read_committed: bool
    asked: int


@dataclass(frozen=True, slots=True)
class TransactionBegun:
    """A producer begins a transaction. No record of it was sent.

    Attributes:
        transaction: a name that is unique in the history.
        version: 1, or 2 where each end of a transaction bumps the producer epoch (KIP-890).
    """

    transaction: str
    transactional_id: str
    producer_id: int | None = None
    producer_epoch: int | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class TransactionEndRequested:
    """The producer is about to ask for the end of its transaction; each attempt is recorded.

    An attempt without an answer of its own may arrive late, in a later transaction.
    """

    transaction: str
    is_commit: bool


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """The coordinator has answered that the transaction is committed."""

    transaction: str


@dataclass(frozen=True, slots=True)
class TransactionAborted:
    """The coordinator has answered that the transaction is aborted, or fenced the producer before a commit could count."""

    transaction: str


@dataclass(frozen=True, slots=True)
class TransactionUnknown:
    """The producer has given up, and does not know how its transaction ends."""

    transaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of one partition in a commit, or in the answer to a read.

    Attributes:
        offset: None in an answer: the group has no offset for this partition.
        commit: the name of the commit. A commit stores it as the metadata of the offset, so that a read says whose offset it is.
    """

    topic: str
    partition: int
    offset: int | None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetsSent:
    """A member is about to commit offsets.

    Attributes:
        commit: a name that is unique in the history.
        generation: the generation or the member epoch; None for a commit without one.
        transaction: the transaction by which the offsets become visible.
    """

    commit: str
    group: str
    generation: int | None
    offsets: tuple[CommittedOffset, ...]
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetsAcknowledged:
    """All offsets of a commit were acknowledged."""

    commit: str


@dataclass(frozen=True, slots=True)
class OffsetsFailed:
    """No offset of a commit was stored, and none will be."""

    commit: str
    error: str


@dataclass(frozen=True, slots=True)
class OffsetsUnknown:
    """The member has given up on a commit, and does not know whether the offsets were stored or will be."""

    commit: str
    reason: str


@dataclass(frozen=True, slots=True)
class OffsetsRead:
    """A client got the committed offsets of a group.

    Attributes:
        asked: the order of the entry that was the last one when the request was sent.
        is_stable: the client asked for stable offsets: no pending transaction may change them.
        may_be_stale: a deposed coordinator may have answered, which did not know about its successor. The offsets must then have
            been committed, but may be old.
    """

    group: str
    offsets: tuple[CommittedOffset, ...]
    asked: int
    is_stable: bool = False
    may_be_stale: bool = False


Event = (
    TopicCreated
    | LogStartMoved
    | LeaderSeen
    | LossPermitted
    | RecordSent
    | SendAcknowledged
    | SendFailed
    | SendUnknown
    | RecordRead
    | EndOffsetRead
    | TransactionBegun
    | TransactionEndRequested
    | TransactionCommitted
    | TransactionAborted
    | TransactionUnknown
    | OffsetsSent
    | OffsetsAcknowledged
    | OffsetsFailed
    | OffsetsUnknown
    | OffsetsRead
)

_EVENTS: dict[str, type[Event]] = {event.__name__: event for event in Event.__args__}


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a history.

    Attributes:
        order: ascends; a later entry has a greater one.
        at_ms: the virtual time, or that of the recorder's clock.
    """

    order: int
    at_ms: float
    event: Event

    def to_json(self) -> str:
        """Returns one line of JSON, without the end of the line."""
        event = self.event
        content: dict[str, Any] = {"order": self.order, "at_ms": self.at_ms, "event": type(event).__name__}
        for field in fields(event):
            content[field.name] = _to_plain(getattr(event, field.name))
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Entry:
        """Returns the entry of a line of `to_json`.

        Raises:
            ValueError: the line is no entry.
        """
        content = json.loads(line)
        try:
            order, at_ms, name = content.pop("order"), content.pop("at_ms"), content.pop("event")
            if "offsets" in content:
                content["offsets"] = tuple(CommittedOffset(**each) for each in content["offsets"])
            return cls(order, at_ms, _EVENTS[name](**content))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{line!r} is no entry of a history") from error


def _to_plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return [{field.name: getattr(each, field.name) for field in fields(each)} for each in value]


class History:
    """The entries of one run, in their order."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last_order(self) -> int:
        """The order of the last entry; 0 if there is none. The attributes `asked` take it when a request is sent."""
        return self.entries[-1].order if self.entries else 0

    def add(self, event: Event, at_ms: float = 0) -> Entry:
        """Appends an event, and gives it the next place in the order."""
        entry = Entry(self.last_order + 1, at_ms, event)
        self.entries.append(entry)
        return entry

    def to_lines(self) -> Iterator[str]:
        """Yields each entry as a line of JSON, the end of the line included."""
        for entry in self.entries:
            yield entry.to_json() + "\n"

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> History:
        """Reads the lines of one or more recorders, and brings the entries into their order. Empty lines are skipped.

        Raises:
            ValueError: a line is no entry, or two entries have the same place.
        """
        entries = sorted((Entry.from_json(line) for line in lines if line.strip()), key=lambda entry: entry.order)
        for former, entry in zip(entries, entries[1:], strict=False):
            if former.order == entry.order:
                raise ValueError(f"two entries have the order {entry.order}")
        return cls(entries)
