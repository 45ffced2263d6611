"""An unexpected exception at each step of each kind of background work costs at most one partition.

How it works: the storage raises a bare exception at the n-th call for the files of one partition (or for one checkpoint),
for n = 1, 2, ... until the work needs fewer calls. Each time the other partition's work is done and the broker continues.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import Bytes, Storage
from wirekafka.names import TopicPartition
from wirekafka.tests.log.logs import NOW_MS, all_records, append, batch

TOPIC_ID = bytes(range(16))
BAD, GOOD = TopicPartition("bad", 0), TopicPartition("good", 0)
ENOUGH_STEPS = 400
TOPIC_SETTINGS = {"internal.segment.bytes": "300", "index.interval.bytes": "100", "file.delete.delay.ms": "100"}


class Unexpected(Exception):
    """An unexpected exception."""


class StorageWithDefect(Storage):
    """The real file system, with one call that fails.

    Attributes:
        victim: a part of the paths whose calls count; None for none.
        fail_at: the number of the call that raises.
        calls: the calls for such paths so far.
        lasts: whether later calls raise too.
    """

    __slots__ = ("calls", "fail_at", "lasts", "victim")

    def __init__(self) -> None:
        self.victim: str | None = None
        self.fail_at = 0
        self.calls = 0
        self.lasts = False

    @property
    def has_failed(self) -> bool:
        return 0 < self.fail_at <= self.calls

    def arm(self, victim: str, fail_at: int) -> None:
        self.victim, self.fail_at, self.calls = victim, fail_at, 0

    def _step(self, path: str | int) -> None:
        if self.victim is None:
            return
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        if self.victim in name:
            self.calls += 1
            if self.calls == self.fail_at or (self.lasts and self.has_failed):
                raise Unexpected(f"step {self.calls}: {name}")

    def open(self, path: str, *, create: bool = False) -> int:
        self._step(path)
        return super().open(path, create=create)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        self._step(fd)
        super().write(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._step(fd)
        return super().read(fd, size, position)

    def truncate(self, fd: int, size: int) -> None:
        self._step(fd)
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._step(fd)

    def modified_ns(self, fd: int) -> int:
        self._step(fd)
        return super().modified_ns(fd)

    def rename(self, path: str, new_path: str) -> None:
        self._step(path)
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self._step(path)
        super().remove(path)

    def make_folder(self, path: str) -> None:
        self._step(path)
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        self._step(path)

    def files(self, path: str) -> dict[str, os.stat_result]:
        self._step(path)
        return super().files(path)

    def read_file(self, path: str) -> bytes:
        self._step(path)
        return super().read_file(path)


class Broker:
    """The logs of two partitions, in one or two data directories."""

    def __init__(self, path: Path, *, directories: int = 1, **settings: str) -> None:
        paths = [str(path / str(number)) for number in range(directories)]
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig({"log.dirs": ",".join(paths), "log.initial.task.delay.ms": "0"} | dotted)
        self.log_config = LogConfig.of(self.config, TOPIC_SETTINGS)
        self.paths = paths
        self.storage = StorageWithDefect()
        self.began = trio.current_time()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LogManager]:
        clock = Clock(wall=lambda: NOW_MS / 1000 + trio.current_time() - self.began)
        logs = await LogManager.open(self.config, clock, storage=self.storage, config_of=lambda topic: self.log_config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run)
            logs.start(nursery)
            yield logs
            nursery.cancel_scope.cancel()
        await logs.close()

    def create(self, logs: LogManager) -> tuple[Log, Log]:
        return logs.create(BAD, TOPIC_ID, self.log_config), logs.create(GOOD, TOPIC_ID, self.log_config)


def run(main: Callable[[], Awaitable[None]]) -> None:
    # Not autojump: the jumping clock takes a loop that waits for a thread for an idle one.
    trio.run(main, clock=trio.testing.MockClock(rate=50))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for the broker's tasks and threads; raises if they take too long."""
    for _ in range(20_000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError("the broker's work has ended")


def fill(log: Log, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        append(log, batch(b"%d" % (number % 3) + bytes(50), timestamp=NOW_MS + number))


async def flush(path: Path, step: int) -> bool:
    broker = Broker(path)
    async with broker.running() as logs:
        bad, good = broker.create(logs)
        for log in (bad, good):
            fill(log, 8)
        broker.storage.arm("/bad-0", step)
        for log in (bad, good):
            log.reader.services.request_flush(log)
        await until(lambda: good.flusher.recovery_point == good.reader.log_end_offset)
        has_failed = broker.storage.has_failed
        broker.storage.victim = None
        append(bad, b"goes on")
        bad.reader.services.request_flush(bad)
        await until(lambda: bad.flusher.recovery_point == bad.reader.log_end_offset)
    return has_failed


async def retention(path: Path, step: int) -> bool:
    broker = Broker(path, log_retention_ms="500", log_retention_check_interval_ms="500")
    async with broker.running() as logs:
        bad, good = broker.create(logs)
        for log in (bad, good):
            fill(log, 8)
        broker.storage.arm("/bad-0", step)
        await until(lambda: good.reader.log_start_offset == 8)
        await trio.sleep(2)
        has_failed = broker.storage.has_failed
        fill(good, 8)
        await until(lambda: good.reader.log_start_offset == 16 and bad.reader.log_start_offset == 8)
    return has_failed


async def compaction(path: Path, step: int) -> bool:
    broker = Broker(path, log_cleanup_policy="compact", log_cleaner_backoff_ms="10")
    async with broker.running() as logs:
        bad, good = broker.create(logs)
        for log in (bad, good):
            fill(log, 4)
            log.roll()
        broker.storage.arm("/bad-0", step)
        await until(lambda: logs.catalog.cleaner_offsets.get(GOOD, 0) == 4)
        await trio.sleep(1)
        has_failed = broker.storage.has_failed
        assert len(all_records(good)) == 1
        broker.storage.victim = None
        kept = [(record.offset, record.value) for record in all_records(bad)]
        assert kept[-1][0] == 3
    async with broker.running() as logs:
        again = logs.get(BAD)
        assert again is not None
        found = [(record.offset, record.value) for record in all_records(again)]
        assert set(found) <= set(kept)
        assert found[-1] == kept[-1]
        assert logs.catalog.cleaner_offsets[GOOD] == 4
    return has_failed


async def move(path: Path, step: int) -> bool:
    broker = Broker(path, directories=2)
    async with broker.running() as logs:
        bad, good = broker.create(logs)
        for log in (bad, good):
            fill(log, 4)
        broker.storage.arm("bad-0", step)
        for log in (bad, good):
            target = next(each for each in logs.directories if each is not logs.home_of(log))
            logs.mover.begin(log.topic_partition, target.path)
        await until(lambda: not logs.mover.moves)
        has_failed = broker.storage.has_failed
        broker.storage.victim = None
        assert [record.offset for record in all_records(bad)] == list(range(4))
        append(bad, b"goes on")
    async with broker.running() as logs:
        for name, count in ((BAD, 5), (GOOD, 4)):
            found = logs.get(name)
            assert found is not None
            assert found.reader.log_end_offset == count
    return has_failed


async def checkpoints(path: Path, step: int) -> bool:
    broker = Broker(path, log_flush_offset_checkpoint_interval_ms="1000")
    async with broker.running() as logs:
        _, good = broker.create(logs)
        broker.storage.arm("recovery-point-offset-checkpoint", step)
        fill(good, 8)
        file = Path(broker.paths[0]) / "recovery-point-offset-checkpoint"
        await until(lambda: file.exists() and "good 0 " in file.read_text())
        has_failed = broker.storage.has_failed
        await until(lambda: good.flusher.recovery_point > 0)
        point = good.flusher.recovery_point
        await until(lambda: f"good 0 {point}" in file.read_text())
    return has_failed


async def recovery(path: Path, step: int) -> bool:
    broker = Broker(path)
    clock = Clock()
    logs = await LogManager.open(broker.config, clock, storage=broker.storage)
    for log in broker.create(logs):
        fill(log, 8)
    logs._unlock()
    broker.storage.arm("/bad-0", step)
    async with broker.running() as logs:
        has_failed = broker.storage.has_failed
        bad, good = logs.get(BAD), logs.get(GOOD)
        assert bad is not None
        assert good is not None
        assert [record.offset for record in all_records(good)] == list(range(8))
        broker.storage.victim = None
        append(good, b"goes on")
    async with broker.running() as logs:
        again = logs.get(BAD)
        assert again is not None
        assert [record.offset for record in all_records(again)] == list(range(8))
    return has_failed


async def closing(path: Path, step: int) -> bool:
    broker = Broker(path)
    async with broker.running() as logs:
        for log in broker.create(logs):
            fill(log, 8)
        broker.storage.arm("/bad-0", step)
    has_failed = broker.storage.has_failed
    broker.storage.victim = None
    async with broker.running() as logs:
        for name in (BAD, GOOD):
            found = logs.get(name)
            assert found is not None
            assert [record.offset for record in all_records(found)] == list(range(8))
    return has_failed


@pytest.mark.parametrize(
    "work", [flush, retention, compaction, move, checkpoints, recovery, closing], ids=lambda work: work.__name__
)
def test_background_work_unexpected_exception_at_any_step_costs_one_partition(tmp_path: Path, work: Any) -> None:
    steps = 0
    for step in range(1, ENOUGH_STEPS):
        has_failed: list[bool] = []

        async def main(step: int = step, has_failed: list[bool] = has_failed) -> None:
            has_failed.append(await work(tmp_path / str(step), step))

        with capture_logs() as lines:
            run(main)
        if not has_failed[0]:
            break
        steps += 1
    assert 2 < steps < ENOUGH_STEPS - 1
    assert lines is not None


def test_log_whose_compaction_met_a_defect_is_compacted_again_only_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, log_cleanup_policy="compact", log_cleaner_backoff_ms="10")
        async with broker.running() as logs:
            bad, good = broker.create(logs)
            fill(bad, 4)
            bad.roll()
            # A file that only the cleaner opens: a flush may run too.
            broker.storage.arm("/bad-0/00000000000000000000.log.cleaned", 1)
            await until(lambda: broker.storage.has_failed)
            broker.storage.victim = None
            for clean_offset in (4, 8):
                fill(good, 4)
                good.roll()
                await until(lambda clean_offset=clean_offset: logs.catalog.cleaner_offsets.get(GOOD, 0) == clean_offset)
            assert BAD not in logs.catalog.cleaner_offsets
            assert len(all_records(bad)) == 4
        async with broker.running() as logs:
            await until(lambda: logs.catalog.cleaner_offsets.get(BAD, 0) == 4)

    with capture_logs():
        run(main)


class StorageWithDeletion(StorageWithDefect):
    """The real file system; a partition is deleted on the loop just before one call that a thread makes for its files."""

    __slots__ = ("delete",)

    def __init__(self) -> None:
        super().__init__()
        self.delete: Callable[[], object] = lambda: None

    def _step(self, path: str | int) -> None:
        victim = self.victim
        if victim is None or threading.current_thread() is threading.main_thread():
            return
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        if victim in name:
            self.calls += 1
            if self.calls == self.fail_at:
                trio.from_thread.run_sync(self.delete)

    def sync_folder(self, path: str) -> None:
        self._step(path)
        os.stat(path)


@asynccontextmanager
async def deleting(broker: Broker, victim: str, step: int) -> AsyncIterator[tuple[LogManager, Log, Log]]:
    """Two partitions with records, the bad one of which is deleted before this call of a thread for its files.

    Each has one segment, which is synced and active: the cleaner takes none of it before the caller rolls the log.
    """
    storage = broker.storage = StorageWithDeletion()
    async with broker.running() as logs:
        bad, good = broker.create(logs)
        for log in (bad, good):
            fill(log, 4)
            log.reader.services.request_flush(log)
        await until(lambda: good.flusher.recovery_point == bad.flusher.recovery_point == 4)
        storage.delete = lambda: logs.delete(BAD)
        storage.arm(victim, step)
        yield logs, bad, good
        storage.victim = None
        assert all(directory.offline_reason is None for directory in logs.directories)


async def flush_beside_a_deletion(path: Path, step: int) -> bool:
    broker = Broker(path)
    async with deleting(broker, "/bad-0", step) as (_, bad, good):
        for log in (bad, good):
            log.roll()
            fill(log, 8)
            log.reader.services.request_flush(log)
        await until(lambda: good.flusher.recovery_point == good.reader.log_end_offset)
        return broker.storage.has_failed


async def compaction_beside_a_deletion(path: Path, step: int) -> bool:
    broker = Broker(path, log_cleanup_policy="compact", log_cleaner_backoff_ms="10")
    async with deleting(broker, "/bad-0", step) as (logs, bad, good):
        for log in (bad, good):
            log.roll()
        await until(lambda: logs.catalog.cleaner_offsets.get(GOOD, 0) == 4)
        await until(lambda: not logs.catalog.is_current(bad) or logs.catalog.cleaner_offsets.get(BAD, 0) == 4)
        assert len(all_records(good)) == 1
        return broker.storage.has_failed


async def move_beside_a_deletion(path: Path, step: int) -> bool:
    broker = Broker(path, directories=2)
    async with deleting(broker, "bad-0", step) as (logs, bad, good):
        for log in (bad, good):
            log.roll()
            target = next(each for each in logs.directories if each is not logs.home_of(log))
            logs.mover.begin(log.topic_partition, target.path)
        await until(lambda: not logs.mover.moves)
        append(good, b"goes on")
        return broker.storage.has_failed


@pytest.mark.parametrize(
    "work",
    [flush_beside_a_deletion, compaction_beside_a_deletion, move_beside_a_deletion],
    ids=["flush", "compaction", "move"],
)
def test_deletion_of_a_partition_at_any_step_of_background_work_is_no_error(tmp_path: Path, work: Any) -> None:
    steps = 0
    for step in range(1, ENOUGH_STEPS):
        has_failed: list[bool] = []

        async def main(step: int = step, has_failed: list[bool] = has_failed) -> None:
            has_failed.append(await work(tmp_path / str(step), step))

        with capture_logs() as lines:
            run(main)
        assert not [line for line in lines if line["log_level"] in ("error", "critical")], step
        if not has_failed[0]:
            break
        steps += 1
    assert 2 < steps < ENOUGH_STEPS - 1


class StorageWithoutSync(StorageWithDefect):
    """A disk on which every sync of a segment fails, once `is_broken` is set."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def sync(self, fd: int) -> None:
        if self.is_broken and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_failed_sync_in_the_background_takes_the_directory_offline(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        broker.storage = storage = StorageWithoutSync()
        async with broker.running() as logs:
            bad, _ = broker.create(logs)
            append(bad, b"a")
            storage.is_broken = True
            bad.roll()
            await until(lambda: logs.directories[0].offline_reason is not None)
            assert bad.flusher.recovery_point == 0

    with capture_logs():
        run(main)
