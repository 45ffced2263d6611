"""Deletes the old segments of a log: those past their retention, and those before the log start offset.

Rules of this file:
    Segments are deleted from the oldest on. A segment with uncommitted records stays, and so do all segments after a segment
    that stays.
    The functions choose the segments and are pure; `Retention` deletes them.

Source: UnifiedLog.deleteOldSegments, deletableSegments and its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import LogContext
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.segment import Segment

log = structlog.get_logger(__name__)

BEFORE_START = "before the log start offset"


class Aged(Protocol):
    """The part of a segment that retention uses."""

    base_offset: int
    size: int

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of its records; the time of the last write if no record has a timestamp."""


def count_before_start(segments: Sequence[Aged], *, log_start_offset: int, high_watermark: int, log_end_offset: int) -> int:
    """Returns the number of segments, from the first on, that hold no readable records."""

    def is_expired(number: int) -> bool:
        return number + 1 < len(segments) and segments[number + 1].base_offset <= log_start_offset

    return _count(segments, high_watermark, log_end_offset, is_expired)


def count_expired(
    segments: Sequence[Aged], *, config: LogConfig, log_start_offset: int, high_watermark: int, log_end_offset: int, now_ms: int
) -> tuple[int, str]:
    """Returns the number of segments, from the first on, that retention deletes, and the reason.

    The last segment is deleted too if all its records have expired; an empty last segment stays.
    """
    below_start = count_before_start(
        segments, log_start_offset=log_start_offset, high_watermark=high_watermark, log_end_offset=log_end_offset
    )
    if not config.is_deleted:
        return below_start, BEFORE_START
    over_size = _count_over_size(segments, config.retention_bytes, high_watermark, log_end_offset)
    over_age = _count_over_age(segments, config.retention_ms, high_watermark, log_end_offset, now_ms)
    return max(
        (below_start, BEFORE_START),
        (over_size, "retention.bytes"),
        (over_age, "retention.ms"),
        key=lambda found: found[0],
    )


def _count_over_size(segments: Sequence[Aged], limit: int | None, high_watermark: int, log_end_offset: int) -> int:
    if limit is None:
        return 0
    excess = sum(segment.size for segment in segments) - limit

    def take_from_excess(number: int) -> bool:
        nonlocal excess
        excess -= segments[number].size
        return excess >= 0

    return _count(segments, high_watermark, log_end_offset, take_from_excess)


def _count_over_age(segments: Sequence[Aged], limit: int | None, high_watermark: int, log_end_offset: int, now_ms: int) -> int:
    if limit is None:
        return 0
    return _count(segments, high_watermark, log_end_offset, lambda number: now_ms - segments[number].largest_timestamp > limit)


def _count(segments: Sequence[Aged], high_watermark: int, log_end_offset: int, is_expired: Callable[[int], bool]) -> int:
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end_offset = log_end_offset if is_last else segments[number + 1].base_offset
        if (is_last and not segment.size) or end_offset > high_watermark or not is_expired(number):
            return number
    return len(segments)


class Retention:
    """Deletes the old segments of one log.

    Args:
        roll: begins a new segment; raises OSError, in which case the active segment does not change.
    """

    __slots__ = ("_log", "_roll", "_services")

    def __init__(self, reader: ReadableLog, services: LogContext, roll: Callable[[], object]) -> None:
        self._log = reader
        self._services = services
        self._roll = roll

    def delete_records(self, before_offset: int) -> None:
        """Moves the log start offset to `before_offset`, and deletes the segments that end before it.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, it is greater than the high watermark; KAFKA_STORAGE_ERROR, the log is offline.

        Durability: a checkpoint stores the offset soon; a crash before that restores the records.
        """
        found = self._log
        found.check_online()
        if before_offset > found.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{before_offset} is after the high watermark, {found.high_watermark}"
            )
        if before_offset > found.log_start_offset:
            self._start_at(before_offset)
            self._services.note_start_moved()
            count = count_before_start(
                found.segments.items,
                log_start_offset=before_offset,
                high_watermark=found.high_watermark,
                log_end_offset=found.log_end_offset,
            )
            self._delete_first(count, BEFORE_START)

    def delete_old_segments(self, now_ms: int) -> int:
        """Deletes the segments past their retention or before the log start offset; returns their number.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the next call deletes the segments.
        """
        found = self._log
        with found.on_disk("delete segments"):
            count, reason = count_expired(
                found.segments.items,
                config=found.config,
                log_start_offset=found.log_start_offset,
                high_watermark=found.high_watermark,
                log_end_offset=found.log_end_offset,
                now_ms=now_ms,
            )
            if count and count == len(found.segments):
                self._roll()
        self._delete_first(count, reason)
        return count

    def _delete_first(self, count: int, reason: str) -> None:
        if not count:
            return
        found = self._log
        with found.on_disk("delete segments"):
            gone = found.segments.take_first(count)
        base_offset = found.segments.items[0].base_offset
        if base_offset > found.log_start_offset:
            self._start_at(base_offset)
        log.info(
            "Deleted segments",
            partition=str(found.topic_partition),
            reason=reason,
            segments=count,
            bytes=sum(segment.size for segment in gone),
            log_start_offset=found.log_start_offset,
        )
        self.discard(gone)

    def _start_at(self, offset: int) -> None:
        found = self._log
        assert found.log_start_offset <= offset <= found.high_watermark <= found.log_end_offset
        found.log_start_offset = offset
        if found.epochs.truncate_start(offset):
            # The next start truncates the leader epochs again.
            with suppress(OSError):
                found.folder.write_file(EPOCHS_FILE, found.epochs.write())

    def discard(self, segments: list[Segment]) -> None:
        """Deletes the files of segments that the log no longer has, after `file.delete.delay.ms`."""
        self._services.call_later(self._log.config.file_delete_delay_ms, self._log.segments.mark_deleted(segments))
