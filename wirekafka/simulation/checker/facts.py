"""The facts of a history: each send, transaction and commit with its outcome.

Rules of this file: it collects facts, and reports no violations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from wirekafka.simulation.history import (
    EndOffsetRead,
    Entry,
    History,
    LeaderSeen,
    LogStartMoved,
    LossPermitted,
    OffsetsAcknowledged,
    OffsetsFailed,
    OffsetsRead,
    OffsetsSent,
    RecordRead,
    RecordSent,
    SendAcknowledged,
    SendFailed,
    TopicCreated,
    TransactionAborted,
    TransactionBegun,
    TransactionCommitted,
    TransactionEndRequested,
)

ALL_REPLICAS = -1
"""The value of acks in a request whose answer says that the record is committed."""

Key = tuple[str, int]
"""A topic and a partition."""


@dataclass(slots=True)
class Send:
    """A record that was sent, and the response to its producer.

    Attributes:
        offset: where it was acknowledged; None if it was not, or without an offset.
    """

    entry: Entry
    record: RecordSent
    acknowledged: Entry | None = None
    failed: Entry | None = None
    offset: int | None = None

    @property
    def key(self) -> Key:
        """The partition."""
        return self.record.topic, self.record.partition

    @property
    def is_committed(self) -> bool:
        """Whether the response says that all in-sync replicas have the record."""
        return self.acknowledged is not None and self.record.acks == ALL_REPLICAS

    @property
    def is_idempotent(self) -> bool:
        """Whether the broker recognizes duplicates of the record."""
        return self.record.producer_id is not None


@dataclass(slots=True)
class Transaction:
    """A transaction, and the responses to its producer.

    Attributes:
        requested: the first request to commit it.
        may_be_ended_late: an earlier EndTxn of the same producer epoch may arrive in this transaction, and end a part of it. That
            is a weakness of transactions v1, found by Jepsen in Bufstream 0.1; with version 2 each transaction has an epoch.
        sends: the records that were sent.
        unanswered_ends: how many requests for the end have no answer.
    """

    entry: Entry
    begun: TransactionBegun
    may_be_ended_late: bool
    requested: Entry | None = None
    committed: Entry | None = None
    aborted: Entry | None = None
    sends: list[Send] = field(default_factory=list)
    unanswered_ends: int = 0


@dataclass(slots=True)
class Commit:
    """A commit of offsets, and the response to its member."""

    entry: Entry
    sent: OffsetsSent
    transaction: Transaction | None
    acknowledged: Entry | None = None
    failed: Entry | None = None

    def offset_of(self, key: Key) -> int | None:
        """Returns the offset that the commit has for a partition; None if it has none."""
        return next((each.offset for each in self.sent.offsets if (each.topic, each.partition) == key), None)


class Facts:
    """The facts of a history.

    Attributes:
        reads: the records that consumers got, in the order of the history, by partition.
        end_reads: the ends that clients got, in the order of the history, by partition and by whether the isolation level is
            read_committed.
        log_starts: up to where clients have deleted records.
        losses: the partitions that may lose acknowledged records.
    """

    def __init__(self, history: History) -> None:
        self.topics: dict[str, TopicCreated] = {}
        self.sends: dict[str, Send] = {}
        self.transactions: dict[str, Transaction] = {}
        self.commits: dict[str, Commit] = {}
        self.reads: defaultdict[Key, list[tuple[Entry, RecordRead]]] = defaultdict(list)
        self.end_reads: defaultdict[tuple[Key, bool], list[tuple[Entry, EndOffsetRead]]] = defaultdict(list)
        self.offset_reads: list[tuple[Entry, OffsetsRead]] = []
        self.leaders: list[tuple[Entry, LeaderSeen]] = []
        self.log_starts: defaultdict[Key, int] = defaultdict(int)
        self.losses: set[Key] = set()
        self._sends_by_key: defaultdict[tuple[Key, str | None], list[Send]] = defaultdict(list)
        self._unanswered_ends: defaultdict[tuple[str, int | None, int | None], int] = defaultdict(int)
        for entry in history:
            self._take(entry)

    def is_compacted(self, key: Key) -> bool:
        """Whether records of a partition may be replaced by later ones."""
        return key[0] in self.topics and self.topics[key[0]].is_compacted

    def has_later_record(self, send: Send) -> bool:
        """Whether a record with the same key may follow an acknowledged one, so that compaction may remove the latter."""
        others = self._sends_by_key[(send.key, send.record.key)]
        return any(
            other.failed is None and (other.offset is None or other.offset > (send.offset or 0))
            for other in reversed(others)
            if other is not send
        )

    def transaction_of(self, payload: str) -> Transaction | None:
        """Returns the transaction of a record; None if it has none, or the record was never sent."""
        send = self.sends.get(payload)
        return None if send is None or send.record.transaction is None else self.transactions[send.record.transaction]

    def _take(self, entry: Entry) -> None:
        match entry.event:
            case TopicCreated() as created:
                self.topics[created.topic] = created
            case LogStartMoved(topic, partition, offset):
                self.log_starts[topic, partition] = max(self.log_starts[topic, partition], offset)
            case LossPermitted(topic, partition):
                self.losses.add((topic, partition))
            case LeaderSeen() as seen:
                self.leaders.append((entry, seen))
            case RecordRead() as read:
                self.reads[read.topic, read.partition].append((entry, read))
            case EndOffsetRead() as end:
                self.end_reads[(end.topic, end.partition), end.is_read_committed].append((entry, end))
            case RecordSent() | SendAcknowledged() | SendFailed():
                self._take_send(entry)
            case OffsetsSent() | OffsetsAcknowledged() | OffsetsFailed() | OffsetsRead():
                self._take_commit(entry)
            case TransactionBegun() | TransactionEndRequested() | TransactionCommitted() | TransactionAborted():
                self._take_transaction(entry)

    def _take_send(self, entry: Entry) -> None:
        match entry.event:
            case RecordSent() as record:
                send = self.sends[record.payload] = Send(entry, record)
                self._sends_by_key[send.key, record.key].append(send)
                if record.transaction is not None:
                    self.transactions[record.transaction].sends.append(send)
            case SendAcknowledged(payload, offset):
                self.sends[payload].acknowledged = entry
                self.sends[payload].offset = offset
            case SendFailed(payload):
                self.sends[payload].failed = entry

    def _take_commit(self, entry: Entry) -> None:
        match entry.event:
            case OffsetsSent() as sent:
                transaction = None if sent.transaction is None else self.transactions[sent.transaction]
                self.commits[sent.commit] = Commit(entry, sent, transaction)
            case OffsetsAcknowledged(commit):
                self.commits[commit].acknowledged = entry
            case OffsetsFailed(commit):
                self.commits[commit].failed = entry
            case OffsetsRead() as read:
                self.offset_reads.append((entry, read))

    def _take_transaction(self, entry: Entry) -> None:
        match entry.event:
            case TransactionBegun() as begun:
                may_be_ended_late = begun.version == 1 and self._unanswered_ends[_producer_of(begun)] > 0
                self.transactions[begun.transaction] = Transaction(entry, begun, may_be_ended_late)
            case TransactionEndRequested(name, is_commit):
                transaction = self.transactions[name]
                self._count_end(transaction, 1)
                if is_commit and transaction.requested is None:
                    transaction.requested = entry
            case TransactionCommitted(name):
                self.transactions[name].committed = entry
                self._answer_end(self.transactions[name])
            case TransactionAborted(name):
                self.transactions[name].aborted = entry
                self._answer_end(self.transactions[name])

    def _answer_end(self, transaction: Transaction) -> None:
        # A producer that was fenced may know that its transaction is aborted without a request of its own.
        if transaction.unanswered_ends:
            self._count_end(transaction, -1)

    def _count_end(self, transaction: Transaction, count: int) -> None:
        transaction.unanswered_ends += count
        self._unanswered_ends[_producer_of(transaction.begun)] += count


def _producer_of(begun: TransactionBegun) -> tuple[str, int | None, int | None]:
    return begun.transactional_id, begun.producer_id, begun.producer_epoch
