"""The bytes that a start reads."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.log.manager import LogManager
from wirekafka.testing.faulty_storage import LostDirectoryStorage
from wirekafka.tests.log.logs import NOW_MS, World, all_records, fill

SEGMENT_BYTES = 1 << 30
_TAIL_READS_BYTES = 2 * 8192
"""The end of the log is found by headers, twice."""
PARTITIONS = 200
_HEADER = Struct(">qiibIhiqqqhii")


def sparse_partition(folder: Path) -> None:
    """Makes a segment of 1 GiB that takes 4 KiB: one batch whose records are a hole, and its indexes."""
    folder.mkdir(parents=True)
    header = _HEADER.pack(0, SEGMENT_BYTES - 12, 0, 2, 0, 0, 999, NOW_MS, NOW_MS, -1, -1, -1, 1000)
    with (folder / f"{0:020d}.log").open("wb") as file:
        file.write(header)
        file.truncate(SEGMENT_BYTES)
    (folder / f"{0:020d}.index").write_bytes(b"")
    (folder / f"{0:020d}.timeindex").write_bytes(Struct(">qi").pack(NOW_MS, 999))


def test_clean_start_reads_no_records(tmp_path: Path) -> None:
    async def main() -> None:
        storage = LostDirectoryStorage()
        config = BrokerConfig({"log.dirs": str(tmp_path)})
        logs = await LogManager.open(config, Clock(), storage=storage)
        await logs.close()
        for number in range(PARTITIONS):
            sparse_partition(tmp_path / f"t-{number}")
        storage.log_bytes_read = 0

        logs = await LogManager.open(config, Clock(), storage=storage)

        assert {log.reader.log_end_offset for log in logs} == {1000}
        assert sum(log.reader.size_bytes for log in logs) == PARTITIONS * SEGMENT_BYTES
        # The header of the last batch, and the bytes that are read with it.
        assert storage.log_bytes_read <= PARTITIONS * _TAIL_READS_BYTES
        await logs.close()

    trio.run(main)


def test_start_after_a_crash_reads_what_is_past_the_recovery_point(tmp_path: Path) -> None:
    storage = LostDirectoryStorage()
    world = World(storage=storage)
    log = world.open_log(tmp_path)
    for _ in range(10):
        fill(log, 10, size=10_000)
        log.roll()
    log.flusher.flush()
    point = log.flusher.recovery_point
    fill(log, 3, size=10_000)
    unflushed = log.reader.segments.active.size
    for segment in log.reader.segments:
        segment.close()
    storage.log_bytes_read = 0

    log = world.open_log(tmp_path, recovery_point=point)

    assert unflushed <= storage.log_bytes_read <= unflushed + _TAIL_READS_BYTES
    assert len(all_records(log)) == 103
