"""All logs of a broker: opens them at the start, creates and deletes them, and closes them.

How it works: the start opens a log for each partition's folder. After a clean shutdown this takes a few small reads; after
a crash a thread reads the batches that were not flushed. Afterwards everything runs on the broker's loop, except the work in
`wirekafka.log.maintenance` that waits for the disk or takes long.

Rules of this file:
    `get` returns only usable logs. The folder of a deleted log is renamed before its name can be used again.
    The offsets of a deleted partition are removed from the checkpoints before the name can be used again.
    A directory is marked clean only if every log in it was closed without an error.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.catalog import OFFSETS_OF, LogCatalog
from wirekafka.log.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    write_partition_metadata,
)
from wirekafka.log.closing import close_logs
from wirekafka.log.compaction.cleaner import Cleaner
from wirekafka.log.context import HasPartition, LogContext
from wirekafka.log.directory import DataDirectory, check_paths_differ
from wirekafka.log.log import Log
from wirekafka.log.maintenance import LogMaintenance
from wirekafka.log.meta_properties import MetaPropertiesVersion
from wirekafka.log.moves import Mover
from wirekafka.log.opening import Opened, choose_copies, open_all
from wirekafka.log.recovery import TRUNCATES_DAMAGE, Loaded, Loader
from wirekafka.log.segment import Segment
from wirekafka.log.storage import Folder, HandlePool, Storage
from wirekafka.log.strays import REMEDY, find_strays
from wirekafka.names import ZERO_TOPIC_ID, TopicPartition
from wirekafka.pending import Work

log = structlog.get_logger(__name__)

_RECOVERS = "The next start recovers the partition. Report this with the traceback"


class LogManager:
    """The logs of one broker; `open` finds them.

    Attributes:
        cluster_id: the id of the cluster that the data belongs to; random for new data.
        storage: the file system.
        catalog: the logs, and the directory of each log.
        mover: moves logs to other directories.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, storage: Storage) -> None:
        self.cluster_id = ""
        self.storage = storage
        directories = [DataDirectory(path, storage) for path in map(os.path.abspath, config.log_dirs)]
        self.catalog = catalog = LogCatalog(directories, clock)
        self._config = config
        self._clock = clock
        self._maintenance = LogMaintenance(catalog, config, clock)
        self._cleaner = Cleaner(catalog, config, clock)
        self.mover = Mover(catalog, clock, self._maintenance.request_log_starts)
        self._unrenamed: dict[TopicPartition, tuple[Log, DataDirectory]] = {}
        """The deleted logs whose folders could not be renamed, with their directories. The folders still have their names."""
        self._services = LogContext(
            pool=HandlePool(),
            now_ms=clock.now_ms,
            call_later=clock.call_later,
            random_below=random.randrange,
            request_flush=self._maintenance.request_flush,
            note_start_moved=self._maintenance.request_log_starts,
            store_offsets=catalog.store_offsets,
            note_truncated=catalog.note_truncated,
            note_disk_error=catalog.note_log_error,
        )

    # What the catalog knows

    @property
    def directories(self) -> list[DataDirectory]:
        """`log.dirs`, in order."""
        return self.catalog.directories

    @property
    def is_complete(self) -> bool:
        """Whether all directories work. If so, a partition without a log does not exist."""
        return self.catalog.is_complete

    @property
    def all_failed(self) -> trio.Event:
        """Set once all directories have failed."""
        return self.catalog.all_failed

    @property
    def on_offline(self) -> list[Callable[[list[Log]], object]]:
        """Callbacks that get the logs that have gone offline."""
        return self.catalog.on_offline

    def __iter__(self) -> Iterator[Log]:
        """Yields the logs that are online."""
        return iter(self.catalog)

    def __len__(self) -> int:
        return len(self.catalog)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the log of this partition; None if there is none."""
        return self.catalog.get(topic_partition)

    def home_of(self, found: HasPartition) -> DataDirectory:
        """Returns the data directory of a log."""
        return self.catalog.home_of(found)

    def discover(self) -> list[tuple[TopicPartition, bytes | None]]:
        """Returns all partitions with the topic ids that their folders name, in order."""
        return sorted((name, found.reader.topic_id) for name, found in self.catalog.items())

    # Opening

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        clock: Clock,
        *,
        storage: Storage | None = None,
        config_of: Callable[[str], LogConfig] | None = None,
        cluster_id: str | None = None,
    ) -> LogManager:
        """Locks the data directories and opens every log in them.

        Args:
            config_of: the settings of a topic; the broker's defaults if not given.
            cluster_id: the id of the cluster with ZooKeeper of which this broker is a member. The directories of a member have
                `meta.properties` of version 0, and its high watermarks come from the checkpoints. None for a broker without
                ZooKeeper, whose records are all committed.

        Raises:
            ConfigError, DirectoryLockedError: two directories are the same; another broker holds one of them.
            KafkaError: a directory belongs to another broker or cluster, or a partition is in two of them.
            OSError: the first directory, which holds the list of topics, cannot be created or read; other directories go offline.

        Cancellation: the directories are unlocked, and what was opened needs recovery.
        """
        manager = cls(config, clock, storage or Storage())
        try:
            manager._lock(cluster_id)
            await manager._load(config_of, is_member=cluster_id is not None)
        except BaseException:
            manager._unlock()
            raise
        return manager

    def _lock(self, cluster_id: str | None) -> None:
        version = MetaPropertiesVersion.V1 if cluster_id is None else MetaPropertiesVersion.V0
        check_paths_differ(directory.path for directory in self.directories)
        listeners = ", ".join(map(str, self._config.listeners))
        for directory in self.directories:
            try:
                directory.lock(f"wirekafka, process {os.getpid()}, started for {listeners}")
                directory.load(node_id=self._config.node_id, cluster_id=cluster_id, version=version)
            except OSError as error:
                if directory is self.directories[0]:
                    raise
                self.catalog.fail_directory(directory, error)
                continue
            cluster_id = directory.meta.cluster_id
        self.cluster_id = cluster_id or ""

    def announce(self, addresses: str) -> None:
        """Writes the broker's addresses to the lock files, for the error message of another broker on the same directories."""
        for directory in self.catalog.online_directories():
            with suppress(OSError):
                directory.announce(f"wirekafka, process {os.getpid()}, listening on {addresses}")

    def _unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    async def _load(self, config_of: Callable[[str], LogConfig] | None, *, is_member: bool) -> None:
        default = LogConfig.of(self._config, {})
        started = trio.current_time()
        found: list[Opened] = []
        for directory in self.catalog.online_directories():
            try:
                found += self._look_through(directory, config_of or (lambda topic: default), is_member=is_member)
            except OSError as error:
                self.catalog.fail_directory(directory, error)
        await open_all(found, self._config.integer("num.recovery.threads.per.data.dir"))
        chosen, spare = choose_copies(found)
        for each in spare:
            self._discard_copy(each)
        for each in chosen:
            self._enter_opened(each)
        for directory in self.catalog.online_directories():
            with isolate("Could not continue the moves to a data directory", path=directory.path):
                self.mover.begin_anew(directory)
        if len(self):
            log.info(
                "Opened the logs",
                partitions=len(self),
                recovered=sum(not each.loader.is_clean for each in chosen),
                seconds=round(trio.current_time() - started, 2),
            )

    def _look_through(self, directory: DataDirectory, config_of: Callable[[str], LogConfig], *, is_member: bool) -> list[Opened]:
        for path in directory.deleted_folders():
            Folder(path, self.storage).delete()
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
                high_watermark=checkpoints[HIGH_WATERMARKS].get(name, 0) if is_member else None,
                is_clean=directory.is_clean,
                is_on_disk=directory.is_on_disk,
                has_lost_power=directory.has_lost_power,
                truncates_damage=self._config.boolean(TRUNCATES_DAMAGE),
            )
            found.append(Opened(name, directory, config, loader))
        names = {each.name for each in found}
        cleaner_offsets = directory.read_checkpoint(CLEANER_OFFSETS)
        self.catalog.cleaner_offsets |= {name: offset for name, offset in cleaner_offsets.items() if name in names}
        if any(checkpoint.keys() - names for checkpoint in (*checkpoints.values(), cleaner_offsets)):
            self.catalog.note_stale(directory)
        return found

    def _enter_opened(self, opened: Opened) -> None:
        assert opened.loaded is not None, "opening returned a result"
        folder = opened.loader.folder
        if opened.error is None:
            self._enter(opened.name, opened.directory, opened.config, folder, opened.loaded)
            return
        offline = Log.offline(opened.name, folder, opened.config, self._services, opened.loaded, str(opened.error))
        self.catalog.add(offline, opened.directory)
        if isinstance(opened.error, OSError):
            self.catalog.note_disk_error(opened.directory, opened.error)

    def _discard_copy(self, opened: Opened) -> None:
        """Deletes an unused copy of a partition. If the rename fails, the next start finds the copy again."""
        assert opened.loaded is not None, "only an opened folder is a copy"
        for segment in opened.loaded.segments:
            segment.close()
        with suppress(OSError):
            opened.loader.folder.move(opened.directory.path_of_deleted(opened.name))
            opened.loader.folder.delete()

    def _enter(self, name: TopicPartition, directory: DataDirectory, config: LogConfig, folder: Folder, loaded: Loaded) -> Log:
        # Most logs are not used soon, so a start leaves no files open.
        for segment in loaded.segments:
            segment.close()
        entered = Log(name, folder, config, self._services, loaded)
        self.catalog.add(entered, directory)
        return entered

    # Creating and deleting

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, *, is_new: bool = True) -> Log:
        """Creates a log in the directory with the fewest logs, moves to the directory included, or in the next if it fails.

        If the folder of a deleted log still has the name, it is renamed first, so that the new log does not get its files. A
        folder in a directory that is offline is left alone.

        Args:
            topic_id: zero if the topic has none; then the folder names none (a controller before Kafka 2.8).
            is_new: the partition never had a log. If it may have had one, and a directory is offline, the log may be in that
                directory: the returned log is offline then.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; no files remain.

        Durability: in the page cache; the owner of the list of topics syncs the folder.

        Source: LogManager.getOrCreateLog.
        """
        if not is_new and not self.is_complete:
            return self._enter_missing(topic_partition, topic_id, config)
        self._free_name(topic_partition)
        while True:
            directory = self.catalog.next_directory()
            folder = Folder(f"{directory.path}/{topic_partition}", self.storage)
            try:
                segment = self._make_files(folder, topic_id, config)
                break
            except OSError as error:
                folder.delete()
                log.error("Could not create a log", partition=str(topic_partition), error=str(error))
                self.catalog.note_disk_error(directory, error)
                if directory.offline_reason is None:
                    message = f"cannot make {folder.path}: {error.strerror}"
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        loaded = Loaded.empty([segment], _known(topic_id))
        return self._enter(topic_partition, directory, config, folder, loaded)

    def _free_name(self, topic_partition: TopicPartition) -> None:
        """Renames the folder of a deleted log that still has the name, unless its directory is offline, or goes offline now.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the folder still has its name, in a directory that is used.
        """
        if topic_partition not in self._unrenamed:
            return
        _, directory = self._unrenamed[topic_partition]
        try:
            if directory.offline_reason is None:
                self.finish_deletion(topic_partition)
        except KafkaError:
            if directory.offline_reason is None:
                raise

    def _make_files(self, folder: Folder, topic_id: bytes, config: LogConfig) -> Segment:
        self.catalog.forget_deleted()
        folder.make()
        if _known(topic_id) is not None:
            folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
        segment = Segment(folder, self._services.pool, 0, created_ms=self._clock.now_ms())
        segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        segment.close()
        return segment

    def _enter_missing(self, name: TopicPartition, topic_id: bytes, config: LogConfig) -> Log:
        directory = next(each for each in self.directories if each.offline_reason is not None)
        log.error("A partition is offline: its folder is not in any directory that works", partition=str(name))
        folder = Folder(f"{directory.path}/{name}", self.storage)
        left = Loaded.empty([], _known(topic_id))
        missing = Log.offline(name, folder, config, self._services, left, directory.offline_reason or "")
        self.catalog.add(missing, directory)
        return missing

    def assign_topic_id(self, found: Log, topic_id: bytes) -> None:
        """Writes the topic id to the folder of a log that names none.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Durability: in the page cache.

        Source: UnifiedLog.assignTopicId.
        """
        with found.reader.on_disk("writing the topic id"):
            found.reader.folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
        found.reader.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition) -> None:
        """Deletes a log: its name is free at once, and its files are deleted after `file.delete.delay.ms`.

        A region that a connection is sending stays readable.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is closed. Its name is free once `finish_deletion` or `create` has renamed
                its folder; otherwise the next start opens it again.
        """
        gone, directory = self.catalog.remove(topic_partition)
        self.mover.give_up(topic_partition)
        gone.reader.close()
        self._rename_deleted(gone, directory)

    def finish_deletion(self, topic_partition: TopicPartition) -> None:
        """Renames the folder of a deleted log if it still has its name; does nothing otherwise.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the folder still has its name.
        """
        unrenamed = self._unrenamed.get(topic_partition)
        if unrenamed is not None:
            self._rename_deleted(*unrenamed)

    def _rename_deleted(self, gone: Log, directory: DataDirectory) -> None:
        """Renames the folder of a deleted log, and deletes it after `file.delete.delay.ms`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the folder still has its name.
        """
        name, folder = gone.topic_partition, gone.reader.folder
        try:
            folder.move(directory.path_of_deleted(name))
        except OSError as error:
            self._unrenamed[name] = gone, directory
            log.error("Could not delete a log", partition=str(name), error=str(error))
            self.catalog.note_disk_error(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot rename {folder.path}: {error.strerror}") from error
        self._unrenamed.pop(name, None)
        self._clock.call_later(gone.reader.config.file_delete_delay_ms, folder.delete)

    def rename_strays(self, assigned: Mapping[TopicPartition, bytes]) -> Work[list[TopicPartition]]:
        """Renames the folders of partitions that do not belong to this broker, one at each step, and forgets their logs.

        The name of such a partition is free then. The broker never uses nor deletes a renamed folder. If a folder cannot be
        renamed, the partition is offline until the next start, so that no new log gets its files.

        Args:
            assigned: all partitions that the cluster assigns to this broker, and their topic ids.

        Returns:
            The partitions whose folders were renamed.

        Durability: the indexes and producers of the logs, and the new names, are in the page cache.

        Source: ReplicaManager.updateStrayLogs; LogManager.asyncDelete with isStray.
        """
        renamed = []
        for name, reason in find_strays(self.discover(), assigned).items():
            stray = self.catalog.get(name)
            if stray is not None and self._rename_stray(stray, reason):
                renamed.append(name)
            yield
        return renamed

    def _rename_stray(self, stray: Log, reason: str) -> bool:
        name, folder, directory = stray.topic_partition, stray.reader.folder, self.catalog.home_of(stray.reader)
        former_path = folder.path
        self.mover.give_up(name)
        stray.end_appends()
        try:
            if stray.reader.offline_reason is None:
                stray.write_for_restart()
            folder.move(directory.path_of_stray(name))
        except OSError as error:
            log.error("Could not rename the folder of a stray partition", path=former_path, reason=reason, error=str(error))
            stray.reader.take_offline(f"{reason}, and its folder cannot be renamed")
            self.catalog.note_disk_error(directory, error)
            return False
        stray.reader.close()
        self.catalog.remove(name)
        event = "Renamed the folder of a stray partition"
        log.warning(event, path=former_path, new_path=folder.path, reason=reason, remedy=REMEDY)
        return True

    def sync_directories(self) -> bool:
        """Syncs the names of all folders, so that deleted logs stay deleted after a power loss.

        Returns:
            Whether the names in all directories that work are on the disk.
        """
        are_synced = True
        for directory in self.catalog.online_directories():
            try:
                self.storage.sync_folder(directory.path)
            except OSError as error:
                log.error("Could not sync a data directory", path=directory.path, error=str(error))
                self.catalog.note_disk_error(directory, error)
                are_synced = False
        return are_synced

    # Running and closing

    def start(self, nursery: trio.Nursery) -> None:
        """Starts retention, flushes, checkpoints, compaction and moves."""
        self._maintenance.start(nursery)
        self._cleaner.start(nursery)
        self.mover.start(nursery)

    async def close(self) -> None:
        """Closes all logs; they are not used afterwards.

        A close waits for the disk for one second at most. If that is too short, the mark of a clean shutdown holds only until the
        machine starts again.

        Durability: everything is on disk or in the page cache, and the directories are marked clean.
        Cancellation: the next start recovers the logs that are not closed yet.
        """
        try:
            for directory in self.catalog.online_directories():
                await self._close_directory(directory)
        finally:
            for each in self:
                with isolate("Could not close a log", remedy=_RECOVERS, partition=str(each.topic_partition)):
                    each.reader.close()
            self._unlock()

    async def _close_directory(self, directory: DataDirectory) -> None:
        closed = await close_logs(self.catalog.in_directory(directory).values())
        if directory.offline_reason is not None:
            return
        try:
            for file in (*OFFSETS_OF, CLEANER_OFFSETS):
                directory.write_checkpoint(file, self.catalog.offsets_of(directory, file, has_arriving=False))
            if closed.is_clean:
                directory.mark_clean(is_on_disk=closed.is_on_disk)
        except OSError as error:
            log.error("Could not mark a directory as cleanly closed", path=directory.path, error=str(error))


def _known(topic_id: bytes) -> bytes | None:
    return None if topic_id == ZERO_TOPIC_ID else topic_id
