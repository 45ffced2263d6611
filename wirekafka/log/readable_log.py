"""The readable state of one partition's log: its offsets, segments, leader epochs and producers, and the state of its disk.

How it works: a log is composed. `Log` appends, truncates and rolls, `Retention` deletes, `Flusher` and `ProducerSnapshots`
write to the disk. All of them change this object, and a reader needs nothing else. A read returns a region of a file, which the
connection passes to sendfile. A read_committed consumer reads up to the last stable offset, and gets a list of the aborted
transactions in the region.

Rules of this file:
    Invariant: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset.
    The file system's errors become KAFKA_STORAGE_ERROR here.
    This module changes no file.

Source: kafka.log.{UnifiedLog, LocalLog}.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import structlog

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import LogContext
from wirekafka.log.disk_errors import explain_disk_error
from wirekafka.log.epochs import EpochEnd
from wirekafka.log.positions import BadBatchError, read_place
from wirekafka.log.recovery import Loaded
from wirekafka.log.segments import Segments
from wirekafka.log.storage import FileRegion, Folder
from wirekafka.log.timestamps import Search, TimestampAndOffset, search_max_timestamp, search_timestamp
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)


class ReadableLog:
    """The readable part of one partition's log.

    Attributes:
        topic_partition, topic_id: the log's partition and topic; the id is None if the folder names none.
        config: the topic's settings; `Log.update_config` replaces them.
        log_start_offset: the first offset that can be read.
        log_end_offset: the offset of the next record.
        high_watermark: one past the last committed record; the partition's leader moves it.
        has_failed: the disk has failed, and no append has succeeded since.
        is_closed: appends are refused.
        truncation_count: the number of truncations. Work in a thread compares it to notice that its records are gone.
        offline_reason: why the log cannot be used until the broker starts again; None for a log that works.
    """

    __slots__ = (
        "config",
        "epochs",
        "folder",
        "has_failed",
        "high_watermark",
        "is_closed",
        "log_end_offset",
        "log_start_offset",
        "offline_reason",
        "producers",
        "segments",
        "services",
        "topic_id",
        "topic_partition",
        "truncation_count",
    )

    def __init__(
        self, topic_partition: TopicPartition, folder: Folder, config: LogConfig, services: LogContext, loaded: Loaded
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = loaded.topic_id
        self.folder = folder
        self.config = config
        self.services = services
        self.segments = Segments(folder, loaded.segments)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.high_watermark
        self.has_failed = False
        self.is_closed = False
        self.truncation_count = 0
        self.offline_reason: str | None = None

    def __repr__(self) -> str:
        return f"<Log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    @property
    def last_stable_offset(self) -> int:
        """One past the last record that a read_committed consumer sees.

        It is the high watermark, or the first offset of a transaction that is open or whose marker is not committed.

        Source: UnifiedLog.lastStableOffset. A transaction that begins before the log start offset counts from that offset.
        """
        unstable_offset = self.producers.first_unstable_offset
        if unstable_offset is None:
            return self.high_watermark
        return max(min(unstable_offset, self.high_watermark), self.log_start_offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Moves the high watermark, and the last stable offset past the markers that are committed now."""
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction with exactly this epoch in the partition."""
        return self.producers.has_open_transaction(producer_id, producer_epoch)

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return self.segments.size_bytes

    # Reading

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool) -> FileRegion | bytes:
        """Returns the batches from the one that holds `offset` on.

        Args:
            max_bytes: the limit of the region; it may cut the last batch, but not the first.
            end_offset: the region ends before the batch that holds this offset.
            min_one_batch: the first batch is whole, even if it is larger than `max_bytes` (KIP-74).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE; KAFKA_STORAGE_ERROR.
        """
        if self.offline_reason is not None:
            self.check_online()
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not within [{self.log_start_offset}, {log_end_offset}]")
        if offset == log_end_offset:
            self.segments.remember_end(offset)
            return b""
        if offset >= end_offset:
            return b""
        try:
            return self.segments.read(
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset,
                log_end_offset=log_end_offset,
                min_one_batch=min_one_batch,
            )
        except OSError as error:
            raise self.note_disk_error("read", error) from error

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that may overlap [from_offset, to_offset), in the order of their ends.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        with self.on_disk("read"):
            return self.segments.aborted_transactions(from_offset, to_offset)

    def size_between(self, offset: int, end_offset: int) -> int:
        """Returns the bytes of the batches from the one of `offset` up to the one of `end_offset`; 0 if they cannot be read."""
        try:
            return self.segments.bytes_between(offset, end_offset, self.log_end_offset)
        except OSError as error:
            self.note_disk_error("read", error)
            return 0

    def aborted_in_read(self, offset: int, size_bytes: int, end_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that may overlap a read from `offset` that returned so many bytes.

        Args:
            end_offset: the same as in the call of `read`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if not self.segments.has_aborted_transactions(offset):
            return []
        with self.on_disk("read"):
            to_offset = self.segments.offset_behind(offset, size_bytes, end_offset)
            return self.segments.aborted_transactions(offset, to_offset)

    def batches(self, from_offset: int | None = None) -> Iterator[memoryview]:
        """Yields the complete batches from the one that holds `from_offset`, or from the log start offset, up to the end.

        Segments may be compacted or deleted between two batches; the batches that remain after the last one are yielded then.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        offset: int | None = self.log_start_offset if from_offset is None else from_offset
        with self.on_disk("read"):
            while offset is not None:
                offset = yield from self._batches_of_same_segments(offset)

    def _batches_of_same_segments(self, offset: int) -> Generator[memoryview, None, int | None]:
        """Yields batches until the segments change; returns the offset to go on from then, and None at the end of the log."""
        # The names of the files that this iteration would open next may be those of compacted segments already.
        segments = [*self.segments]
        for batch in self.segments.batches(offset):
            yield batch
            if self.segments.items != segments:
                place = read_place(batch, 0, 0)
                assert place is not None, "the batch was read"
                return place.last_offset + 1
        return None

    def search_timestamp(self, timestamp: int | None) -> Search:
        """Searches the first record whose timestamp is `timestamp` or greater; None searches the latest record (KIP-734).

        Returns:
            Scans of batches, and None for each pause; the first scan that finds a record ends the search. The scans are taken on
            the loop, and run anywhere.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, while scans are taken.
        """
        segments, start_offset = self.segments.items, self.log_start_offset
        with self.on_disk("read"):
            if timestamp is None:
                yield from search_max_timestamp(segments, start_offset)
            else:
                yield from search_timestamp(segments, timestamp, start_offset)

    def offset_for_timestamp(self, timestamp: int | None) -> TimestampAndOffset | None:
        """Returns the record that `search_timestamp` finds, or None; the search may take long.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        scans = (scan for scan in self.search_timestamp(timestamp) if scan is not None)
        return next((found for scan in scans if (found := scan.run()) is not None), None)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """Returns where a leader epoch ended (KIP-101); None if the epoch is not known."""
        return self.epochs.end_offset_of(leader_epoch, self.log_end_offset)

    # Closed and offline

    def close(self) -> None:
        """Closes all files and refuses appends. A region that a connection is sending stays readable."""
        self.is_closed = True
        for segment in self.segments:
            segment.close()

    def take_offline(self, reason: str) -> None:
        """Closes the log; every later read or append gets KAFKA_STORAGE_ERROR."""
        if self.offline_reason is None:
            self.offline_reason = reason
            self.close()

    def check_online(self) -> None:
        """Raises unless the log can be used.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if self.offline_reason is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline: {self.offline_reason}")

    # Errors of the disk

    @contextmanager
    def on_disk(self, action: str) -> Iterator[None]:
        """Runs the with-block on the files of the log, if the log is online.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, the log is offline or the file system has failed.
        """
        self.check_online()
        try:
            yield
        except OSError as error:
            raise self.note_disk_error(action, error) from error

    def note_disk_error(self, action: str, error: OSError) -> KafkaError:
        """Logs the first of several errors in a row, and reports it to the data directory. A damaged log goes offline.

        Args:
            action: the operation that has failed, such as "flush".

        Returns:
            The error for the client.
        """
        if isinstance(error, BadBatchError):
            if self.offline_reason is None:
                log.error("A partition is offline: it is damaged", partition=str(self.topic_partition), error=str(error))
                self.take_offline(str(error))
        elif not self.has_failed and self.offline_reason is None:
            event, remedy = explain_disk_error(error)
            path = self.folder.path
            log.error(event, partition=str(self.topic_partition), action=action, path=path, error=str(error), remedy=remedy)
            self.has_failed = True
        self.services.note_disk_error(self, error)
        reason = explain_disk_error(error)[0].lower()
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{action} of {self.topic_partition} failed: {reason} ({error.strerror or error})"
        )

    def note_recovery(self) -> None:
        """Logs that a write has succeeded after errors of the disk."""
        self.has_failed = False
        log.info("Writes to the disk succeed again", partition=str(self.topic_partition))
