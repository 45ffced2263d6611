"""The result of an audit, and its form as JSON.

Rules of this file: pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wirekafka.pipelines.audit.checkpoints import QueryLag
from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.compare import Counts, Finding, Findings
from wirekafka.pipelines.audit.counts import Minute, order
from wirekafka.pipelines.audit.groups import GroupLag
from wirekafka.pipelines.audit.options import format_minute, format_time

VERSION = 1
MINUTE_S = MINUTE_MS // 1000


@dataclass(slots=True)
class TopicSize:
    """The committed records of a topic at the brokers, in all its partitions.

    Attributes:
        first_minute_ms, last_minute_ms: the first and the last minute with records; None without records.
        records_per_second, bytes_per_second: the mean from the first minute to the last; bytes are those of keys and values.
        most_records_per_second, most_bytes_per_second: those of the busiest minute.
    """

    topic: str
    partitions: int
    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    first_minute_ms: int | None = None
    last_minute_ms: int | None = None
    records_per_second: float = 0.0
    bytes_per_second: float = 0.0
    most_records_per_second: float = 0.0
    most_bytes_per_second: float = 0.0


@dataclass(slots=True)
class LakeSize:
    """The table of a topic in a lake.

    Attributes:
        records: the rows that were counted, and the dead letters.
        files, file_bytes: the files of the whole table.
    """

    lake: str
    topic: str
    records: int
    files: int
    file_bytes: int


@dataclass(slots=True)
class Rate:
    """The committed records of a topic at the brokers in one minute."""

    topic: str
    minute_ms: int
    records: int
    size_bytes: int

    @property
    def records_per_second(self) -> float:
        """The mean of the minute."""
        return self.records / MINUTE_S

    @property
    def bytes_per_second(self) -> float:
        """The mean of the minute; bytes of keys and values."""
        return self.size_bytes / MINUTE_S


@dataclass(slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        audited_at_ms: when the audit began.
        read: what was read, by name, for people.
        topics: in the order of their names.
        notes: sentences about what the audit left out.
    """

    audited_at_ms: int
    read: Mapping[str, object]
    counts: Counts
    findings: Findings
    topics: list[TopicSize]
    lakes: list[LakeSize] = field(default_factory=list)
    groups: list[GroupLag] = field(default_factory=list)
    queries: list[QueryLag] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_differences(self) -> bool:
        """Whether the places differ in what can be compared."""
        return bool(self.findings.differences)

    def rates(self) -> list[Rate]:
        """Returns the rates of each topic, by minute."""
        return rates(self.counts)

    def minutes(self) -> list[dict[str, Any]]:
        """Returns the three counts of each minute, as JSON has them."""
        counts = self.counts
        claims = counts.claims or {}
        keys = {*counts.brokers, *claims, *(minute for lake in counts.lakes for minute in lake.minutes)}
        rows = []
        for minute in sorted(keys, key=order):
            broker = counts.brokers.get(minute)
            row: dict[str, Any] = _place(minute)
            if counts.claims is not None:
                row["claimed"] = claims[minute].records if minute in claims else None
            row["broker"] = broker.records if broker is not None else 0
            row["broker_bytes"] = broker.key_bytes + broker.value_bytes if broker is not None else 0
            if counts.lakes:
                row["lakes"] = {lake.path: lake.minutes[minute].records for lake in counts.lakes if minute in lake.minutes}
            rows.append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Returns the whole report as values that `json.dumps` takes; times are ISO 8601 in UTC."""
        return {
            "version": VERSION,
            "audited_at": format_time(self.audited_at_ms),
            "read": dict(self.read),
            "has_differences": self.has_differences,
            "differences": [_finding(each) for each in self.findings.differences],
            "explained": [_finding(each) for each in self.findings.explained],
            "topics": [_with_times(asdict(each)) for each in self.topics],
            "partitions": [{**place._asdict(), **asdict(each)} for place, each in sorted(self.counts.offsets.items())],
            "lakes": [asdict(each) for each in self.lakes],
            "groups": [asdict(each) for each in self.groups],
            "queries": [_with_times(asdict(each)) for each in self.queries],
            "minutes": self.minutes(),
            "rates": [
                {
                    "topic": each.topic,
                    "minute": format_minute(each.minute_ms),
                    "records_per_second": round(each.records_per_second, 3),
                    "bytes_per_second": round(each.bytes_per_second, 3),
                }
                for each in self.rates()
            ],
            "notes": self.notes,
        }


def rates(counts: Counts) -> list[Rate]:
    """Returns the rates of each topic, by minute."""
    found: dict[tuple[str, int], Rate] = {}
    for minute, each in counts.brokers.items():
        if minute.minute_ms is not None:
            rate = found.setdefault((minute.topic, minute.minute_ms), Rate(minute.topic, minute.minute_ms, 0, 0))
            rate.records += each.records
            rate.size_bytes += each.key_bytes + each.value_bytes
    return [found[key] for key in sorted(found)]


def topic_sizes(counts: Counts) -> list[TopicSize]:
    """Returns the sizes of all topics, those without records too."""
    sizes: dict[str, TopicSize] = {}
    for place in sorted(counts.offsets):
        sizes.setdefault(place.topic, TopicSize(place.topic, 0)).partitions += 1
    for minute, each in counts.brokers.items():
        size = sizes[minute.topic]
        size.records += each.records
        size.key_bytes += each.key_bytes
        size.value_bytes += each.value_bytes
    by_topic: dict[str, list[Rate]] = defaultdict(list)
    for rate in rates(counts):
        by_topic[rate.topic].append(rate)
    for topic, series in by_topic.items():
        _add_rates(sizes[topic], series)
    return list(sizes.values())


def _add_rates(size: TopicSize, series: list[Rate]) -> None:
    size.first_minute_ms, size.last_minute_ms = series[0].minute_ms, series[-1].minute_ms
    seconds = (size.last_minute_ms - size.first_minute_ms) // 1000 + MINUTE_S
    size.records_per_second = sum(rate.records for rate in series) / seconds
    size.bytes_per_second = sum(rate.size_bytes for rate in series) / seconds
    size.most_records_per_second = max(rate.records_per_second for rate in series)
    size.most_bytes_per_second = max(rate.bytes_per_second for rate in series)


def _place(minute: Minute) -> dict[str, Any]:
    return {"topic": minute.topic, "partition": minute.partition, "minute": format_minute(minute.minute_ms)}


def _finding(finding: Finding) -> dict[str, Any]:
    fields = {"claimed": finding.claimed, "broker": finding.broker, "in_lake": finding.in_lake, "lake": finding.lake}
    return {"kind": finding.kind, **_place(finding.minute), **fields, "records": finding.records}


def _with_times(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns fields with times as text: those that end in `minute_ms` and `time_ms`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("minute_ms"):
            found[name.removesuffix("_ms")] = format_minute(value)
        elif name.endswith("time_ms"):
            found[name.removesuffix("_ms")] = format_time(value)
        else:
            found[name] = round(value, 3) if isinstance(value, float) else value
    return found
