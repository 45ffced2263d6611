"""One partition's records on disk, and every offset that describes them: how they come, and how they go.

Theory of operation: an append is parsed, judged against what its producer wrote before, given its offsets in place, and
written with one system call; the indexes grow in memory. Nothing waits for the disk, unless `flush.messages` asks for it:
recovery reads what was not flushed.

Rules of this file:
    Invariant: log_start_offset <= high_watermark <= log_end_offset.
    Invariant: recovery_point <= log_end_offset; what is before it survives a crash of the machine.
    The file system's errors become KAFKA_STORAGE_ERROR here, and nothing of a failed write stays.
    All of it happens on the broker's one loop; only `Flush.run` and the cleaner's reading happen elsewhere.

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
        """A log whose records cannot be reached; it keeps the offsets that the checkpoints have of it, and touches no file.

        Args:
            left: what is known of it; without segments.
        """
        left.segments.append(Segment(folder, services.pool, left.log_end_offset, created_ms=services.now_ms()))
        log = cls(topic_partition, folder, config, services, left)
        log.take_offline(reason)
        return log

    def note_damage(self, error: BadBatchError) -> None:
        """Somebody who reads its files elsewhere has found damage; the log goes offline."""
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
        """Appends a batch and says which offsets it got.

        Args:
            records: a whole batch in a writable buffer, into which offsets are written; or one that was validated before, by the
                settings that the log has now.
            leader_epoch: written into the batch.
            origin: who sends it; only a client's sequence numbers are checked.
            ending: what the batch says, if it is the marker of a transaction; see `append_marker`.

        Raises:
            HeavyBatchError: the batch has to be validated in a thread first; nothing was appended.
            KafkaError: nothing was appended. Besides what `validate_batch` raises:
                OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH of an idempotent producer; INVALID_TXN_STATE, a batch
                outside of its producer's open transaction; RECORD_LIST_TOO_LARGE, more than a segment holds;
                KAFKA_STORAGE_ERROR, the disk is full or fails, and a later append may succeed. If it is the flush for
                `flush.messages` that fails, the records are there and may yet be lost.

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
        """Ends the transaction of a producer: appends the marker, and enters an aborted one into the segment's index.

        A producer without a transaction, or one that is not known, gets the marker all the same: the coordinator may write
        it again, and the epoch that it has fences older ones.

        Raises:
            KafkaError: nothing was appended: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.

        Durability: as `append`.
        """
        batch = build_end_marker(ending.marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR, ending=ending)

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        """Enters a transaction into the segment's index; what cannot be written now is when the segment comes to rest."""
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
        """Notes that a new leader epoch begins; recovery reads it off the batches too, so it need not reach the disk yet.

        Raises:
            OSError: the epoch is not noted.
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
        """The active segment, a new one if the present one is full or its time is over."""
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
            # A crash is told by the recovery point that the sealed segment need not be read again, so its indexes have to last.
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
        """Forgets the producers that have not written for that long; returns how many."""
        return self.producers.expire(now_ms, expiration_ms)

    # Getting smaller

    def delete_records(self, before_offset: int) -> None:
        """Makes the log start at `before_offset`; segments that end before it go.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, it is greater than the high watermark; KAFKA_STORAGE_ERROR, the log is offline.

        Durability: the offset is written down soon; a crash before that brings the records back.
        """
        self._check_online()
        if before_offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{before_offset} is behind {self.high_watermark}")
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
            # What is not written down is derived again at the next start.
            with suppress(OSError):
                self._write_epochs()

    def delete_old_segments(self, now_ms: int) -> int:
        """Drops the segments past their retention, and those before the log start offset; returns how many.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; what is to go goes the next time.
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
        """Puts a compacted segment in the place of those it was made from; see `Segments.replace`.

        Raises:
            OSError: nothing has changed.
        """
        if self._is_closed or not self.segments.replace(old, new):
            return False
        self.services.call_later(self.config.file_delete_delay_ms, self.segments.remover_of(old))
        with isolate("Could not rename compacted segments; that is tried again", partition=str(self.topic_partition)):
            try:
                self.segments.finish_swap()
            except OSError as error:
                self._failed("rename compacted segments", error)
        return True

    def truncate(self, offset: int) -> None:
        """Drops the batch that holds `offset` and all behind it, as a follower does that has more than its leader.

        The log start offset stays. The recovery point is stored first, for a start refuses a log that ends before it; a snapshot
        of producers behind the new end goes too, for it would count once the log has grown past it again.

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
        """The segments have been cut: the offsets and the producers are those of what is left."""
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
        """Appends batches as the leader has them, with its offsets and leader epochs; returns the log end offset.

        A batch that is torn at the end of a Fetch response is left out. The high watermark stays where it is.

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
        """The producers as they were at the log's present end: from the last good snapshot, or from the start."""
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
        """Waits until all that was appended is on the disk.

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
        """The flush has run: what it brought to the disk needs no recovery.

        A flush says nothing of a log that was moved or truncated after it was prepared, nor of one of which a sync has failed.
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
        """`flush.ms` have passed since the first append behind the last flush that was due."""
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
        """Goes on in another folder that holds the same; returns the former one.

        Args:
            synced_offset: what is before it is on the disk there.
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
