"""The records of a partition that a share group is at work on: which state each is in, as runs of offsets.

Theory of operation: records are acquired in batches, and a batch begins as one run: the same state from its first record to
its last. Whoever acknowledges a part of it splits the run; equal neighbours become one run again. So what is kept grows with
what differs, not with the number of records. Batches and runs never change: a step makes a new list, which costs little
since both are few, and the former list is all that it takes to go back.

Rules of this file:
    Invariant: batches are in the order of their offsets and do not overlap; there may be offsets between them that no record
    has (compaction took it).
    Invariant: the runs of a batch lie one behind the other, from its first offset to its last, and no two neighbours are alike.
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
    """Neighbouring records of which everything is the same.

    Attributes:
        delivery_count: how often they have been given to a consumer.
        member_id: who has acquired them.
        lock_deadline_ms: when they are taken away again, by the monotonic clock.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str | None = None
    lock_deadline_ms: int = 0

    @property
    def record_count(self) -> int:
        """How many offsets it has."""
        return self.last_offset - self.first_offset + 1

    @property
    def is_final(self) -> bool:
        """Nothing will be done with these any more."""
        return self.state in FINAL_STATES

    def part(self, first_offset: int, last_offset: int) -> Run:
        """Some of its records."""
        if first_offset == self.first_offset and last_offset == self.last_offset:
            return self
        return self._replace(first_offset=first_offset, last_offset=last_offset)

    def acquired(self, member_id: str, lock_deadline_ms: int) -> Run:
        """The same, given to a consumer."""
        return self._replace(
            state=RecordState.ACQUIRED,
            delivery_count=self.delivery_count + 1,
            member_id=member_id,
            lock_deadline_ms=lock_deadline_ms,
        )

    def left(self, state: RecordState) -> Run:
        """The same in a state that has no owner."""
        return Run(self.first_offset, self.last_offset, state, self.delivery_count)


class InFlightBatch(NamedTuple):
    """Records that were acquired together.

    Attributes:
        record_count: how many there were; the first ones leave once they are final.
    """

    first_offset: int
    last_offset: int
    record_count: int
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, *runs: Run) -> InFlightBatch:
        """A batch of runs that lie one behind the other."""
        first_offset, last_offset = runs[0].first_offset, runs[-1].last_offset
        return cls(first_offset, last_offset, last_offset - first_offset + 1, runs)


class Range(NamedTuple):
    """A range of offsets about which something is said."""

    first_offset: int
    last_offset: int
    what: int = 0


Span = TypeVar("Span", InFlightBatch, Range)

Change = Callable[[Run, int], Run]
"""What becomes of a run, or a part of one, about which a range says `what`."""

_FIRST_OFFSET = attrgetter("first_offset")
_LAST_OFFSET = attrgetter("last_offset")


def rewrite(batches: list[InFlightBatch], ranges: list[Range], change: Change) -> list[InFlightBatch]:
    """The batches as they are after `change` has been at each part of a run that lies in a range.

    Args:
        ranges: in order, not overlapping.
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
    """Adds a run behind the others; one like the last becomes part of it."""
    if runs and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1].part(runs[-1].first_offset, run.last_offset)
    else:
        runs.append(run)


def overlapping(spans: list[Span], first_offset: int, last_offset: int) -> list[Span]:
    """Those, of spans in order, that have an offset in common with the range."""
    start = bisect_left(spans, first_offset, key=_LAST_OFFSET)
    stop = bisect_left(spans, last_offset + 1, lo=start, key=_FIRST_OFFSET)
    return spans[start:stop]


def without_final(batches: list[InFlightBatch]) -> list[InFlightBatch]:
    """The batches from the first record on that is not final."""
    for index, batch in enumerate(batches):
        for run in batch.runs:
            if not run.is_final:
                return starting_at(batches[index:], run.first_offset)
    return []


def starting_at(batches: list[InFlightBatch], offset: int) -> list[InFlightBatch]:
    """The batches without what lies before the offset."""
    rest = batches[bisect_left(batches, offset, key=_LAST_OFFSET) :]
    if rest and rest[0].first_offset < offset:
        runs = [run.part(max(run.first_offset, offset), run.last_offset) for run in rest[0].runs if run.last_offset >= offset]
        rest[0] = rest[0]._replace(first_offset=offset, runs=tuple(runs))
    return rest


def all_runs(batches: Iterable[InFlightBatch]) -> Iterator[Run]:
    """Every run, in order."""
    for batch in batches:
        yield from batch.runs
