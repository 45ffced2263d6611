from __future__ import annotations

from wirekafka.server.metrics.text import Kind, Metric, counter, gauge, histogram, render


def test_metrics_are_written_with_their_help_type_and_labels() -> None:
    metric = Metric("requests_total", Kind.COUNTER, "All\nof \\ them.", [("", {"api": "Fetch", "error": 'a"b'}, 3)])
    assert render([metric, gauge("up", "Up.", 1), counter("seconds_total", "Time.", 0.5)]).splitlines() == [
        "# HELP requests_total All\\nof \\\\ them.",
        "# TYPE requests_total counter",
        'requests_total{api="Fetch",error="a\\"b"} 3',
        "# HELP up Up.",
        "# TYPE up gauge",
        "up 1",
        "# HELP seconds_total Time.",
        "# TYPE seconds_total counter",
        "seconds_total 0.5",
    ]


def test_buckets_of_a_histogram_count_all_values_up_to_their_bounds() -> None:
    lines = render([histogram("pass_seconds", "Passes.", [0.001, 0.5], [4, 2, 1], 1.25)]).splitlines()
    assert lines[2:] == [
        'pass_seconds_bucket{le="0.001"} 4',
        'pass_seconds_bucket{le="0.5"} 6',
        'pass_seconds_bucket{le="+Inf"} 7',
        "pass_seconds_sum 1.25",
        "pass_seconds_count 7",
    ]
