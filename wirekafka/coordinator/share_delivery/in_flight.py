"""The states of the records of a partition that are in flight for a share group, as runs of offsets.

How it works: records are acquired in batches. A new batch is one run: all its records have the same state. An
acknowledgement of a part splits the run, and equal neighbours are merged again. So the memory grows with the number of
differences, not with the number of records. Batches and runs are immutable: a step makes a new list, which is cheap because there
are few of them, and an undo restores the former list.

Rules of this file:
    Invariant: batches are in the order of their offsets and do not overlap; offsets between them have no record, because
    compaction removed it.
    Invariant: the runs of a batch are contiguous from its first offset to its last, and no two neighbours are equal.
    Invariant: a run has an owner and a deadline if and only if it is acquired.

Source: KIP-932; InFlightBatch, InFlightState, RecordState.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, TypeVar

from wirekafka.coordinator.share_state.batches import FINAL_STATES, RecordState


class Run(NamedTuple):
    """A range of offsets whose records have the same state, delivery count, owner and deadline.

    Attributes:
        delivery_count: How often the records have been acquired.
        member_id: The owner: the member that has acquired the records.
        lock_deadline_ms: When the acquisition lock expires, in monotonic time.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str | None = None
    lock_deadline_ms: int = 0

    @property
    def record_count(self) -> int:
        """The number of offsets in the run."""
        return self.last_offset - self.first_offset + 1

    @property
    def is_final(self) -> bool:
        """Whether the state is final."""
        return self.state in FINAL_STATES

    def part(self, first_offset: int, last_offset: int) -> Run:
        """Returns the part of the run with these offsets."""
        if first_offset == self.first_offset and last_offset == self.last_offset:
            return self
        return self._replace(first_offset=first_offset, last_offset=last_offset)

    def acquired(self, member_id: str, lock_deadline_ms: int) -> Run:
        """Returns the run as acquired by a member, with a higher delivery count."""
        return self._replace(
            state=RecordState.ACQUIRED,
            delivery_count=self.delivery_count + 1,
            member_id=member_id,
            lock_deadline_ms=lock_deadline_ms,
        )

    def left(self, state: RecordState) -> Run:
        """Returns the run without an owner, in another state."""
        return Run(self.first_offset, self.last_offset, state, self.delivery_count)


class InFlightBatch(NamedTuple):
    """Records that were acquired together.

    Attributes:
        record_count: The number of records at the acquisition; final records at the front are removed later.
    """

    first_offset: int
    last_offset: int
    record_count: int
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, *runs: Run) -> InFlightBatch:
        """Returns a batch of contiguous runs."""
        first_offset, last_offset = runs[0].first_offset, runs[-1].last_offset
        return cls(first_offset, last_offset, last_offset - first_offset + 1, runs)


class Range(NamedTuple):
    """A range of offsets with a value `what`, for instance an acknowledgement type."""

    first_offset: int
    last_offset: int
    what: int = 0


Span = TypeVar("Span", InFlightBatch, Range)

Change = Callable[[Run, int], Run]
"""A function that returns the new state of a run, or of a part of a run, in a range with the value `what`."""

_FIRST_OFFSET = attrgetter("first_offset")
_LAST_OFFSET = attrgetter("last_offset")


def rewrite(batches: list[InFlightBatch], ranges: list[Range], change: Change) -> list[InFlightBatch]:
    """Returns the batches with `change` applied to each part of a run that lies in a range.

    Args:
        ranges: In order, without overlaps.
    """
    rewritten = list(batches)
    for index in range(bisect_left(batches, ranges[0].first_offset, key=_LAST_OFFSET), len(batches)):
        batch = batches[index]
        if batch.first_offset > ranges[-1].last_offset:
            break
        touching = overlapping(ranges, batch.first_offset, batch.last_offset)
        if touching:
            rewritten[index] = batch._replace(runs=_rewrite_runs(batch.runs, touching, change))
    return rewritten


def _rewrite_runs(runs: Iterable[Run], ranges: list[Range], change: Change) -> tuple[Run, ...]:
    rewritten: list[Run] = []
    at = 0
    for run in runs:
        first_offset = run.first_offset
        while first_offset <= run.last_offset:
            while at < len(ranges) and ranges[at].last_offset < first_offset:
                at += 1
            if at == len(ranges) or ranges[at].first_offset > run.last_offset:
                _add(rewritten, run.part(first_offset, run.last_offset))
                break
            said = ranges[at]
            if said.first_offset > first_offset:
                _add(rewritten, run.part(first_offset, said.first_offset - 1))
                first_offset = said.first_offset
            last_offset = min(said.last_offset, run.last_offset)
            _add(rewritten, change(run.part(first_offset, last_offset), said.what))
            first_offset = last_offset + 1
    return tuple(rewritten)


def _add(runs: list[Run], run: Run) -> None:
    """Appends a run, or extends the last run if both are equal but for their offsets."""
    if runs and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1].part(runs[-1].first_offset, run.last_offset)
    else:
        runs.append(run)


def overlapping(spans: list[Span], first_offset: int, last_offset: int) -> list[Span]:
    """Returns the spans that overlap the range. The spans must be in order."""
    start = bisect_left(spans, first_offset, key=_LAST_OFFSET)
    stop = bisect_left(spans, last_offset + 1, lo=start, key=_FIRST_OFFSET)
    return spans[start:stop]


def without_final(batches: list[InFlightBatch]) -> list[InFlightBatch]:
    """Returns the batches from the first record that is not final."""
    for index, batch in enumerate(batches):
        for run in batch.runs:
            if not run.is_final:
                return starting_at(batches[index:], run.first_offset)
    return []


def starting_at(batches: list[InFlightBatch], offset: int) -> list[InFlightBatch]:
    """Returns the batches without the records before the offset."""
    rest = batches[bisect_left(batches, offset, key=_LAST_OFFSET) :]
    if rest and rest[0].first_offset < offset:
        runs = [run.part(max(run.first_offset, offset), run.last_offset) for run in rest[0].runs if run.last_offset >= offset]
        rest[0] = rest[0]._replace(first_offset=offset, runs=tuple(runs))
    return rest


def all_runs(batches: Iterable[InFlightBatch]) -> Iterator[Run]:
    """Yields every run, in order."""
    for batch in batches:
        yield from batch.runs
