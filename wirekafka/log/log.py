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
from wirekafka.log.epochs import EpochStart
from wirekafka.log.flush import Flush, Flusher, is_flushed_after_appends
from wirekafka.log.positions import BatchPosition
from wirekafka.log.producer import BatchMemory
from wirekafka.log.producer_state import Ending
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.recovery import Loaded
from wirekafka.log.replicated import replicated_batches
from wirekafka.log.retention import Retention
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.log.segments import Segments
from wirekafka.log.snapshots import ProducerSnapshots
from wirekafka.log.storage import Bytes, Folder
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.log.validation import CLIENT, COORDINATOR, Batch, Origin, assign_offsets, validate_batch
from wirekafka.names import NO_PRODUCER_ID, TopicPartition
from wirekafka.pending import Work
from wirekafka.wire.batch import MAGIC, MAGIC_OFFSET, BatchHeader
from wirekafka.wire.control import build_end_marker, read_end_marker


class Log:
    """One partition's log.

    Attributes:
        reader: the offsets, segments, leader epochs and producers of the log; all that a reader needs.
        flusher: syncs the log to the disk.
        retention: deletes old segments.
        snapshots: the snapshots of the producers.
    """

    __slots__ = ("_are_epochs_written", "_is_flushed", "_segment_ms", "_services", "flusher", "reader", "retention", "snapshots")

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
        self._are_epochs_written = True
        """False after an error of the disk, while the file may have other leader epochs than the memory."""
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
            segment.transaction_index.add(aborted)
            self._save_transaction_index(segment)
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

    def append_as_follower(self, records: memoryview, *, leader_epoch: int) -> Work[int]:
        """Appends the batches of the leader as they are: bytes, offsets, leader epochs, and the gaps of compaction.

        An incomplete batch at the end, and batches of a later leader epoch than that of the fetch, are dropped. If the log is
        empty and the first batch holds the log end offset but begins before it, because records were deleted up to the middle of
        that batch, then the log starts at the base offset of that batch. The high watermark does not change otherwise.

        Each step of the work appends some batches. Between two steps the log can be read, but the caller closes the work before
        it truncates the log or appends to it in another way.

        Args:
            records: a part of the leader's log, batches of any format.
            leader_epoch: the leader epoch of the fetch.

        Returns:
            The log end offset.

        Raises:
            KafkaError: CORRUPT_MESSAGE, a batch is damaged, or offsets do not ascend; OFFSET_OUT_OF_RANGE, the first batch begins
                before the log end offset; KAFKA_STORAGE_ERROR. The batches before the log end offset were appended.

        Durability: as `append`.

        Differs from Apache Kafka: the batches of one response may be appended to several segments, and a batch may be larger than
        `segment.bytes`, which Kafka answers with an error that stops the replication of the partition.

        Source: UnifiedLog.appendAsFollower; Partition.appendRecordsToFollowerOrFutureReplica.
        """
        reader = self.reader
        expected_offset = reader.log_end_offset
        for number, places in enumerate(
            replicated_batches(records, leader_epoch=leader_epoch, partition=str(self.topic_partition))
        ):
            if number:
                yield
            if reader.is_closed:
                self._refuse_append()
            assert reader.log_end_offset == expected_offset, "the log was changed during a follower's append"
            if places[0].base_offset < expected_offset:
                self._begin_within(places[0])
            self._append_replicated(records, places)
            expected_offset = reader.log_end_offset
        return expected_offset

    def _begin_within(self, first: BatchPosition) -> None:
        """Starts an empty log at the base offset of a batch that holds the log end offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, the log is not empty, or the batch ends before the log end offset.
        """
        reader = self.reader
        if reader.log_start_offset < reader.log_end_offset or first.last_offset < reader.log_end_offset:
            reason = f"a batch begins at offset {first.base_offset}, before {reader.log_end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, reason)
        self.truncate_fully_and_start_at(first.base_offset)

    def _append_replicated(self, records: memoryview, places: list[BatchPosition]) -> None:
        """Appends checked batches, with one write for each segment.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the batches before the log end offset were appended.
        """
        reader, now_ms = self.reader, self._services.now_ms()
        with reader.on_disk("append"):
            while places:
                first = places[0]
                base_offset = _least_base_offset(records, first)
                segment = self._segment_for(first.size_bytes, first.last_offset, first.max_timestamp, now_ms, base_offset)
                count = segment.count_fitting(places, reader.config, self._segment_ms - segment.roll_jitter_ms, now_ms)
                self._append_run(segment, records, places[:count])
                places = places[count:]
        if reader.has_failed:
            reader.note_recovery()
        if self._is_flushed:
            self.flusher.on_append()

    def _append_run(self, segment: Segment, records: memoryview, places: list[BatchPosition]) -> None:
        last = places[-1]
        data = records[places[0].position : last.position + last.size_bytes]
        former = self.reader.epochs.entries
        try:
            self._assign_replicated_epochs(records, places)
            segment.append_batches(data, places, self.reader.config.index_interval_bytes)
        except OSError:
            self._restore_epochs(former)
            raise
        self.reader.log_end_offset = last.last_offset + 1
        has_aborted = False
        for place in places:
            aborted = self._replay(records[place.position : place.position + place.size_bytes], place)
            if aborted is not None:
                segment.transaction_index.add(aborted)
                has_aborted = True
        if has_aborted:
            self._save_transaction_index(segment)

    def _replay(self, data: memoryview, place: BatchPosition) -> AbortedTransaction | None:
        """Applies a batch of the leader to the producers; returns the transaction that it aborts."""
        producers = self.reader.producers
        if data[MAGIC_OFFSET] != MAGIC:
            producers.end_offset = place.last_offset + 1
            return None
        header = BatchHeader(data)
        marker = read_end_marker(data) if header.is_control else None
        return producers.replay(header, marker, high_watermark=self.reader.high_watermark)

    def _assign_replicated_epochs(self, records: memoryview, places: list[BatchPosition]) -> None:
        """Adds the leader epochs that begin with these batches. A message of an old format has none, and drops all epochs.

        Raises:
            OSError: the caller restores the epochs.

        Source: UnifiedLog.append, which clears the epochs so that a follower truncates to the high watermark again.
        """
        epochs = self.reader.epochs
        for place in places:
            if records[place.position + MAGIC_OFFSET] != MAGIC:
                self._note_epochs(epochs.clear())
            elif place.leader_epoch >= 0 and place.leader_epoch != epochs.latest:
                self._note_epochs(epochs.assign(place.leader_epoch, place.base_offset))
        self._write_epochs()

    def _restore_epochs(self, former: tuple[EpochStart, ...]) -> None:
        """Sets the leader epochs to those before an append that has failed, so that none begins after the log end offset.

        If the file cannot be written either, the next change writes it, or the next start drops what begins after the end.
        """
        epochs = self.reader.epochs
        self._note_epochs(epochs.entries != former)
        epochs.entries = former
        with suppress(OSError):
            self._write_epochs()

    def adopt_leader_offsets(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Moves the high watermark and the log start offset of a follower forward to those of the leader's Fetch response.

        The high watermark does not pass the log end offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, the log start offset is greater than the high watermark; KAFKA_STORAGE_ERROR.

        Source: ReplicaFetcherThread.processPartitionData; UnifiedLog.maybeUpdateHighWatermark and maybeIncrementLogStartOffset.

        Differs from Apache Kafka: the high watermark never decreases here; a new leader may not know yet what is committed.
        """
        reader = self.reader
        committed_offset = min(high_watermark, reader.log_end_offset)
        if committed_offset > reader.high_watermark:
            reader.advance_high_watermark(committed_offset)
        if log_start_offset > reader.log_start_offset:
            self.retention.delete_records(log_start_offset)

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
                self._assign_epoch(header.partition_leader_epoch, header.base_offset)
            segment = self._segment_for(len(data), last_offset, header.max_timestamp, now_ms)
            segment.append(data, header, reader.config.index_interval_bytes)
        except OSError as error:
            raise reader.note_disk_error("append", error) from error
        reader.log_end_offset = last_offset + 1
        if reader.has_failed:
            reader.note_recovery()
        return segment

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """Notes that the batches of a new leader epoch begin at the log end offset, before any batch is appended.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the epoch was not added.

        Source: UnifiedLog.maybeAssignEpochStartOffset.
        """
        with self.reader.on_disk("note a leader epoch"):
            self._assign_epoch(leader_epoch, self.reader.log_end_offset)

    def _assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Adds a leader epoch, in the page cache: recovery also reads the epochs from the batches.

        Raises:
            OSError: the epoch was not added.
        """
        if leader_epoch < 0:
            return
        epochs = self.reader.epochs
        former = epochs.entries
        try:
            self._note_epochs(epochs.assign(leader_epoch, start_offset))
            self._write_epochs()
        except OSError:
            epochs.entries = former
            raise

    def _note_epochs(self, has_changed: bool) -> None:
        if has_changed:
            self._are_epochs_written = False

    def _write_epochs(self) -> None:
        """Writes the leader epochs if they have changed, now or before an error of the disk.

        Raises:
            OSError: the next call writes them.
        """
        if not self._are_epochs_written:
            self.reader.folder.write_file(EPOCHS_FILE, self.reader.epochs.write())
            self._are_epochs_written = True

    def _save_transaction_index(self, segment: Segment) -> None:
        """Writes the new aborted transactions of a segment. If the write fails, `save_indexes` writes them later."""
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

    def _segment_for(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int, base_offset: int | None = None
    ) -> Segment:
        """Returns the active segment, after a roll if the segment is full or older than `segment.ms`.

        Args:
            base_offset: the least base offset of the batch, if it may be after the log end offset.
        """
        segment = self.reader.segments.items[-1]
        if not segment.has_room(size_bytes, last_offset, self.reader.config):
            return self._roll(base_offset)
        if segment.size and segment.waited_ms(now_ms, max_timestamp) > self._segment_ms - segment.roll_jitter_ms:
            return self._roll(base_offset)
        return segment

    def roll(self) -> None:
        """Begins a new segment, unless the active one is empty.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the active segment does not change.
        """
        with self.reader.on_disk("roll"):
            self._roll()

    def _roll(self, base_offset: int | None = None) -> Segment:
        """Seals the active segment and begins the next one, with a snapshot of the producers where it begins.

        Args:
            base_offset: the base offset of the new segment, not less than the log end offset, which is the default.

        Source: UnifiedLog.maybeRoll, roll: a follower begins a segment at the next batch, so that its offsets fit into 31 bits.
        """
        reader = self.reader
        sealed = reader.segments.active
        if base_offset is None or base_offset < reader.log_end_offset:
            base_offset = reader.log_end_offset
        if not sealed.size and sealed.base_offset == base_offset:
            return sealed
        reader.producers.end_offset = base_offset
        self.snapshots.begin()
        sealed.save_indexes()
        if self.flusher.recovery_point == reader.log_end_offset:
            # After a crash, recovery does not read a segment before the recovery point, so its indexes must be on the disk.
            self.flusher.prepare().run()
        segment = self._new_segment(base_offset)
        try:
            segment.create(preallocate_bytes=self._preallocate_bytes)
        except OSError:
            with suppress(OSError):
                segment.delete_files()
            raise
        sealed.unload_indexes()
        reader.segments.add(segment)
        self._services.request_flush(reader)
        return segment

    @property
    def _preallocate_bytes(self) -> int:
        config = self.reader.config
        return config.segment_bytes if config.preallocate else 0

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(
            self.reader.folder,
            self._services.pool,
            base_offset,
            created_ms=self._services.now_ms(),
            roll_jitter_ms=self._draw_jitter(),
        )

    def _draw_jitter(self) -> int:
        most = min(self.reader.config.segment_jitter_ms, self.reader.config.segment_ms)
        return self._services.random_below(most) if most > 0 else 0

    def replace_segments(self, old: list[Segment], new: Segment, truncation_count: int) -> bool:
        """Replaces segments with the segment that they were compacted to; see `Segments.replace`.

        Args:
            truncation_count: that of the log when the compaction began; nothing changes if the log was truncated since.

        Raises:
            OSError: nothing has changed.
        """
        reader = self.reader
        if reader.is_closed or reader.truncation_count != truncation_count or not reader.segments.replace(old, new):
            return False
        self._services.call_later(reader.config.file_delete_delay_ms, reader.segments.remover_of(old))
        with isolate("Could not rename compacted segments; the broker tries again", partition=str(self.topic_partition)):
            try:
                reader.segments.finish_swap()
            except OSError as error:
                reader.note_disk_error("rename compacted segments", error)
        return True

    # Truncation

    def truncate_to(self, offset: int) -> None:
        """Removes the batch that holds `offset` and all later batches, as a follower does whose log differs from the leader's.

        If the log starts after `offset`, it then starts at `offset`, without records. Leader epochs that begin at the new end or
        later are dropped, even if no record is removed.

        The offsets on which a start relies (recovery point, log start offset, high watermark) are stored before they would be
        greater than the log end offset. Snapshots of producers after the new end are removed too: recovery would use a snapshot
        of records that the log no longer holds.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is unchanged, or ends between `offset` and its former end. Call it again.

        Durability: after a crash, the log ends where it ended before, or anywhere from there down to the new end.

        Differs from Apache Kafka: if a batch begins before `offset` and ends after it, the log ends before that batch, and not at
        `offset`, so that the leader sends the records of the whole batch again.

        Source: UnifiedLog.truncateTo; LocalLog.truncateTo; LogManager.truncateTo.
        """
        reader = self.reader
        with reader.on_disk("truncate"):
            try:
                if offset >= reader.log_end_offset:
                    self._truncate_epochs()
                elif offset < reader.segments.items[0].base_offset:
                    self._start_again_at(offset)
                else:
                    self._truncate_to(offset)
            except OSError:
                # Some records may be removed already, and their leader epochs with them.
                self._drop_epochs()
                raise

    def _truncate_to(self, offset: int) -> None:
        reader = self.reader
        found = reader.segments.find(offset)
        end_offset = offset if found is None else min(offset, found[1].base_offset)
        self._retreat(end_offset, min(reader.log_start_offset, offset))
        self.snapshots.remove_after(end_offset)
        try:
            removed = reader.segments.truncate(offset)
        finally:
            self._adopt_end()
        self.retention.discard(removed)
        if reader.log_end_offset < end_offset:
            # Compaction has removed the records before `offset`. An empty segment keeps the end, for a restart too.
            self._roll(end_offset)
            reader.log_end_offset = end_offset
        self._truncate_epochs()

    def _retreat(self, end_offset: int, log_start_offset: int) -> None:
        """Moves the offsets on which a start relies back to a new end of the log, and stores them, before records are removed.

        Raises:
            OSError: the offsets are not stored; the records are unchanged.
        """
        reader = self.reader
        former = reader.log_start_offset, reader.high_watermark
        reader.log_start_offset = log_start_offset
        reader.high_watermark = min(reader.high_watermark, max(end_offset, log_start_offset))
        try:
            self.flusher.retreat(end_offset, is_stored=former != (reader.log_start_offset, reader.high_watermark))
        except OSError:
            reader.log_start_offset, reader.high_watermark = former
            raise
        self.snapshots.abandon()

    def _adopt_end(self) -> None:
        """Sets the offsets and the producers after segments were truncated."""
        reader, flusher = self.reader, self.flusher
        reader.segments.active.load_indexes()
        reader.log_end_offset = max(reader.segments.active.next_offset(), reader.log_start_offset)
        flusher.recovery_point = min(flusher.recovery_point, reader.log_end_offset)
        reader.high_watermark = min(reader.high_watermark, reader.log_end_offset)
        self._services.note_truncated(reader, reader.segments.active.base_offset)
        self.snapshots.restore()

    def _truncate_epochs(self) -> None:
        self._drop_epochs()
        self._write_epochs()

    def _drop_epochs(self) -> None:
        """Drops the leader epochs that begin at the log end offset or later, in memory."""
        self._note_epochs(self.reader.epochs.truncate_end(self.reader.log_end_offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records; the log then starts and ends at `offset`, as for a follower that the leader's log has outrun.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log may end anywhere before its former end, or is empty. Call it again.

        Durability: after a crash, the log has its former beginning, or is empty; then it starts where it started before, or at
        `offset`. The removal of the records is on disk on return.

        Source: UnifiedLog.truncateFullyAndStartAt; LocalLog.truncateFullyAndStartAt; LogManager.truncateFullyAndStartAt.
        """
        with self.reader.on_disk("truncate"):
            self._start_again_at(offset)

    def _start_again_at(self, offset: int) -> None:
        reader = self.reader
        first_offset = reader.segments.items[0].base_offset
        self._retreat(min(first_offset, offset), min(reader.log_start_offset, offset))
        self.snapshots.remove_after(-1)
        self._note_epochs(reader.epochs.clear())
        self._write_epochs()
        try:
            removed = reader.segments.truncate(first_offset)
        finally:
            self._adopt_end()
        if first_offset != offset:
            removed += self._replace_empty_segment(offset)
        self.retention.discard(removed)
        reader.log_start_offset = reader.log_end_offset = reader.high_watermark = offset
        reader.producers.clear(offset)
        self._services.note_start_moved()

    def _replace_empty_segment(self, base_offset: int) -> list[Segment]:
        """Replaces the only segment, which is empty, by an empty one at another offset; returns the former one.

        Raises:
            OSError: the former segment is still in use.
        """
        segment, former = self._new_segment(base_offset), self.reader.segments.active
        # Otherwise a power loss could bring the records back into a log that starts at the new offset.
        self.reader.folder.sync_file(former.log_name, former.file())
        try:
            segment.create(preallocate_bytes=self._preallocate_bytes)
            return self.reader.segments.restart(segment)
        except OSError:
            with suppress(OSError):
                segment.delete_files()
            raise

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
        self._write_indexes_and_producers()
        return self.flusher.prepare()

    def write_for_copy(self, most_active_bytes: int) -> None:
        """Writes what another broker reads that opens a copy of the files, as if this broker had shut down cleanly.

        Args:
            most_active_bytes: an active segment with more bytes is sealed, so that it can be linked instead of copied.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; a copy would need recovery.

        Durability: in the page cache.
        """
        with self.reader.on_disk("write for a copy"):
            if self.reader.segments.active.size > most_active_bytes:
                self._roll()
            self._write_indexes_and_producers()

    def _write_indexes_and_producers(self) -> None:
        segments = self.reader.segments
        with suppress(OSError):  # the next start finishes the swap too
            segments.finish_swap()
        if segments.active.has_unsaved_indexes:
            segments.active.save_indexes()
        self.snapshots.write_for_restart()

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


def _least_base_offset(records: memoryview, place: BatchPosition) -> int:
    """Returns the base offset of a batch. That of a wrapper of an old format is unknown, but its offsets fit into 31 bits."""
    if records[place.position + MAGIC_OFFSET] == MAGIC:
        return place.base_offset
    return place.last_offset - MOST_RELATIVE_OFFSET
