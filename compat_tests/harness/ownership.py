"""Checks the events of a group's members (agents/members.py) against the guarantees of a group.

- No partition has two owners at once. The callbacks of the members define ownership. A killed member owns its partitions until
  its session ends, because its broker cannot know of the kill. An evicted member that notices the eviction later owns its
  partitions up to its last accepted commit: later commits are refused, and the next owner reads these records again. Ownership is
  uncertain after half a session without an answer from the broker: on a busy machine a member may be evicted, and be killed or
  leave before it notices.
- The epochs of a partition's owners grow: generations of a classic group, member epochs of the consumer protocol.
- Every record is processed at least once.
- No acknowledged commit is lost: the next owner of a partition does not begin before the committed offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FENCED = ("unknown_member", "unknownmember", "illegal_generation", "illegalgeneration", "stale_member", "stalemember", "fenced")
"""Parts of the libraries' error messages if the broker no longer knows the member that commits."""


@dataclass(frozen=True)
class Event:
    """An event that a member reported, and its time."""

    time_s: float
    member: str
    kind: str
    fields: tuple[str, ...] = ()

    def partitions(self) -> list[int]:
        """Returns the partitions in the last field."""
        return [int(number) for number in self.fields[-1].split(",") if number]


@dataclass
class Interval:
    """The time in which a member owned a partition.

    Attributes:
        end_s: None while the member owns the partition.
        is_lost: whether the broker took the partition away before the member knew.
        committed_s: the time of the last acknowledged commit of the interval.
    """

    partition: int
    member: str
    epoch: int
    start_s: float
    end_s: float | None = None
    is_lost: bool = False
    committed_s: float | None = None
    first_read: int | None = None

    @property
    def surely_until_s(self) -> float:
        """The time until which no other member may own the partition."""
        if self.is_lost:
            return self.committed_s or self.start_s
        return float("inf") if self.end_s is None else self.end_s

    def __str__(self) -> str:
        end = "now" if self.end_s is None else f"{self.end_s:.3f}"
        return f"{self.member} (epoch {self.epoch}{', evicted' if self.is_lost else ''}) {self.start_s:.3f} to {end}"


@dataclass
class Ownership:
    """The partitions that the members owned, read and committed; built from events in the order of their times.

    Attributes:
        grace_s: the least time for which a member's session lasts after the member was killed.
        silence_s: the least time for which a member's session lasts after the broker's last answer to it.
        intervals: by partition, in the order of their starts.
        read: by partition, the ranges of offsets processed.
        commits: by partition, the times of acknowledged commits and their offsets.
        problems: events that a member should not have.
    """

    grace_s: float
    silence_s: float
    intervals: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    read: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    _open: dict[str, dict[int, Interval]] = field(default_factory=lambda: defaultdict(dict))
    _closing_ones: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _heard_s: dict[str, float] = field(default_factory=dict)

    def take(self, events: Iterable[Event]) -> None:
        """Adds further events."""
        for event in sorted(events, key=lambda event: event.time_s):
            getattr(self, f"_{event.kind}")(event)

    def _assigned(self, event: Event) -> None:
        if event.member in self._closing_ones:
            return  # aiokafka rebalances in parallel with the program, which has stopped reading
        self._heard_s[event.member] = event.time_s
        for partition in event.partitions():
            if partition not in self._open[event.member]:
                interval = Interval(partition, event.member, int(event.fields[0]), event.time_s)
                self._open[event.member][partition] = interval
                self.intervals[partition].append(interval)

    def _end(self, event: Event, partitions: Iterable[int], end_s: float, *, is_lost: bool = False) -> None:
        for partition in partitions:
            interval = self._open[event.member].pop(partition, None)
            if interval is not None:
                interval.end_s = min(end_s, self._heard_s[event.member] + self.silence_s)
                interval.is_lost |= is_lost

    def _revoked(self, event: Event) -> None:
        self._end(event, event.partitions(), event.time_s)

    def _lost(self, event: Event) -> None:
        self._end(event, event.partitions(), event.time_s, is_lost=True)

    def _closing(self, event: Event) -> None:
        self._closing_ones.add(event.member)
        self._end(event, list(self._open[event.member]), event.time_s)

    def _left(self, event: Event) -> None:
        self._gone.add(event.member)

    def _killed(self, event: Event) -> None:
        self._gone.add(event.member)
        self._end(event, list(self._open[event.member]), event.time_s + self.grace_s)

    def _read(self, event: Event) -> None:
        for item in event.fields[0].split(","):
            partition, first, last = map(int, item.split(":"))
            interval = self._open[event.member].get(partition)
            if interval is None:
                self.problems.append(f"{event.member} read of partition {partition}, which it did not own")
                continue
            if interval.first_read is None:
                interval.first_read = first
            self.read[partition].append((first, last))

    def _committed(self, event: Event) -> None:
        self._heard_s[event.member] = event.time_s
        for item in event.fields[0].split(","):
            partition, offset = map(int, item.split(":"))
            self.commits[partition].append((event.time_s, offset))
            interval = self._open[event.member].get(partition)
            if interval is not None:
                interval.committed_s = event.time_s

    def _refused(self, event: Event) -> None:
        if any(word in event.fields[0].lower() for word in FENCED):
            for interval in self._open[event.member].values():
                interval.is_lost = True

    def _failed(self, event: Event) -> None:
        self.problems.append(f"{event.member}: {event.fields[0]}")

    def _ended(self, event: Event) -> None:
        if event.member not in self._gone:
            self.problems.append(f"{event.member} has ended by itself: {event.fields}")

    def faults(self, end_offsets: Mapping[int, int]) -> list[str]:
        """Returns all violations of the guarantees, given the end offsets of the topic's partitions."""
        found = list(self.problems)
        for partition, end_offset in end_offsets.items():
            found += self._overlaps(partition)
            found += self._shrinking_epochs(partition)
            found += self._missing(partition, end_offset)
            found += self._lost_commits(partition)
        return found

    def _overlaps(self, partition: int) -> list[str]:
        intervals = self.intervals[partition]
        return [
            f"partition {partition} has two owners: {interval}; {later}"
            for number, interval in enumerate(intervals)
            for later in intervals[number + 1 :]
            if later.member != interval.member and later.start_s < interval.surely_until_s
        ]

    def _shrinking_epochs(self, partition: int) -> list[str]:
        intervals = self.intervals[partition]
        return [
            f"partition {partition}: an owner of an older epoch: {before}; {after}"
            for before, after in zip(intervals, intervals[1:], strict=False)
            if before.member != after.member and before.epoch >= after.epoch
        ]

    def _missing(self, partition: int, end_offset: int) -> list[str]:
        reached, found = 0, []
        for first, last in sorted(self.read[partition]):
            if first > reached:
                found.append(f"partition {partition}: nobody processed offsets {reached} to {first - 1}")
            reached = max(reached, last + 1)
        if reached < end_offset:
            found.append(f"partition {partition}: nobody processed offsets {reached} to {end_offset - 1}")
        return found

    def _lost_commits(self, partition: int) -> list[str]:
        found = []
        for interval in self.intervals[partition]:
            committed = max((offset for time_s, offset in self.commits[partition] if time_s < interval.start_s), default=0)
            if interval.first_read is not None and interval.first_read < committed:
                found.append(f"partition {partition}: {interval} began at {interval.first_read}, but {committed} was committed")
        return found
