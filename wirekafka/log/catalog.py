"""The logs of a broker and their data directories. When a directory fails, the catalog takes its logs offline.

How it works: `LogManager` opens, creates and deletes logs and adds them here. Retention, flushes, compaction and moves
look logs up here, and do not use the manager.

Rules of this file:
    Everything runs on the broker's loop.
    Invariant: every log has one home directory; the count of a directory is the number of logs whose home it is, plus the number
    of logs that move to it.
    A directory is stale while its checkpoints may name a partition that left it; `forget_deleted` rewrites those checkpoints.

Source: kafka.log.LogManager (currentLogs, offline directories, checkpoints).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.checkpoint import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from wirekafka.log.context import HasPartition
from wirekafka.log.directory import DataDirectory, is_lost
from wirekafka.log.log import Log
from wirekafka.log.positions import BadBatchError
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

OFFSETS_OF: dict[str, Callable[[Log], int]] = {
    RECOVERY_POINTS: lambda each: each.flusher.recovery_point,
    LOG_START_OFFSETS: lambda each: each.reader.log_start_offset,
    HIGH_WATERMARKS: lambda each: each.reader.high_watermark,
}


class LogCatalog:
    """The logs of one broker, by partition and by data directory.

    Attributes:
        directories: `log.dirs`, in order.
        cleaner_offsets: the offset up to which each compacted log is clean.
        on_offline: callbacks that get the logs that have gone offline.
        all_failed: set once all directories have failed.
    """

    def __init__(self, directories: list[DataDirectory], clock: Clock) -> None:
        self.directories = directories
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self.on_offline: list[Callable[[list[Log]], object]] = []
        self.all_failed = trio.Event()
        self._clock = clock
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, DataDirectory] = {}
        self._arriving: dict[TopicPartition, DataDirectory] = {}
        self._counts: Counter[DataDirectory] = Counter()
        self._stale: set[DataDirectory] = set()

    # Looking up

    def __iter__(self) -> Iterator[Log]:
        """Iterates over the online logs; the caller may add and remove logs meanwhile."""
        return iter([each for each in self._logs.values() if each.reader.offline_reason is None])

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the log of a partition, online or offline; None if the partition has no log."""
        return self._logs.get(topic_partition)

    def items(self) -> list[tuple[TopicPartition, Log]]:
        """Returns all logs, online or offline."""
        return list(self._logs.items())

    def is_current(self, found: Log) -> bool:
        """Whether the log has not been deleted or replaced."""
        return self._logs.get(found.topic_partition) is found

    def home_of(self, found: HasPartition) -> DataDirectory:
        """Returns the data directory of a log."""
        return self._home[found.topic_partition]

    def in_directory(self, directory: DataDirectory) -> dict[TopicPartition, Log]:
        """Returns the logs in a data directory."""
        return {name: found for name, found in self._logs.items() if self._home[name] is directory}

    @property
    def is_complete(self) -> bool:
        """Whether all directories work. If so, a partition without a log does not exist."""
        return all(directory.offline_reason is None for directory in self.directories)

    def online_directories(self) -> list[DataDirectory]:
        """Returns the directories that work."""
        return [directory for directory in self.directories if directory.offline_reason is None]

    def next_directory(self) -> DataDirectory:
        """Returns the directory for a new log: the one with the fewest logs, moves to the directory included.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, all directories have failed.

        Source: LogManager.nextLogDirs.
        """
        online = self.online_directories()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all data directories have failed")
        return min(online, key=self._counts.__getitem__)

    # Adding and removing logs

    def add(self, added: Log, directory: DataDirectory) -> None:
        """Adds a log; the partition must not have one."""
        name = added.topic_partition
        assert name not in self._logs, f"{name} is there already"
        self._logs[name] = added
        self._home[name] = directory
        self._counts[directory] += 1

    def remove(self, topic_partition: TopicPartition) -> tuple[Log, DataDirectory]:
        """Removes a log and marks its directory as stale."""
        removed = self._logs.pop(topic_partition)
        directory = self._home.pop(topic_partition)
        self._counts[directory] -= 1
        self.cleaner_offsets.pop(topic_partition, None)
        self._stale.add(directory)
        return removed, directory

    def expect(self, topic_partition: TopicPartition, target: DataDirectory) -> None:
        """Notes that a log moves to another directory; the checkpoints of that directory include the log from now on."""
        self._arriving[topic_partition] = target
        self._counts[target] += 1

    def expect_no_more(self, topic_partition: TopicPartition) -> None:
        """Notes that the move of a log was cancelled, and marks the target directory as stale."""
        target = self._arriving.pop(topic_partition)
        self._counts[target] -= 1
        self._stale.add(target)

    def rehome(self, moved: Log, directory: DataDirectory) -> DataDirectory:
        """Makes a directory the home of a log and marks the former home as stale; returns the former home."""
        name = moved.topic_partition
        if self._arriving.pop(name, None) is not directory:
            self._counts[directory] += 1
        former = self._home[name]
        self._home[name] = directory
        self._counts[former] -= 1
        self._stale.add(former)
        return former

    # Checkpoints

    def offsets_of(self, directory: DataDirectory, file: str, *, has_arriving: bool = True) -> dict[TopicPartition, int]:
        """Returns the offsets for a checkpoint of a directory, of the logs in the directory and of the logs that move to it.

        Args:
            has_arriving: False during shutdown: moves do not complete any more, and the next start begins them again.
        """
        found = self.in_directory(directory)
        if has_arriving:
            arriving = [name for name, target in self._arriving.items() if target is directory and name in self._logs]
            found |= {name: self._logs[name] for name in arriving}
        if file == CLEANER_OFFSETS:
            return {name: offset for name, offset in self.cleaner_offsets.items() if name in found}
        offset_of = OFFSETS_OF[file]
        return {name: offset_of(each) for name, each in found.items()}

    def store_offsets(self, changed: HasPartition) -> None:
        """Writes the recovery points, log start offsets and high watermarks of the log's data directory.

        Raises:
            OSError: a file may still hold the former offsets.

        Durability: on disk.
        """
        directory = self._home[changed.topic_partition]
        for file in OFFSETS_OF:
            directory.write_checkpoint(file, self.offsets_of(directory, file))

    def note_truncated(self, truncated: HasPartition, offset: int) -> None:
        """Counts the records of a log from this offset on as not compacted.

        Source: LogManager.truncateTo; LogCleaner.maybeTruncateCheckpoint.
        """
        name = truncated.topic_partition
        if name in self.cleaner_offsets:
            self.cleaner_offsets[name] = min(self.cleaner_offsets[name], offset)

    def note_stale(self, directory: DataDirectory) -> None:
        """Marks a directory as stale: its checkpoints name a partition that is not in it."""
        self._stale.add(directory)

    def forget_deleted(self) -> None:
        """Removes deleted partitions from the checkpoints; otherwise a new log of the same name would get their offsets.

        Raises:
            OSError: a checkpoint may still name deleted partitions.
        """
        for directory in self._stale.intersection(self.online_directories()):
            for file in (*OFFSETS_OF, CLEANER_OFFSETS):
                directory.write_checkpoint(file, self.offsets_of(directory, file))
            self._stale.discard(directory)

    # Failed directories

    def note_disk_error(self, directory: DataDirectory, error: OSError) -> None:
        """Handles an error of the file system in a directory: takes the directory offline if the error means that it is lost."""
        if directory.offline_reason is None and is_lost(directory.path, error):
            self.fail_directory(directory, error)

    def note_log_error(self, failed: HasPartition, error: OSError) -> None:
        """Handles an error of the file system in a log; the error may take the whole directory offline."""
        found = self._logs.get(failed.topic_partition)
        if found is None or found.reader is not failed:
            return
        self.note_disk_error(self._home[found.topic_partition], error)
        if isinstance(error, BadBatchError):
            self._announce_offline([found])

    def fail_directory(self, directory: DataDirectory, error: OSError) -> None:
        """Takes a directory and all its partitions offline, until the broker starts again.

        Source: KIP-112; ReplicaManager.handleLogDirFailure.
        """
        directory.offline_reason = f"{directory.path} has failed: {error.strerror or error}"
        lost = list(self.in_directory(directory).values())
        log.error(
            "A data directory has failed: its partitions are offline until it is repaired and the broker is restarted",
            path=directory.path,
            partitions=len(lost),
            error=str(error),
        )
        for each in lost:
            each.reader.take_offline(directory.offline_reason)
        self._announce_offline(lost)
        if not self.online_directories():
            paths = [each.path for each in self.directories]
            log.critical("All data directories have failed: the broker stops", paths=paths)
            self.all_failed.set()

    def _announce_offline(self, lost: list[Log]) -> None:
        """Calls `on_offline` on the next turn of the loop, after the request that met the error."""

        def announce() -> None:
            for callback in self.on_offline:
                with isolate("A callback for offline partitions failed", partitions=len(lost)):
                    callback(lost)

        self._clock.call_later(0, announce)
