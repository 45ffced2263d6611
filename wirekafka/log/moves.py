"""Moves the log of a partition to another data directory while clients use it.

How it works: a thread copies the log into a folder whose name ends in `-future`, and syncs the copy. Meanwhile the log grows,
rolls and loses segments, so the differences are copied again, until few bytes are missing. The loop copies these bytes, during
which no append can run. Then the future folder gets the name of the partition's folder, the log uses it, and the former folder
becomes a deleted folder.

Rules of this file:
    Copied segments are known by their `Segment` objects and not by file names, because compaction reuses the names.
    Data that was on the disk in the former folder is on the disk in the new folder before the new folder gets its name.
    After a crash, one of three states remains: the former folder and a future folder, which the next start deletes before it
    begins the move again; two folders with the partition's name and the same content, of which the next start keeps one; or the
    new folder alone.

Source: KIP-113; kafka.log.LogManager.replaceCurrentWithFutureLog, kafka.server.ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.catalog import LogCatalog
from wirekafka.log.checkpoint import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, PARTITION_METADATA, RECOVERY_POINTS
from wirekafka.log.directory import FUTURE_FOLDER_SUFFIX, DataDirectory
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.log import Log
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import INDEX_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, file_name
from wirekafka.log.storage import FileHandle, Folder
from wirekafka.log.transaction_index import SUFFIX as TRANSACTION_INDEX_SUFFIX
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_CHUNK = 1 << 20
_LAST_BYTES = 256 << 10
"""The most bytes that the loop copies at the end of a move, in a few milliseconds."""
_MOST_FAILED_PASSES = 10
"""The most passes of a move that may fail because a segment's file is missing. Retention and compaction remove files, but not in
every pass."""
_LONGEST_NAME = 255
_GAVE_UP = "Gave up moving a partition to another data directory"
_FAILED = "The move of a partition to another data directory failed; the partition stays in its present directory"
_FAILED_REMEDY = "Check the disks of both directories, then request the move again"
_SNAPSHOT = re.compile(rf"[0-9]{{20}}{re.escape(SNAPSHOT_SUFFIX)}")


class _Part(NamedTuple):
    segment: Segment
    size: int
    is_sealed: bool


class Move:
    """The move of one log.

    Attributes:
        log: the log, which clients use during the move.
        source, target: the directories.
        copied_bytes: the bytes of batches that are copied so far.
        copied_end_offset: the records before this offset are copied.
        suspect: the directory to blame if an error occurs now.
        is_given_up: the move was cancelled; the thread stops at the next chunk.
    """

    def __init__(self, moved: Log, source: DataDirectory, target: DataDirectory) -> None:
        self.log = moved
        self.source = source
        self.target = target
        self.copied_bytes = 0
        self.copied_end_offset = moved.reader.log_start_offset
        self.suspect = target
        self.is_given_up = False
        self.folder = Folder(f"{target.path}/{future_name(str(moved.topic_partition))}", target.storage)
        self._storage = target.storage
        self._copied: dict[Segment, int] = {}
        self._indexed: set[Segment] = set()
        self._other_files: set[str] = set()
        self._failed_passes = 0
        self._truncation_count = moved.reader.truncation_count

    @property
    def _is_outdated(self) -> bool:
        """Whether the log was truncated since the last plan, so that copied bytes may differ from the log's."""
        return self._truncation_count != self.log.reader.truncation_count

    def plan(self) -> tuple[list[_Part], int]:
        """Returns the parts that must be copied now, and the log end offset that the copy then has.

        Raises:
            OSError: files of compacted segments cannot get their final names.
        """
        self.log.reader.segments.finish_swap()
        if self._is_outdated:
            self._begin_again()
        active = self.log.reader.segments.active
        parts = [_Part(segment, segment.size, segment is not active) for segment in self.log.reader.segments]
        return parts, self.log.reader.log_end_offset

    def _begin_again(self) -> None:
        self._truncation_count = self.log.reader.truncation_count
        self.copied_end_offset = self.log.reader.log_start_offset
        self._copied.clear()
        self._indexed.clear()
        self._other_files.clear()

    def copy(self, parts: list[_Part], end_offset: int) -> None:
        """Copies the parts, and syncs the copies. Runs in a thread.

        Raises:
            OSError: a file cannot be read or written.
            trio.Cancelled: the broker stops.
        """
        self.folder.make()
        is_whole = True
        for part in parts:
            try:
                self._copy_segment(part)
            except FileNotFoundError:
                is_whole = False
            if self.is_given_up:
                return
            if is_whole:
                self.copied_end_offset = max(self.copied_end_offset, part.segment.base_offset)
        for name in self._wanted_files() - self._other_files:
            self._copy_file(name)
            self._other_files.add(name)
        self.folder.sync()
        if is_whole:
            self.copied_end_offset = end_offset
            return
        self._failed_passes += 1
        if self._failed_passes > _MOST_FAILED_PASSES:
            raise OSError(f"files of {self.log.reader.folder.path} are missing")

    def _copy_segment(self, part: _Part) -> None:
        segment = part.segment
        done = self._copied.get(segment, 0)
        if done > part.size:
            done = 0
        if done < part.size or segment not in self._copied:
            self._copy_bytes(segment.log_name, done, part.size, is_synced=True)
            self._copied[segment] = part.size if not self.is_given_up else done
        if part.is_sealed and segment not in self._indexed:
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                self._copy_file(file_name(segment.base_offset, suffix))
            self._indexed.add(segment)

    def _copy_bytes(self, name: str, start: int, end: int, *, is_synced: bool) -> None:
        storage = self._storage
        source = self._from_source(lambda: FileHandle(storage.open(self.log.reader.folder.path_of(name)), storage.close))
        target = self.folder.open(name, create=True)
        storage.truncate(target.fd, start)
        position = start
        while position < end and not self.is_given_up:
            self.suspect = self.source
            data = storage.read(source.fd, min(_CHUNK, end - position), position)
            self.suspect = self.target
            if not data and self._is_outdated:
                raise FileNotFoundError(f"{name} was truncated; the next pass copies it again")
            if not data:
                raise OSError(f"{self.log.reader.folder.path_of(name)} is shorter than it was")
            self.folder.ledger.note_written(name)
            storage.write(target.fd, data, position)
            position += len(data)
            self.copied_bytes += len(data)
            if is_synced:
                trio.from_thread.check_cancelled()
        if is_synced:
            self.folder.sync_file(name, target)

    def _copy_file(self, name: str) -> None:
        """Copies a small file. If the file does not exist, it is removed from the copy."""
        data = self._from_source(lambda: self.log.reader.folder.read_file(name))
        if data is not None:
            self.folder.write_file(name, data, sync=True)
        else:
            # Compaction has removed the file since an earlier pass copied it.
            self.folder.remove(name)

    def _wanted_files(self) -> set[str]:
        """Returns the names of the files beside the segments that are copied unchanged."""
        names = self._from_source(lambda: self._storage.files(self.log.reader.folder.path))
        return {name for name in names if name == PARTITION_METADATA or _SNAPSHOT.fullmatch(name)}

    def _from_source(self, read: Callable[[], _T]) -> _T:
        self.suspect = self.source
        found = read()
        self.suspect = self.target
        return found

    # The last step, on the loop

    def is_nearly_done(self) -> bool:
        """Whether so few bytes are missing that the loop may copy them.

        Raises:
            OSError: the folder cannot be read.
        """
        if self._is_outdated:
            return False
        missing = 0
        active = self.log.reader.segments.active
        for segment in self.log.reader.segments:
            copied = self._copied.get(segment)
            if copied is None or copied > segment.size or (segment is not active and segment not in self._indexed):
                return False
            missing += segment.size - copied
        return missing <= _LAST_BYTES and not self._wanted_files() - self._other_files

    def finish(self) -> Folder:
        """Copies the rest, and makes the log use the new folder; returns the former folder.

        Raises:
            OSError: the log still uses the former folder.

        Durability: all data that was on the disk before is on the disk in the new folder.
        """
        moved, folder = self.log, self.folder
        moved.reader.segments.finish_swap()
        active = moved.reader.segments.active
        synced_offset = self.copied_end_offset
        for segment in moved.reader.segments:
            copied = self._copied[segment]
            if copied < segment.size:
                self._copy_bytes(segment.log_name, copied, segment.size, is_synced=False)
        self._copy_file(active.transaction_index.name)
        if moved.reader.epochs.entries:
            folder.write_file(EPOCHS_FILE, moved.reader.epochs.write(), sync=True)
        if moved.flusher.recovery_point > synced_offset:
            folder.sync_file(active.log_name, folder.open(active.log_name))
            synced_offset = moved.reader.log_end_offset
        self._remove_others()
        folder.sync()
        folder.move(f"{self.target.path}/{moved.topic_partition}")
        try:
            folder.sync()
        except OSError:
            with suppress(OSError):
                folder.move(f"{self.target.path}/{future_name(str(moved.topic_partition))}")
            raise
        return moved.relocate(folder, synced_offset)

    def _remove_others(self) -> None:
        """Removes copies of files that no longer belong to the log."""
        kept = self._wanted_files() | {EPOCHS_FILE}
        kept.update(file_name(segment.base_offset, suffix) for segment in self.log.reader.segments for suffix in SEGMENT_SUFFIXES)
        active = self.log.reader.segments.active
        kept.difference_update(file_name(active.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        for name in self._storage.files(self.folder.path):
            if name not in kept:
                self.folder.remove(name)


class Mover:
    """Moves logs between the data directories of a broker, at most as many at once as the broker has directories.

    Args:
        request_log_starts: requests a checkpoint of the log start offsets soon.

    Attributes:
        moves: the current moves, by partition.
    """

    def __init__(self, logs: LogCatalog, clock: Clock, request_log_starts: Callable[[], object]) -> None:
        self.moves: dict[TopicPartition, Move] = {}
        self._logs = logs
        self._clock = clock
        self._request_log_starts = request_log_starts
        self._send, self._receive = trio.open_memory_channel[Move](math.inf)

    def start(self, nursery: trio.Nursery) -> None:
        """Starts the tasks."""
        for _ in self._logs.directories:
            nursery.start_soon(self._run)

    def begin(self, topic_partition: TopicPartition, path: str) -> None:
        """Begins to move a log to another directory while clients use it; a move of the log to another directory is cancelled.

        Raises:
            KafkaError: LOG_DIR_NOT_FOUND; UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR, a directory or the log is offline;
                INVALID_TOPIC_EXCEPTION, the topic's name is too long.

        Source: ReplicaManager.alterReplicaLogDirs.
        """
        logs, target = self._logs, self.find_directory(path)
        moved = logs.get(topic_partition)
        if moved is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        reason = target.offline_reason or moved.reader.offline_reason
        if reason:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        current = self.moves.get(topic_partition)
        if current is not None and current.target is target:
            return
        self.give_up(topic_partition)
        source = logs.home_of(moved)
        if source is target:
            return
        if not logs.is_complete:
            # The directory that is offline may hold a copy already.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "partitions cannot be moved while a data directory is offline")
        move = self.moves[topic_partition] = Move(moved, source, target)
        logs.expect(topic_partition, target)
        self._send.send_nowait(move)
        log.info("Moving a partition", partition=str(topic_partition), path=target.path, bytes=moved.reader.size_bytes)

    def find_directory(self, path: str) -> DataDirectory:
        """Returns the directory with this path.

        Raises:
            KafkaError: LOG_DIR_NOT_FOUND.
        """
        path = os.path.normpath(path)
        for directory in self._logs.directories:
            if directory.path == path:
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs")

    def begin_anew(self, directory: DataDirectory) -> None:
        """Begins the moves to a directory again that the last broker did not complete."""
        try:
            for name, path in directory.future_folders():
                if self._logs.get(name) is None:
                    log.warning(
                        "Ignored an unfinished copy of a partition that this broker does not have",
                        path=path,
                        partition=str(name),
                        remedy="Delete the folder, unless you need the records in it",
                    )
                    continue
                Folder(path, directory.storage).delete()
                with suppress(KafkaError):
                    self.begin(name, directory.path)
        except OSError as error:
            self._logs.note_disk_error(directory, error)

    def give_up(self, topic_partition: TopicPartition) -> None:
        """Cancels the move of a log, if there is one; the thread notices that, and then the copy is removed."""
        move = self.moves.pop(topic_partition, None)
        if move is not None:
            move.is_given_up = True
            self._logs.expect_no_more(topic_partition)

    def complete(self, move: Move, former: Folder) -> None:
        """Deletes the former folder of a log that has moved."""
        name = move.log.topic_partition
        del self.moves[name]
        source = self._logs.rehome(move.log, move.target)
        self._request_log_starts()
        try:
            former.move(source.path_of_deleted(name))
        except OSError as error:
            # The next start finds two copies, and keeps the longer one.
            log.error("Could not delete the former folder of a partition", path=former.path, error=str(error))
            self._logs.note_disk_error(source, error)
            return
        self._clock.call_later(move.log.reader.config.file_delete_delay_ms, former.delete)

    async def _run(self) -> None:
        async for move in self._receive:
            name = move.log.topic_partition
            with isolate(_FAILED, partition=str(name), path=move.target.path) as fault:
                await self._make(move)
            if fault.error is not None and self.moves.get(name) is move:
                self.give_up(name)
                move.folder.delete()

    async def _make(self, move: Move) -> None:
        """Runs one move.

        Cancellation: the next start of the broker begins the move again.
        """
        name = str(move.log.topic_partition)
        started = trio.current_time()
        try:
            while self._is_wanted(move):
                await trio.to_thread.run_sync(move.copy, *move.plan())
                await self._write_checkpoints(move.target)
                if self._is_wanted(move) and move.is_nearly_done():
                    self.complete(move, move.finish())
                    seconds = round(trio.current_time() - started, 2)
                    log.info("Moved a partition", partition=name, path=move.target.path, bytes=move.copied_bytes, seconds=seconds)
                    await self._forget_former_place(move)
                    return
            log.info(_GAVE_UP, partition=name, path=move.target.path)
        except OSError as error:
            if move.is_given_up:
                # The topic was deleted, or the move was cancelled: files of either folder may be missing.
                log.info(_GAVE_UP, partition=name, path=move.target.path)
            else:
                log.error(_FAILED, partition=name, path=move.target.path, error=str(error), remedy=_FAILED_REMEDY)
                self._logs.note_disk_error(move.suspect, error)
        if self.moves.get(move.log.topic_partition) is move:
            self.give_up(move.log.topic_partition)
        move.folder.delete()

    def _is_wanted(self, move: Move) -> bool:
        return not move.is_given_up and move.log.reader.offline_reason is None and move.target.offline_reason is None

    async def _forget_former_place(self, move: Move) -> None:
        """Removes the partition from the checkpoints of its former directory, which name its folder there."""
        try:
            await self._write_checkpoints(move.source)
        except OSError as error:
            log.error("Could not write a checkpoint", path=move.source.path, error=str(error))
            self._logs.note_disk_error(move.source, error)

    async def _write_checkpoints(self, directory: DataDirectory) -> None:
        """Writes the checkpoints of a directory, for its logs and for the logs that move to it.

        After a crash, the offsets of a moving log are valid as soon as its new folder has its name.
        """
        for file in (LOG_START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS):
            offsets = self._logs.offsets_of(directory, file)
            await trio.to_thread.run_sync(directory.checkpoint(file, offsets))


def future_name(partition: str) -> str:
    """Returns a unique name for the future folder of a partition; no partition's folder has such a name.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, the topic's name is too long for it.

    Source: LocalLog.logFutureDirName; KAFKA-4893.
    """
    name = f"{partition}.{uuid.uuid4().hex}{FUTURE_FOLDER_SUFFIX}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    return name
