"""Series of counts for plots: by minute, or by several minutes if there are too many.

Rules of this file: pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.compare import Counts

MOST_POINTS = 1000


@dataclass(slots=True)
class TopicSeries:
    """The counts of a topic, by minute.

    Attributes:
        records: the records by place: "brokers", "claims", or the path of a lake.
        size_bytes: the bytes of keys and values at the brokers.
    """

    records: dict[str, dict[int, int]]
    size_bytes: dict[int, int]


@dataclass(slots=True)
class Grid:
    """Times of equal width, one after the other.

    Attributes:
        times_ms: the beginning of each.
        width_ms: a multiple of a minute.
    """

    times_ms: list[int]
    width_ms: int


def topic_series(counts: Counts, topic: str) -> TopicSeries:
    """Returns the counts of a topic at all places, added up over its partitions."""
    brokers: dict[int, int] = defaultdict(int)
    size_bytes: dict[int, int] = defaultdict(int)
    for minute, each in counts.brokers.items():
        if minute.topic == topic and minute.minute_ms is not None:
            brokers[minute.minute_ms] += each.records
            size_bytes[minute.minute_ms] += each.key_bytes + each.value_bytes
    records: dict[str, dict[int, int]] = {"brokers": brokers}
    if any(minute.topic == topic for minute in counts.claims or {}):
        claims = records.setdefault("claims", defaultdict(int))
        for minute, claim in (counts.claims or {}).items():
            if minute.topic == topic and minute.minute_ms is not None:
                claims[minute.minute_ms] += claim.records
    for lake in counts.lakes:
        if topic in lake.topics:
            in_lake = records.setdefault(lake.path, defaultdict(int))
            for minute, ours in lake.minutes.items():
                if minute.topic == topic and minute.minute_ms is not None:
                    in_lake[minute.minute_ms] += ours.records
    return TopicSeries(records, size_bytes)


def grid(minutes: Iterable[int], most_points: int = MOST_POINTS) -> Grid:
    """Returns the times from the first minute to the last one; wider ones if the minutes are more than `most_points`."""
    times = set(minutes)
    if not times:
        return Grid([], MINUTE_MS)
    first, count = min(times), (max(times) - min(times)) // MINUTE_MS + 1
    width_ms = -(-count // most_points) * MINUTE_MS
    return Grid([first + number * width_ms for number in range(-(-count * MINUTE_MS // width_ms))], width_ms)


def per_second(values: Mapping[int, int], times: Grid) -> list[float]:
    """Returns the mean per second in each time of a grid; 0 without values."""
    sums = [0] * len(times.times_ms)
    for minute_ms, value in values.items():
        sums[(minute_ms - times.times_ms[0]) // times.width_ms] += value
    return [value * 1000 / times.width_ms for value in sums]
