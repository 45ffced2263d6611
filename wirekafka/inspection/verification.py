"""Checks a data directory, or the folder of one partition, and names the first damage of each partition.

How it works: each segment is read once from its first byte to its last, together with its indexes. A broker may be running.
It holds the lock of the data directory; the lock is queried and not taken. While it is held:

- The last batch of the active segment may be half written. If it is still half written when it is read again, that is a note and
  not damage.
- Indexes of the active segment may be ahead of the batches that were read.
- Segments may be replaced or deleted. If that happened, findings are dropped and the partition is checked again.

If no broker is running, a torn tail is damage, although the next start truncates it.

Rules of this file: nothing is written, nothing is locked, and only small files are read as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from wirekafka.inspection.batches import StoredBatch, check, scan
from wirekafka.inspection.files import (
    OFFSET_CHECKPOINTS,
    Advance,
    DamageError,
    DataFile,
    Kind,
    base_offset_of,
    files_in,
    holds_partition,
    kind_of,
    partition_folders,
    partitions_of_other_folders,
    read_whole,
    size_of,
)
from wirekafka.inspection.index_checks import IndexCheck, MissingFile, OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck
from wirekafka.inspection.journal import topics_in_journal
from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    PARTITION_METADATA,
    MalformedFileError,
    read_lines,
    read_offsets,
    read_partition_metadata,
)
from wirekafka.log.directory import is_held, partition_of_folder
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.meta_properties import read_meta_properties
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import Producers
from wirekafka.log.segment import MOST_RELATIVE_OFFSET
from wirekafka.log.segment_files import LOG_SUFFIX, SWAP_SUFFIX, file_name
from wirekafka.metadata.journal import FILE_NAME as JOURNAL
from wirekafka.names import TopicPartition

_MOST_ATTEMPTS = 5
_INDEX_CHECKS: dict[Kind, Callable[..., IndexCheck]] = {
    Kind.OFFSET_INDEX: OffsetIndexCheck,
    Kind.TIME_INDEX: TimeIndexCheck,
    Kind.TRANSACTION_INDEX: TransactionIndexCheck,
}


@dataclass(slots=True)
class Checked:
    """The numbers of checked items."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    index_entries: int = 0
    other_files: int = 0


@dataclass(slots=True)
class EpochChange:
    """The first batch of a leader epoch in a log."""

    epoch: int
    offset: int
    position: int
    path: str


@dataclass(slots=True)
class Verification:
    """One check of a directory.

    Attributes:
        root: a data directory or a partition's folder.
        reads_records: whether every record is read, which takes about twenty times as long as counting them.
        is_live: whether a broker is running on the directory.
        notes: lines for the operator that are no damage.
    """

    root: str
    advance: Advance
    reads_records: bool = False
    is_live: bool = False
    checked: Checked = field(default_factory=Checked)
    notes: list[str] = field(default_factory=list)
    _checkpoints: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def damages(self) -> Iterator[DamageError]:
        """Yields the first damage of each partition, and of the directory's own files.

        Raises:
            OSError: a file cannot be read.
        """
        yield from self._data_directory_damages()
        for folder in partition_folders(self.root):
            try:
                self._check_partition_at_rest(folder)
            except DamageError as damage:
                yield damage
        yield from self._missing_partitions()

    # The data directory's own files

    def _data_directory_damages(self) -> Iterator[DamageError]:
        if holds_partition(self.root):
            return
        # The checkpoints are read before the partitions. A running broker only appends, so the logs have these offsets later.
        for name in (META_PROPERTIES, *OFFSET_CHECKPOINTS):
            path = os.path.join(self.root, name)
            with suppress(FileNotFoundError):
                data = read_whole(path)
                self.checked.other_files += 1
                try:
                    if name == META_PROPERTIES:
                        read_meta_properties(data)
                    else:
                        self._checkpoints[path] = read_offsets(data)
                except MalformedFileError as error:
                    yield DamageError(path, str(error))

    def _missing_partitions(self) -> Iterator[DamageError]:
        """Yields an error for each partition that has records according to a checkpoint, and that has no folder.

        Folders of a deleted topic are removed before the checkpoints are rewritten. So a missing folder is no damage while a
        broker is running, or if the journal of topics does not know the topic. The same holds for a partition that moves from or
        to another directory, and for a deleted partition whose topic was being created again: a deleted or future folder of the
        partition remains. A directory without a journal is not the first of its broker. Its checkpoints name deleted partitions
        after a crash, and are exact after a clean stop.
        """
        present = {partition_of_folder(os.path.basename(folder)) for folder in partition_folders(self.root)}
        left_or_arriving = partitions_of_other_folders(self.root)
        known_topics = topics_in_journal(self.root)
        may_be_outdated = self.is_live or (known_topics is None and not self._is_first_or_clean())
        reported = set()
        for path, offsets in self._checkpoints.items():
            for partition, offset in offsets.items():
                if offset <= 0 or partition in present or partition in reported:
                    continue
                reported.add(partition)
                reason = f"{partition} has records up to offset {offset} according to this file, but no folder"
                is_unknown = known_topics is not None and partition.topic not in known_topics
                if may_be_outdated or is_unknown or partition in left_or_arriving:
                    self.notes.append(f"{path}: {reason}; the partition was deleted or moved, or a running broker is deleting it")
                else:
                    yield DamageError(path, reason, offset=0)

    def _is_first_or_clean(self) -> bool:
        """Whether the directory has a journal of topics, or the last broker closed all logs in the directory."""
        return any(os.path.exists(os.path.join(self.root, name)) for name in (JOURNAL, CLEAN_SHUTDOWN))

    def check_checkpoints(self, folder: str, end_offset: int) -> None:
        """Raises unless the log of a partition reaches the offsets that the checkpoints have for it.

        Args:
            end_offset: of the log; 0 if it has no segment.

        Raises:
            DamageError: a checkpoint names a later offset.
        """
        partition = partition_of_folder(os.path.basename(folder))
        if partition is None:
            return
        for path, offsets in self._checkpoints.items():
            offset = offsets.get(partition, 0)
            if offset > end_offset:
                reason = f"{partition} has records up to offset {offset} according to this file, but its log ends at {end_offset}"
                raise DamageError(path, reason, offset=end_offset)

    # A partition

    def _check_partition_at_rest(self, folder: str) -> None:
        """Checks a partition; again, if a running broker has replaced segments meanwhile."""
        for attempt in range(_MOST_ATTEMPTS):
            before = _segments_in(folder)
            checked, notes = Checked(), list[str]()
            try:
                _PartitionCheck(self, folder, checked, notes).run()
            except (DamageError, FileNotFoundError):
                is_last = attempt == _MOST_ATTEMPTS - 1
                if self.is_live and not is_last and not before.items() <= _segments_in(folder).items():
                    continue
                if self.is_live and not os.path.exists(folder):
                    return
                raise
            finally:
                self._add(checked)
            self.notes += notes
            return

    def _add(self, checked: Checked) -> None:
        for name in Checked.__slots__:
            setattr(self.checked, name, getattr(self.checked, name) + getattr(checked, name))


def verify(root: str, *, advance: Advance, reads_records: bool = False) -> Verification:
    """Returns a check of a directory, which queries by itself whether a broker is running on it."""
    return Verification(root, advance, reads_records=reads_records, is_live=has_broker(root))


def has_broker(folder: str) -> bool:
    """Whether a broker is running on a data directory, or on the data directory of a partition's folder."""
    folder = os.path.abspath(folder)
    return is_held(os.path.dirname(folder) if holds_partition(folder) else folder)


def log_bytes_in(root: str) -> int:
    """Returns the bytes of all logs, for a progress bar."""
    return sum(
        size_of(os.path.join(folder, name))
        for folder in partition_folders(root)
        for name in files_in(folder)
        if kind_of(name) == Kind.LOG
    )


def _segments_in(folder: str) -> dict[str, int]:
    """Returns the logs of a folder, with their inodes."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.name.endswith(LOG_SUFFIX)}
    return {}


class _PartitionCheck:
    """One check of one partition."""

    def __init__(self, verification: Verification, folder: str, checked: Checked, notes: list[str]) -> None:
        self._verification = verification
        self._is_live = verification.is_live
        self._folder = folder
        self._checked = checked
        self._notes = notes
        self._end_offset = 0
        self._epoch_changes: list[EpochChange] = []

    def run(self) -> None:
        """Checks the partition.

        Raises:
            DamageError: the first damage.
            OSError: a file cannot be read.
        """
        self._checked.partitions += 1
        names = files_in(self._folder)
        with os.scandir(self._folder) as entries:
            swapped = {entry.name.removesuffix(SWAP_SUFFIX) for entry in entries if entry.name.endswith(SWAP_SUFFIX)}
        logs = [name for name in names if kind_of(name) == Kind.LOG]
        for name in logs:
            is_active = name == logs[-1]
            self._check_segment(base_offset_of(name), is_active=is_active, needs_indexes=not is_active and name not in swapped)
        for name in names:
            if kind_of(name) in _INDEX_CHECKS and file_name(base_offset_of(name), LOG_SUFFIX) not in logs:
                raise DamageError(self._path(name), "an index without its log")
            if kind_of(name) == Kind.PRODUCERS:
                self._check_producers(name)
        self._check_epochs()
        self._check_metadata()
        self._verification.check_checkpoints(self._folder, self._end_offset)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _check_segment(self, base_offset: int, *, is_active: bool, needs_indexes: bool) -> None:
        # The indexes are opened before the log, so the log has all batches that their entries lead to.
        indexes = self._open_indexes(base_offset, is_active=is_active)
        file = DataFile(self._path(file_name(base_offset, LOG_SUFFIX)))
        self._checked.segments += 1
        if base_offset < self._end_offset:
            reason = f"the segment before it ends at {self._end_offset}"
            raise DamageError(file.path, reason, position=0, offset=base_offset)
        self._end_offset = base_offset
        end_position = 0
        has_writer = is_active and self._is_live
        try:
            for batch in scan(file, base_offset, advance=self._verification.advance, has_writer=has_writer):
                self._check_batch(file, base_offset, batch)
                for index in indexes.values():
                    index.see(batch)
                end_position = batch.place.position + batch.place.size_bytes
        except DamageError as damage:
            if not (damage.is_torn and has_writer):
                raise
            self._notes.append(f"{damage}; a broker is running and may be writing it")
        for index in indexes.values():
            index.finish(end_position, self._end_offset)
            self._checked.index_entries += index.entry_count
        for kind in (Kind.OFFSET_INDEX, Kind.TIME_INDEX):
            if needs_indexes and end_position and kind not in indexes:
                raise DamageError(self._path(file_name(base_offset, f".{kind.value}")), "the index is missing")

    def _open_indexes(self, base_offset: int, *, is_active: bool) -> dict[Kind, IndexCheck]:
        indexes = {}
        for kind, index_check in _INDEX_CHECKS.items():
            path = self._path(file_name(base_offset, f".{kind.value}"))
            try:
                file: DataFile | MissingFile = DataFile(path)
            except FileNotFoundError:
                if kind != Kind.TRANSACTION_INDEX:
                    continue
                file = MissingFile(path)
            indexes[kind] = index_check(file, base_offset, is_active=is_active)
        return indexes

    def _check_batch(self, file: DataFile, base_offset: int, batch: StoredBatch) -> None:
        content = check(file, batch, reads_records=self._verification.reads_records)
        place = batch.place
        if content.first_offset < self._end_offset:
            reason = f"a batch begins at offset {content.first_offset}, but the next offset is {self._end_offset}"
            raise DamageError(file.path, reason, position=place.position, offset=content.first_offset)
        if place.last_offset - base_offset > MOST_RELATIVE_OFFSET:
            reason = f"offset {place.last_offset} is too far from the segment's base"
            raise DamageError(file.path, reason, position=place.position, offset=place.last_offset)
        self._end_offset = place.last_offset + 1
        if place.leader_epoch >= 0 and (not self._epoch_changes or self._epoch_changes[-1].epoch != place.leader_epoch):
            self._epoch_changes.append(EpochChange(place.leader_epoch, place.base_offset, place.position, file.path))
        self._checked.batches += 1
        self._checked.records += content.record_count
        self._checked.log_bytes += place.size_bytes

    # The files beside the segments

    def _check_epochs(self) -> None:
        """Checks that each batch has the leader epoch that the checkpoint has for its offset.

        The checkpoint is read after the batches, so that it has all their epochs.
        """
        path = self._path(EPOCHS_FILE)
        try:
            data = read_whole(path)
        except FileNotFoundError:
            return
        self._checked.other_files += 1
        try:
            epochs = LeaderEpochs.read(data)
            if len(epochs.entries) != len(read_lines(data)):
                raise DamageError(path, "its epochs and offsets do not ascend")
        except MalformedFileError as error:
            raise DamageError(path, str(error)) from None
        latest = -1
        for change in self._epoch_changes:
            known = epochs.at(change.offset)
            if known is not None and known != change.epoch:
                reason = f"a batch has leader epoch {change.epoch}, but {EPOCHS_FILE} has {known}"
                raise DamageError(change.path, reason, position=change.position, offset=change.offset)
            if change.epoch < latest:
                reason = f"a batch of leader epoch {change.epoch} follows a batch of leader epoch {latest}"
                raise DamageError(change.path, reason, position=change.position, offset=change.offset)
            latest = change.epoch

    def _check_producers(self, name: str) -> None:
        path = self._path(name)
        offset = base_offset_of(name)
        try:
            data = read_whole(path)
        except FileNotFoundError:
            # A running broker deletes snapshots together with their segments.
            return
        self._checked.other_files += 1
        producers = Producers(offset)
        try:
            producers.read_snapshot(data, offset)
        except CorruptSnapshotError as error:
            raise DamageError(path, str(error), position=0, offset=offset) from None
        if offset > self._end_offset:
            raise DamageError(path, f"the log ends before {self._end_offset}", offset=offset)
        for producer in producers:
            if producer.last_offset is not None and producer.last_offset >= offset:
                reason = f"producer {producer.producer_id} has last offset {producer.last_offset}, which is after the snapshot"
                raise DamageError(path, reason, offset=producer.last_offset)

    def _check_metadata(self) -> None:
        path = self._path(PARTITION_METADATA)
        with suppress(FileNotFoundError):
            data = read_whole(path)
            self._checked.other_files += 1
            try:
                read_partition_metadata(data)
            except MalformedFileError as error:
                raise DamageError(path, str(error)) from None
