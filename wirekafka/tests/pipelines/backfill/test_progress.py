from __future__ import annotations

import io
import json
from collections.abc import Iterator

from wirekafka.pipelines.backfill.progress import Meter, PartitionProgress, report_partitions


def clock() -> Iterator[float]:
    """Yields the time, which goes on by 2 s with each look at it."""
    now_s = 0.0
    while True:
        yield now_s
        now_s += 2.0


def test_meter_tells_the_lag_of_each_commit_and_the_rate_of_all() -> None:
    times, shown = clock(), list[PartitionProgress]()
    meter = Meter({("a", 0): (100, 150), ("a", 1): (0, 30)}, shown.append, lambda: next(times))
    meter.begin({("a", 1): 10})
    meter.add(("a", 0), 120)
    meter.add(("a", 1), 30)
    assert shown == [
        PartitionProgress("a", 1, 10, 20, 0.0),
        PartitionProgress("a", 0, 120, 30, 5.0),
        PartitionProgress("a", 1, 30, 0, 6.7),
    ]


def test_meter_passes_over_partitions_that_the_backfill_does_not_write() -> None:
    shown: list[PartitionProgress] = []
    meter = Meter({("a", 0): (0, 5)}, shown.append)
    meter.begin({("b", 0): 4})
    meter.add(("a", 1), 9)
    assert shown == []


def test_progress_is_a_json_line_without_a_terminal() -> None:
    out = io.StringIO()
    with report_partitions(out) as report:
        report(PartitionProgress("a", 0, 5, 1, 2.5))
    assert json.loads(out.getvalue()) == {
        "topic": "a",
        "partition": 0,
        "next_offset": 5,
        "lag": 1,
        "offsets_per_second": 2.5,
    }
