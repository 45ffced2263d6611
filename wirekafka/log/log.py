"""One partition's log: it appends batches, deletes and truncates segments, and brings them to the disk.

Theory of operation: an append parses a batch, checks it against the state of its producer, writes the offsets into the batch,
and writes the batch with one system call. The indexes grow in memory. An append does not wait for the disk unless
`flush.messages` asks for a flush: recovery reads the batches that were not flushed.

Rules of this file:
    Invariant: log_start_offset <= high_watermark <= log_end_offset.
    Invariant: recovery_point <= log_end_offset; the records before the recovery point survive a crash of the machine.
    The file system's errors become KAFKA_STORAGE_ERROR here, and a failed write leaves no bytes in the log.
    Everything runs on the broker's loop, except `Flush.run`, `write_for_restart` and the reads of the log cleaner.

Source: kafka.log.UnifiedLog.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import structlog

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.context import AppendInfo, LogContext
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.flush import Flush
from wirekafka.log.positions import BadBatchError
from wirekafka.log.producer import BatchMemory
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import Ending
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.recovery import Loaded, replay
from wirekafka.log.retention import BEFORE_START, count_before_start, count_expired
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import SNAPSHOT_SUFFIX, file_name
from wirekafka.log.segments import Segments
from wirekafka.log.snapshot_writer import PAUSE_MS, SLICE_PRODUCERS, SnapshotWriter
from wirekafka.log.storage import Folder
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.log.validation import Batch, Origin, assign_offsets, validate_batch
from wirekafka.names import NO_PRODUCER_ID, TopicPartition
from wirekafka.wire.batch import MAGIC, BatchHeader, check_crc, whole_batches
from wirekafka.wire.control import build_end_marker, read_end_marker

log = structlog.get_logger(__name__)

_NEVER_MS = 1 << 62
"""Greater values of `flush.ms` mean never; Kafka's default is the largest long."""


class Log(ReadableLog):
    """One partition's log; its attributes are `ReadableLog`'s."""

    __slots__ = ()

    def __init__(
        self, topic_partition: TopicPartition, folder: Folder, config: LogConfig, services: LogContext, loaded: Loaded
    ) -> None:
        super().__init__(topic_partition, folder, config, services, loaded)
        self.segments.active.roll_jitter_ms = self._draw_jitter()

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
        log.take_offline(reason)
        return log

    def note_damage(self, error: BadBatchError) -> None:
        """Takes the log offline, because the log cleaner or a move has found damage in its files."""
        self._failed("read", error)

    # Appending

    def append(
        self,
        records: memoryview | Batch,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
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
        if self._is_closed:
            self._check_online()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is closed")
        config = self.config
        if isinstance(records, Batch):
            batch = records
            assert batch.config is config, "the settings have changed since the validation"
        else:
            batch = validate_batch(records, config=config, now_ms=now_ms, origin=origin)
        is_client = origin is Origin.CLIENT
        if is_client and batch.header.producer_id != NO_PRODUCER_ID:
            duplicate = self.producers.find_duplicate(batch.header)
            if duplicate is not None:
                return self._answer_duplicate(duplicate)
        base_offset = self.log_end_offset
        assign_offsets(batch, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms)
        header = batch.header
        size_bytes = len(batch.data)
        if size_bytes > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{size_bytes} bytes are more than a segment's {config.segment_bytes}"
            )
        producer = self.producers.prepare(header, has_sequences=is_client, ending=ending)
        last_offset = base_offset + header.last_offset_delta
        try:
            if leader_epoch != self.epochs.latest:
                self._assign_epoch(leader_epoch, base_offset)
            segment = self._segment_for(size_bytes, last_offset, header.max_timestamp, now_ms)
            segment.append(batch.data, header, config.index_interval_bytes)
        except OSError as error:
            raise self._failed("append", error) from error
        self.log_end_offset = end_offset = last_offset + 1
        aborted = self.producers.commit(producer, header, end_offset, ending)
        if self.has_failed:
            self._recovered()
        if aborted is not None:
            self._note_aborted(segment, aborted)
        if end_offset - self.recovery_point >= config.flush_messages:
            self.flush()
        elif config.flush_ms < _NEVER_MS and not self._is_flush_arranged:
            self._is_flush_arranged = True
            self.services.call_later(config.flush_ms, self._flush_if_due)
        return AppendInfo(base_offset, last_offset, now_ms if config.has_append_time else None, self.log_start_offset)

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
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR, ending=ending)

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        """Adds a transaction to the segment's index. If the write fails, `save_indexes` writes the entry later."""
        segment.transaction_index.add(aborted)
        try:
            segment.transaction_index.save()
        except OSError as error:
            self._failed("write a transaction index", error)

    def _answer_duplicate(self, duplicate: BatchMemory) -> AppendInfo:
        return AppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp if self.config.has_append_time else None,
            self.log_start_offset,
            is_duplicate=True,
        )

    def _assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Adds a leader epoch that begins at `start_offset`, in the page cache: recovery also reads the epoch from the batches.

        Raises:
            OSError: the epoch was not added.
        """
        former = self.epochs.entries
        try:
            if self.epochs.assign(leader_epoch, start_offset):
                self._write_epochs()
        except OSError:
            self.epochs.entries = former
            raise

    def _write_epochs(self) -> None:
        self.folder.write_file(EPOCHS_FILE, self.epochs.write())

    def _segment_for(self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """Returns the active segment, after a roll if the segment is full or older than `segment.ms`."""
        segment = self.segments.items[-1]
        if not segment.has_room(size_bytes, last_offset, self.config):
            return self._roll()
        if segment.size and segment.waited_ms(now_ms, max_timestamp) > self._segment_ms - segment.roll_jitter_ms:
            return self._roll()
        return segment

    def roll(self) -> None:
        """Begins a new segment, unless the active one is empty.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the active segment goes on.
        """
        with self._on_disk("roll"):
            self._roll()

    def _roll(self) -> Segment:
        """Seals the active segment and begins the next one, with a snapshot of the producers where it begins."""
        sealed = self.segments.active
        if not sealed.size and sealed.base_offset == self.log_end_offset:
            return sealed
        self._begin_snapshot()
        sealed.save_indexes()
        if self.recovery_point == self.log_end_offset:
            # After a crash, recovery does not read a segment before the recovery point, so its indexes must be on the disk.
            self.prepare_flush().run()
        segment = Segment(
            self.folder,
            self.services.pool,
            self.log_end_offset,
            created_ms=self.services.now_ms(),
            roll_jitter_ms=self._draw_jitter(),
        )
        try:
            segment.create(preallocate_bytes=self.config.segment_bytes if self.config.preallocate else 0)
        except OSError:
            with suppress(OSError):
                segment.delete_files()
            raise
        sealed.unload_indexes()
        self.segments.add(segment)
        self.services.request_flush(self)
        return segment

    def _draw_jitter(self) -> int:
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self.services.random_below(most) if most > 0 else 0

    def _take_snapshot(self) -> None:
        """Writes all producers to a `.snapshot` file. Recovery ignores a file with a wrong CRC and takes an older one."""
        producers = self.producers
        if producers.snapshot_offset != producers.end_offset:
            name = file_name(producers.end_offset, SNAPSHOT_SUFFIX)
            self.folder.rewrite_file(name, producers.write_snapshot())
            producers.snapshot_offset = producers.end_offset

    def _begin_snapshot(self) -> None:
        """Writes few producers to a `.snapshot` file at once, and many in slices; a roll during these has no snapshot."""
        if len(self.producers) <= SLICE_PRODUCERS:
            self._abandon_snapshot()
            self._take_snapshot()
        elif self._snapshot_writer is None and self.producers.snapshot_offset != self.producers.end_offset:
            self._snapshot_writer = SnapshotWriter(self.folder, self.producers.begin_snapshot())
            self.services.call_later(PAUSE_MS, partial(self._write_slice, self._snapshot_writer))

    def _write_slice(self, writer: SnapshotWriter) -> None:
        if writer is not self._snapshot_writer or self._is_closed:
            return
        try:
            is_complete = writer.write_slice()
        except OSError as error:
            self._abandon_snapshot()
            self._failed("write a snapshot of producers", error)
            return
        except Exception:
            self._abandon_snapshot()
            raise
        if is_complete:
            self._snapshot_writer = None
            self.producers.end_snapshot()
            self.producers.snapshot_offset = writer.snapshot.offset
        else:
            self.services.call_later(PAUSE_MS, partial(self._write_slice, writer))

    def _abandon_snapshot(self) -> None:
        """Gives up the snapshot that is being written in slices, if there is one."""
        writer, self._snapshot_writer = self._snapshot_writer, None
        if writer is not None:
            self.producers.end_snapshot()
            writer.abandon()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Removes the producers that have not written for `expiration_ms`; returns their number."""
        return self.producers.expire(now_ms, expiration_ms)

    # Getting smaller

    def delete_records(self, before_offset: int) -> None:
        """Makes the log start at `before_offset`, and deletes the segments that end before it.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, it is greater than the high watermark; KAFKA_STORAGE_ERROR, the log is offline.

        Durability: a checkpoint stores the offset soon; a crash before that restores the records.
        """
        self._check_online()
        if before_offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{before_offset} is after the high watermark, {self.high_watermark}")
        if before_offset > self.log_start_offset:
            self._start_at(before_offset)
            self.services.note_start_moved()
            count = count_before_start(
                self.segments.items,
                log_start_offset=before_offset,
                high_watermark=self.high_watermark,
                log_end_offset=self.log_end_offset,
            )
            self._delete_first(count, BEFORE_START)

    def _start_at(self, offset: int) -> None:
        assert self.log_start_offset <= offset <= self.high_watermark <= self.log_end_offset
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            # The next start truncates the leader epochs again.
            with suppress(OSError):
                self._write_epochs()

    def delete_old_segments(self, now_ms: int) -> int:
        """Deletes the segments past their retention or before the log start offset; returns their number.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the next call deletes the segments.
        """
        with self._on_disk("delete segments"):
            count, reason = count_expired(
                self.segments.items,
                config=self.config,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                log_end_offset=self.log_end_offset,
                now_ms=now_ms,
            )
            if count and count == len(self.segments):
                self._roll()
        self._delete_first(count, reason)
        return count

    def _delete_first(self, count: int, reason: str) -> None:
        if not count:
            return
        with self._on_disk("delete segments"):
            gone = self.segments.take_first(count)
        base_offset = self.segments.items[0].base_offset
        if base_offset > self.log_start_offset:
            self._start_at(base_offset)
        log.info(
            "Deleted segments",
            partition=str(self.topic_partition),
            reason=reason,
            segments=count,
            bytes=sum(segment.size for segment in gone),
            log_start_offset=self.log_start_offset,
        )
        self._discard(gone)

    def _discard(self, segments: list[Segment]) -> None:
        self.services.call_later(self.config.file_delete_delay_ms, self.segments.mark_deleted(segments))

    def replace_segments(self, old: list[Segment], new: Segment) -> bool:
        """Replaces segments with the segment that they were compacted to; see `Segments.replace`.

        Raises:
            OSError: nothing has changed.
        """
        if self._is_closed or not self.segments.replace(old, new):
            return False
        self.services.call_later(self.config.file_delete_delay_ms, self.segments.remover_of(old))
        with isolate("Could not rename compacted segments; the broker tries again", partition=str(self.topic_partition)):
            try:
                self.segments.finish_swap()
            except OSError as error:
                self._failed("rename compacted segments", error)
        return True

    def truncate(self, offset: int) -> None:
        """Removes the batch that holds `offset` and all later batches, as a follower does whose log differs from the leader's.

        The log start offset stays. The recovery point is stored first, because a start refuses a log that ends before its
        recovery point. Snapshots of producers after the new end are removed too: recovery would use a snapshot of records that
        the log no longer holds.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is as it was, or ends between `offset` and its former end. Call it again.

        Durability: after a crash, the log ends where it ended before, or anywhere from there down to the new end.

        Source: UnifiedLog.truncateTo; LocalLog.truncateTo.
        """
        assert offset >= self.log_start_offset, "what is before the log's start is gone"
        if offset >= self.log_end_offset:
            return
        with self._on_disk("truncate"):
            found = self.segments.find(offset)
            cut_offset = offset if found is None else min(offset, found[1].base_offset)
            self._truncation_count += 1
            if self.recovery_point > cut_offset:
                self.recovery_point = cut_offset
                self.services.store_recovery_points(self)
            self._abandon_snapshot()
            self._remove_snapshots_after(cut_offset)
            try:
                removed = self.segments.truncate(offset)
            finally:
                self._adopt_end()
            self._discard(removed)
            if self.epochs.truncate_end(self.log_end_offset):
                self._write_epochs()

    def _adopt_end(self) -> None:
        """Sets the offsets and the producers after segments were truncated."""
        self.segments.active.load_indexes()
        self.log_end_offset = max(self.segments.active.next_offset(), self.log_start_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self._reload_producers()

    def _remove_snapshots_after(self, offset: int) -> None:
        for name in self.folder.storage.files(self.folder.path):
            if name.endswith(SNAPSHOT_SUFFIX) and int(name[:20]) > offset:
                self.folder.remove(name)

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
        if self._is_closed:
            self._check_online()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is closed")
        batches = list(whole_batches(records))
        self._check_replicated(batches)
        for header, data in batches:
            self._append_replicated(header, data)
        return self.log_end_offset

    def _check_replicated(self, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Raises unless batches of the leader may be appended."""
        end_offset = self.log_end_offset
        for number, (header, data) in enumerate(batches):
            if header.magic != MAGIC or header.last_offset_delta < 0 or not check_crc(data, 0, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
            if header.base_offset < end_offset:
                code = ErrorCode.CORRUPT_MESSAGE if number else ErrorCode.OFFSET_OUT_OF_RANGE
                raise KafkaError(code, f"a batch begins at offset {header.base_offset}, before {end_offset}")
            end_offset = header.next_offset

    def _append_replicated(self, header: BatchHeader, data: memoryview) -> None:
        last_offset, leader_epoch = header.last_offset, header.partition_leader_epoch
        with self._on_disk("append"):
            if leader_epoch != self.epochs.latest and leader_epoch >= 0:
                self._assign_epoch(leader_epoch, header.base_offset)
            segment = self._segment_for(len(data), last_offset, header.max_timestamp, self.services.now_ms())
            segment.append(data, header, self.config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        marker = read_end_marker(data) if header.is_control else None
        aborted = self.producers.take_replicated(header, marker)
        if self.has_failed:
            self._recovered()
        if aborted is not None:
            self._note_aborted(segment, aborted)

    def _reload_producers(self) -> None:
        """Restores the producers at the log end offset, from the last good snapshot or from the first batch."""
        producers = self.producers
        producers.clear(self.segments.items[0].base_offset)
        for segment in reversed(self.segments.items):
            data = self.folder.read_file(file_name(segment.base_offset, SNAPSHOT_SUFFIX))
            with suppress(CorruptSnapshotError):
                if data is not None:
                    producers.read_snapshot(data, segment.base_offset)
                    break
        replay(producers, self.segments.items, self.log_end_offset)

    # Reaching the disk

    def flush(self) -> None:
        """Waits until all appended records are on the disk.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Durability: everything before `log_end_offset`, safe from a crash of the machine.
        """
        with self._on_disk("flush"):
            flush = self.prepare_flush()
            flush.run()
        self.complete_flush(flush)

    def prepare_flush(self) -> Flush:
        """Returns a flush of all that is appended now; it may run in a thread while appends go on."""
        return Flush(self.folder, self.segments, self.log_end_offset, self._truncation_count)

    def complete_flush(self, flush: Flush) -> None:
        """Advances the recovery point after a flush has run.

        The flush is ignored if the log was moved or truncated after `prepare_flush`, or if a sync of its folder has failed.
        """
        is_current = flush.folder is self.folder and flush.truncation_count == self._truncation_count
        if is_current and not self.folder.ledger.has_failed:
            self.recovery_point = max(self.recovery_point, min(flush.end_offset, self.log_end_offset))

    def note_disk_error(self, action: str, error: OSError) -> None:
        """Logs an error that work in a thread has met, and lets the data directory know.

        Args:
            action: what the thread did, such as "flush". After a failed flush the recovery point stays where it is.
        """
        self._failed(action, error)

    def _flush_if_due(self) -> None:
        """Requests a flush; called `flush.ms` after the first append since the last request."""
        self._is_flush_arranged = False
        if not self._is_closed and self.recovery_point < self.log_end_offset:
            self.services.request_flush(self)

    def end_appends(self) -> None:
        """Refuses all appends from now on."""
        self._is_closed = True

    def write_for_restart(self) -> Flush:
        """Writes what the next start reads after a clean shutdown: the indexes and the producers. Runs in any thread.

        Nothing appends to the log any more: `end_appends` comes first.

        Returns:
            A flush of everything that the log has written.

        Raises:
            OSError: the shutdown is not clean.

        Durability: in the page cache.
        """
        assert self._is_closed, "the log may still be appended to"
        with suppress(OSError):  # The next start finishes it as well.
            self.segments.finish_swap()
        if self.segments.active.has_unsaved_indexes:
            self.segments.active.save_indexes()
        self._abandon_snapshot()
        if len(self.producers) or self.producers.snapshot_offset is not None:
            self._take_snapshot()
        return self.prepare_flush()

    # Elsewhere

    def relocate(self, folder: Folder, synced_offset: int) -> Folder:
        """Uses another folder with the same content from now on; returns the former folder.

        Args:
            synced_offset: the records before this offset are on the disk in the new folder.
        """
        self._abandon_snapshot()
        former, segments = self.folder, self.segments
        self.folder = folder
        self.segments = Segments(folder, [segment.in_folder(folder) for segment in segments])
        for segment in segments:
            segment.close()
        self.segments.active.forget_saved()
        self.recovery_point = min(self.recovery_point, synced_offset)
        return former

    # The rest

    def _recovered(self) -> None:
        self.has_failed = False
        log.info("The disk takes writes again", partition=str(self.topic_partition))
