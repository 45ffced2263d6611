from __future__ import annotations

from wirekafka.pipelines.lake import compaction
from wirekafka.pipelines.lake.compaction import commits_of, plan_merges


def merges(sizes: dict[str, int]) -> list[tuple[list[str], int]]:
    return [(list(merge.files), merge.output_count) for merge in plan_merges(sizes, 100)]


def test_small_files_of_a_date_are_merged_into_one() -> None:
    assert merges({"t/date=1/a": 10, "t/date=1/b": 20, "t/date=2/c": 30, "t/date=2/d": 5}) == [
        (["t/date=1/a", "t/date=1/b"], 1),
        (["t/date=2/c", "t/date=2/d"], 1),
    ]


def test_many_small_files_are_merged_into_files_of_about_the_target_size() -> None:
    assert merges({f"t/date=1/{name}": 30 for name in range(10)}) == [([f"t/date=1/{name}" for name in range(10)], 3)]


def test_files_from_half_the_target_size_on_stay() -> None:
    assert merges({"t/date=1/a": 50, "t/date=1/b": 100, "t/date=1/c": 400}) == []


def test_single_small_file_stays() -> None:
    assert merges({"t/date=1/a": 10, "t/date=1/b": 90, "t/date=2/c": 10}) == []


def test_merged_files_are_not_small_if_there_is_enough_data() -> None:
    for count in range(3, 60):
        sizes = {f"t/date=1/{name:02}": 40 for name in range(count)}
        (merge,) = plan_merges(sizes, 100)
        assert 50 <= sum(sizes.values()) / merge.output_count <= 150


def test_merges_of_many_files_are_several_commits() -> None:
    per_date = compaction.FILES_PER_COMMIT // 2
    sizes = {f"t/date={date}/{name}": 1 for date in range(5) for name in range(per_date)}
    assert [len(group) for group in commits_of(plan_merges(sizes, 10**9))] == [2, 2, 1]
