"""Rows about wirekafka's log: the costs of its size, its age and the number of partitions.

Each row prepares a data directory and starts a broker of its own on it. A log of 50 GiB has 50 sealed segments in sparse files.
Batches of nearly 2 MiB and of 16 KiB alternate; the files hold only the headers, and the index has an entry for each batch.
"""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import load
from benchmarks.brokers import MeasuredWirekafka, await_metadata
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.rows import Figure, Figures, Row, Timing
from compat_tests.harness.broker import running
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.waiting import wait_until
from wirekafka.api.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    write_clean_shutdown,
    write_offsets,
    write_partition_metadata,
)
from wirekafka.log.compaction.passes import Compaction, RecordFilter
from wirekafka.log.recovery import Loader
from wirekafka.log.segment_files import file_name
from wirekafka.log.storage import Folder, HandlePool, Storage
from wirekafka.names import TopicPartition
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

GIB = 1 << 30
BATCH_BYTES = 16 << 10
FILLER_BYTES = (2 << 20) - BATCH_BYTES
RECORDS_A_BATCH = 100
FETCHES = 2000
IDLE_PARTITIONS = 10_000
MOST_DESCRIPTORS = 20_000
COMPACTED_BYTES = 64 << 20
SETTINGS = {"log.retention.hours": "-1"}


@dataclass(frozen=True, slots=True)
class LogRow(Row):
    """A row that starts its own brokers in a given directory."""

    run: Callable[[Path, Timing], Figures]


class LimitedWirekafka(MeasuredWirekafka):
    """A broker with a limit of open files."""

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={MOST_DESCRIPTORS}:{MOST_DESCRIPTORS}", *super().command()]


def _fresh(directory: Path, make: type[MeasuredWirekafka] = MeasuredWirekafka) -> MeasuredWirekafka:
    """Makes a broker without data; the caller starts it."""
    directory.mkdir()
    broker = make(directory)
    # The files of `_lay_down` come without a journal, and the default settings fit them.
    broker.settings = {**SETTINGS, "wirekafka.takeover.without": "settings"}
    broker.data_dir.mkdir()
    return broker


def _lay_down(broker: MeasuredWirekafka, topic: str, gibibytes: int) -> int:
    """Writes sealed segments of 1 GiB into a partition's folder, as after a clean stop; returns the log end offset."""
    folder = broker.data_dir / f"{topic}-0"
    folder.mkdir()
    (folder / PARTITION_METADATA).write_bytes(write_partition_metadata(uuid.uuid4().bytes))
    header = bytearray(build_batch([Record(key=None, value=b"", timestamp=_NOW_MS)] * RECORDS_A_BATCH)[:61])
    offset = 0
    for _ in range(gibibytes):
        offset = _lay_down_segment(folder, header, offset)
    for suffix in (".log", ".index", ".timeindex"):
        (folder / file_name(offset, suffix)).touch()
    (broker.data_dir / RECOVERY_POINTS).write_bytes(write_offsets({TopicPartition(topic, 0): offset}))
    (broker.data_dir / CLEAN_SHUTDOWN).write_bytes(write_clean_shutdown(None))
    return offset


_NOW_MS = int(time.time() * 1000)


def _lay_down_segment(folder: Path, header: bytearray, base_offset: int) -> int:
    index = bytearray()
    position, offset = 0, base_offset
    with (folder / file_name(base_offset, ".log")).open("wb") as file:
        file.truncate(GIB)
        while position < GIB:
            size = BATCH_BYTES if offset // RECORDS_A_BATCH % 2 else FILLER_BYTES
            struct.pack_into(">qi", header, 0, offset, size - 12)
            file.seek(position)
            file.write(header)
            offset += RECORDS_A_BATCH
            if position:
                index += struct.pack(">ii", offset - 1 - base_offset, position)
            position += size
    (folder / file_name(base_offset, ".index")).write_bytes(index)
    (folder / file_name(base_offset, ".timeindex")).write_bytes(struct.pack(">qi", _NOW_MS, RECORDS_A_BATCH - 1))
    return offset


def append(directory: Path, timing: Timing) -> Figures:
    figures: Figures = {}
    for gibibytes in (1, 50):
        fresh = _fresh(directory / f"broker-{gibibytes}")
        _lay_down(fresh, "sparse", gibibytes)
        with running(fresh):
            options = {"topic": "sparse", "connections": 1, "in_flight": 5, "records": 10}
            measured = load.measure(fresh, "requests", **options, **timing.options())
            figures[f"cpu{gibibytes}"] = measured.broker_cpu_s / measured.counted["requests"] * 1e6
    return figures


def fetch(directory: Path, timing: Timing) -> Figures:
    """Measures fetches of one batch of 16 KiB each."""
    fresh = _fresh(directory / "broker")
    end_offset = _lay_down(fresh, "sparse", 50)
    chance = random.Random(50)
    with running(fresh), RawConnection(fresh.address) as connection:
        last_batch = end_offset - RECORDS_A_BATCH
        offsets = [
            last_batch - 2 * RECORDS_A_BATCH * chance.randrange(end_offset // RECORDS_A_BATCH // 2) for _ in range(FETCHES)
        ]
        _fetch_all(connection, offsets[:200])
        before = cpu_seconds(fresh)
        _fetch_all(connection, offsets)
        random_cpu = cpu_seconds(fresh) - before
        _fetch_all(connection, [last_batch])
        before = cpu_seconds(fresh)
        _fetch_all(connection, [last_batch] * FETCHES)
        same_cpu = cpu_seconds(fresh) - before
    return {"random": random_cpu / FETCHES * 1e3, "same": same_cpu / FETCHES * 1e3}


def _fetch_all(connection: RawConnection, offsets: Sequence[int]) -> None:
    for offset in offsets:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=[FetchTopic(topic="sparse", partitions=[wanted])])
        answer = connection.ask(request, 12)
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == 0
        assert len(partition.records) == BATCH_BYTES
        (base_offset,) = struct.unpack_from(">q", partition.records)
        assert base_offset <= offset < base_offset + RECORDS_A_BATCH


class _NoPace:
    def step(self, size_bytes: int = 0) -> None:
        """Returns without a rest."""


def compaction(directory: Path, timing: Timing) -> Figures:
    """Measures the MB of log that a compaction reads per second of CPU, in this process and without the rests of the thread."""
    kinds = {"small": (100, False), "varied": (100, True), "large": (1000, False)}
    return {name: _compact(directory / name, *kind) for name, kind in kinds.items()}


def _write_keyed(folder: Path, value_bytes: int, base_offset: int, size_bytes: int, *, is_varied: bool = False) -> int:
    """Writes a segment of batches of 16 KiB, with three records of each key; returns the offset after it.

    Args:
        is_varied: the values have 0.5 to 1.5 times `value_bytes`, and each record has its own timestamp.
    """
    records = size_bytes // (value_bytes + 24)
    count = 16_384 // (value_bytes + 24)
    chance = random.Random(value_bytes)
    with (folder / file_name(base_offset, ".log")).open("wb") as file:
        for first in range(0, records, count):
            some = [
                Record(
                    key=b"%016d" % chance.randrange(records // 3),
                    value=chance.randbytes(
                        chance.randrange(value_bytes // 2, value_bytes * 3 // 2) if is_varied else value_bytes
                    ),
                    timestamp=_NOW_MS + number if is_varied else _NOW_MS,
                )
                for number in range(min(count, records - first))
            ]
            file.write(build_batch(some, base_offset=base_offset + first))
    return base_offset + records


def _compact(path: Path, value_bytes: int, is_varied: bool) -> float:
    """Compacts a log with three records of each key, of which a third stays."""
    path.mkdir()
    config = LogConfig.of(BrokerConfig(), {"cleanup.policy": "compact"})
    _write_keyed(path, value_bytes, 0, COMPACTED_BYTES, is_varied=is_varied)
    loader = Loader(Folder(str(path), Storage()), HandlePool(10), "compact-0", config.index_interval_bytes, _NOW_MS)
    loaded = loader.load()
    work = Compaction(
        folder=loader.folder,
        config=config,
        segments=loaded.segments,
        dirty_offset=0,
        end_offset=loaded.log_end_offset,
        last_records={},
        aborted=(),
        truncation_count=0,
        now_ms=_NOW_MS,
        most_keys=COMPACTED_BYTES // value_bytes,
        pace=_NoPace(),
    )
    before = time.process_time()
    offsets = work.build_map()
    judge = RecordFilter(work, offsets)
    for group in work.groups(offsets):
        work.rewrite(group, judge, loader.pool)
    seconds = time.process_time() - before
    size = sum(segment.size for segment in loaded.segments)
    return size / 1e6 / seconds


def latency(directory: Path, timing: Timing) -> Figures:
    """Measures the end-to-end latency at 1,000 records/s, with an idle cleaner and while it compacts another topic."""
    fresh = _fresh(directory / "broker")
    fresh.settings |= {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.1"}
    folder = fresh.data_dir / "compacted-0"
    folder.mkdir()
    offset = 0
    for _ in range(8):
        offset = _write_keyed(folder, 100, offset, COMPACTED_BYTES)
    (folder / file_name(offset, ".log")).touch()
    with running(fresh):
        load.run(fresh, "create", topic="latency", partitions=1)
        options = {"topic": "latency", "rate": 1000, "linger_ms": 0, **timing.options()}
        alone = load.measure(fresh, "latency", **options).counted
        _begin_compaction(fresh, "compacted")
        beside = load.measure(fresh, "latency", **options).counted
        assert "Compacted a log" not in fresh.log_text(), "it went on to the end of the measurement"
        cleaned = folder / f"{file_name(0, '.log')}.cleaned"
        wait_until(lambda: cleaned.exists() or "Compacted a log" in fresh.log_text(), timeout_s=120, what="it compacts")
    return {
        "p50": alone["p50_ms"],
        "p99": alone["p99_ms"],
        "p50_beside": beside["p50_ms"],
        "p99_beside": beside["p99_ms"],
    }


def _begin_compaction(broker: MeasuredWirekafka, topic: str) -> None:
    config = AlterableConfig(name="cleanup.policy", config_operation=0, value="compact")
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    with RawConnection(broker.address) as connection:
        answer = connection.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0


def idle(directory: Path, timing: Timing) -> Figures:
    """Measures idle partitions in a broker that may not open two files for each of them."""
    fresh = _fresh(directory / "broker", LimitedWirekafka)
    topics = [f"idle-{number}" for number in range(2)]
    each = IDLE_PARTITIONS // len(topics)
    with running(fresh):
        await_metadata(fresh)
        empty = resident_bytes(fresh)
        for topic in topics:
            load.run(fresh, "create", topic=topic, partitions=each)
        created = resident_bytes(fresh)
        for topic in topics:
            load.run(fresh, "produce", topic=topic, partitions=each, count=5 * each)
        written = resident_bytes(fresh)
        descriptors = psutil.Process(fresh.pid).num_fds()
        fresh.terminate()
        fresh.start()
        started_ms = await_metadata(fresh)
        return {
            "fds": descriptors / IDLE_PARTITIONS,
            "created": (created - empty) / 1024 / IDLE_PARTITIONS,
            "written": (written - empty) / 1024 / IDLE_PARTITIONS,
            "fds_started": psutil.Process(fresh.pid).num_fds() / IDLE_PARTITIONS,
            "started": (resident_bytes(fresh) - empty) / 1024 / IDLE_PARTITIONS,
            "start": started_ms,
        }


LOG_ROWS = (
    LogRow(
        "log-append",
        "Append of 10 records to the end of a log",
        {"cpu1": Figure("broker CPU us, 1 GiB"), "cpu50": Figure("broker CPU us, 50 GiB")},
        append,
    ),
    LogRow(
        "log-fetch",
        "Fetch of one batch of 16 KiB from a log of 50 GiB",
        {"random": Figure("broker CPU ms, random offset", asked=1), "same": Figure("broker CPU ms, same offset")},
        fetch,
    ),
    LogRow(
        "log-compaction",
        "Compaction of a log of which a third stays",
        {
            "small": Figure("MB/s, 100 B", asked_least=100),
            "varied": Figure("MB/s, 50 to 150 B"),
            "large": Figure("MB/s, 1 KB", asked_least=100),
        },
        compaction,
    ),
    LogRow(
        "log-latency",
        "End to end at 1,000 records/s, beside a compaction",
        {
            "p50": Figure("p50 ms, no compaction"),
            "p99": Figure("p99 ms, no compaction"),
            "p50_beside": Figure("p50 ms, compacting"),
            "p99_beside": Figure("p99 ms, compacting"),
        },
        latency,
    ),
    LogRow(
        "log-idle",
        f"{IDLE_PARTITIONS:,} idle partitions, {MOST_DESCRIPTORS:,} descriptors",
        {
            "fds": Figure("descriptors each", asked=4),
            "created": Figure("KiB each, empty", asked=10),
            "written": Figure("KiB each, written to", asked=10),
            "fds_started": Figure("descriptors each, restarted", asked=4),
            "started": Figure("KiB each, restarted", asked=10),
            "start": Figure("ms to start"),
        },
        idle,
    ),
)
