"""Shows how far a backfill is: on a terminal a table that changes, otherwise one JSON line for each commit of a partition.

The sink commits its progress with the records (`transactional_sink.progress`), and a consumer of these commits is told of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING

from wirekafka.pipelines.transactional_sink import Source

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(slots=True, frozen=True)
class PartitionProgress:
    """How far a partition of the lake is written.

    Attributes:
        topic: the topic of the lake.
        partition: the partition that the records came from.
        next_offset: the first source offset that is not written.
        lag: the source offsets from there to the end of the range.
        offsets_per_second: of all partitions, since the backfill has begun to write.
    """

    topic: str
    partition: int
    next_offset: int
    lag: int
    offsets_per_second: float


Report = Callable[[PartitionProgress], None]


class Meter:
    """Makes the progress of partitions from the commits of the sink.

    Args:
        ranges: the first source offset and the end, excluded, of each partition of the backfill; commits of others are passed
            over.
        report: is called for each commit.
        now_s: the clock.
    """

    def __init__(
        self, ranges: Mapping[Source, tuple[int, int]], report: Report, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranges = ranges
        self._report = report
        self._now_s = now_s
        self._began_s = now_s()
        self._positions = {source: first for source, (first, _) in ranges.items()}
        self._offsets = 0

    def begin(self, positions: Mapping[Source, int]) -> None:
        """Takes what was written before."""
        self._began_s = self._now_s()
        for source, next_offset in sorted(positions.items()):
            self._show(source, next_offset)

    def add(self, source: Source, next_offset: int) -> None:
        """Takes a commit."""
        self._offsets += next_offset - self._positions.get(source, next_offset)
        self._show(source, next_offset)

    def _show(self, source: Source, next_offset: int) -> None:
        if source not in self._ranges:
            return
        self._positions[source] = next_offset
        elapsed_s = self._now_s() - self._began_s
        rate = round(self._offsets / elapsed_s, 1) if elapsed_s > 0 else 0.0
        self._report(PartitionProgress(*source, next_offset, max(0, self._ranges[source][1] - next_offset), rate))


@contextmanager
def report_partitions(out: IO[str]) -> Iterator[Report]:
    """Yields a function that shows the progress of a partition.

    Args:
        out: a terminal, or anything else for JSON lines.
    """
    if out.isatty():
        with _table(out) as report:
            yield report
    else:
        yield lambda progress: print(json.dumps(asdict(progress)), file=out, flush=True)


@contextmanager
def _table(out: IO[str]) -> Iterator[Report]:
    from rich.console import Console
    from rich.live import Live

    last: dict[Source, PartitionProgress] = {}
    with Live(console=Console(file=out), auto_refresh=False) as live:

        def show(progress: PartitionProgress) -> None:
            last[progress.topic, progress.partition] = progress
            live.update(progress_table(last), refresh=True)

        yield show


def progress_table(last: Mapping[Source, PartitionProgress]) -> Table:
    """Returns a table of the last progress of each partition."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("topic", "partition", "next offset", "lag", "offsets/s", box=SIMPLE_HEAD)
    for (topic, partition), each in sorted(last.items()):
        numbers = (partition, each.next_offset, each.lag, round(each.offsets_per_second))
        table.add_row(topic, *(f"{number:,}" for number in numbers))
    return table
