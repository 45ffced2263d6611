"""Opens a log from its folder: after a clean shutdown from its indexes, after a crash from its batches.

How it works: all records before the recovery point are on the disk. After a crash, recovery reads the segment of the
recovery point and all later segments completely: it checks framing, checksum and order of each batch, and rebuilds indexes,
producers and leader epochs. After a clean shutdown the indexes are complete, and only the headers after the last entry are read.

The log ends at the first bad batch, if a crash explains that batch: a killed process leaves one torn write at the end of the log,
and a power loss may lose any unsynced write. Any other bad batch, before the recovery point or with sound batches after it, is
damage: the records after it were acknowledged, and are deleted only if a setting of the operator permits it.

A member of a cluster fetches lost records from the leader again, but only those after the end of its log. So after a power loss,
its log ends before a segment that does not follow the one before it, and a log whose first segments are missing begins anew.
Other gaps in the offsets are those of compaction.

A crash may interrupt compaction between the steps of a replacement. `.cleaned` files are incomplete and are removed. `.swap`
files are complete: the segments that they replace are removed, and the files get those names.

Rules of this file: it does not use live logs, and may run in any thread. It logs everything that it removes.

Source: org.apache.kafka.storage.internals.log.LogLoader, LogSegment.recover, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import structlog

from wirekafka.log.checkpoint import PARTITION_METADATA, MalformedFileError, read_partition_metadata
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.positions import BadBatchError, BatchPosition
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import Producers
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.log.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
)
from wirekafka.log.soundness import count_records, has_sound_batch, has_sound_tail, sound_batches, torn_batch
from wirekafka.log.storage import Folder, HandlePool
from wirekafka.log.transaction_index import SUFFIX as TRANSACTION_INDEX_SUFFIX
from wirekafka.log.transaction_index import AbortedTransaction, BadTransactionIndexError
from wirekafka.wire.batch import HEADER_SIZE, MAGIC, MAGIC_OFFSET, BatchHeader
from wirekafka.wire.control import read_end_marker

log = structlog.get_logger(__name__)

_TEMPORARY_SUFFIX = ".tmp"

_SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)(\.swap|\.cleaned)?")
_MOST_UNINDEXED_BYTES = 32 << 20
"""After the last entry of an offset index come at most one index interval and one batch; batches are smaller than this."""

TRUNCATES_DAMAGE = "wirekafka.log.recovery.truncate.corrupt"
"""The setting with which an operator accepts the loss of the records after a damaged batch."""

Files = dict[str, os.stat_result]


@dataclass(slots=True)
class Loaded:
    """The content of a partition's folder.

    Attributes:
        segments: at least one; the last one is active, and its indexes are in memory.
        log_start_offset, log_end_offset: the first offset, and one past the last record.
        high_watermark: one past the last record that is known to be committed.
        recovery_point: all records before this offset are on the disk.
        topic_id: the topic id in the folder; None if the folder has none.
    """

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: Producers
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    topic_id: bytes | None

    @classmethod
    def empty(cls, segments: list[Segment], topic_id: bytes | None) -> Loaded:
        """Returns the content of a folder without records, whose log starts at offset 0."""
        return cls(segments, LeaderEpochs(), Producers(0), 0, 0, 0, 0, topic_id)


@dataclass(slots=True)
class Loader:
    """Opens one folder and recovers its log.

    Attributes:
        name: the partition, for the log lines.
        index_interval_bytes: the interval of indexes that are rebuilt.
        log_start_offset, recovery_point: the offsets from the checkpoints; 0 if the checkpoints do not have the partition.
        high_watermark: the high watermark from the checkpoint, if the partition may have several replicas; None for a sole
            replica, whose records are all committed.
        is_clean: the last broker closed the log.
        is_on_disk: all writes of the last broker are on the disk; otherwise some may be only in the page cache. Only if
            `is_clean`.
        has_lost_power: the machine has restarted since, so any of the unsynced writes may be lost.
        truncates_damage: a damaged log is cut at the damage, whatever follows it.
        bytes_read: the bytes of the segments that were read whole so far; other threads may read this.
    """

    folder: Folder
    pool: HandlePool
    name: str
    index_interval_bytes: int
    now_ms: int
    log_start_offset: int = 0
    recovery_point: int = 0
    high_watermark: int | None = None
    is_clean: bool = False
    is_on_disk: bool = True
    has_lost_power: bool = False
    truncates_damage: bool = False
    bytes_read: int = 0

    def load(self) -> Loaded:
        """Reads the folder and repairs the effects of a crash.

        Raises:
            BadBatchError: a segment is damaged.
            OSError: the folder cannot be read or repaired.
        """
        files = self._finish_swaps(self._remove_leftovers(self._files()))
        segments = self._open_segments(files)
        if self._has_lost_start(segments):
            self._begin_anew(segments)
            return self.load()
        stored_epochs = self._read_epochs()
        epochs = LeaderEpochs() if stored_epochs is None else LeaderEpochs(stored_epochs.entries)
        recovered_from = self._first_to_recover(segments, files)
        for number in range(recovered_from):
            if not self._check_indexes(segments, number, files):
                recovered_from = len(segments)
                break
        if self.has_lost_power and not self.is_clean:
            epochs = self._epochs_in(segments[:recovered_from]) or epochs
        if recovered_from < len(segments):
            sound_offset = segments[recovered_from].base_offset
        else:
            sound_offset = segments[-1].next_offset() if segments else self.log_start_offset
        producers = self._load_producers(segments, files, sound_offset, are_all_known=self.is_clean)
        self._recover(segments, recovered_from, epochs, producers)
        log_end_offset = segments[-1].next_offset() if recovered_from < len(segments) else sound_offset
        if self._remove_overlapped(segments):
            return self.load()
        self._refuse_loss(log_end_offset, segments[-1].log_name if segments else "no file")
        if log_end_offset < self.log_start_offset:
            self._drop_all(segments, log_end_offset)
            log_end_offset = self.log_start_offset
            epochs = LeaderEpochs()
            producers.clear(log_end_offset)
        if not segments:
            segments.append(self._create_segment(log_end_offset))
        log_start_offset = max(self.log_start_offset, segments[0].base_offset)
        producers.forget_transactions(log_start_offset)
        self._tidy_snapshots(segments, files, log_end_offset)
        epochs.truncate_end(log_end_offset)
        epochs.truncate_start(log_start_offset)
        if stored_epochs is None or epochs.entries != stored_epochs.entries:
            # Epochs that come from the batches are stored now: the next recovery may begin after these batches. A file that a
            # power loss has torn is written again, because Apache Kafka does not open a log with such a file.
            self.folder.write_file(EPOCHS_FILE, epochs.write())
        high_watermark = log_end_offset
        if self.high_watermark is not None:
            high_watermark = max(min(self.high_watermark, log_end_offset), log_start_offset)
        recovery_point = min(self.recovery_point, log_end_offset)
        self._note_unsynced(segments, log_end_offset, recovery_point)
        topic_id = self.read_topic_id()
        return Loaded(segments, epochs, producers, log_start_offset, log_end_offset, high_watermark, recovery_point, topic_id)

    def _files(self) -> Files:
        return self.folder.storage.files(self.folder.path)

    def _note_unsynced(self, segments: list[Segment], log_end_offset: int, recovery_point: int) -> None:
        """Records which data the last broker may not have synced: all except sealed segments before the recovery point.

        After a shutdown that waited for the disk, only the data after the recovery point counts as unsynced.
        """
        ledger = self.folder.ledger
        synced: set[str] = set()
        for segment, next_segment in zip(segments, [*segments[1:], None], strict=True):
            end_offset = next_segment.base_offset if next_segment else log_end_offset
            if end_offset > recovery_point:
                segment.contents.written += 1
            elif next_segment:
                synced.update((segment.log_name, *segment.index_names))
        if self.is_clean and self.is_on_disk:
            return
        ledger.names.written += 1
        ledger.place.written += 1
        for name in self._files():
            if name not in synced:
                ledger.note_written(name)

    # Leftovers of interrupted deletions and compactions

    def _remove_leftovers(self, files: Files) -> Files:
        first_cleaned = min((int(name[:20]) for name in files if _is_segment_file(name, CLEANED_SUFFIX)), default=None)
        for name in list(files):
            # A swap at or after an incomplete file belongs to a replacement whose files were not all complete.
            is_early_swap = first_cleaned is not None and _is_segment_file(name, SWAP_SUFFIX) and int(name[:20]) >= first_cleaned
            if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, _TEMPORARY_SUFFIX)) or is_early_swap:
                self.folder.remove(name)
                del files[name]
        return files

    def _finish_swaps(self, files: Files) -> Files:
        swaps = [name for name in files if _is_segment_file(name, SWAP_SUFFIX)]
        if not swaps:
            return files
        first: int | None = None
        behind = 0
        for name in sorted(swaps):
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                first = int(name[:20]) if first is None else first
                behind = max(behind, self._end_of_swap(name, files[name].st_size))
        for name in list(files):
            if first is not None and _is_segment_file(name) and first <= int(name[:20]) < behind:
                self.folder.remove(name)
        for name in swaps:
            self.folder.rename(name, name.removesuffix(SWAP_SUFFIX))
        log.info("Finished an interrupted compaction", partition=self.name, base_offset=first, end_offset=behind)
        return self._files()

    def _end_of_swap(self, name: str, size: int) -> int:
        segment = Segment(self.folder, self.pool, int(name[:20]), created_ms=self.now_ms, suffix=SWAP_SUFFIX)
        segment.size = size
        try:
            return segment.next_offset()
        finally:
            segment.close()

    # Segments

    def _open_segments(self, files: Files) -> list[Segment]:
        bases = sorted(int(name[:20]) for name in files if _is_segment_file(name) and name.endswith(LOG_SUFFIX))
        for name in files:
            is_index = name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX))
            if is_index and _is_segment_file(name) and file_name(int(name[:20]), LOG_SUFFIX) not in files:
                log.warning("Removed an index without its log", partition=self.name, file=name)
                self.folder.remove(name)
        return [Segment.of_files(self.folder, self.pool, base, files, created_ms=self.now_ms) for base in bases]

    def _remove_overlapped(self, segments: list[Segment]) -> bool:
        """Removes segments whose offsets are all in the segment before; returns whether there were any.

        A power loss may undo the removal of compacted segments, and keep the segment that replaces them.

        Raises:
            BadBatchError: a segment begins within the segment before it, and ends after it.
        """
        if self.is_clean or not self.has_lost_power:
            return False
        has_removed = False
        end_offset = segments[0].next_offset() if segments else 0
        for segment in segments[1:]:
            if segment.base_offset < end_offset and segment.next_offset() > end_offset:
                raise BadBatchError(
                    f"{self.folder.path_of(segment.log_name)} begins before offset {end_offset}, where the segment before it "
                    "ends. Restore the files from a backup, or move one of the two away, and start the broker again"
                )
            if segment.base_offset < end_offset and segment.size:
                log.warning("Removed a segment that was compacted", partition=self.name, file=segment.log_name)
                segment.delete_files()
                has_removed = True
                continue
            end_offset = max(end_offset, segment.next_offset())
        return has_removed

    def _has_lost_start(self, segments: list[Segment]) -> bool:
        """Whether a power loss has removed the first segments, which were not synced; see `_has_lost_end`."""
        if self.high_watermark is None or self.is_clean or not self.has_lost_power or not segments:
            return False
        return segments[0].base_offset > max(self.log_start_offset, self.recovery_point)

    def _begin_anew(self, segments: list[Segment]) -> None:
        """Drops all segments, and lets the log begin where the first missing record may be."""
        self.log_start_offset = max(self.log_start_offset, self.recovery_point)
        log.warning(
            "Dropped a log whose beginning is lost",
            partition=self.name,
            first_offset=segments[0].base_offset,
            log_start_offset=self.log_start_offset,
        )
        for segment in segments:
            segment.delete_files()
            self.folder.remove(file_name(segment.base_offset, SNAPSHOT_SUFFIX))

    def _create_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.folder, self.pool, base_offset, created_ms=self.now_ms)
        segment.create()
        return segment

    def _first_to_recover(self, segments: list[Segment], files: Files) -> int:
        """Returns the number of the first segment to read whole; none after a clean shutdown with a sound last segment."""
        if self.is_clean:
            return len(segments) - (bool(segments) and not self._load_sound_tail(segments[-1], files))
        for number in range(len(segments) - 1, -1, -1):
            if segments[number].base_offset <= self.recovery_point:
                return number
        return 0

    def _load_sound_tail(self, segment: Segment, files: Files) -> bool:
        """Loads the indexes of the last segment; returns whether whole batches follow their last entries up to the file's end.

        That is not so in a folder that was copied from a running Apache Kafka broker, whose indexes end in zeros.
        """
        if segment.size and any(index.name not in files for index in (segment.offset_index, segment.time_index)):
            return False
        try:
            segment.load_indexes()
            if (0, 0) in (segment.offset_index.last(), segment.time_index.last()):
                return False
            return has_sound_tail(segment)
        except OSError:
            return False

    def _check_indexes(self, segments: list[Segment], number: int, files: Files) -> bool:
        """Rebuilds the indexes of a segment that needs no recovery, if they are missing or invalid.

        Returns:
            False if the segment is damaged, and the log now ends within the segment.
        """
        segment = segments[number]
        next_base = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if self._has_sound_indexes(segment, next_base, files):
            return True
        log.warning("Rebuilding the indexes of a segment", partition=self.name, file=segment.log_name)
        file_size = segment.size
        # Only a state that has replayed the beginning of a transaction knows which transaction a marker ends.
        producers = self._load_producers(segments[:number], files, segment.base_offset, are_all_known=False)
        self._rebuild(segment, None, producers)
        if segment.size < file_size:
            self._refuse_damage(segment, "all data before the recovery point was on the disk")
            self._cut(segments, number, file_size)
            return False
        if next_base is not None:
            segment.seal()
        return True

    def _has_sound_indexes(self, segment: Segment, next_base: int | None, files: Files) -> bool:
        """Whether the indexes of a segment can be valid: by their sizes, and after a crash by their last entries too.

        Source: OffsetIndex.sanityCheck, TimeIndex.sanityCheck, TransactionIndex.sanityCheck.
        """
        for index in (segment.offset_index, segment.time_index):
            found = files.get(index.name)
            if (found is None and segment.size > 0) or (found is not None and found.st_size != index.size_bytes):
                return False
        transaction_file = files.get(segment.transaction_index.name)
        if transaction_file is not None:
            try:
                segment.transaction_index.check(transaction_file.st_size, next_base)
            except BadTransactionIndexError as error:
                log.warning("An index of aborted transactions is damaged", partition=self.name, reason=str(error))
                return False
        if self.is_clean or not segment.size:
            return True
        last_offset, position = segment.offset_index.last() or (0, 0)
        timestamp, offset_of_timestamp = segment.time_index.last() or (-1, 0)
        if segment.size - position > self.index_interval_bytes + _MOST_UNINDEXED_BYTES:
            return False
        if not segment.time_index.count:
            return next(segment.places()).max_timestamp < 0
        most = MOST_RELATIVE_OFFSET if next_base is None else next_base - 1 - segment.base_offset
        has_entries_within = 0 <= last_offset <= most and 0 <= offset_of_timestamp <= most
        return has_entries_within and 0 <= position < segment.size and timestamp >= 0

    def _recover(self, segments: list[Segment], first: int, epochs: LeaderEpochs, producers: Producers) -> None:
        for number in range(first, len(segments)):
            segment = segments[number]
            file_size = segment.size
            self._rebuild(segment, epochs, producers)
            if segment.size < file_size:
                self._refuse_loss(segment.next_offset(), f"{self.folder.path_of(segment.log_name)} at byte {segment.size}")
                if (self.is_clean or not self.has_lost_power) and self._has_more(segments, number, file_size):
                    self._refuse_damage(segment, "sound batches follow it")
                self._cut(segments, number, file_size)
                break
            if number + 1 < len(segments):
                if self._has_lost_end(segment, segments[number + 1]):
                    self._cut(segments, number, file_size)
                    break
                segment.seal()
        self._drop_empty_end(segments, first)

    def _has_lost_end(self, segment: Segment, following: Segment) -> bool:
        """Whether a power loss has removed the unsynced end of a segment, and not the segment after it.

        A replica must not keep the records after such a gap: it would never fetch the missing ones from the leader. The gaps of
        compaction are not told apart; the replica then fetches the records after the gap again.
        """
        if self.high_watermark is None or self.is_clean or not self.has_lost_power:
            return False
        return self.recovery_point <= segment.next_offset() < following.base_offset

    def _has_more(self, segments: list[Segment], number: int, file_size: int) -> bool:
        """Whether a sound batch follows the damage in a segment.

        A torn batch may contain whole batches in the values of its records, which do not count. A batch that was written after
        the torn batch has the next offset as its base offset.
        """
        segment = segments[number]
        torn = torn_batch(segment, segment.size, segment.next_offset(), file_size)
        base_offset = torn.last_offset + 1 if torn is not None else None
        return has_sound_batch(segment, segment.size + 1, file_size, base_offset) or any(
            has_sound_batch(behind, 0, behind.size) for behind in segments[number + 1 :]
        )

    def _refuse_loss(self, end_offset: int, place: str) -> None:
        """Raises if sound batches end before the recovery point, unless the operator accepts the loss of the other records.

        Neither a crash of a process nor one of the machine loses synced data, so the files were damaged.

        Args:
            place: the place where the sound batches end.

        Raises:
            BadBatchError: records that were on the disk are missing.
        """
        if end_offset < self.recovery_point and not self.truncates_damage:
            raise BadBatchError(
                f"The sound batches of {self.folder.path} end with offset {end_offset}, in {place}; all data before the "
                f"recovery point, {self.recovery_point}, was on the disk. Restore the files from a backup; or set "
                f"{TRUNCATES_DAMAGE}=true for one start, which continues without the missing records"
            )

    def _refuse_damage(self, segment: Segment, reason: str) -> None:
        """Raises unless the operator accepts the loss of the records after a damaged batch.

        Raises:
            BadBatchError: the operator does not accept it.
        """
        if not self.truncates_damage:
            path = self.folder.path_of(segment.log_name)
            raise BadBatchError(
                f"{path} is damaged at byte {segment.size}, and {reason}. Restore the file from a backup; or set "
                f"{TRUNCATES_DAMAGE}=true for one start, which cuts the partition there and loses the rest of it"
            )

    def _drop_empty_end(self, segments: list[Segment], first: int) -> None:
        """Drops empty segments after records that a power loss has removed, because no reader could read up to them."""
        while len(segments) - first >= 2 and not segments[-1].size:
            end_offset, base_offset = segments[-2].next_offset(), segments[-1].base_offset
            if end_offset == base_offset:
                return
            segments.pop().delete_files()
            self.folder.remove(file_name(base_offset, SNAPSHOT_SUFFIX))
            segments[-1].load_indexes()
            lost = base_offset - end_offset
            log.warning("Lost the end of a segment", partition=self.name, records=lost, log_end_offset=end_offset)

    def _cut(self, segments: list[Segment], number: int, file_size: int) -> None:
        """Ends the log in this segment: truncates the segment, and drops the later segments."""
        segment = segments[number]
        cut_bytes = file_size - segment.size
        cut_records = count_records(segment, segment.size, file_size)
        for behind in segments[number + 1 :]:
            cut_bytes += behind.size
            cut_records += count_records(behind, 0, behind.size)
            behind.delete_files()
            self.folder.remove(file_name(behind.base_offset, SNAPSHOT_SUFFIX))
        del segments[number + 1 :]
        segment.cut_tail()
        log.warning(
            "Cut a torn tail",
            partition=self.name,
            bytes=cut_bytes,
            records=cut_records,
            log_end_offset=segment.next_offset(),
        )

    def _rebuild(self, segment: Segment, epochs: LeaderEpochs | None, producers: Producers) -> None:
        """Reads a whole segment, and sets its size and indexes by its sound batches.

        Args:
            producers: the state at the segment's base offset; the batches of the segment are replayed into it.
        """
        file_size, segment.size = segment.size, 0
        segment.forget()
        segment.transaction_index.clear()
        last_epoch = -1
        for place, data in sound_batches(segment, file_size):
            if self.has_lost_power and 0 <= place.leader_epoch < last_epoch:
                # Bytes from before a truncation follow batches from after it: a power loss has undone the truncation.
                break
            last_epoch = max(last_epoch, place.leader_epoch)
            segment.note(place.position, place.size_bytes, place.last_offset, place.max_timestamp, self.index_interval_bytes)
            segment.size = place.position + place.size_bytes
            self.bytes_read += place.size_bytes
            if epochs is not None and place.leader_epoch >= 0 and (epochs.latest is None or place.leader_epoch > epochs.latest):
                epochs.assign(place.leader_epoch, place.base_offset)
            aborted = _replay(producers, place, data, self.high_watermark)
            if aborted is not None:
                segment.transaction_index.add(aborted)
        segment.transaction_index.save()

    def _drop_all(self, segments: list[Segment], log_end_offset: int) -> None:
        log.warning(
            "Dropped a log that ends before it starts",
            partition=self.name,
            log_start_offset=self.log_start_offset,
            log_end_offset=log_end_offset,
        )
        for segment in segments:
            segment.delete_files()
        segments.clear()

    # Producers, epochs, topic id

    def _load_producers(self, segments: list[Segment], files: Files, end_offset: int, *, are_all_known: bool) -> Producers:
        """Returns the producers at `end_offset`, from the last good snapshot before it and the batches after the snapshot.

        Args:
            are_all_known: without a snapshot the log has no producers. That holds after a clean shutdown, which writes a snapshot
                if there are producers.
        """
        first_offset = max(self.log_start_offset, segments[0].base_offset if segments else 0)
        producers = Producers(first_offset)
        for offset in sorted(_snapshot_offsets(files), reverse=True):
            if offset > end_offset or (offset <= first_offset and offset != end_offset):
                continue
            try:
                producers.read_snapshot(self.folder.read_file(file_name(offset, SNAPSHOT_SUFFIX)) or b"", offset)
                break
            except CorruptSnapshotError as error:
                log.warning("Ignored a snapshot of producers", partition=self.name, offset=offset, reason=str(error))
                self.folder.remove(file_name(offset, SNAPSHOT_SUFFIX))
                are_all_known = False
        else:
            if are_all_known:
                producers.end_offset = end_offset
        replay(producers, segments, end_offset, high_watermark=self.high_watermark)
        return producers

    def _tidy_snapshots(self, segments: list[Segment], files: Files, log_end_offset: int) -> None:
        """Keeps the snapshots at the base offset of a segment, and the last snapshot if it is after all of these.

        Source: ProducerStateManager.removeStraySnapshots.
        """
        bases = {segment.base_offset for segment in segments}
        offsets = sorted(_snapshot_offsets(files))
        last = segments[-1].base_offset
        kept = max((offset for offset in offsets if last < offset <= log_end_offset), default=None)
        for offset in offsets:
            if offset not in bases and offset != kept:
                self.folder.remove(file_name(offset, SNAPSHOT_SUFFIX))

    def _read_epochs(self) -> LeaderEpochs | None:
        """Returns the leader epochs in the folder, none if it has no file of them; None if the file is torn."""
        data = self.folder.read_file(EPOCHS_FILE)
        if data is None:
            return LeaderEpochs()
        try:
            return LeaderEpochs.read(data)
        except MalformedFileError as error:
            log.warning("Ignored the leader epochs of a partition", partition=self.name, reason=str(error))
            return None

    def _epochs_in(self, segments: list[Segment]) -> LeaderEpochs | None:
        """Returns the leader epochs of the batches in segments; None if a segment is damaged.

        A power loss may empty or tear the checkpoint, because it is replaced without a sync. Of most segments this reads the
        first header only: if the next segment begins in the same epoch, no other epoch begins between.
        """
        epochs = LeaderEpochs()
        try:
            first_epochs = [next((place.leader_epoch for place in segment.places()), None) for segment in segments]
            for segment, following_epoch in zip(segments, [*first_epochs[1:], None], strict=False):
                for place in segment.places():
                    if place.leader_epoch >= 0 and (epochs.latest is None or place.leader_epoch > epochs.latest):
                        epochs.assign(place.leader_epoch, place.base_offset)
                    if place.leader_epoch == following_epoch:
                        break
        except BadBatchError:
            return None
        return epochs

    def read_topic_id(self) -> bytes | None:
        """Returns the topic id in the folder; None if it has none."""
        data = self.folder.read_file(PARTITION_METADATA)
        if data is None:
            return None
        try:
            return read_partition_metadata(data)
        except MalformedFileError as error:
            log.warning("Ignored the metadata of a partition", partition=self.name, reason=str(error))
            return None


def replay(producers: Producers, segments: list[Segment], end_offset: int, *, high_watermark: int | None) -> None:
    """Replays the batch headers from the producers' `end_offset` up to this offset.

    Args:
        high_watermark: as for `Producers.replay`.
    """
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if next_base is not None and next_base <= producers.end_offset:
            continue
        if segment.base_offset >= end_offset or producers.end_offset >= end_offset:
            break
        first = segment.find(producers.end_offset)
        if first is None:
            continue
        storage, file = segment.folder.storage, segment.file()
        for place in segment.places(first.position):
            if place.base_offset >= end_offset:
                break
            data = storage.read(file.fd, HEADER_SIZE, place.position)
            if data[MAGIC_OFFSET] == MAGIC and BatchHeader(data).is_control:
                data = storage.read(file.fd, place.size_bytes, place.position)
            _replay(producers, place, memoryview(data), high_watermark)
    producers.end_offset = end_offset


def _replay(
    producers: Producers, place: BatchPosition, data: memoryview, high_watermark: int | None
) -> AbortedTransaction | None:
    """Applies a batch; decodes its records only if it is a control batch. Returns the transaction that the batch aborts."""
    if data[MAGIC_OFFSET] != MAGIC:
        producers.end_offset = place.last_offset + 1
        return None
    header = BatchHeader(data)
    marker = read_end_marker(data) if header.is_control else None
    return producers.replay(header, marker, high_watermark=high_watermark)


def _is_segment_file(name: str, suffix: str = "") -> bool:
    match = _SEGMENT_FILE.fullmatch(name)
    return match is not None and (match[3] or "") == suffix


def _snapshot_offsets(files: Files) -> list[int]:
    return [int(name[:20]) for name in files if _is_segment_file(name) and name.endswith(SNAPSHOT_SUFFIX)]
