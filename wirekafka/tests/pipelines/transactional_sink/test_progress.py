from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wirekafka.pipelines.transactional_sink.delivery import MAX_GAPS
from wirekafka.pipelines.transactional_sink.progress import (
    Progress,
    Run,
    TargetRuns,
    mapped_runs,
    runs_key,
    runs_of,
    runs_value,
)
from wirekafka.pipelines.transactional_sink.rows import SLICE_ROWS


def test_runs_of_consecutive_pairs_are_joined() -> None:
    assert runs_of([(5, 100), (6, 101), (7, 103), (9, 104), (10, 105)]) == [Run(5, 100, 2), Run(7, 103, 1), Run(9, 104, 2)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3))))
def test_runs_of_any_pairs_name_these_pairs(steps: list[tuple[int, int]]) -> None:
    pairs, source, target = [], 0, 0
    for source_step, target_step in steps:
        source, target = source + source_step, target + target_step
        pairs.append((source, target))
    named = [(run.source_offset + n, run.target_offset + n) for run in runs_of(pairs) for n in range(run.count)]
    assert named == pairs


def test_runs_of_a_transaction_are_read_as_they_were_written() -> None:
    value = runs_value([TargetRuns("t", 1, [Run(5, 100, 2), Run(7, 103, 1)]), TargetRuns("u", 0, [Run(8, 0, 1)])])
    found = [
        (each.source_topic, each.source_partition, each.topic, each.partition, each.run)
        for each in mapped_runs(runs_key(("s", 3), 12), value)
    ]
    assert found == [("s", 3, "t", 1, Run(5, 100, 2)), ("s", 3, "t", 1, Run(7, 103, 1)), ("s", 3, "u", 0, Run(8, 0, 1))]


def test_runs_of_each_transaction_have_a_key_of_their_own() -> None:
    assert len({runs_key(("s", 3), 0), runs_key(("s", 3), 1), runs_key(("s", 2), 0)}) == 3


def test_the_runs_of_a_transaction_with_the_most_gaps_fit_into_a_record() -> None:
    end = 10**12
    runs = [Run(end + 2 * n, end + n, 1) for n in range(MAX_GAPS + SLICE_ROWS)]
    assert len(runs_value([TargetRuns("t" * 249, 1, runs)])) < 1_000_000


def test_progress_is_read_as_it_was_written() -> None:
    progress = Progress(7, "é-id")
    assert Progress.from_json(progress.to_json()) == progress
