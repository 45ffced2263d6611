"""The report as JSON, as tables and as a page."""

from __future__ import annotations

import json

import pytest

from wirekafka.pipelines.audit.checkpoints import QueryLag
from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.compare import Counts, LakeCounts, Rules, compare
from wirekafka.pipelines.audit.counts import BrokerCount, ClaimCount, LakeCount, Minute
from wirekafka.pipelines.audit.groups import GroupLag
from wirekafka.pipelines.audit.offsets import PartitionOffsets, Place
from wirekafka.pipelines.audit.report import AuditReport, topic_sizes
from wirekafka.pipelines.audit.series import grid, per_second, topic_series
from wirekafka.pipelines.audit.summary import tables, verdict

NOON_MS = 1_700_000_040_000


@pytest.fixture
def report() -> AuditReport:
    """Returns a report with one lost record, one partition without records, and three minutes of which the second is empty."""
    first, last = Minute("orders", 0, NOON_MS), Minute("orders", 0, NOON_MS + 2 * MINUTE_MS)
    brokers = {last: BrokerCount(30, 0, 600, 60, (30,), (0,)), first: BrokerCount(60, 60, 1140, 0, (60,), (0,))}
    lake = LakeCounts("/lake", {"orders"}, {first: LakeCount(59, within=59), last: LakeCount(30, within=30)})
    offsets = {Place("orders", number): PartitionOffsets(0, 0, 90 * (1 - number), 90 * (1 - number)) for number in range(2)}
    counts = Counts(offsets, brokers, [lake], {first: ClaimCount(60, 1200), last: ClaimCount(30, 600)})
    return AuditReport(
        audited_at_ms=NOON_MS,
        read={"records from": "localhost:9092"},
        counts=counts,
        findings=compare(counts, Rules()),
        topics=topic_sizes(counts),
        groups=[GroupLag("<b>g", "classic", "empty", 0, "orders", number, 1, 2, 10 + number) for number in range(2)],
        queries=[QueryLag("/c", "q", 3, NOON_MS, "orders", 0, 80, 90, 10)],
        notes=["A note."],
    )


def test_size_of_a_topic_has_means_and_the_busiest_minute(report: AuditReport) -> None:
    (size,) = report.topics
    assert (size.partitions, size.records, size.key_bytes, size.value_bytes) == (2, 90, 60, 1740)
    assert (size.first_minute_ms, size.last_minute_ms) == (NOON_MS, NOON_MS + 2 * MINUTE_MS)
    assert (size.records_per_second, size.bytes_per_second) == (0.5, 10.0)
    assert (size.most_records_per_second, size.most_bytes_per_second) == (1.0, 20.0)


def test_json_has_every_count(report: AuditReport) -> None:
    found = json.loads(json.dumps(report.to_json()))
    assert found["minutes"] == [
        {
            "topic": "orders",
            "partition": 0,
            "minute": minute,
            "claimed": records,
            "broker": records,
            "broker_bytes": size_bytes,
            "lakes": {"/lake": in_lake},
        }
        for minute, records, size_bytes, in_lake in [("2023-11-14T22:14Z", 60, 1200, 59), ("2023-11-14T22:16Z", 30, 600, 30)]
    ]
    assert [(each["kind"], each["minute"], each["records"]) for each in found["differences"]] == [
        ("lost", "2023-11-14T22:14Z", -1)
    ]
    assert [each["records_per_second"] for each in found["rates"]] == [1.0, 0.5]
    assert [each["lag"] for each in found["groups"]] == [10, 11]
    assert found["queries"][0]["batch_time"] == "2023-11-14T22:14:00Z"
    assert found["partitions"][1] == {
        "topic": "orders",
        "partition": 1,
        "log_start_offset": 0,
        "first_offset": 0,
        "last_stable_offset": 0,
        "log_end_offset": 0,
    }


def test_verdict_names_the_kinds_of_differences(report: AuditReport) -> None:
    assert verdict(report) == "Differences in 1 minute of partitions, in records: 1 lost."
    report.findings.differences.clear()
    assert verdict(report) == "No difference between the brokers and the claims or the lake /lake."


def test_tables_are_cut_and_say_how_many_rows_are_left_out(report: AuditReport) -> None:
    report.findings.differences *= 5
    differences = next(table for table in tables(report, 2) if table.title == "Differences")
    assert (len(differences.rows), differences.left_out) == (2, 3)
    assert all(len(row) == len(table.columns) for table in tables(report, 9) for row in table.rows)


def test_lags_are_added_up_by_group_and_topic(report: AuditReport) -> None:
    groups = next(table for table in tables(report, 9) if "consumer groups" in table.title)
    assert groups.rows == [("<b>g", "classic", "empty", "0", "orders", "2", "21")]


def test_grid_has_at_most_so_many_points_and_keeps_the_sum() -> None:
    minutes = {NOON_MS + number * MINUTE_MS: number for number in range(0, 2500, 3)}
    times = grid(minutes, 1000)
    assert times.width_ms == 3 * MINUTE_MS
    assert len(times.times_ms) <= 1000
    values = per_second(minutes, times)
    assert sum(values) * times.width_ms / 1000 == pytest.approx(sum(minutes.values()))


def test_grid_shows_minutes_without_records_as_zero(report: AuditReport) -> None:
    series = topic_series(report.counts, "orders")
    times = grid(series.records["brokers"])
    assert {place: per_second(values, times) for place, values in series.records.items()} == {
        "claims": [1.0, 0.0, 0.5],
        "brokers": [1.0, 0.0, 0.5],
        "/lake": [pytest.approx(59 / 60), 0.0, 0.5],
    }
    assert grid([]).times_ms == []


def test_page_escapes_names(report: AuditReport) -> None:
    pytest.importorskip("plotly")
    from wirekafka.pipelines.audit.page import page

    html = page(report)
    body = html[html.index("</head>") :]
    assert "&lt;b&gt;g" in body
    assert "<b>g" not in body
    assert "A note." in body
    assert "Content-Security-Policy" in html
