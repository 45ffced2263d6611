"""What a log is given by its broker, and what it says of an append."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wirekafka.log.storage import HandlePool
from wirekafka.names import TopicPartition


class HasPartition(Protocol):
    """A log, as far as its context knows it."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose log it is."""


@dataclass(slots=True)
class LogContext:
    """What all logs of a broker share.

    Attributes:
        pool: bounds the open files.
        now_ms: the wall clock.
        call_later: calls back after so many milliseconds.
        random_below: a random integer from 0 up to the argument, without it.
        request_flush: asks for `prepare_flush` and the rest to be done soon.
        note_start_moved: a client has moved the log start offset of a log, and it should be written down.
        store_recovery_points: brings the recovery points of all logs of the data directory to the disk now; raises OSError.
        note_disk_error: what the file system has answered for a log; it may mean the whole directory.
    """

    pool: HandlePool
    now_ms: Callable[[], int]
    call_later: Callable[[float, Callable[[], object]], object]
    random_below: Callable[[int], int]
    request_flush: Callable[[HasPartition], object]
    note_start_moved: Callable[[], object]
    store_recovery_points: Callable[[HasPartition], object] = lambda log: None
    note_disk_error: Callable[[HasPartition, OSError], object] = lambda log, error: None


@dataclass(slots=True)
class AppendInfo:
    """What became of an append.

    Attributes:
        base_offset, last_offset: of its records; of the records that were there already, for a duplicate.
        log_append_time_ms: the timestamp that all its records got, None if they keep their own.
        is_duplicate: the batch was appended before, and not again.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int | None
    log_start_offset: int
    is_duplicate: bool = False
