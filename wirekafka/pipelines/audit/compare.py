"""Compares the counts of the three places, and tells a difference from records that are not there yet or not there any more.

Lake and brokers are compared by offsets: only the offsets that the lake has reached and that the brokers still have. So lag and
retention never look like a loss, whenever the audit runs.

    lost         a lake has fewer of these records than the brokers
    extra        a lake has records that the brokers do not have, and the topic is not compacted
    duplicate    a lake has an offset more than once

Claims and brokers are compared by minutes, from the first minute that is claimed of a topic to the last one:

    missing      the brokers have fewer records than the producers claim
    unclaimed    the brokers have more records than the producers claim

What follows is no difference, but pending or explained:

    lag          records that a lake has not reached
    skipped      records before the offset at which a lake began
    deleted      records that only the lake has, because retention has deleted them at the brokers; or claimed ones in a minute
                 that retention has reached
    compacted    records that only the lake has, or claimed ones, in a compacted topic
    open         claimed records that a running transaction may hold back; records of a minute whose claims may still come

Rules of this file: pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wirekafka.pipelines.audit.counts import BrokerCount, ClaimCount, LakeCount, Minute, order
from wirekafka.pipelines.audit.offsets import Offsets, Place

NO_COUNT = LakeCount()


@dataclass(slots=True)
class LakeCounts:
    """The counts of a lake.

    Attributes:
        path: the path of the lake.
        topics: the topics that it reads.
    """

    path: str
    topics: Collection[str]
    minutes: Mapping[Minute, LakeCount]


@dataclass(slots=True)
class Counts:
    """What was counted.

    Attributes:
        brokers: by partition and minute; the counts of each lake have its number in `lakes`.
        claims: None if no claims were read.
        first_minutes: the minute of the first counted record of each partition.
    """

    offsets: Offsets
    brokers: Mapping[Minute, BrokerCount]
    lakes: Sequence[LakeCounts] = ()
    claims: Mapping[Minute, ClaimCount] | None = None
    first_minutes: Mapping[Place, int | None] = field(init=False)

    def __post_init__(self) -> None:
        first: dict[Place, tuple[int, int | None]] = {}
        for minute, count in self.brokers.items():
            place = Place(minute.topic, minute.partition or 0)
            first[place] = min(first.get(place, (count.first_offset, minute.minute_ms)), (count.first_offset, minute.minute_ms))
        self.first_minutes = {place: minute_ms for place, (_, minute_ms) in first.items()}


@dataclass(slots=True)
class Rules:
    """What decides between a difference and an explanation.

    Attributes:
        compacted_topics: their records may be missing anywhere.
        open_from_ms: the claims of this minute and later ones may still come.
    """

    compacted_topics: Collection[str] = field(default_factory=frozenset)
    open_from_ms: int | None = None


@dataclass(slots=True)
class Finding:
    """A number of records of one minute that one place has and another has not.

    Attributes:
        kind: one of the words of the module's docstring.
        records: how many records; the lake's or the brokers' surplus is positive, a deficit is negative.
        claimed, broker, in_lake: the counts of the minute; None if the place does not count it.
        lake: the path of the lake that differs; None if the claims differ.
    """

    kind: str
    minute: Minute
    records: int
    claimed: int | None
    broker: int
    in_lake: int | None
    lake: str | None


@dataclass(slots=True)
class Findings:
    """The result of the comparison, in the order of topic, partition and minute."""

    differences: list[Finding] = field(default_factory=list)
    explained: list[Finding] = field(default_factory=list)


DIFFERENCES = frozenset({"lost", "extra", "duplicate", "missing", "unclaimed"})


def compare(counts: Counts, rules: Rules) -> Findings:
    """Returns the differences, and what is pending or explained."""
    found = Findings()
    rows = list(_compare_claims(counts, rules))
    for number in range(len(counts.lakes)):
        rows += _compare_lake(counts, number, rules)
    for finding in sorted(rows, key=lambda finding: (order(finding.minute), finding.kind, finding.lake or "")):
        (found.differences if finding.kind in DIFFERENCES else found.explained).append(finding)
    return found


def _compare_lake(counts: Counts, number: int, rules: Rules) -> Iterator[Finding]:
    lake = counts.lakes[number]
    nothing = BrokerCount(0, 0, 0, 0, (0,) * len(counts.lakes), (0,) * len(counts.lakes))
    places = [minute for minute in counts.brokers if minute.topic in lake.topics]
    for minute in dict.fromkeys([*places, *lake.minutes]):
        ours, theirs = lake.minutes.get(minute, NO_COUNT), counts.brokers.get(minute, nothing)
        surplus = ours.within - theirs.within[number]
        extra = "compacted" if minute.topic in rules.compacted_topics else "extra"
        before = theirs.records - theirs.within[number] - theirs.beyond[number]
        kinds = {
            "lost": min(surplus, 0),
            extra: max(surplus, 0),
            "duplicate": ours.duplicates,
            "lag": -theirs.beyond[number],
            "skipped": -before,
            "deleted": ours.deleted,
        }
        for kind, records in kinds.items():
            if records:
                yield Finding(kind, minute, records, _claimed(counts, minute), theirs.records, ours.records, lake.path)


def _compare_claims(counts: Counts, rules: Rules) -> Iterator[Finding]:
    claims = counts.claims or {}
    spans = _claimed_spans(claims)
    seen = _seen(counts, {minute.topic for minute in claims if minute.partition is None})
    for minute in dict.fromkeys([*claims, *seen]):
        if minute.topic not in spans or minute.minute_ms is None:
            continue
        first_ms, last_ms = spans[minute.topic]
        claimed, known = claims[minute].records if minute in claims else 0, seen.get(minute, 0)
        if known < claimed:
            kind = _kind_of_deficit(counts, rules, minute, claimed - known)
            yield Finding(kind, minute, known - claimed, claimed, known, _in_lake(counts, minute), None)
        elif known > claimed and minute.minute_ms >= first_ms:
            is_open = minute.minute_ms > last_ms or (rules.open_from_ms is not None and minute.minute_ms >= rules.open_from_ms)
            kind = "open" if is_open else "unclaimed"
            yield Finding(kind, minute, known - claimed, claimed, known, _in_lake(counts, minute), None)


def _claimed(counts: Counts, minute: Minute) -> int | None:
    """Returns what is claimed of a minute of a partition; None if no claim names it."""
    claim = (counts.claims or {}).get(minute)
    return None if claim is None else claim.records


def _in_lake(counts: Counts, minute: Minute) -> int | None:
    """Returns the records of a minute in the lake that reads the topic; None without such a lake, or if there are several."""
    lakes = [lake for lake in counts.lakes if minute.topic in lake.topics]
    if len(lakes) != 1:
        return None
    partitions = [place.partition for place in counts.offsets if place.topic == minute.topic]
    minutes = [minute] if minute.partition is not None else [minute._replace(partition=number) for number in partitions]
    return sum(lakes[0].minutes.get(each, NO_COUNT).records for each in minutes)


def _claimed_spans(claims: Mapping[Minute, ClaimCount]) -> dict[str, tuple[int, int]]:
    """Returns the first and the last minute that is claimed of each topic."""
    minutes: dict[str, list[int]] = defaultdict(list)
    for minute in claims:
        if minute.minute_ms is not None:
            minutes[minute.topic].append(minute.minute_ms)
    return {topic: (min(times), max(times)) for topic, times in minutes.items()}


def _seen(counts: Counts, whole_topics: Collection[str]) -> dict[Minute, int]:
    """Returns the records that were sent as far as is known: those of the brokers, and those that only a lake still has.

    Args:
        counts: what was counted.
        whole_topics: the topics whose partitions are added up.
    """
    seen: dict[Minute, int] = defaultdict(int)
    for minute, count in counts.brokers.items():
        seen[_without_partition(minute, whole_topics)] += count.records
    deleted: dict[Minute, int] = defaultdict(int)
    for lake in counts.lakes:
        for minute, ours in lake.minutes.items():
            deleted[minute] = max(deleted[minute], ours.deleted)
    for minute, records in deleted.items():
        seen[_without_partition(minute, whole_topics)] += records
    return seen


def _without_partition(minute: Minute, whole_topics: Collection[str]) -> Minute:
    return minute._replace(partition=None) if minute.topic in whole_topics else minute


def _kind_of_deficit(counts: Counts, rules: Rules, minute: Minute, deficit: int) -> str:
    """Returns why the brokers have fewer records than are claimed, `missing` if nothing explains it."""
    if minute.topic in rules.compacted_topics:
        return "compacted"
    places = [place for place in counts.offsets if place.topic == minute.topic and minute.partition in (None, place.partition)]
    if any(_may_be_deleted(counts, place, minute.minute_ms) for place in places):
        return "deleted"
    held_back = sum(counts.offsets[place].log_end_offset - counts.offsets[place].last_stable_offset for place in places)
    return "open" if held_back >= deficit else "missing"


def _may_be_deleted(counts: Counts, place: Place, minute_ms: int | None) -> bool:
    """Whether retention may have deleted records of a minute: the log begins after 0, and in this minute or later."""
    offsets = counts.offsets[place]
    if offsets.log_start_offset == 0 or offsets.first_offset > offsets.log_start_offset:
        return False
    first_minute_ms = counts.first_minutes.get(place)
    return first_minute_ms is None or (minute_ms is not None and minute_ms <= first_minute_ms)
