"""The background work on logs: flushes, checkpoints, retention and the expiry of producers.

How it works: each kind of work is a task that sleeps, and handles all logs when it wakes. It handles a few logs at a time,
so that connections do not wait for long. A thread waits for the disk.

Rules of this file:
    A disk error is logged, and the task repeats the work at its next turn.
    An unexpected exception is logged, and ends the work on one log only; only cancellation ends a task.

Source: kafka.log.LogManager.startup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import KafkaError
from wirekafka.faults import isolate
from wirekafka.log.catalog import LogCatalog
from wirekafka.log.checkpoint import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from wirekafka.log.context import HasPartition
from wirekafka.log.directory import DataDirectory
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log
from wirekafka.log.storage import Folder
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

_LOGS_A_TURN = 50
"""The number of logs that a task handles before it yields to the loop."""
_FLUSH_FAILED = "A flush failed; the recovery point does not move"


class LogMaintenance:
    """The background work on the logs of one broker."""

    def __init__(self, logs: LogCatalog, config: BrokerConfig, clock: Clock) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._to_flush: dict[TopicPartition, None] = {}
        self._flush_is_due = trio.Event()
        self._log_starts_are_due = trio.Event()

    def request_flush(self, written: HasPartition) -> None:
        """Requests a flush of the log soon."""
        self._to_flush[written.topic_partition] = None
        self._flush_is_due.set()

    def request_log_starts(self) -> None:
        """Requests a checkpoint of the log start offsets soon."""
        self._log_starts_are_due.set()

    def start(self, nursery: trio.Nursery) -> None:
        """Starts the tasks."""
        nursery.start_soon(self._flush_when_due)
        nursery.start_soon(self._write_log_starts_when_due)
        for setting, work in (
            ("log.retention.check.interval.ms", self._delete_old_segments),
            ("log.flush.offset.checkpoint.interval.ms", self._write_recovery_points),
            ("log.flush.start.offset.checkpoint.interval.ms", self._write_log_starts),
            ("replica.high.watermark.checkpoint.interval.ms", self._write_high_watermarks),
            ("producer.id.expiration.check.interval.ms", self._expire_producers),
        ):
            nursery.start_soon(self._repeat, setting, work)

    async def _repeat(self, setting: str, work: Callable[[], Awaitable[object]]) -> None:
        await trio.sleep(self._config.integer("log.initial.task.delay.ms") / 1000)
        while True:
            with isolate("Work on the logs failed; the broker tries again at its next turn", interval=setting):
                await work()
            await trio.sleep(max(self._config.integer(setting), 1) / 1000)

    # Flushes

    async def _flush_when_due(self) -> None:
        while True:
            await self._flush_is_due.wait()
            self._flush_is_due = trio.Event()
            due, self._to_flush = list(self._to_flush), {}
            for first in range(0, len(due), _LOGS_A_TURN):
                with isolate("Flushes failed; the broker tries again after the next roll or append", partitions=len(due)):
                    await self._flush(due[first : first + _LOGS_A_TURN])

    async def _flush(self, due: Iterable[TopicPartition]) -> None:
        flushes = []
        for name in due:
            found = self._logs.get(name)
            if found is None or found.reader.offline_reason is not None:
                continue
            with isolate(_FLUSH_FAILED, partition=str(name)):
                flushes.append((found, found.flusher.prepare()))
        failures = await trio.to_thread.run_sync(_run_all, flushes)
        for (flushed, flush), failure in zip(flushes, failures, strict=True):
            with isolate(_FLUSH_FAILED, partition=str(flushed.topic_partition)):
                if failure is None:
                    flushed.flusher.complete(flush)
                elif isinstance(failure, OSError) and self._is_in(flush.folder, flushed):
                    flushed.reader.note_disk_error("flush", failure)

    def _is_in(self, folder: Folder, flushed: Log) -> bool:
        """Whether the log still uses the folder: its topic was not deleted during the flush, and the log was not moved."""
        return self._logs.is_current(flushed) and flushed.reader.folder is folder

    # Checkpoints

    async def _write_log_starts_when_due(self) -> None:
        while True:
            await self._log_starts_are_due.wait()
            self._log_starts_are_due = trio.Event()
            await self._write_log_starts()

    async def _write_recovery_points(self) -> None:
        await self._write(RECOVERY_POINTS)

    async def _write_log_starts(self) -> None:
        await self._write(LOG_START_OFFSETS)

    async def _write_high_watermarks(self) -> None:
        await self._write(HIGH_WATERMARKS)

    async def _write(self, file: str) -> None:
        for directory in self._logs.directories:
            if directory.offline_reason is not None:
                continue
            with isolate("Could not write a checkpoint", path=f"{directory.path}/{file}"):
                await self._write_in(directory, file)

    async def _write_in(self, directory: DataDirectory, file: str) -> None:
        offsets = self._logs.offsets_of(directory, file)
        try:
            await trio.to_thread.run_sync(directory.checkpoint(file, offsets))
        except OSError as error:
            log.error("Could not write a checkpoint", path=f"{directory.path}/{file}", error=str(error))
            self._logs.note_disk_error(directory, error)

    # Work on all logs

    async def _delete_old_segments(self) -> None:
        await self._for_each(
            "Retention of a partition failed", lambda each: each.retention.delete_old_segments(self._clock.now_ms())
        )

    async def _expire_producers(self) -> None:
        expiration_ms = self._config.integer("producer.id.expiration.ms")
        await self._for_each(
            "Expiry of producers failed", lambda each: each.reader.producers.expire(self._clock.now_ms(), expiration_ms)
        )

    async def _for_each(self, failure: str, work: Callable[[Log], object]) -> None:
        """Does the work on all logs; work that is a generator yields to the loop at each of its steps."""
        for number, each in enumerate(self._logs):
            if number % _LOGS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if not self._logs.is_current(each):
                continue
            with isolate(failure, partition=str(each.topic_partition)), suppress(KafkaError):  # The log has logged it.
                done = work(each)
                if isinstance(done, Generator):
                    for _ in done:
                        await trio.lowlevel.checkpoint()


def _run_all(flushes: list[tuple[Log, Flush]]) -> list[Exception | None]:
    """Runs the flushes in a thread; returns for each the exception that ended it, or None if it reached the disk."""
    failures: list[Exception | None] = []
    for flushed, flush in flushes:
        with isolate(_FLUSH_FAILED, partition=str(flushed.topic_partition)) as fault:
            try:
                flush.run()
            except OSError as error:
                failures.append(error)
                continue
        failures.append(fault.error)
    return failures
