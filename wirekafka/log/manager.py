"""All logs of a broker: finding them at the start, making and deleting them, closing them.

Theory of operation: at the start each partition's folder becomes a log; after a clean shutdown that takes a few small reads,
after a crash a thread reads what was not flushed. From then on everything happens on the broker's loop; what waits for the
disk, or takes long, is in `wirekafka.log.maintenance`.

Rules of this file:
    A log is known by its name exactly as long as it can be used; its folder is renamed before its name is free.
    What a checkpoint says of a partition that was deleted is taken out before the name is used again.
    A directory is marked clean only if every log in it was closed without an error.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    write_partition_metadata,
)
from wirekafka.log.compaction.cleaner import Cleaner
from wirekafka.log.context import LogContext
from wirekafka.log.directory import DataDirectory, check_paths_differ, is_lost
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log
from wirekafka.log.maintenance import LogMaintenance
from wirekafka.log.moves import Mover
from wirekafka.log.opening import Opened, choose_copies, open_all
from wirekafka.log.positions import BadBatchError
from wirekafka.log.producer_state import Producers
from wirekafka.log.recovery import TRUNCATES_DAMAGE, Loaded, Loader
from wirekafka.log.segment import Segment
from wirekafka.log.storage import Folder, HandlePool, Storage
from wirekafka.log.stored import StoredLog
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

_FLUSH_SECONDS = 1
"""How long the end waits for the disk."""
_FLUSH_THREADS = 4
"""Threads that wait for the disk at the end; file systems commit what several wait for together."""

OFFSETS_OF: dict[str, Callable[[Log], int]] = {
    RECOVERY_POINTS: lambda each: each.recovery_point,
    LOG_START_OFFSETS: lambda each: each.log_start_offset,
    HIGH_WATERMARKS: lambda each: each.high_watermark,
}


class LogManager:
    """The logs of one broker; `open` finds them.

    Attributes:
        cluster_id: of the cluster that the data belongs to; made up for new data.
        directories: `log.dirs`, in order.
        storage: the file system.
        cleaner_offsets: up to where each compacted log is clean.
        mover: moves logs to other directories.
        on_offline: called with logs that have gone offline.
        all_failed: set once no directory works any more.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, storage: Storage) -> None:
        self.cluster_id = ""
        self.directories = [DataDirectory(path, storage) for path in map(os.path.abspath, config.log_dirs)]
        self.storage = storage
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self.on_offline: list[Callable[[list[Log]], object]] = []
        self.all_failed = trio.Event()
        self._config = config
        self._clock = clock
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, DataDirectory] = {}
        self._stale: set[DataDirectory] = set()
        self._maintenance = LogMaintenance(self, config, clock)
        self._cleaner = Cleaner(self, config, clock)
        self.mover = Mover(self, clock)
        self._services = LogContext(
            pool=HandlePool(),
            now_ms=clock.now_ms,
            call_later=clock.call_later,
            random_below=random.randrange,
            request_flush=self._maintenance.request_flush,
            note_start_moved=self._maintenance.request_log_starts,
            note_disk_error=self._note_log_error,
        )

    # Opening

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        clock: Clock,
        *,
        storage: Storage | None = None,
        config_of: Callable[[str], LogConfig] | None = None,
    ) -> LogManager:
        """Locks the data directories and opens every log in them.

        Args:
            config_of: the settings of a topic; the broker's defaults if not given.

        Raises:
            ConfigError, DirectoryLockedError: two of them are the same; another broker holds one.
            KafkaError: a directory belongs to another broker or cluster, or a partition is in two of them.
            OSError: the first directory, which holds the list of topics, cannot be made or read; others are offline then.

        Cancellation: the directories are unlocked, and what was opened needs recovery.
        """
        manager = cls(config, clock, storage or Storage())
        try:
            manager._lock()
            await manager._load(config_of)
        except BaseException:
            manager._unlock()
            raise
        return manager

    def _lock(self) -> None:
        check_paths_differ(directory.path for directory in self.directories)
        listeners = ", ".join(map(str, self._config.listeners))
        cluster_id = None
        for directory in self.directories:
            try:
                directory.lock(f"wirekafka, process {os.getpid()}, started for {listeners}")
                directory.load(node_id=self._config.node_id, cluster_id=cluster_id)
            except OSError as error:
                if directory is self.directories[0]:
                    raise
                self.fail_directory(directory, error)
                continue
            cluster_id = directory.meta.cluster_id
        self.cluster_id = cluster_id or ""

    def announce(self, addresses: str) -> None:
        """Says where this broker listens, for another one that wants its directories."""
        for directory in self._online():
            with suppress(OSError):
                directory.announce(f"wirekafka, process {os.getpid()}, listening on {addresses}")

    def _unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    async def _load(self, config_of: Callable[[str], LogConfig] | None) -> None:
        default = LogConfig.of(self._config, {})
        started = trio.current_time()
        found: list[Opened] = []
        for directory in self._online():
            try:
                found += self._look_through(directory, config_of or (lambda topic: default))
            except OSError as error:
                self.fail_directory(directory, error)
        await open_all(found, self._config.integer("num.recovery.threads.per.data.dir"))
        chosen, spare = choose_copies(found)
        for each in spare:
            self._discard_copy(each)
        for each in chosen:
            self._home[each.name] = each.directory
            self._enter_opened(each)
        for directory in self._online():
            self.mover.begin_anew(directory)
        if self._logs:
            log.info(
                "Opened the logs",
                partitions=len(self._logs),
                recovered=sum(not each.loader.is_clean for each in chosen),
                seconds=round(trio.current_time() - started, 2),
            )

    def _look_through(self, directory: DataDirectory, config_of: Callable[[str], LogConfig]) -> list[Opened]:
        for path in directory.deleted_folders():
            self.remove_folder(Folder(path, self.storage))
        self.cleaner_offsets |= directory.read_checkpoint(CLEANER_OFFSETS)
        checkpoints = {file: directory.read_checkpoint(file) for file in OFFSETS_OF}
        found = []
        for name, path in directory.partitions():
            config = config_of(name.topic)
            loader = Loader(
                Folder(path, self.storage),
                self._services.pool,
                str(name),
                config.index_interval_bytes,
                self._clock.now_ms(),
                log_start_offset=checkpoints[LOG_START_OFFSETS].get(name, 0),
                recovery_point=checkpoints[RECOVERY_POINTS].get(name, 0),
                is_clean=directory.is_clean,
                has_lost_power=directory.has_lost_power,
                truncates_damage=self._config.boolean(TRUNCATES_DAMAGE),
            )
            found.append(Opened(name, directory, config, loader))
        return found

    def _enter_opened(self, opened: Opened) -> None:
        assert opened.loaded is not None, "it was opened, or could not be"
        folder = opened.loader.folder
        if opened.error is None:
            self._enter(opened.name, opened.config, folder, opened.loaded)
            return
        self._logs[opened.name] = Log.offline(
            opened.name, folder, opened.config, self._services, opened.loaded, str(opened.error)
        )
        self.note_disk_error(opened.directory, opened.error)

    def _discard_copy(self, opened: Opened) -> None:
        """Gets rid of the copy of a partition that is not used; the next start finds one again that cannot be moved away."""
        assert opened.loaded is not None, "only what was opened is a copy"
        for segment in opened.loaded.segments:
            segment.close()
        with suppress(OSError):
            opened.loader.folder.move(opened.directory.path_of_deleted(opened.name))
            self.remove_folder(opened.loader.folder)

    def _enter(self, name: TopicPartition, config: LogConfig, folder: Folder, loaded: Loaded) -> Log:
        # Most logs are not touched soon: a start leaves no files open.
        for segment in loaded.segments:
            segment.close()
        entered = self._logs[name] = Log(name, folder, config, self._services, loaded)
        return entered

    # Directories that fail

    @property
    def is_complete(self) -> bool:
        """Whether all directories work, so that a partition that is not here is nowhere."""
        return all(directory.offline_reason is None for directory in self.directories)

    def _online(self) -> list[DataDirectory]:
        return [directory for directory in self.directories if directory.offline_reason is None]

    def note_disk_error(self, directory: DataDirectory, error: OSError) -> None:
        """The file system has refused something in a directory: it may mean the whole of it."""
        if directory.offline_reason is None and is_lost(directory.path, error):
            self.fail_directory(directory, error)

    def fail_directory(self, directory: DataDirectory, error: OSError) -> None:
        """Takes a directory and all its partitions offline, until the broker starts again.

        Source: KIP-112; ReplicaManager.handleLogDirFailure.
        """
        directory.offline_reason = f"{directory.path} has failed: {error.strerror or error}"
        gone = list(self.in_directory(directory).values())
        log.error(
            "A data directory has failed: its partitions are offline until it is repaired and the broker started again",
            path=directory.path,
            partitions=len(gone),
            error=str(error),
        )
        for each in gone:
            each.take_offline(directory.offline_reason)
        self._tell_offline(gone)
        if not self._online():
            log.critical("All data directories have failed: the broker stops", paths=self._config.log_dirs)
            self.all_failed.set()

    def _note_log_error(self, each: StoredLog, error: OSError) -> None:
        if self._logs.get(each.topic_partition) is not each:
            return
        self.note_disk_error(self._home[each.topic_partition], error)
        if isinstance(error, BadBatchError):
            self._tell_offline([each])

    def _tell_offline(self, gone: list[Log]) -> None:
        """Tells it to who wants to know, once whatever is in the midst of a request is done with it."""

        def tell() -> None:
            for callback in self.on_offline:
                callback(gone)

        self._clock.call_later(0, tell)

    # Finding, making, deleting

    def __iter__(self) -> Iterator[Log]:
        """Those that are online."""
        return iter([each for each in self._logs.values() if each.offline_reason is None])

    def __len__(self) -> int:
        return len(self._logs)

    def discover(self) -> list[tuple[TopicPartition, bytes | None]]:
        """The partitions that there are, with the topic ids that their folders name, in order."""
        return sorted((name, each.topic_id) for name, each in self._logs.items())

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log of this name."""
        return self._logs.get(topic_partition)

    def home_of(self, each: Log) -> DataDirectory:
        """The data directory that a log is in."""
        return self._home[each.topic_partition]

    def in_directory(self, directory: DataDirectory) -> dict[TopicPartition, Log]:
        """The logs that are in one of the data directories."""
        return {name: each for name, each in self._logs.items() if self._home[name] is directory}

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, *, is_new: bool = True) -> Log:
        """Makes a log in the directory with the fewest, those to come among them; in the next one, if that directory fails.

        Args:
            is_new: there never was a log of this partition. If there may have been one, and a directory is offline, it is
                taken to be there: the log that is returned is offline then.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; nothing is left of it.

        Durability: in the page cache; who keeps the list of topics makes it last.

        Source: LogManager.nextLogDirs, getOrCreateLog.
        """
        assert topic_partition not in self._logs, f"{topic_partition} is there already"
        if not is_new and not self.is_complete:
            return self._enter_missing(topic_partition, topic_id, config)
        while True:
            directory = self._next_directory()
            folder = Folder(f"{directory.path}/{topic_partition}", self.storage)
            try:
                segment = self._make_files(folder, topic_id, config)
                break
            except OSError as error:
                self.remove_folder(folder)
                log.error("Could not make a log", partition=str(topic_partition), error=str(error))
                self.note_disk_error(directory, error)
                if directory.offline_reason is None:
                    message = f"cannot make {folder.path}: {error.strerror}"
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        loaded = Loaded([segment], LeaderEpochs(), Producers(0), 0, 0, 0, topic_id)
        self._home[topic_partition] = directory
        return self._enter(topic_partition, config, folder, loaded)

    def _next_directory(self) -> DataDirectory:
        online = self._online()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all data directories have failed")
        counts = Counter(self._home.values()) + Counter(move.target for move in self.mover.moves.values())
        return min(online, key=counts.__getitem__)

    def _make_files(self, folder: Folder, topic_id: bytes, config: LogConfig) -> Segment:
        self.forget_deleted()
        folder.make()
        folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
        segment = Segment(folder, self._services.pool, 0, created_ms=self._clock.now_ms())
        segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        segment.close()
        return segment

    def _enter_missing(self, name: TopicPartition, topic_id: bytes, config: LogConfig) -> Log:
        directory = next(each for each in self.directories if each.offline_reason is not None)
        log.error("A partition is offline: its folder is not in any directory that works", partition=str(name))
        folder = Folder(f"{directory.path}/{name}", self.storage)
        left = Loaded([], LeaderEpochs(), Producers(0), 0, 0, 0, topic_id)
        self._home[name] = directory
        self._logs[name] = Log.offline(name, folder, config, self._services, left, directory.offline_reason or "")
        return self._logs[name]

    def delete(self, topic_partition: TopicPartition) -> None:
        """Deletes a log: its name is free at once, its files go after `file.delete.delay.ms`.

        What is being sent is sent to its end.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; it is closed, and comes back with the next start.
        """
        gone = self._logs.pop(topic_partition)
        directory = self._home.pop(topic_partition)
        self.cleaner_offsets.pop(topic_partition, None)
        self._stale.add(directory)
        self.mover.give_up(topic_partition)
        gone.close()
        try:
            gone.folder.move(directory.path_of_deleted(topic_partition))
        except OSError as error:
            log.error("Could not delete a log", partition=str(topic_partition), error=str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot rename {gone.folder.path}: {error.strerror}") from error
        self._clock.call_later(gone.config.file_delete_delay_ms, lambda: self.remove_folder(gone.folder))

    def remove_folder(self, folder: Folder) -> None:
        """Removes a partition's folder, as far as the disk lets it."""
        with suppress(OSError):
            for name in self.storage.files(folder.path):
                folder.remove(name)
            self.storage.remove_folder(folder.path)

    def forget_deleted(self) -> None:
        """Takes the deleted partitions out of the checkpoints; a new log of their name would inherit what these say.

        Raises:
            OSError: they may still be there.
        """
        for directory in self._stale.intersection(self._online()):
            for file in (*OFFSETS_OF, CLEANER_OFFSETS):
                directory.write_checkpoint(file, self.offsets_of(directory, file))
            self._stale.discard(directory)

    def sync_directories(self) -> None:
        """Brings the names of all folders to the disk: what was deleted stays so, even if its folder does not say whose it is."""
        for directory in self._online():
            try:
                self.storage.sync_folder(directory.path)
            except OSError as error:
                log.error("Could not sync a data directory", path=directory.path, error=str(error))
                self.note_disk_error(directory, error)

    def offsets_of(self, directory: DataDirectory, file: str) -> dict[TopicPartition, int]:
        """What a checkpoint is to say now."""
        names = self.in_directory(directory)
        names |= {name: move.log for name, move in self.mover.moves.items() if move.target is directory}
        if file == CLEANER_OFFSETS:
            return {name: offset for name, offset in self.cleaner_offsets.items() if name in names}
        offset_of = OFFSETS_OF[file]
        return {name: offset_of(each) for name, each in names.items()}

    def rehome(self, each: Log, directory: DataDirectory) -> DataDirectory:
        """A log is in this directory from now on; returns the one that it was in."""
        former = self._home[each.topic_partition]
        self._home[each.topic_partition] = directory
        self._stale.add(former)
        self._maintenance.request_log_starts()
        return former

    def note_stale(self, directory: DataDirectory) -> None:
        """The checkpoints of a directory name a log that is not there."""
        self._stale.add(directory)

    # Running and closing

    def start(self, nursery: trio.Nursery) -> None:
        """Starts retention, flushes, checkpoints, compaction and moves."""
        self._maintenance.start(nursery)
        self._cleaner.start(nursery)
        self.mover.start(nursery)

    async def close(self) -> None:
        """Closes all logs; nobody may use them any more.

        What cannot be brought to the disk within a second is left to the operating system: the mark of a clean shutdown says
        so, and holds until the machine starts again.

        Durability: everything is on disk or in the page cache, and the directories are marked clean.
        Cancellation: the rest is left to recovery.
        """
        try:
            limiter = trio.CapacityLimiter(_FLUSH_THREADS)
            for directory in self._online():
                await self._close_directory(directory, limiter)
        finally:
            for each in self:
                each.close()
            self._unlock()

    async def _close_directory(self, directory: DataDirectory, limiter: trio.CapacityLimiter) -> None:
        flushes: list[tuple[Log, Flush]] = []
        is_closed = True
        for each in self.in_directory(directory).values():
            try:
                flushes.append((each, each.prepare_close()))
            except KafkaError:
                is_closed = False
        with trio.move_on_after(_FLUSH_SECONDS):
            async with trio.open_nursery() as nursery:
                for each, flush in flushes:
                    nursery.start_soon(_finish, each, flush, limiter)
        try:
            for file in OFFSETS_OF:
                directory.write_checkpoint(file, self.offsets_of(directory, file))
            if is_closed:
                is_on_disk = all(each.recovery_point == each.log_end_offset for each, _ in flushes)
                directory.mark_clean(is_on_disk=is_on_disk)
        except OSError as error:
            log.error("Could not mark a directory as closed", path=directory.path, error=str(error))


async def _finish(each: Log, flush: Flush, limiter: trio.CapacityLimiter) -> None:
    """Runs the last flush of a log."""
    try:
        if not flush.is_empty:
            await trio.to_thread.run_sync(flush.run, limiter=limiter)
        each.complete_flush(flush)
    except OSError as error:
        each.fail_flush(error)
