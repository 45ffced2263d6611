from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wirekafka.pipelines.transactional_sink.progress import (
    RUN_SLOTS,
    Progress,
    Run,
    TargetRuns,
    mapped_runs,
    runs_key,
    runs_of,
    runs_value,
)


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


def test_runs_of_a_much_later_transaction_take_the_place_of_the_oldest() -> None:
    assert runs_key(("s", 3), 0) == runs_key(("s", 3), RUN_SLOTS)
    assert len({runs_key(("s", 3), 0), runs_key(("s", 3), 1), runs_key(("s", 2), 0)}) == 3


def test_progress_is_read_as_it_was_written() -> None:
    progress = Progress(7, "é-id", 3)
    assert Progress.from_json(progress.to_json()) == progress
