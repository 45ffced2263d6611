"""What a check has found, for each partition and as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NAMED_OFFSETS = 20
"""How many offsets of each kind a report names in each partition."""


@dataclass(slots=True)
class Named:
    """How many offsets are of one kind, and the first of them."""

    count: int = 0
    first: Sequence[int] = ()

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.first) else ""
        return ", ".join(map(str, self.first)) + more


@dataclass(slots=True)
class PartitionReport:
    """What the lake has of one partition, and why offsets are missing.

    Attributes:
        begin_offset: where the ingest began; without a checkpoint, the first offset in the lake.
        end_offset: where its last finished batch ended; without a checkpoint, one past the last offset in the lake.
        row_count: the rows in the lake between the two, doubled ones too.
        later_count: the rows of a batch that was not finished when the check began. The check does not cover them.
        doubled: offsets with more than one row, or with a row and a dead letter.
        lost: committed records that are neither in the lake nor dead letters.
        dead_letter_count: records that are dead letters.
        control_count: control records of transactions.
        aborted_count: records of aborted transactions.
        compacted_count: offsets that the segment files passed over: compaction has removed the records.
        unread_count: offsets at which a read_committed consumer gets no record: control records, aborted ones, compacted ones.
        deleted_count: offsets before the log start offset, where retention has deleted what was there.
        unexplained_count: offsets without a row, for which no broker and no segment files were asked.
    """

    topic: str
    partition: int
    begin_offset: int
    end_offset: int
    row_count: int = 0
    later_count: int = 0
    doubled: Named = field(default_factory=Named)
    lost: Named = field(default_factory=Named)
    dead_letter_count: int = 0
    control_count: int = 0
    aborted_count: int = 0
    compacted_count: int = 0
    unread_count: int = 0
    deleted_count: int = 0
    unexplained_count: int = 0


@dataclass(slots=True)
class CheckReport:
    """What a check has found.

    Attributes:
        lake: the path of the lake.
        partitions: sorted by topic and partition.
        accepts_deleted: whether offsets that retention has deleted count as explained.
    """

    lake: str
    partitions: Sequence[PartitionReport]
    accepts_deleted: bool = False

    @property
    def is_proven(self) -> bool:
        """Whether each record is in the lake, or is a dead letter, once."""
        return not any(self.problems())

    def problems(self) -> Iterator[str]:
        """Yields a line for each thing that keeps the lake from being proven."""
        for each in self.partitions:
            place = f"{each.topic} {each.partition}"
            if each.doubled.count:
                records = _counted(each.doubled.count, "record")
                yield f"{place}: {records} more than once in the lake and the dead letters: {each.doubled}"
            if each.lost.count:
                yield f"{place}: {_counted(each.lost.count, 'record')} lost: {each.lost}"
            if each.deleted_count and not self.accepts_deleted:
                yield (
                    f"{place}: {_counted(each.deleted_count, 'offset')} missing before the log start offset. What was there is"
                    " deleted, so this cannot be proven; --accept-deleted passes over it"
                )
            if each.unexplained_count:
                yield (
                    f"{place}: {_counted(each.unexplained_count, 'offset')} missing; --bootstrap or --data-dir tells whether"
                    " records are lost"
                )

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON's types."""
        partitions = [asdict(each) for each in self.partitions]
        return {"lake": self.lake, "is_proven": self.is_proven, "problems": list(self.problems()), "partitions": partitions}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


@dataclass(slots=True)
class Evidence:
    """What is known of the offsets of one partition that have no row in the lake.

    Attributes:
        missing_count: all of them.
        log_start_offset: None if neither a broker nor segment files were asked.
        deleted_count: those before the log start offset.
        lost: committed records that are no dead letters.
        control_count: None without segment files, like `aborted_count`.
    """

    missing_count: int
    log_start_offset: int | None = None
    deleted_count: int = 0
    lost: Named = field(default_factory=Named)
    dead_letter_count: int = 0
    control_count: int | None = None
    aborted_count: int | None = None


def explain(report: PartitionReport, evidence: Evidence) -> None:
    """Says for each missing offset of a partition why it is missing."""
    if not evidence.missing_count:
        return
    if evidence.log_start_offset is None:
        report.unexplained_count = evidence.missing_count
        return
    report.deleted_count, report.lost = evidence.deleted_count, evidence.lost
    report.dead_letter_count = evidence.dead_letter_count
    known = report.deleted_count + report.lost.count + report.dead_letter_count
    if evidence.control_count is None or evidence.aborted_count is None:
        report.unread_count = evidence.missing_count - known
        return
    report.control_count, report.aborted_count = evidence.control_count, evidence.aborted_count
    report.compacted_count = evidence.missing_count - known - report.control_count - report.aborted_count
