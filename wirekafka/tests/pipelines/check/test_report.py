from __future__ import annotations

import json

import pytest

from wirekafka.cli.pipeline.check import print_report
from wirekafka.pipelines.check.report import CheckReport, Evidence, Named, PartitionReport, explain


def partition(**fields: object) -> PartitionReport:
    return PartitionReport("orders", 0, 0, 20, row_count=10, **fields)  # type: ignore[arg-type]


def explained(**evidence: object) -> PartitionReport:
    report = partition()
    explain(report, Evidence(10, **evidence))  # type: ignore[arg-type]
    return report


def test_missing_offsets_are_unexplained_without_a_source() -> None:
    assert explained() == partition(unexplained_count=10)


def test_missing_offsets_without_a_record_at_the_broker_are_unread() -> None:
    lost = Named(2, [4, 6])
    found = explained(log_start_offset=3, deleted_count=3, lost=lost, dead_letter_count=1)
    assert found == partition(deleted_count=3, lost=lost, dead_letter_count=1, unread_count=4)


def test_missing_offsets_without_anything_in_the_segment_files_are_compacted() -> None:
    found = explained(log_start_offset=0, control_count=2, aborted_count=3)
    assert found == partition(control_count=2, aborted_count=3, compacted_count=5)


def test_partition_without_missing_offsets_needs_no_explanation() -> None:
    report = partition()
    explain(report, Evidence(0))
    assert report == partition()
    assert CheckReport("/lake", [report]).is_proven


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"lost": Named(1, [7])}, "orders 0: 1 record lost: 7"),
        ({"lost": Named(30, [7, 8])}, "orders 0: 30 records lost: 7, 8, ..."),
        ({"doubled": Named(2, [1, 5])}, "orders 0: 2 records more than once in the lake and the dead letters: 1, 5"),
        ({"unexplained_count": 4}, "orders 0: 4 offsets missing; --bootstrap or --data-dir tells whether records are lost"),
    ],
)
def test_lake_with_a_problem_is_not_proven(fields: dict[str, object], problem: str) -> None:
    report = CheckReport("/lake", [partition(**fields)])
    assert not report.is_proven
    assert list(report.problems()) == [problem]


def test_deleted_offsets_are_a_problem_unless_they_are_accepted() -> None:
    deleted = partition(deleted_count=4)
    assert "4 offsets missing before the log start offset" in next(CheckReport("/lake", [deleted]).problems())
    assert CheckReport("/lake", [deleted], accepts_deleted=True).is_proven


def test_explained_offsets_are_no_problem() -> None:
    counts = {"dead_letter_count": 1, "control_count": 2, "aborted_count": 3, "compacted_count": 4, "unread_count": 5}
    assert CheckReport("/lake", [partition(**counts)]).is_proven


def test_json_of_a_report_has_the_verdict_and_every_partition() -> None:
    report = json.loads(json.dumps(CheckReport("/lake", [partition(lost=Named(1, [7]))]).to_json()))
    assert (report["lake"], report["is_proven"]) == ("/lake", False)
    assert report["partitions"][0]["lost"] == {"count": 1, "first": [7]}


def test_table_has_only_columns_with_numbers_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(CheckReport("/lake", [partition(control_count=3, lost=Named(1, [7]))]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["topic", "partition", "rows", "begin", "end", "control", "doubled", "lost"],
        ["orders", "0", "10", "0", "20", "3", "0", "1"],
        ["orders", "0:", "1", "record", "lost:", "7"],
        ["not", "proven"],
    ]
