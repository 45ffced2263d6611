"""One partition's log: appends, rolls, truncation, and the parts that a log is composed of.

How it works: a log has a `ReadableLog` (its content), a `Flusher` (syncs it to the disk), a `Retention` (deletes old
segments) and the snapshots of its producers. This module does what changes the end of the log. An append parses a batch, checks
it against the state of its producer, writes the offsets into the batch, and writes the batch with one system call. The indexes
grow in memory. An append does not wait for the disk unless `flush.messages` asks for a flush: recovery reads the batches that
were not flushed.

Rules of this file:
    Invariant: log_start_offset <= high_watermark <= log_end_offset.
    The file system's errors become KAFKA_STORAGE_ERROR here, and a failed write leaves no bytes in the log.
    Everything runs on the broker's loop, except `write_for_restart`.

Source: kafka.log.UnifiedLog.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.context import AppendInfo, LogContext
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.flush import Flush, Flusher, is_flushed_after_appends
from wirekafka.log.producer import BatchMemory
from wirekafka.log.producer_state import Ending
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.recovery import Loaded
from wirekafka.log.retention import Retention
from wirekafka.log.segment import Segment
from wirekafka.log.segments import Segments
from wirekafka.log.snapshots import ProducerSnapshots
from wirekafka.log.storage import Bytes, Folder
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.log.validation import CLIENT, COORDINATOR, Batch, Origin, assign_offsets, validate_batch
from wirekafka.names import NO_PRODUCER_ID, TopicPartition
from wirekafka.wire.batch import MAGIC, BatchHeader, check_crc, whole_batches
from wirekafka.wire.control import build_end_marker, read_end_marker


class Log:
    """One partition's log.

    Attributes:
        reader: the offsets, segments, leader epochs and producers of the log; all that a reader needs.
        flusher: syncs the log to the disk.
        retention: deletes old segments.
        snapshots: the snapshots of the producers.
    """

    __slots__ = ("_is_flushed", "_segment_ms", "_services", "flusher", "reader", "retention", "snapshots")

    def __init__(
        self, topic_partition: TopicPartition, folder: Folder, config: LogConfig, services: LogContext, loaded: Loaded
    ) -> None:
        self.reader = ReadableLog(topic_partition, folder, config, services, loaded)
        self.flusher = Flusher(self.reader, services, loaded.recovery_point)
        self.retention = Retention(self.reader, services, self._roll)
        self.snapshots = ProducerSnapshots(self.reader, services)
        self._services = services
        self._segment_ms = config.longest_segment_ms
        self._is_flushed = is_flushed_after_appends(config)
        self.reader.segments.active.roll_jitter_ms = self._draw_jitter()

    def __repr__(self) -> str:
        return repr(self.reader)

    @classmethod
    def offline(
        cls, topic_partition: TopicPartition, folder: Folder, config: LogConfig, services: LogContext, left: Loaded, reason: str
    ) -> Log:
        """Returns an offline log, with the offsets from the checkpoints. The log touches no file.

        Args:
            left: the state from the checkpoints, without segments.
        """
        left.segments.append(Segment(folder, services.pool, left.log_end_offset, created_ms=services.now_ms()))
        log = cls(topic_partition, folder, config, services, left)
        log.reader.take_offline(reason)
        return log

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the log."""
        return self.reader.topic_partition

    def update_config(self, config: LogConfig) -> None:
        """Replaces the topic's settings."""
        self.reader.config = config
        self._segment_ms = config.longest_segment_ms
        self._is_flushed = is_flushed_after_appends(config)

    # Appending

    def append(
        self,
        records: memoryview | Batch,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = CLIENT,
        ending: Ending | None = None,
    ) -> AppendInfo:
        """Appends a batch and returns its offsets.

        Args:
            records: a whole batch in a writable buffer, into which offsets are written; or a batch that was validated with the
                log's present settings.
            leader_epoch: written into the batch.
            origin: the source of the batch; only a client's sequence numbers are checked.
            ending: the content of a transaction marker; None for other batches. See `append_marker`.

        Raises:
            HeavyBatchError: nothing was appended; the caller validates the batch in a thread first.
            KafkaError: nothing was appended. Besides what `validate_batch` raises:
                OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH of an idempotent producer; INVALID_TXN_STATE, a batch
                outside of its producer's open transaction; RECORD_LIST_TOO_LARGE, the batch is larger than a segment;
                KAFKA_STORAGE_ERROR, the disk is full or fails, and a later append may succeed. If the flush for
                `flush.messages` fails, the records are in the log, and a crash may lose them.

        Durability: in the page cache: safe from a crash of this process. On disk if `flush.messages` asks for it.
        """
        reader = self.reader
        if reader.is_closed:
            self._refuse_append()
        config, producers = reader.config, reader.producers
        batch = records if isinstance(records, Batch) else validate_batch(records, config=config, now_ms=now_ms, origin=origin)
        assert batch.config is config, "the settings have changed since the validation"
        is_client = origin is CLIENT
        if is_client and batch.header.producer_id != NO_PRODUCER_ID:
            duplicate = producers.find_duplicate(batch.header)
            if duplicate is not None:
                return self._answer_duplicate(duplicate)
        base_offset = reader.log_end_offset
        assign_offsets(batch, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms)
        header = batch.header
        if len(batch.data) > config.segment_bytes:
            reason = f"{len(batch.data)} bytes are more than a segment's {config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)
        producer = producers.prepare(header, has_sequences=is_client, ending=ending)
        segment = self._write(batch.data, header, now_ms)
        aborted = producers.commit(producer, header, reader.log_end_offset, ending)
        if aborted is not None:
            self._note_aborted(segment, aborted)
        if self._is_flushed:
            self.flusher.on_append()
        return AppendInfo(
            base_offset, reader.log_end_offset - 1, now_ms if config.has_append_time else None, reader.log_start_offset
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        ending: Ending,
        *,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Ends the transaction of a producer: appends the marker, and adds an aborted transaction to the segment's index.

        The marker is also appended if the producer has no open transaction or is not known: the coordinator may write a marker
        again, and the marker's epoch fences older epochs of the producer.

        Raises:
            KafkaError: nothing was appended: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.

        Durability: as `append`.
        """
        batch = build_end_marker(ending.marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, origin=COORDINATOR, ending=ending)

    def append_as_follower(self, records: memoryview) -> int:
        """Appends the leader's batches with their offsets and leader epochs; returns the log end offset.

        An incomplete batch at the end of a Fetch response is ignored. The high watermark does not change.

        Args:
            records: whole batches of format 2, one after the other.

        Raises:
            KafkaError: CORRUPT_MESSAGE, a checksum is wrong, or offsets do not ascend; OFFSET_OUT_OF_RANGE, the first batch
                begins before the log end offset: nothing was appended. KAFKA_STORAGE_ERROR: the batches before the log end offset
                were appended.

        Durability: as `append`, without `flush.messages`.

        Source: UnifiedLog.appendAsFollower, analyzeAndValidateRecords.
        """
        if self.reader.is_closed:
            self._refuse_append()
        batches = list(whole_batches(records))
        _check_replicated(batches, self.reader.log_end_offset)
        for header, data in batches:
            segment = self._write(data, header, self._services.now_ms())
            marker = read_end_marker(data) if header.is_control else None
            aborted = self.reader.producers.take_replicated(header, marker)
            if aborted is not None:
                self._note_aborted(segment, aborted)
        return self.reader.log_end_offset

    def end_appends(self) -> None:
        """Refuses all appends from now on."""
        self.reader.is_closed = True

    def _refuse_append(self) -> NoReturn:
        self.reader.check_online()
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is closed")

    def _write(self, data: Bytes, header: BatchHeader, now_ms: int) -> Segment:
        """Writes a batch whose offsets are assigned, and returns the segment that has the batch now.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; nothing was appended.
        """
        reader = self.reader
        last_offset = header.base_offset + header.last_offset_delta
        try:
            if header.partition_leader_epoch != reader.epochs.latest:
                self._assign_epoch(header)
            segment = self._segment_for(len(data), last_offset, header.max_timestamp, now_ms)
            segment.append(data, header, reader.config.index_interval_bytes)
        except OSError as error:
            raise reader.note_disk_error("append", error) from error
        reader.log_end_offset = last_offset + 1
        if reader.has_failed:
            reader.note_recovery()
        return segment

    def _assign_epoch(self, header: BatchHeader) -> None:
        """Adds the leader epoch that begins with a batch, in the page cache: recovery also reads the epoch from the batches.

        Raises:
            OSError: the epoch was not added.
        """
        leader_epoch = header.partition_leader_epoch
        if leader_epoch < 0:
            return
        epochs = self.reader.epochs
        former = epochs.entries
        try:
            if epochs.assign(leader_epoch, header.base_offset):
                self._write_epochs()
        except OSError:
            epochs.entries = former
            raise

    def _write_epochs(self) -> None:
        self.reader.folder.write_file(EPOCHS_FILE, self.reader.epochs.write())

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        """Adds a transaction to the segment's index. If the write fails, `save_indexes` writes the entry later."""
        segment.transaction_index.add(aborted)
        try:
            segment.transaction_index.save()
        except OSError as error:
            self.reader.note_disk_error("write a transaction index", error)

    def _answer_duplicate(self, duplicate: BatchMemory) -> AppendInfo:
        return AppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp if self.reader.config.has_append_time else None,
            self.reader.log_start_offset,
            is_duplicate=True,
        )

    # Segments

    def _segment_for(self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """Returns the active segment, after a roll if the segment is full or older than `segment.ms`."""
        segment = self.reader.segments.items[-1]
        if not segment.has_room(size_bytes, last_offset, self.reader.config):
            return self._roll()
        if segment.size and segment.waited_ms(now_ms, max_timestamp) > self._segment_ms - segment.roll_jitter_ms:
            return self._roll()
        return segment

    def roll(self) -> None:
        """Begins a new segment, unless the active one is empty.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the active segment does not change.
        """
        with self.reader.on_disk("roll"):
            self._roll()

    def _roll(self) -> Segment:
        """Seals the active segment and begins the next one, with a snapshot of the producers where it begins."""
        reader = self.reader
        sealed = reader.segments.active
        if not sealed.size and sealed.base_offset == reader.log_end_offset:
            return sealed
        self.snapshots.begin()
        sealed.save_indexes()
        if self.flusher.recovery_point == reader.log_end_offset:
            # After a crash, recovery does not read a segment before the recovery point, so its indexes must be on the disk.
            self.flusher.prepare().run()
        segment = Segment(
            reader.folder,
            self._services.pool,
            reader.log_end_offset,
            created_ms=self._services.now_ms(),
            roll_jitter_ms=self._draw_jitter(),
        )
        try:
            segment.create(preallocate_bytes=reader.config.segment_bytes if reader.config.preallocate else 0)
        except OSError:
            with suppress(OSError):
                segment.delete_files()
            raise
        sealed.unload_indexes()
        reader.segments.add(segment)
        self._services.request_flush(reader)
        return segment

    def _draw_jitter(self) -> int:
        most = min(self.reader.config.segment_jitter_ms, self.reader.config.segment_ms)
        return self._services.random_below(most) if most > 0 else 0

    def replace_segments(self, old: list[Segment], new: Segment) -> bool:
        """Replaces segments with the segment that they were compacted to; see `Segments.replace`.

        Raises:
            OSError: nothing has changed.
        """
        reader = self.reader
        if reader.is_closed or not reader.segments.replace(old, new):
            return False
        self._services.call_later(reader.config.file_delete_delay_ms, reader.segments.remover_of(old))
        with isolate("Could not rename compacted segments; the broker tries again", partition=str(self.topic_partition)):
            try:
                reader.segments.finish_swap()
            except OSError as error:
                reader.note_disk_error("rename compacted segments", error)
        return True

    # Truncation

    def truncate(self, offset: int) -> None:
        """Removes the batch that holds `offset` and all later batches, as a follower does whose log differs from the leader's.

        The log start offset stays. The recovery point is stored first, because a start refuses a log that ends before its
        recovery point. Snapshots of producers after the new end are removed too: recovery would use a snapshot of records that
        the log no longer holds.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is unchanged, or ends between `offset` and its former end. Call it again.

        Durability: after a crash, the log ends where it ended before, or anywhere from there down to the new end.

        Source: UnifiedLog.truncateTo; LocalLog.truncateTo.
        """
        reader = self.reader
        assert offset >= reader.log_start_offset, "records before the log start offset are deleted"
        if offset >= reader.log_end_offset:
            return
        with reader.on_disk("truncate"):
            found = reader.segments.find(offset)
            cut_offset = offset if found is None else min(offset, found[1].base_offset)
            self.flusher.retreat(cut_offset)
            self.snapshots.abandon()
            self.snapshots.remove_after(cut_offset)
            try:
                removed = reader.segments.truncate(offset)
            finally:
                self._adopt_end()
            self.retention.discard(removed)
            if reader.epochs.truncate_end(reader.log_end_offset):
                self._write_epochs()

    def _adopt_end(self) -> None:
        """Sets the offsets and the producers after segments were truncated."""
        reader, flusher = self.reader, self.flusher
        reader.segments.active.load_indexes()
        reader.log_end_offset = max(reader.segments.active.next_offset(), reader.log_start_offset)
        flusher.recovery_point = min(flusher.recovery_point, reader.log_end_offset)
        reader.high_watermark = min(reader.high_watermark, reader.log_end_offset)
        self.snapshots.restore()

    # The end of the broker, and moves

    def write_for_restart(self) -> Flush:
        """Writes what the next start reads after a clean shutdown: the indexes and the producers. Runs in any thread.

        Nothing appends to the log any more: `end_appends` comes first.

        Returns:
            A flush of everything that the log has written.

        Raises:
            OSError: the shutdown is not clean.

        Durability: in the page cache.
        """
        assert self.reader.is_closed, "the log may still be appended to"
        segments = self.reader.segments
        with suppress(OSError):  # the next start finishes the swap too
            segments.finish_swap()
        if segments.active.has_unsaved_indexes:
            segments.active.save_indexes()
        self.snapshots.write_for_restart()
        return self.flusher.prepare()

    def relocate(self, folder: Folder, synced_offset: int) -> Folder:
        """Uses another folder with the same content from now on; returns the former folder.

        Args:
            synced_offset: the records before this offset are on the disk in the new folder.
        """
        self.snapshots.abandon()
        reader, flusher = self.reader, self.flusher
        former, segments = reader.folder, reader.segments
        reader.folder = folder
        reader.segments = Segments(folder, [segment.in_folder(folder) for segment in segments])
        for segment in segments:
            segment.close()
        reader.segments.active.forget_saved()
        flusher.recovery_point = min(flusher.recovery_point, synced_offset)
        return former


def _check_replicated(batches: list[tuple[BatchHeader, memoryview]], end_offset: int) -> None:
    """Raises unless batches of the leader may be appended to a log that ends at `end_offset`.

    Raises:
        KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE.
    """
    for number, (header, data) in enumerate(batches):
        if header.magic != MAGIC or header.last_offset_delta < 0 or not check_crc(data, 0, header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
        if header.base_offset < end_offset:
            code = ErrorCode.CORRUPT_MESSAGE if number else ErrorCode.OFFSET_OUT_OF_RANGE
            raise KafkaError(code, f"a batch begins at offset {header.base_offset}, before {end_offset}")
        end_offset = header.next_offset
