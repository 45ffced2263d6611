"""What no broker can be cheaper than: the same batches, taken by a C program that only receives, checks, writes and answers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load
from benchmarks.log_rows import LogRow
from benchmarks.rows import (
    BATCHES_OF_500_PARTITIONS,
    BATCHES_OF_9000,
    READ_RECORDS,
    Figures,
    Timing,
    throughput,
    throughput_figures,
)


@dataclass(frozen=True, slots=True)
class Floor:
    """The C program, as far as it can be measured like a broker."""

    bootstrap: str
    pid: int


@contextmanager
def _running(directory: Path) -> Iterator[Floor]:
    directory.mkdir()
    with subprocess.Popen([str(load.program()), "floor", f"directory={directory}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Floor(f"127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.kill()


def produce_floor(directory: Path, timing: Timing) -> Figures:
    """The row of batches made beforehand, without a broker."""
    with _running(directory / "floor") as running:
        return throughput(load.measure(running, "requests", topic="floor", **BATCHES_OF_9000, **timing.options()))


def produce_500_floor(directory: Path, timing: Timing) -> Figures:
    """The same over 500 partitions."""
    with _running(directory / "floor") as running:
        return throughput(load.measure(running, "requests", topic="floor", **BATCHES_OF_500_PARTITIONS, **timing.options()))


def fetch_floor(directory: Path, timing: Timing) -> Figures:
    """The row of Fetch by plain sockets, without a broker."""
    with _running(directory / "floor") as running:
        load.run(running, "requests", topic="floor", count=READ_RECORDS, **BATCHES_OF_9000)
        return throughput(load.measure(running, "fetches", topic="floor", **timing.options()))


FLOOR_ROWS = (
    LogRow(
        "produce-floor",
        "Produce 100 B in batches of 9,000, taken by a C program that only receives, checks the CRC, writes and answers",
        throughput_figures(),
        produce_floor,
    ),
    LogRow("fetch-floor", "Fetch of the same, answered by it with sendfile", throughput_figures(), fetch_floor),
    LogRow(
        "produce-500-floor",
        "Produce 100 B over 500 partitions, in batches of 1,000, taken by it",
        throughput_figures(),
        produce_500_floor,
    ),
)
