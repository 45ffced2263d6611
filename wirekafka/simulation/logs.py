"""The logs of one broker on its disk: opened with recovery, flushed, and their offsets in checkpoints.

`LogManager` does this for a real broker, with tasks and threads; here the events of a process do it, with the same parts:
`Loader`, `Log`, `Flusher` and the files of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.checkpoint import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MalformedFileError,
    read_offsets,
    write_offsets,
    write_partition_metadata,
)
from wirekafka.log.context import HasPartition, LogContext
from wirekafka.log.log import Log
from wirekafka.log.recovery import Loaded, Loader
from wirekafka.log.segment import Segment
from wirekafka.log.storage import Folder, HandlePool
from wirekafka.names import TopicPartition
from wirekafka.pending import Work
from wirekafka.simulation.dice import Dice
from wirekafka.simulation.disk import Disk
from wirekafka.simulation.events import MS, Process
from wirekafka.simulation.options import Options

DATA = "/data"
_NEVER = 1 << 63

_DEFAULTS = LogConfig.of(BrokerConfig(), {})

_OFFSETS_OF: dict[str, Callable[[Log], int]] = {
    RECOVERY_POINTS: lambda log: log.flusher.recovery_point,
    LOG_START_OFFSETS: lambda log: log.reader.log_start_offset,
    HIGH_WATERMARKS: lambda log: log.reader.high_watermark,
}


def log_config(options: Options) -> LogConfig:
    """Returns the settings of the topic."""
    return replace(
        _DEFAULTS,
        min_insync_replicas=options.min_insync_replicas,
        segment_bytes=options.segment_bytes,
        index_interval_bytes=options.index_interval_bytes,
        flush_messages=_NEVER if options.flush_messages is None else options.flush_messages,
        flush_ms=_NEVER,
    )


class BrokerLogs:
    """The logs of one run of a broker.

    Args:
        has_lost_power: the machine has lost its power since the last run.
        clock_ms: the wall clock of the machine.
    """

    def __init__(
        self,
        disk: Disk,
        process: Process,
        dice: Dice,
        options: Options,
        *,
        has_lost_power: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._process = process
        self._options = options
        self._config = log_config(options)
        self._has_lost_power = has_lost_power
        self._pool = HandlePool(100)
        self._clock_ms = clock_ms
        self._logs: dict[TopicPartition, Log] = {}
        self.on_offline: list[Callable[[list[Log]], object]] = []
        """Is never called: a broker without its disk ends."""
        self._to_flush: dict[TopicPartition, None] = {}
        self._is_stale = False
        """Whether the checkpoints may name a deleted log."""
        self._services = LogContext(
            pool=self._pool,
            now_ms=clock_ms,
            call_later=lambda delay_ms, act: process.call_later(int(delay_ms * MS), act),
            random_below=lambda bound: dice.between(0, bound - 1),
            request_flush=self._request_flush,
            note_start_moved=lambda: process.call_later(0, self._write_checkpoints),
            store_offsets=lambda log: self.store_offsets(),
        )
        disk.make_folder(DATA)
        process.repeat(options.checkpoint_interval_ms * MS, self._write_checkpoints)

    def open(self) -> None:
        """Opens the logs of all folders, with recovery.

        Raises:
            OSError: a log is damaged, or the disk is full.
        """
        for folder_name in sorted(self._disk.folders(DATA)):
            topic, _, index = folder_name.rpartition("-")
            name, folder = TopicPartition(topic, int(index)), self._folder(folder_name)
            self._logs[name] = Log(name, folder, self._config, self._services, self._load(name, folder))

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    def _folder(self, name: str) -> Folder:
        return Folder(f"{DATA}/{name}", self._disk)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the log of a partition; None if there is none."""
        return self._logs.get(topic_partition)

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, *, is_new: bool = True) -> Log:
        """Creates a log.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        folder = self._folder(str(topic_partition))
        try:
            if self._is_stale:
                # A new log must not get the offsets of a deleted one, as in `log.manager.LogManager`.
                self.store_offsets()
                self._is_stale = False
            loaded = self._create(folder, topic_id)
        except OSError as error:
            folder.delete()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot create {folder.path}: {error.strerror}") from error
        log = self._logs[topic_partition] = Log(topic_partition, folder, config, self._services, loaded)
        return log

    def assign_topic_id(self, found: Log, topic_id: bytes) -> None:
        """Writes the topic id to the folder of a log that has lost it with the power.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        with found.reader.on_disk("writing the topic id"):
            found.reader.folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
        found.reader.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition) -> None:
        """Deletes a log for good: no loss of power brings its files back."""
        gone = self._logs.pop(topic_partition)
        self._is_stale = True
        gone.reader.close()
        path = gone.reader.folder.path
        for name in self._disk.files(path):
            self._disk.remove(f"{path}/{name}")
        self._disk.sync_folder(path)
        self._disk.remove_folder(path)

    def finish_deletion(self, topic_partition: TopicPartition) -> None:
        """Does nothing: a deletion never fails."""

    def rename_strays(self, assigned: Mapping[TopicPartition, bytes]) -> Work[list[TopicPartition]]:
        """Is never called: a controller with ZooKeeper sends no request of the type FULL."""
        raise AssertionError(f"only {[*map(str, assigned)]} are assigned to this broker")

    def _load(self, name: TopicPartition, folder: Folder) -> Loaded:
        offsets = {file: self._read_checkpoint(file).get(name, 0) for file in _OFFSETS_OF}
        loader = Loader(
            folder,
            self._pool,
            str(name),
            self._config.index_interval_bytes,
            self._clock_ms(),
            log_start_offset=offsets[LOG_START_OFFSETS],
            recovery_point=offsets[RECOVERY_POINTS],
            high_watermark=offsets[HIGH_WATERMARKS],
            has_lost_power=self._has_lost_power,
        )
        return loader.load()

    def _create(self, folder: Folder, topic_id: bytes) -> Loaded:
        folder.make()
        folder.write_file(PARTITION_METADATA, write_partition_metadata(topic_id))
        segment = Segment(folder, self._pool, 0, created_ms=self._clock_ms())
        segment.create(preallocate_bytes=0)
        return Loaded.empty([segment], topic_id)

    def _read_checkpoint(self, file: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._disk.read_file(f"{DATA}/{file}"))
        except (FileNotFoundError, MalformedFileError):
            return {}

    def store_offsets(self) -> None:
        """Writes all checkpoints.

        Raises:
            OSError: the disk is full.
        """
        for file, offset_of in _OFFSETS_OF.items():
            offsets = {name: offset_of(log) for name, log in self._logs.items()}
            self._disk.write_file(f"{DATA}/{file}", write_offsets(offsets), sync=True)

    def _write_checkpoints(self) -> None:
        try:
            self.store_offsets()
        except OSError as error:
            self._process.note(f"cannot write checkpoints: {error.strerror}")

    def _request_flush(self, log: HasPartition) -> None:
        name = log.topic_partition
        if name not in self._to_flush:
            self._to_flush[name] = None
            self._process.call_later(self._options.flush_delay_ms * MS, lambda: self._prepare_flush(name))

    def _prepare_flush(self, name: TopicPartition) -> None:
        """Prepares a flush, and runs it only after other things have happened, as a thread does."""
        del self._to_flush[name]
        log = self._logs.get(name)
        if log is None:
            return
        flush = log.flusher.prepare()

        def run() -> None:
            if self._logs.get(name) is not log:
                return
            try:
                flush.run()
            except OSError as error:
                self._process.note(f"cannot flush {name}: {error.strerror}")
            else:
                log.flusher.complete(flush)

        self._process.call_later(self._options.flush_delay_ms * MS, run)

    def close(self) -> None:
        """Closes the descriptors, after the process has ended; writes nothing."""
        for log in self._logs.values():
            for segment in log.reader.segments:
                segment.close()
