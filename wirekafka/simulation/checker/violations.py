"""The violations that the checker reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from wirekafka.simulation.history import Entry


class Property(IntEnum):
    """What holds in every run, whatever faults happen."""

    ACKNOWLEDGED_STAYS = 1
    ONE_CONTENT = 2
    REPLICAS_AGREE = 3
    SEQUENCES = 4
    ALL_OR_NOTHING = 5
    COMMITS_STAY = 6


class Kind(Enum):
    """The ways to violate a property: the property, and what happened."""

    RECORD_MISSING = Property.ACKNOWLEDGED_STAYS, "an acknowledged record is not at its offset in a log"
    RECORD_SKIPPED = Property.ACKNOWLEDGED_STAYS, "a consumer was led past an acknowledged record"
    LOG_START_MOVED = Property.ACKNOWLEDGED_STAYS, "the log starts after records that nobody deleted"

    TWO_CONTENTS = Property.ONE_CONTENT, "an offset has two contents"
    ORDER_REVERSED = Property.ONE_CONTENT, "a record that was sent later has the lower offset"
    NEVER_SENT = Property.ONE_CONTENT, "a record was never sent to this partition"
    FAILED_RECORD_SHOWN = Property.ONE_CONTENT, "a record is there although its producer was told that it failed"
    END_WENT_BACK = Property.ONE_CONTENT, "the end of what consumers may read went back"

    REPLICAS_DIFFER = Property.REPLICAS_AGREE, "two replicas differ in committed records"
    EPOCH_HAS_TWO_CONTENTS = Property.REPLICAS_AGREE, "two replicas differ in a record of one leader epoch"
    EPOCH_HAS_TWO_LEADERS = Property.REPLICAS_AGREE, "a leader epoch has two leaders"
    ENDS_DIFFER = Property.REPLICAS_AGREE, "two replicas have different ends"
    EPOCHS_DECREASE = Property.REPLICAS_AGREE, "a batch has an older leader epoch than a batch before it"
    EPOCHS_DISAGREE = Property.REPLICAS_AGREE, "a batch has another leader epoch than leader-epoch-checkpoint says"
    HIGH_WATERMARK_PAST_END = Property.REPLICAS_AGREE, "the high watermark is after the end of the log"
    LOG_IS_UNSOUND = Property.REPLICAS_AGREE, "a log cannot be read to its end"

    SEQUENCE_GAP = Property.SEQUENCES, "sequence numbers are missing"
    SEQUENCE_REPEATED = Property.SEQUENCES, "a sequence number comes again"
    PRODUCER_EPOCH_DECREASED = Property.SEQUENCES, "a batch of a fenced producer was appended"
    RECORD_TWICE = Property.SEQUENCES, "a record of an idempotent producer has two offsets"

    TRANSACTION_DIVIDED = Property.ALL_OR_NOTHING, "a transaction is both committed and aborted"
    SHOWN_BEFORE_COMMIT = Property.ALL_OR_NOTHING, "a consumer of committed records got one before its commit was requested"
    TRANSACTION_NOT_ENDED = Property.ALL_OR_NOTHING, "a committed transaction has records without a marker"

    OFFSET_WENT_BACK = Property.COMMITS_STAY, "a committed offset was replaced by an older commit"
    FENCED_COMMIT_SHOWN = Property.COMMITS_STAY, "a committed offset was replaced by a commit of an older generation"
    FAILED_COMMIT_SHOWN = Property.COMMITS_STAY, "an offset is there although the member was told that its commit failed"
    NEVER_COMMITTED = Property.COMMITS_STAY, "a group has an offset that nobody committed"

    @property
    def violated(self) -> Property:
        """The property."""
        return self.value[0]

    @property
    def summary(self) -> str:
        """What happened."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a property.

    Attributes:
        partition: the topic and the partition; None if the violation is about none.
        expected, found: both contents, or other facts that exclude each other.
        events: the entries of the history that are involved, in their order.
        brokers: the brokers whose files are involved.
        subject: the transaction, the producer or the group, if the violation is about one.
    """

    kind: Kind
    partition: tuple[str, int] | None
    offset: int | None
    expected: str
    found: str
    events: tuple[Entry, ...] = ()
    brokers: tuple[int, ...] = ()
    subject: str = ""

    def __str__(self) -> str:
        lines = [f"Property {self.kind.violated.value}, {self.kind.violated.name.lower()}: {self.kind.summary}"]
        if self.partition is not None:
            place = f"  at {self.partition[0]}-{self.partition[1]}"
            lines.append(place if self.offset is None else f"{place}, offset {self.offset}")
        if self.subject:
            lines.append(f"  of {self.subject}")
        lines.append(f"  expected: {self.expected}")
        lines.append(f"  found:    {self.found}")
        if self.brokers:
            lines.append(f"  on brokers {', '.join(map(str, self.brokers))}")
        lines.extend(f"  {entry.order} at {entry.at_ms} ms: {entry.event}" for entry in self.events)
        return "\n".join(lines)


def in_order(*entries: Entry | None) -> tuple[Entry, ...]:
    """Returns the entries that exist, each once and in their order."""
    found = {entry.order: entry for entry in entries if entry is not None}
    return tuple(found[order] for order in sorted(found))
