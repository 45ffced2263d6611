"""All logs of a broker: finding them at the start, making and deleting them, closing them.

Theory of operation: at the start each partition's folder becomes a log; after a clean shutdown that takes a few small reads,
after a crash a thread reads what was not flushed. From then on everything happens on the broker's loop; what waits for the
disk, or takes long, is in `wirekafka.log.upkeep`.

Rules of this file:
    A log is known by its name exactly as long as it can be used; its folder is renamed before its name is free.
    What a checkpoint says of a partition that was deleted is taken out before the name is used again.
    A directory is marked clean only if every log in it was closed without an error.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import os
import random
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
from wirekafka.log.cleaner import Cleaner
from wirekafka.log.directory import DataDirectory, DirectoryLockedError
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log, LogServices
from wirekafka.log.producer_state import Producers
from wirekafka.log.recovery import Loaded, Loader
from wirekafka.log.segment import Segment
from wirekafka.log.storage import Folder, HandlePool, Storage
from wirekafka.log.upkeep import Upkeep
from wirekafka.names import TopicPartition

__all__ = ["DirectoryLockedError", "LogManager"]

log = structlog.get_logger(__name__)

_LOADS_A_TURN = 50
"""Logs opened without recovery before others on the loop get their turn."""
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
    """

    def __init__(self, config: BrokerConfig, clock: Clock, storage: Storage) -> None:
        self.cluster_id = ""
        self.directories = [DataDirectory(path, storage) for path in map(os.path.abspath, config.log_dirs)]
        self.storage = storage
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self._config = config
        self._clock = clock
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, DataDirectory] = {}
        self._stale: set[DataDirectory] = set()
        self._upkeep = Upkeep(self, config, clock)
        self._cleaner = Cleaner(self, config, clock)
        self._services = LogServices(
            pool=HandlePool(),
            now_ms=clock.now_ms,
            call_later=clock.call_later,
            random_below=random.randrange,
            request_flush=self._upkeep.request_flush,
            note_start_moved=self._upkeep.request_log_starts,
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
            DirectoryLockedError: another broker holds one of them.
            KafkaError: a directory belongs to another broker or cluster, a partition is in two of them, or one cannot be read.
            OSError: a directory cannot be made or read.

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
        listeners = ", ".join(map(str, self._config.listeners))
        for directory in self.directories:
            directory.lock(f"wirekafka, process {os.getpid()}, started for {listeners}")
        cluster_id = None
        for directory in self.directories:
            directory.load(node_id=self._config.node_id, cluster_id=cluster_id)
            cluster_id = directory.meta.cluster_id
        self.cluster_id = cluster_id or ""

    def announce(self, addresses: str) -> None:
        """Says where this broker listens, for another one that wants its directories."""
        for directory in self.directories:
            with suppress(OSError):
                directory.announce(f"wirekafka, process {os.getpid()}, listening on {addresses}")

    def _unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    async def _load(self, config_of: Callable[[str], LogConfig] | None) -> None:
        default = LogConfig.of(self._config, {})
        started = trio.current_time()
        for directory in self.directories:
            for path in directory.deleted_folders():
                self._remove_folder(Folder(path, self.storage))
            self.cleaner_offsets |= directory.read_checkpoint(CLEANER_OFFSETS)
            checkpoints = {file: directory.read_checkpoint(file) for file in OFFSETS_OF}
            loaders: dict[TopicPartition, tuple[LogConfig, Loader]] = {}
            for name, path in directory.partitions():
                if name in self._home:
                    other = self._home[name].path
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is in {path} and in {other} too")
                self._home[name] = directory
                config = config_of(name.topic) if config_of else default
                loaders[name] = config, self._loader(directory, name, path, config, checkpoints)
            if directory.is_clean:
                await self._load_clean(loaders)
            else:
                await self._recover_all(loaders)
        if self._logs:
            log.info(
                "Opened the logs",
                partitions=len(self._logs),
                recovered=sum(not self._home[name].is_clean for name in self._logs),
                seconds=round(trio.current_time() - started, 2),
            )

    def _loader(
        self,
        directory: DataDirectory,
        name: TopicPartition,
        path: str,
        config: LogConfig,
        checkpoints: dict[str, dict[TopicPartition, int]],
    ) -> Loader:
        return Loader(
            Folder(path, self.storage),
            self._services.pool,
            str(name),
            config.index_interval_bytes,
            self._clock.now_ms(),
            log_start_offset=checkpoints[LOG_START_OFFSETS].get(name, 0),
            recovery_point=checkpoints[RECOVERY_POINTS].get(name, 0),
            is_clean=directory.is_clean,
        )

    async def _load_clean(self, loaders: dict[TopicPartition, tuple[LogConfig, Loader]]) -> None:
        for number, (name, (config, loader)) in enumerate(loaders.items()):
            if number % _LOADS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            self._enter(name, config, loader.folder, _load(loader))

    async def _recover_all(self, loaders: dict[TopicPartition, tuple[LogConfig, Loader]]) -> None:
        limiter = trio.CapacityLimiter(self._config.integer("num.recovery.threads.per.data.dir"))

        async def recover(name: TopicPartition, config: LogConfig, loader: Loader) -> None:
            loaded = await trio.to_thread.run_sync(_load, loader, limiter=limiter)
            self._enter(name, config, loader.folder, loaded)

        try:
            async with trio.open_nursery() as nursery:
                for name, (config, loader) in loaders.items():
                    nursery.start_soon(recover, name, config, loader)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def _enter(self, name: TopicPartition, config: LogConfig, folder: Folder, loaded: Loaded) -> Log:
        # Most logs are not touched soon: a start leaves no files open.
        for segment in loaded.segments:
            segment.close()
        entered = self._logs[name] = Log(name, folder, config, self._services, loaded)
        return entered

    # Finding, making, deleting

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

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

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig) -> Log:
        """Makes a log in the directory with the fewest.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; nothing is left of it.

        Durability: in the page cache; who keeps the list of topics makes it last.
        """
        assert topic_partition not in self._logs, f"{topic_partition} is there already"
        counts = [sum(home is directory for home in self._home.values()) for directory in self.directories]
        directory = self.directories[counts.index(min(counts))]
        folder = Folder(f"{directory.path}/{topic_partition}", self.storage)
        segment = Segment(folder, self._services.pool, 0, created_ms=self._clock.now_ms())
        try:
            self.forget_deleted()
            self.storage.make_folder(folder.path)
            folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
            segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
            segment.close()
        except OSError as error:
            self._remove_folder(folder)
            log.error("Could not make a log", partition=str(topic_partition), error=str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot make {folder.path}: {error.strerror}") from error
        loaded = Loaded([segment], LeaderEpochs(), Producers(0), 0, 0, 0, topic_id)
        self._home[topic_partition] = directory
        return self._enter(topic_partition, config, folder, loaded)

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
        gone.close()
        try:
            gone.folder.move(directory.path_of_deleted(topic_partition))
        except OSError as error:
            log.error("Could not delete a log", partition=str(topic_partition), error=str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot rename {gone.folder.path}: {error.strerror}") from error
        self._clock.call_later(gone.config.file_delete_delay_ms, lambda: self._remove_folder(gone.folder))

    def _remove_folder(self, folder: Folder) -> None:
        with suppress(OSError):
            for name in self.storage.files(folder.path):
                folder.remove(name)
            self.storage.remove_folder(folder.path)

    def forget_deleted(self) -> None:
        """Takes the deleted partitions out of the checkpoints; a new log of their name would inherit what these say.

        Raises:
            OSError: they may still be there.
        """
        for directory in list(self._stale):
            for file in (*OFFSETS_OF, CLEANER_OFFSETS):
                directory.write_checkpoint(file, self.offsets_of(directory, file))
            self._stale.discard(directory)

    def offsets_of(self, directory: DataDirectory, file: str) -> dict[TopicPartition, int]:
        """What a checkpoint is to say now."""
        names = self.in_directory(directory)
        if file == CLEANER_OFFSETS:
            return {name: offset for name, offset in self.cleaner_offsets.items() if name in names}
        offset_of = OFFSETS_OF[file]
        return {name: offset_of(each) for name, each in names.items()}

    # Running and closing

    def start(self, nursery: trio.Nursery) -> None:
        """Starts retention, flushes, checkpoints and compaction."""
        self._upkeep.start(nursery)
        self._cleaner.start(nursery)

    async def close(self) -> None:
        """Closes all logs; nobody may use them any more.

        What cannot be brought to the disk within a second is left to the operating system: the mark of a clean shutdown says
        so, and holds until the machine starts again.

        Durability: everything is on disk or in the page cache, and the directories are marked clean.
        Cancellation: the rest is left to recovery.
        """
        try:
            limiter = trio.CapacityLimiter(_FLUSH_THREADS)
            for directory in self.directories:
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


def _load(loader: Loader) -> Loaded:
    try:
        return loader.load()
    except OSError as error:
        log.error("Could not open a log", partition=loader.name, error=str(error))
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot open {loader.folder.path}: {error}") from error
