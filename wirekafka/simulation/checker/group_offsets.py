"""Property 6: acknowledged commits of offsets never go back, under one generation and over generations.

How it works: an answer names the commit of each offset. The offset of a partition is a register. A commit that was known to be in
effect when the client asked excludes each commit that was finished before it was sent. The effect is known by an acknowledgement,
or by an answer that an earlier read got. Commits of an older generation are refused once one of a newer generation is in effect.

What is legal although it looks odd: a commit of unknown outcome takes effect at any later time, within its generation. The
offsets of a transaction take effect in the order of their own request, but become visible with its commit, and to clients that do
not ask for stable offsets even later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from wirekafka.simulation.checker.facts import Commit, Facts, Key
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import CommittedOffset, Entry, OffsetsRead

_Register = tuple[str, Key, bool]
"""A group, a partition, and whether clients ask for stable offsets."""


@dataclass(frozen=True, slots=True)
class _InEffect:
    """A commit that is known to be in effect from a place in the order on."""

    from_order: int
    commit: Commit
    evidence: Entry


@dataclass(slots=True)
class _Floors:
    """The newest commits in effect at each place in the order: by their request, and by their generation."""

    orders: list[int]
    latest: list[_InEffect]
    youngest: list[_InEffect | None]

    def at(self, order: int) -> tuple[_InEffect | None, _InEffect | None]:
        slot = bisect_right(self.orders, order) - 1
        return (None, None) if slot < 0 else (self.latest[slot], self.youngest[slot])


def check_group_offsets(facts: Facts) -> Iterator[Violation]:
    """Yields the violations of property 6, at most one of each kind for a commit that is read."""
    floors = {register: _find_floors(known) for register, known in _find_effects(facts).items()}
    reported: set[tuple[Kind, str, Key, str | None]] = set()
    for entry, read in facts.offset_reads:
        for each in read.offsets:
            for violation in _judge(facts, floors, entry, read, each):
                place = violation.kind, read.group, (each.topic, each.partition), each.commit
                if place not in reported:
                    reported.add(place)
                    yield violation


def _find_effects(facts: Facts) -> dict[_Register, list[_InEffect]]:
    effects: defaultdict[_Register, list[_InEffect]] = defaultdict(list)
    for commit in facts.commits.values():
        evidence = _visible_by(commit)
        if evidence is None:
            continue
        for each in commit.sent.offsets:
            key = each.topic, each.partition
            for is_stable in (True,) if commit.transaction is not None else (True, False):
                effects[commit.sent.group, key, is_stable].append(_InEffect(evidence.order, commit, evidence))
    for entry, read in facts.offset_reads:
        for each in read.offsets:
            found = None if each.commit is None else facts.commits.get(each.commit)
            if found is not None:
                for is_stable in (True, False):
                    effects[read.group, (each.topic, each.partition), is_stable].append(_InEffect(entry.order, found, entry))
    return effects


def _visible_by(commit: Commit) -> Entry | None:
    """Returns the entry from which on clients see a commit or a later one; None if it may have no effect."""
    if commit.acknowledged is None or commit.transaction is None:
        return commit.acknowledged
    return None if commit.transaction.may_be_ended_late else commit.transaction.committed


def _find_floors(known: list[_InEffect]) -> _Floors:
    floors = _Floors([], [], [])
    latest: _InEffect | None = None
    youngest: _InEffect | None = None
    for each in sorted(known, key=lambda effect: effect.from_order):
        if latest is None or each.commit.entry.order > latest.commit.entry.order:
            latest = each
        if each.commit.sent.generation is not None and (
            youngest is None or each.commit.sent.generation > (youngest.commit.sent.generation or 0)
        ):
            youngest = each
        floors.orders.append(each.from_order)
        floors.latest.append(latest)
        floors.youngest.append(youngest)
    return floors


def _judge(
    facts: Facts, floors: dict[_Register, _Floors], entry: Entry, read: OffsetsRead, each: CommittedOffset
) -> Iterator[Violation]:
    key = each.topic, each.partition
    if key in facts.losses:
        return
    commit = None if each.commit is None else facts.commits.get(each.commit)
    if each.offset is not None and (commit is None or commit.sent.group != read.group or commit.offset_of(key) != each.offset):
        yield _violation(Kind.NEVER_COMMITTED, read, each, "an offset that was committed", entry)
        return
    if commit is not None and commit.failed is not None:
        yield _violation(
            Kind.FAILED_COMMIT_SHOWN, read, each, "the commit failed for certain", entry, commit.entry, commit.failed
        )
    register = read.group, key, read.is_stable
    if read.may_be_stale or register not in floors:
        return
    latest, youngest = floors[register].at(min(read.asked, entry.order - 1))
    if latest is not None and _precedes(commit, latest.commit):
        own = (None, None) if commit is None else (commit.entry, commit.acknowledged)
        events = (*own, latest.commit.entry, latest.evidence, entry)
        yield _violation(Kind.OFFSET_WENT_BACK, read, each, _describe(latest.commit, key), *events)
    if youngest is not None and commit is not None and _is_fenced(commit, youngest.commit):
        events = (commit.entry, commit.acknowledged, youngest.commit.entry, youngest.evidence, entry)
        yield _violation(Kind.FENCED_COMMIT_SHOWN, read, each, _describe(youngest.commit, key), *events)


def _precedes(commit: Commit | None, later: Commit) -> bool:
    """Whether a commit was finished before another one was sent; no commit at all precedes every one."""
    if commit is None:
        return True
    return commit.acknowledged is not None and commit.acknowledged.order < later.entry.order


def _is_fenced(commit: Commit, younger: Commit) -> bool:
    generation = commit.sent.generation
    return generation is not None and generation < (younger.sent.generation or 0)


def _describe(commit: Commit, key: Key) -> str:
    generation = "" if commit.sent.generation is None else f" of generation {commit.sent.generation}"
    return f"{commit.offset_of(key)} by commit {commit.sent.commit!r}{generation}, or a later one"


def _violation(kind: Kind, read: OffsetsRead, each: CommittedOffset, expected: str, *events: Entry | None) -> Violation:
    found = f"{each.offset} by commit {each.commit!r}"
    key = each.topic, each.partition
    return Violation(kind, key, each.offset, expected, found, in_order(*events), subject=f"group {read.group}")
