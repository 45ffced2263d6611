"""The log cleaner: chooses which log to compact and when, and replaces the old segments with the compacted ones.

How it works: the loop chooses the log with the greatest share of bytes that are not compacted yet. It lists the segments
that may be compacted: those that are sealed, committed and old enough. A thread compacts them (see `log.compaction.passes`).
For each group of segments the thread calls back to the loop, and the loop swaps the new segment in if the old segments are still
part of the log. The thread works for a quarter of a millisecond and then rests for as long; without rests it would hold the
interpreter lock and delay every connection.

Rules of this file:
    The cleaner chooses and swaps on the loop. Between the two, the log may roll, delete old segments, or be deleted itself.
    After a crash, `recovery` finishes or removes a swap.
    If the thread finds wrong framing or a wrong checksum in a log, the log goes offline. If the checksums of a log are right but
    its content cannot be compacted, the cleaner ignores the log until the broker's next start.

Source: kafka.log.{LogCleaner, LogCleanerManager}.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import KafkaError
from wirekafka.faults import isolate
from wirekafka.log.catalog import LogCatalog
from wirekafka.log.checkpoint import CLEANER_OFFSETS
from wirekafka.log.compaction.offset_map import ENTRY_BYTES
from wirekafka.log.compaction.passes import Compaction, LastRecord, RecordFilter, Totals
from wirekafka.log.log import Log
from wirekafka.log.positions import BadBatchError
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import SWAP_SUFFIX
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

_SLICE_SECONDS = 0.00025
"""The time that the thread works before it rests, in seconds; a little more than the thread needs between two steps."""
_NOT_COMPACTED = "A log is not compacted any more"
_REMEDY = "All other work continues; the log is compacted again after the next start. Report this with the traceback"


@dataclass(frozen=True, slots=True)
class Dirt:
    """The part of a log that may be compacted and is not compacted yet.

    Attributes:
        dirty_offset: records before this offset are compacted.
        end_offset: the base offset of the first segment that may not be compacted.
        ratio: the share of the bytes before `end_offset` that are not compacted yet.
        is_overdue: a record of this part is older than `max.compaction.lag.ms`.
    """

    dirty_offset: int
    end_offset: int
    ratio: float
    is_overdue: bool


def measure_dirt(candidate: ReadableLog, clean_offset: int | None, now_ms: int) -> Dirt | None:
    """Returns the dirty part of a log; None if no part of the log may be compacted.

    Args:
        clean_offset: the end of the compacted part, from the checkpoint; None if the log was never compacted.

    Raises:
        OSError: a segment cannot be read.

    Source: LogCleanerManager.cleanableOffsets, calculateCleanableBytes, maxCompactionDelay.
    """
    config = candidate.config
    dirty_offset = candidate.log_start_offset if clean_offset is None else clean_offset
    if not candidate.log_start_offset <= dirty_offset <= candidate.log_end_offset:
        dirty_offset = candidate.log_start_offset
    sealed = candidate.segments.items[:-1]
    end_offset = min(candidate.last_stable_offset, candidate.segments.active.base_offset)
    dirty = [segment for number, segment in enumerate(sealed) if _end_of(candidate, number) > dirty_offset]
    for segment in dirty:
        if config.min_compaction_lag_ms > 0 and segment.largest_timestamp > now_ms - config.min_compaction_lag_ms:
            end_offset = min(end_offset, segment.base_offset)
            break
    bases = [segment.base_offset for segment in candidate.segments if segment.base_offset <= end_offset]
    end_offset = bases[-1] if bases else dirty_offset
    dirty = [segment for segment in dirty if segment.base_offset < end_offset]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    total_bytes = sum(segment.size for segment in sealed if segment.base_offset < end_offset)
    oldest = min((segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=None)
    is_overdue = oldest is not None and oldest < now_ms - config.max_compaction_lag_ms
    return Dirt(dirty_offset, end_offset, dirty_bytes / total_bytes, is_overdue)


def _end_of(candidate: ReadableLog, number: int) -> int:
    return candidate.segments.items[number + 1].base_offset


class Cleaner:
    """Compacts the logs of a broker.

    A log whose compaction ends in an unexpected exception is not compacted again before the broker's next start.
    """

    def __init__(self, logs: LogCatalog, config: BrokerConfig, clock: Clock) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._in_progress: set[TopicPartition] = set()
        self._uncleanable: set[Log] = set()

    def start(self, nursery: trio.Nursery) -> None:
        """Starts `log.cleaner.threads` tasks, none if `log.cleaner.enable` is false."""
        if self._config.boolean("log.cleaner.enable"):
            for _ in range(self._config.integer("log.cleaner.threads")):
                nursery.start_soon(self._run)

    async def _run(self) -> None:
        while True:
            is_cleaned = False
            with isolate("The log cleaner failed; it continues after log.cleaner.backoff.ms"):
                chosen = self._choose()
                is_cleaned = chosen is not None and await self._clean_isolated(*chosen)
            if not is_cleaned:
                await trio.sleep(max(self._config.integer("log.cleaner.backoff.ms"), 1) / 1000)

    def _choose(self) -> tuple[Log, Dirt] | None:
        """Returns the log with the greatest dirty ratio, of the logs that are due for compaction."""
        now_ms = self._clock.now_ms()
        self._uncleanable = {each for each in self._uncleanable if self._logs.is_current(each)}
        best: tuple[Log, Dirt] | None = None
        for each in self._logs:
            if not each.reader.config.is_compacted or each.topic_partition in self._in_progress or each in self._uncleanable:
                continue
            dirt = self._measure(each, now_ms)
            is_due = dirt is not None and (dirt.is_overdue or dirt.ratio > each.reader.config.min_cleanable_dirty_ratio)
            if dirt is not None and is_due and (best is None or dirt.ratio > best[1].ratio):
                best = each, dirt
        return best

    def _measure(self, candidate: Log, now_ms: int) -> Dirt | None:
        """Returns the dirty part of a log; None if no part of the log can be compacted now."""
        name = candidate.topic_partition
        with isolate(_NOT_COMPACTED, remedy=_REMEDY, partition=str(name)) as fault:
            try:
                return measure_dirt(candidate.reader, self._logs.cleaner_offsets.get(name), now_ms)
            except BadBatchError as error:
                candidate.reader.note_disk_error("read", error)
            except OSError as error:
                log.error("Could not measure a log for compaction", partition=str(name), error=str(error))
        if fault.error is not None:
            self._uncleanable.add(candidate)
        return None

    async def _clean_isolated(self, chosen: Log, dirt: Dirt) -> bool:
        with isolate(_NOT_COMPACTED, remedy=_REMEDY, partition=str(chosen.topic_partition)) as fault:
            return await self._clean(chosen, dirt)
        if fault.error is not None:
            self._uncleanable.add(chosen)
        return False

    async def _clean(self, chosen: Log, dirt: Dirt) -> bool:
        """Compacts a log and returns whether the compaction succeeded.

        Cancellation: the thread stops at its next step; segments that were swapped in stay.
        """
        name, folder, truncation_count = chosen.topic_partition, chosen.reader.folder, chosen.reader.truncation_count
        self._in_progress.add(name)
        started = trio.current_time()
        try:
            work = self._plan(chosen, dirt)
            clean_offset = await trio.to_thread.run_sync(self._work, chosen, chosen.reader.segments.items[:-1], work)
        except (OSError, KafkaError) as error:
            # The files of a log that was deleted, moved or truncated meanwhile are missing or cut, and no disk has failed.
            if self._logs.is_current(chosen) and chosen.reader.truncation_count == truncation_count:
                self._note_failure(chosen, error, is_moved=chosen.reader.folder is not folder)
            return False
        finally:
            self._in_progress.discard(name)
        if not self._logs.is_current(chosen) or clean_offset is None or chosen.reader.truncation_count != truncation_count:
            return False
        _report(name, clean_offset, work.totals, trio.current_time() - started)
        return await self._remember(chosen, clean_offset)

    def _note_failure(self, failed: Log, error: OSError | KafkaError, *, is_moved: bool) -> None:
        if isinstance(error, BadBatchError):
            failed.reader.note_disk_error("read", error)
        elif isinstance(error, KafkaError):
            self._uncleanable.add(failed)
            log.error(_NOT_COMPACTED, partition=str(failed.topic_partition), error=str(error))
        elif not is_moved:
            log.error("Could not compact a log", partition=str(failed.topic_partition), error=str(error))
            self._logs.note_disk_error(self._logs.home_of(failed), error)

    def _most_keys(self) -> int:
        memory = self._config.integer("log.cleaner.dedupe.buffer.size") / max(self._config.integer("log.cleaner.threads"), 1)
        return max(int(memory * self._config.number("log.cleaner.io.buffer.load.factor") / ENTRY_BYTES), 1)

    def _plan(self, chosen: Log, dirt: Dirt) -> Compaction:
        """Describes the compaction of a log for the thread.

        Raises:
            OSError: the swap of an earlier compaction cannot be finished. Its files have the names that new files would get.
        """
        chosen.reader.segments.finish_swap()
        rate = self._config.number("log.cleaner.io.max.bytes.per.second")
        return Compaction(
            folder=chosen.reader.folder,
            config=chosen.reader.config,
            segments=[segment for segment in chosen.reader.segments.items[:-1] if segment.base_offset < dirt.end_offset],
            dirty_offset=dirt.dirty_offset,
            end_offset=dirt.end_offset,
            last_records=last_records_of(chosen.reader),
            aborted=[entry for entry in chosen.reader.segments.active.transaction_index if entry.first_offset < dirt.end_offset],
            truncation_count=chosen.reader.truncation_count,
            now_ms=self._clock.now_ms(),
            most_keys=self._most_keys(),
            pace=ThreadPace(rate),
        )

    def _work(self, chosen: Log, sealed: list[Segment], work: Compaction) -> int | None:
        """Compacts a log in the thread and returns the end of the compacted part; None if the log lost segments meanwhile.

        Raises:
            OSError, BadBatchError: a segment cannot be read or written, or is damaged.
            KafkaError: a batch cannot be decoded.
        """
        work.aborted = [*aborted_in(sealed, work.end_offset), *work.aborted]
        offsets = work.build_map()
        is_truncated = chosen.reader.truncation_count != work.truncation_count
        assert is_truncated or offsets.end_offset > work.dirty_offset, "the map has room for the first key"
        record_filter = RecordFilter(work, offsets)
        for group in work.groups(offsets):
            if not self._rewrite(chosen, work, group, record_filter):
                return None
        return offsets.end_offset

    def _rewrite(self, chosen: Log, work: Compaction, group: list[Segment], record_filter: RecordFilter) -> bool:
        new = work.rewrite(group, record_filter, chosen.reader.services.pool)
        work.totals.bytes_before += sum(segment.size for segment in group)
        work.totals.bytes_after += new.size
        is_swapped = False
        try:
            new.rename_files(SWAP_SUFFIX)
            work.folder.sync()
            is_swapped = trio.from_thread.run_sync(chosen.replace_segments, group, new, work.truncation_count)
        finally:
            if not is_swapped:
                new.discard_files()
        return is_swapped

    async def _remember(self, chosen: Log, clean_offset: int) -> bool:
        self._logs.cleaner_offsets[chosen.topic_partition] = clean_offset
        directory = self._logs.home_of(chosen)
        offsets = self._logs.offsets_of(directory, CLEANER_OFFSETS)
        try:
            await trio.to_thread.run_sync(directory.checkpoint(CLEANER_OFFSETS, offsets))
        except OSError as error:
            log.error("Could not write a checkpoint", path=f"{directory.path}/{CLEANER_OFFSETS}", error=str(error))
            return False
        return True


class ThreadPace:
    """Makes a thread rest after each quarter of a millisecond of work, and limits the bytes that it handles per second.

    Args:
        bytes_per_second: `log.cleaner.io.max.bytes.per.second`.
        clock: returns the time in seconds.
        sleep: takes the seconds to rest.
        check: called before each rest; raises if the broker stops.
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        check: Callable[[], None] = trio.from_thread.check_cancelled,
    ) -> None:
        self._bytes_per_second = max(bytes_per_second, 1.0)
        self._clock = clock
        self._sleep = sleep
        self._check = check
        self._began = self._slice_began = clock()
        self._bytes = 0

    def step(self, size_bytes: int = 0) -> None:
        """Counts `size_bytes`, and rests if the thread has worked for its slice of time or is ahead of its rate of bytes.

        Raises:
            trio.Cancelled: the broker stops.
        """
        self._bytes += size_bytes
        now = self._clock()
        worked = now - self._slice_began
        ahead = self._bytes / self._bytes_per_second - (now - self._began)
        if worked < _SLICE_SECONDS and ahead < _SLICE_SECONDS:
            return
        self._check()
        self._sleep(max(min(worked, 40 * _SLICE_SECONDS), min(ahead, 1.0)))
        self._slice_began = self._clock()


def aborted_in(segments: Iterable[Segment], end_offset: int) -> Iterator[AbortedTransaction]:
    """Yields the aborted transactions that begin before an offset and end in one of these neighbouring segments.

    Raises:
        OSError: a transaction index cannot be read.
    """
    for segment in segments:
        for entry in segment.transaction_index:
            if entry.first_offset < end_offset:
                yield entry
            if entry.last_stable_offset >= end_offset:
                return


def last_records_of(chosen: ReadableLog) -> dict[int, LastRecord]:
    """Returns, by producer id, the last record of each producer in the log's producer state; compaction keeps its batch.

    Source: ProducerStateManager.lastRecord.
    """
    return {producer.producer_id: LastRecord(producer.last_offset, producer.epoch) for producer in chosen.producers}


def _report(name: TopicPartition, clean_offset: int, totals: Totals, seconds: float) -> None:
    log.info(
        "Compacted a log",
        partition=str(name),
        clean_offset=clean_offset,
        bytes_before=totals.bytes_before,
        bytes_after=totals.bytes_after,
        records_before=totals.records_before,
        records_after=totals.records_after,
        seconds=round(seconds, 2),
    )
