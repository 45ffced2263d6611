"""Property 2: the end of a partition that brokers report to clients never goes back.

How it works: if an answer had arrived before another request was sent, the latter's answer has no lower offset. A deposed leader
may not know about its successor, so an answer is compared only with those of its own leader epoch and of earlier ones. The high
watermark of a new leader may be older than what former leaders committed; it gives no answer then (KIP-207). The last stable
offset passes a transaction only when the marker is committed; otherwise the next leader may not have the marker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from wirekafka.simulation.checker.facts import Facts, Key
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import EndOffsetRead, Entry

_Read = tuple[Entry, EndOffsetRead]


def check_end_offsets(facts: Facts) -> Iterator[Violation]:
    """Yields the first end that went back in each partition, for each isolation level."""
    for (key, is_read_committed), reads in facts.end_reads.items():
        if key in facts.losses:
            continue
        violation = _find_first(key, "last stable offset" if is_read_committed else "high watermark", reads)
        if violation is not None:
            yield violation


def _find_first(key: Key, what: str, reads: Iterable[_Read]) -> Violation | None:
    floors: defaultdict[int, _Floor] = defaultdict(_Floor)
    for entry, read in reads:
        if read.leader_epoch is None:
            continue
        for epoch, floor in floors.items():
            former = floor.before(read.asked) if epoch <= read.leader_epoch else None
            if former is not None and former[1].offset > read.offset:
                expected = f"a {what} of {former[1].offset} or more"
                return Violation(Kind.END_WENT_BACK, key, read.offset, expected, f"{read.offset}", in_order(former[0], entry))
        floors[read.leader_epoch].add(entry, read)
    return None


class _Floor:
    """The greatest end so far of one leader epoch, at each time."""

    def __init__(self) -> None:
        self._orders: list[int] = []
        self._greatest: list[_Read] = []

    def add(self, entry: Entry, read: EndOffsetRead) -> None:
        """Adds an answer, after those that arrived before it."""
        if not self._greatest or read.offset > self._greatest[-1][1].offset:
            self._orders.append(entry.order)
            self._greatest.append((entry, read))

    def before(self, asked: int) -> _Read | None:
        """Returns the answer with the greatest end among those that had arrived up to this place in the history."""
        slot = bisect_right(self._orders, asked)
        return self._greatest[slot - 1] if slot else None
