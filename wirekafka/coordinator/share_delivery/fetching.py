"""ShareFetch, independent of the protocol: reads records, acquires them for a member, or waits for records.

How it works: a fetch reads its partitions in order; each partition may return an equal part of `max_bytes`. A read returns
a region of a file, of which only the batch headers are parsed. `SharePartition.acquire` selects records from these batches, and
the region is cut to the batches of the selected records. A fetch that finds too few records waits. An append, or a release by
another member, wakes the fetch, and the fetch tries again. A fetch that found nothing costs little while it waits, because a
comparison of offsets shows that its share partitions have nothing to read. Loading, reading and acquiring go on in slices, with
`PARTITIONS_A_STEP` partitions in each step, and so a fetch of more partitions watches them before it reads: an event behind the
reading makes it read once more.

Rules of this file: only batch headers are parsed, never records.

Source: kafka.server.share.DelayedShareFetch, ShareFetchUtils; PartitionMaxBytesStrategy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from wirekafka.coordinator.share_delivery.acquisition import Acquired, AcquireMode, AcquireRequest, Limits, LogBatch
from wirekafka.coordinator.share_delivery.in_flight import Range, overlapping
from wirekafka.coordinator.share_delivery.partitions import LoadedPartition, SharePartitionManager
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.positions import heads_in
from wirekafka.log.storage import FileRegion
from wirekafka.pending import Pending, Work
from wirekafka.wire.batch import MAGIC, BatchHeader

if TYPE_CHECKING:
    from wirekafka.clock import Clock, Timer
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.purgatory import Purgatory

log = structlog.get_logger(__name__)

MOST_ATTEMPTS = 100
"""How often one fetch reads a partition, if the records of each read are archived because they cannot be delivered."""

PARTITIONS_A_STEP = 50
"""The partitions that a fetch loads, reads or acquires from between two yields."""


@dataclass(slots=True)
class FetchWish:
    """A ShareFetch of a member.

    Attributes:
        partitions: The partitions, in the order in which they are read.
        is_current: Whether the member still waits for the response; False if its session has ended or has a later request.
    """

    group_id: str
    member_id: str
    partitions: list[ShareKey]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    is_current: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Fetched:
    """The result of one partition.

    Attributes:
        records: Whole batches: a region of a file, or no bytes.
        acquired: The records that the member has acquired.
    """

    error: KafkaError | None = None
    records: FileRegion | bytes = b""
    acquired: list[Acquired] = field(default_factory=list)


FetchResult = dict[ShareKey, Fetched]
"""The results by partition, without partitions of which no records could be acquired."""


class _Batch(NamedTuple):
    """A batch within a region."""

    offsets: LogBatch
    position: int
    size_bytes: int
    producer_id: int
    may_be_aborted: bool


class _Reading(NamedTuple):
    loaded: LoadedPartition
    fetch_offset: int
    max_bytes: int
    region: FileRegion | bytes


class ShareFetches:
    """Runs the fetches of share groups.

    Args:
        run_in_slices: Runs long work a few milliseconds at a time, as `Slices.run` does.
    """

    def __init__(
        self,
        partitions: SharePartitionManager,
        purgatory: Purgatory,
        clock: Clock,
        run_in_slices: Callable[[Work[Any]], Any],
    ) -> None:
        self._partitions = partitions
        self._purgatory = purgatory
        self._clock = clock
        self._run_in_slices = run_in_slices

    def fetch(self, wish: FetchWish) -> Work[Pending[FetchResult]]:
        """Starts a fetch. The result is complete at the end if there are enough records, and otherwise when the wait ends."""
        if not wish.partitions or wish.max_records <= 0 or wish.max_bytes <= 0:
            done: Pending[FetchResult] = Pending()
            done.complete({})
            return done
        delayed = DelayedShareFetch(self, self._purgatory, self._run_in_slices, wish)
        yield from delayed.begin()
        return delayed.pending

    def load(self, wish: FetchWish) -> Work[tuple[list[LoadedPartition], FetchResult]]:
        """Returns the loaded share partitions of a fetch, and the errors of the other partitions."""
        loaded, errors = [], {}
        for number, key in enumerate(wish.partitions):
            if _ends_step(number):
                yield
            try:
                each = self._partitions.load(key)
                each.partition.check_online()
                loaded.append(each)
            except KafkaError as error:
                errors[key] = Fetched(error)
        return loaded, errors

    def attempt(self, wish: FetchWish, *, is_last: bool) -> Work[FetchResult | None]:
        """Returns the current result of a fetch; None if the fetch must continue to wait.

        Args:
            is_last: Whether the fetch ends with this attempt, however few records there are.
        """
        if not wish.is_current():
            return {}
        loaded, result = yield from self.load(wish)
        limits = self._partitions.limits(wish.group_id)
        only_stable = self._partitions.reads_committed(wish.group_id)
        readings, failed = yield from self._read_all(wish, loaded, limits, only_stable)
        found_bytes = sum(len(reading.region) for reading in readings)
        must_answer = is_last or not loaded or bool(failed) or wish.min_bytes <= 0
        if not must_answer and found_bytes < min(wish.min_bytes, wish.max_bytes):
            return None
        result |= failed
        records_left = wish.max_records
        for number, reading in enumerate(readings):
            if _ends_step(number):
                yield
                if not wish.is_current():
                    return {}
            if reading.loaded.is_unloaded or reading.loaded.partition.is_gone:
                continue  # the next attempt loads it again
            try:
                fetched = self._acquire(wish, self._renewed(reading, only_stable), records_left, limits, only_stable)
            except KafkaError as error:
                fetched = Fetched(error)
                must_answer = True
            result[reading.loaded.key] = fetched
            records_left -= sum(each.record_count for each in fetched.acquired)
        if not must_answer and not any(fetched.acquired for fetched in result.values()):
            return None
        return result

    def _read_all(
        self, wish: FetchWish, loaded: list[LoadedPartition], limits: Limits, only_stable: bool
    ) -> Work[tuple[list[_Reading], FetchResult]]:
        """Reads the records that could be acquired. Returns the readings, and the errors of partitions that could not be read."""
        acquirable = [each for each in loaded if each.share.can_acquire(limits)]
        if len(loaded) > PARTITIONS_A_STEP:
            yield
        readings: list[_Reading] = []
        failed: FetchResult = {}
        gives_a_batch = True
        for number, each in enumerate(acquirable):
            if _ends_step(number):
                yield
            # Each partition gets an equal part of the bytes; the first partition gets the remainder too.
            part_bytes, rest_bytes = divmod(wish.max_bytes, len(acquirable))
            max_bytes = part_bytes + (0 if number else rest_bytes)
            try:
                reading = self._read(each, max_bytes, only_stable, gives_a_batch=gives_a_batch)
            except KafkaError as error:
                failed[each.key] = Fetched(error)
                continue
            gives_a_batch = gives_a_batch and not len(reading.region)
            readings.append(reading)
        return readings, failed

    def _read(self, loaded: LoadedPartition, max_bytes: int, only_stable: bool, *, gives_a_batch: bool) -> _Reading:
        """Reads from the fetch offset of the group; reads nothing if that is at or after the high watermark.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        partition = loaded.partition
        self._partitions.follow_log(loaded)
        fetch_offset = loaded.share.fetch_offset()
        if fetch_offset >= partition.log.high_watermark:
            return _Reading(loaded, fetch_offset, max_bytes, b"")
        region = partition.read(fetch_offset, max_bytes=max_bytes, min_one_batch=gives_a_batch, only_stable=only_stable)
        return _Reading(loaded, fetch_offset, max_bytes, region)

    def _renewed(self, reading: _Reading, only_stable: bool) -> _Reading:
        """Returns the reading, or a new one if the fetch offset of the group has changed since.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if not len(reading.region):
            return reading
        self._partitions.follow_log(reading.loaded)
        if reading.loaded.share.fetch_offset() == reading.fetch_offset:
            return reading
        return self._read(reading.loaded, reading.max_bytes, only_stable, gives_a_batch=True)

    def _acquire(self, wish: FetchWish, reading: _Reading, max_records: int, limits: Limits, only_stable: bool) -> Fetched:
        """Acquires records of a reading, and reads on if none can be delivered: they are deleted or aborted.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        loaded = reading.loaded
        share = loaded.share
        want = AcquireRequest(wish.member_id, max_records, wish.batch_size, wish.mode)
        for _ in range(MOST_ATTEMPTS):
            stop_offset = max(share.next_offset, reading.fetch_offset) + max(0, max_records)
            batches = _batches_of(reading.region, stop_offset)
            if not batches:
                break
            aborted = self._aborted(loaded.partition, reading, batches) if only_stable else []
            offsets = [batch.offsets for batch in batches]
            acquired, change = share.acquire(want, reading.fetch_offset, offsets, limits, self._clock.monotonic_ms(), aborted)
            if change is not None:
                self._partitions.write_if_possible(loaded, change)
            if acquired:
                self._partitions.acquired(loaded, limits.lock_duration_ms)
                return Fetched(records=_cut(reading.region, batches, acquired), acquired=acquired)
            if change is None:
                break
            reading = self._read(loaded, reading.max_bytes, only_stable, gives_a_batch=True)
        return Fetched()

    def _aborted(self, partition: Partition, reading: _Reading, batches: list[_Batch]) -> list[LogBatch]:
        """Returns the batches that an aborted transaction wrote."""
        if not any(batch.may_be_aborted for batch in batches):
            return []
        source = partition.log
        end_offset = source.last_stable_offset
        by_producer: defaultdict[int, list[Range]] = defaultdict(list)
        for transaction in source.aborted_in_read(reading.fetch_offset, len(reading.region), end_offset):
            by_producer[transaction.producer_id].append(Range(transaction.first_offset, transaction.last_offset))
        return [
            batch.offsets
            for batch in batches
            if batch.may_be_aborted and overlapping(by_producer[batch.producer_id], *batch.offsets)
        ]


class DelayedShareFetch:
    """A ShareFetch that may wait. While it waits, it is a watcher of its partitions.

    Attributes:
        pending: The response.
    """

    __slots__ = (
        "_fetches",
        "_is_attempting",
        "_is_over",
        "_is_woken",
        "_loaded",
        "_purgatory",
        "_run_in_slices",
        "_timer",
        "_wish",
        "pending",
    )

    def __init__(
        self, fetches: ShareFetches, purgatory: Purgatory, run_in_slices: Callable[[Work[Any]], Any], wish: FetchWish
    ) -> None:
        self._fetches = fetches
        self._purgatory = purgatory
        self._run_in_slices = run_in_slices
        self._wish = wish
        self._loaded: list[LoadedPartition] = []
        self._timer: Timer | None = None
        self._is_attempting = False
        self._is_woken = False
        """Whether an event has come since the current attempt began."""
        self._is_over = wish.max_wait_ms <= 0
        """Whether the wait time has passed."""
        self.pending: Pending[FetchResult] = Pending(on_abandon=self._let_go)

    def begin(self) -> Work[None]:
        """Reads for the first time, and starts the wait if there are too few records."""
        self._is_attempting = True
        try:
            if len(self._wish.partitions) > PARTITIONS_A_STEP:
                yield from self._watch()
            self._end((yield from self._attempts()))
            if not self.pending.is_done:
                self._timer = self._purgatory.clock.call_later(self._wish.max_wait_ms, self._give_up)
                if not self._loaded:
                    yield from self._watch()
        except GeneratorExit:
            self.pending.abandon()
            raise

    def finish(self) -> None:
        """Completes the response if there are enough records now."""
        if self.pending.is_done:
            return
        if self._is_attempting:
            self._is_woken = True
        elif self._is_over or self._can_get_more:
            ended = self._run_in_slices(self._attempts())
            if isinstance(ended, Pending):
                ended.then(self._end)
            else:
                self._end(ended)

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        """Is called after the commit of records in a partition."""
        if self._can_get_more:
            self._purgatory.answer(self, partition)

    def on_gone(self, partition: Partition) -> None:
        """Is called when a partition is closed or deleted."""
        self._purgatory.answer(self)

    def on_available(self) -> None:
        """Is called when records of a share partition may have become available."""
        self._purgatory.answer(self)

    @property
    def _can_get_more(self) -> bool:
        """Whether an attempt may find records, or must end the fetch. False if other fetches have acquired all records.

        With it, an append costs each waiting fetch only a comparison of offsets; only fetches that may get records try again.
        """
        if not self._loaded or not self._wish.is_current():
            return True
        return any(each.is_unloaded or each.partition.is_gone or each.has_records for each in self._loaded)

    def _give_up(self) -> None:
        self._is_over = True
        self.finish()

    def _attempts(self) -> Work[FetchResult | None]:
        """Reads, and reads again if events have come meanwhile; returns the result, or None if the fetch waits."""
        self._is_attempting = True
        try:
            while True:
                self._is_woken = False
                result = yield from self._attempt()
                if result is not None or self.pending.is_done:
                    return result
                while any(each.is_unloaded or each.partition.is_gone for each in self._loaded):
                    self._unwatch()
                    yield from self._watch()
                if not self._is_woken or not (self._is_over or self._can_get_more):
                    return None
                yield
        finally:
            self._is_attempting = False

    def _attempt(self) -> Work[FetchResult | None]:
        try:
            result = yield from self._fetches.attempt(self._wish, is_last=self._is_over)
            if len(self._wish.partitions) > PARTITIONS_A_STEP:
                yield
            return result
        except Exception:
            log.exception("a share fetch failed", group=self._wish.group_id)
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            return {key: Fetched(failure) for key in self._wish.partitions}

    def _end(self, result: FetchResult | None) -> None:
        """Completes the response, if there is a result."""
        if result is not None and not self.pending.is_done:
            self._let_go()
            self.pending.complete(result)

    def _watch(self) -> Work[None]:
        loaded, _ = yield from self._fetches.load(self._wish)
        if self.pending.is_done:
            return
        self._loaded = loaded
        for each in loaded:
            each.waiting[self] = None
            each.partition.watchers[self] = None

    def _unwatch(self) -> None:
        for each in self._loaded:
            each.waiting.pop(self, None)
            each.partition.watchers.pop(self, None)
        self._loaded = []

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()


def _ends_step(number: int) -> bool:
    """Whether a step ends before the partition with this number."""
    return number > 0 and number % PARTITIONS_A_STEP == 0


def _batches_of(region: FileRegion | bytes, stop_offset: int) -> list[_Batch]:
    """Returns the whole batches of a region, up to the batch that holds the offset."""
    batches = []
    for place, head in heads_in(region):
        offsets = LogBatch(place.base_offset, place.last_offset)
        header = BatchHeader(head)
        may_be_aborted = header.magic == MAGIC and header.is_transactional and not header.is_control
        batches.append(_Batch(offsets, place.position, place.size_bytes, header.producer_id, may_be_aborted))
        if offsets.last_offset >= stop_offset:
            break
    return batches


def _cut(region: FileRegion | bytes, batches: list[_Batch], acquired: Sequence[Acquired]) -> FileRegion | bytes:
    """Returns the part of a region from the first batch with acquired records to the last one."""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    touched = [
        batch for batch in batches if batch.offsets.last_offset >= first_offset and batch.offsets.base_offset <= last_offset
    ]
    start, stop = touched[0].position, touched[-1].position + touched[-1].size_bytes
    if isinstance(region, FileRegion):
        return FileRegion(region.file, region.position + start, stop - start)
    return region[start:stop]
