"""The tables of a report, as text cells: what the terminal and the HTML page show of it.

A table is cut after some rows, and says how many rows it has left out. The JSON has all rows.

Rules of this file: pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wirekafka.pipelines.audit.compare import Finding
from wirekafka.pipelines.audit.options import format_minute, format_time
from wirekafka.pipelines.audit.report import AuditReport

MEANINGS = {
    "lost": "the lake lacks records of the brokers",
    "extra": "the lake has records that the brokers do not have",
    "duplicate": "the lake has records more than once",
    "missing": "the brokers have fewer records than are claimed",
    "unclaimed": "the brokers have more records than are claimed",
    "lag": "the lake has not reached the records yet",
    "skipped": "the lake began after the records",
    "deleted": "retention has deleted the records at the brokers",
    "compacted": "compaction may have removed the records at the brokers",
    "open": "a transaction or a claim is not complete yet",
}


@dataclass(slots=True)
class Table:
    """Rows of text.

    Attributes:
        numbers: the names of the columns that are aligned to the right.
        left_out: the number of rows that are not in `rows`.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: frozenset[str] = frozenset()
    left_out: int = 0


def verdict(report: AuditReport) -> str:
    """Returns the result in one sentence."""
    counts: dict[str, int] = defaultdict(int)
    for finding in report.findings.differences:
        counts[finding.kind] += abs(finding.records)
    if not counts:
        places = ["the claims"] if report.counts.claims else []
        places += [f"the lake {lake.path}" for lake in report.counts.lakes]
        return f"No difference between the brokers and {' or '.join(places)}." if places else "Only the brokers were counted."
    words = ", ".join(f"{records:,} {kind}" for kind, records in counts.items())
    minutes = len({finding.minute for finding in report.findings.differences})
    return f"Differences in {minutes:,} minute{'s' if minutes != 1 else ''} of partitions, in records: {words}."


def tables(report: AuditReport, most_rows: int) -> list[Table]:
    """Returns the tables of a report; those without rows are left out.

    Args:
        report: the report.
        most_rows: where each table is cut.
    """
    found = [
        _topics(report),
        _differences(report),
        _explained(report.findings.explained),
        _lakes(report),
        _groups(report),
        _queries(report),
    ]
    return [_cut(table, most_rows) for table in found if table.rows]


def _cut(table: Table, most_rows: int) -> Table:
    table.left_out = max(len(table.rows) - most_rows, 0)
    del table.rows[most_rows:]
    return table


def _topics(report: AuditReport) -> Table:
    texts = ("topic", "first minute", "last minute")
    rates = ("records/s", "most records/s", "bytes/s", "most bytes/s")
    columns = ("topic", "partitions", "records", "key bytes", "value bytes", "first minute", "last minute", *rates)
    rows = [
        (
            each.topic,
            *_numbers(each.partitions, each.records, each.key_bytes, each.value_bytes),
            format_minute(each.first_minute_ms) or "",
            format_minute(each.last_minute_ms) or "",
            *_rates(each.records_per_second, each.most_records_per_second, each.bytes_per_second, each.most_bytes_per_second),
        )
        for each in report.topics
    ]
    return Table("Topics at the brokers", columns, rows, frozenset(columns) - set(texts))


def _differences(report: AuditReport) -> Table:
    columns = ("topic", "partition", "minute", "claimed", "brokers", "lake", "difference", "what")
    rows = [
        (
            each.minute.topic,
            "all" if each.minute.partition is None else str(each.minute.partition),
            format_minute(each.minute.minute_ms) or "no timestamp",
            *("" if count is None else f"{count:,}" for count in (each.claimed, each.broker, each.in_lake)),
            f"{each.records:+,}",
            _what(each, report),
        )
        for each in report.findings.differences
    ]
    return Table("Differences", columns, rows, frozenset({"partition", "claimed", "brokers", "lake", "difference"}))


def _what(finding: Finding, report: AuditReport) -> str:
    lake = f" ({finding.lake})" if len(report.counts.lakes) > 1 and finding.lake is not None else ""
    return f"{finding.kind}: {MEANINGS[finding.kind]}{lake}"


def _explained(findings: Iterable[Finding]) -> Table:
    """Returns the sums by kind, topic and lake."""
    sums: dict[tuple[str, str, str], int] = defaultdict(int)
    for each in findings:
        sums[each.kind, each.minute.topic, each.lake or "claims"] += abs(each.records)
    rows: list[tuple[str, ...]] = [
        (topic, where, f"{records:,}", f"{kind}: {MEANINGS[kind]}") for (kind, topic, where), records in sorted(sums.items())
    ]
    return Table(
        "No differences: not there yet, or not there any more",
        ("topic", "where", "records", "what"),
        rows,
        frozenset({"records"}),
    )


def _lakes(report: AuditReport) -> Table:
    columns = ("lake", "topic", "records", "files", "file bytes")
    rows = [(each.lake, each.topic, *_numbers(each.records, each.files, each.file_bytes)) for each in report.lakes]
    return Table("Lakes", columns, rows, frozenset(columns[2:]))


def _groups(report: AuditReport) -> Table:
    """Returns a row for each topic of a group."""
    columns = ("group", "protocol", "state", "members", "topic", "partitions", "lag")
    lags: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for each in report.groups:
        lags[each.group, each.protocol, each.state, str(each.members), each.topic].append(each.lag)
    rows = [(*key, *_numbers(len(values), sum(values))) for key, values in lags.items()]
    return Table("Lag of consumer groups, in offsets", columns, rows, frozenset({"members", "partitions", "lag"}))


def _queries(report: AuditReport) -> Table:
    """Returns a row for each topic of a query."""
    columns = ("checkpoint", "last batch", "batch time", "topic", "partitions", "lag")
    lags: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for each in report.queries:
        batch = "none" if each.batch is None else str(each.batch)
        lags[each.checkpoint, batch, format_time(each.batch_time_ms) or "", each.topic].append(each.lag)
    rows = [(*key, *_numbers(len(values), sum(values))) for key, values in lags.items()]
    return Table("Lag of Spark's queries, in offsets", columns, rows, frozenset({"last batch", "partitions", "lag"}))


def _numbers(*values: int) -> Sequence[str]:
    return [f"{value:,}" for value in values]


def _rates(*values: float) -> Sequence[str]:
    return [f"{value:,.1f}" for value in values]
