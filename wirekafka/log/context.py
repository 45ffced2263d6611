"""The parts of the broker that a log uses, and the result of an append."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wirekafka.log.storage import HandlePool
from wirekafka.names import TopicPartition


class HasPartition(Protocol):
    """The part of a log that the context uses."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the log."""


@dataclass(slots=True)
class LogContext:
    """The parts of a broker that all its logs share.

    Attributes:
        pool: bounds the open files.
        now_ms: the wall clock.
        call_later: calls back after so many milliseconds.
        random_below: returns a random integer from 0 up to the argument, excluded.
        request_flush: requests a flush of a log soon.
        note_start_moved: requests a checkpoint of the log start offsets, after a client has moved one.
        store_offsets: writes the recovery points, log start offsets and high watermarks of all logs of the data directory to the
            disk now; raises OSError.
        note_truncated: counts the records of a log from this offset on as not compacted.
        note_disk_error: handles an error of the file system in a log, which may take the whole directory offline.
    """

    pool: HandlePool
    now_ms: Callable[[], int]
    call_later: Callable[[float, Callable[[], object]], object]
    random_below: Callable[[int], int]
    request_flush: Callable[[HasPartition], object]
    note_start_moved: Callable[[], object]
    store_offsets: Callable[[HasPartition], object] = lambda log: None
    note_truncated: Callable[[HasPartition, int], object] = lambda log, offset: None
    note_disk_error: Callable[[HasPartition, OSError], object] = lambda log, error: None


@dataclass(slots=True)
class AppendInfo:
    """The result of an append.

    Attributes:
        base_offset, last_offset: the offsets of the records; for a duplicate, the offsets of the first append.
        log_append_time_ms: the timestamp of all records; None if they keep their own timestamps.
        is_duplicate: the batch was appended before, and is not appended again.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int | None
    log_start_offset: int
    is_duplicate: bool = False
