"""Decides which small Parquet files of a lake are merged, and into how many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SMALL_FRACTION = 0.5
"""A file below this fraction of the target size is small. Merged files are larger if there is enough data, so no record is merged
again and again."""

FILES_PER_COMMIT = 2000
"""About the number of files that one commit replaces: its manifest is one file that the driver writes."""


@dataclass(slots=True)
class Merge:
    """Files of one directory that become fewer files."""

    files: Sequence[str]
    output_count: int


@dataclass(slots=True)
class CompactionResult:
    """What a compaction did.

    Attributes:
        removed_files: the number of files that were merged.
        added_files: the number of files they became.
    """

    removed_files: int = 0
    added_files: int = 0

    def __add__(self, other: CompactionResult) -> CompactionResult:
        return CompactionResult(self.removed_files + other.removed_files, self.added_files + other.added_files)


def plan_merges(sizes: Mapping[str, int], target_bytes: int) -> list[Merge]:
    """Returns the merges of one table.

    Args:
        sizes: the bytes of each file, by path; files are merged only within their directory.
        target_bytes: the size that the merged files should have about.
    """
    small = defaultdict(list)
    for path in sorted(sizes):
        if sizes[path] < target_bytes * SMALL_FRACTION:
            small[path.rpartition("/")[0]].append(path)
    merges = []
    for files in small.values():
        output_count = max(1, round(sum(sizes[path] for path in files) / target_bytes))
        if output_count < len(files):
            merges.append(Merge(files, output_count))
    return merges


def commits_of(merges: Sequence[Merge]) -> Iterator[list[Merge]]:
    """Yields the merges in groups, one for each commit."""
    group: list[Merge] = []
    for merge in merges:
        group.append(merge)
        if sum(len(each.files) for each in group) >= FILES_PER_COMMIT:
            yield group
            group = []
    if group:
        yield group
