"""The work on logs that nobody asks for: flushes, checkpoints, retention, forgetting producers.

Theory of operation: each kind of work is a task that sleeps, and goes through all logs when it wakes, a few at a time so that
no connection waits behind it. What waits for the disk does so in a thread, one for all flushes that are due together.

Rules of this file: an error of the disk is logged and the work tried again at its next turn; nothing ends a task but
cancellation.

Source: kafka.log.LogManager.startup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import KafkaError
from wirekafka.log.checkpoint import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log

if TYPE_CHECKING:
    from wirekafka.log.manager import LogManager

log = structlog.get_logger(__name__)

_LOGS_A_TURN = 50
"""Logs gone through before others on the loop get their turn."""


class LogMaintenance:
    """The background work of one `LogManager`."""

    def __init__(self, logs: LogManager, config: BrokerConfig, clock: Clock) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._to_flush: dict[Log, None] = {}
        self._flush_is_due = trio.Event()
        self._log_starts_are_due = trio.Event()

    def request_flush(self, each: Log) -> None:
        """Sees to it that the log is flushed soon."""
        self._to_flush[each] = None
        self._flush_is_due.set()

    def request_log_starts(self) -> None:
        """Sees to it that the log start offsets are written down soon."""
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
            await work()
            await trio.sleep(max(self._config.integer(setting), 1) / 1000)

    # Flushes

    async def _flush_when_due(self) -> None:
        while True:
            await self._flush_is_due.wait()
            self._flush_is_due = trio.Event()
            due, self._to_flush = self._to_flush, {}
            flushes = []
            for each in due:
                if each.offline_reason is not None:
                    continue
                try:
                    flushes.append((each, each.prepare_flush()))
                except OSError as error:
                    each.fail_flush(error)
            failures = await trio.to_thread.run_sync(_run_all, [flush for _, flush in flushes])
            for (each, flush), failure in zip(flushes, failures, strict=True):
                if failure is None:
                    each.complete_flush(flush)
                elif flush.folder is each.folder:
                    each.fail_flush(failure)

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
            offsets = self._logs.offsets_of(directory, file)
            try:
                await trio.to_thread.run_sync(directory.checkpoint(file, offsets))
            except OSError as error:
                log.error("Could not write a checkpoint", path=f"{directory.path}/{file}", error=str(error))
                self._logs.note_disk_error(directory, error)

    # What goes through all logs

    async def _delete_old_segments(self) -> None:
        await self._for_each(lambda each: each.delete_old_segments(self._clock.now_ms()))

    async def _expire_producers(self) -> None:
        expiration_ms = self._config.integer("producer.id.expiration.ms")
        await self._for_each(lambda each: each.expire_producers(self._clock.now_ms(), expiration_ms))

    async def _for_each(self, work: Callable[[Log], object]) -> None:
        for number, each in enumerate(self._logs):
            if number % _LOGS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if self._logs.get(each.topic_partition) is each:
                try:
                    work(each)
                except KafkaError:
                    continue  # The log has said so.


def _run_all(flushes: list[Flush]) -> list[OSError | None]:
    failures: list[OSError | None] = []
    for flush in flushes:
        try:
            flush.run()
            failures.append(None)
        except OSError as error:
            failures.append(error)
    return failures
