"""Chooses the segments that retention deletes.

Rules of this file: pure. Segments are deleted from the oldest on. A segment with uncommitted records stays, and so do all
segments after a segment that stays.

Source: UnifiedLog.deleteOldSegments, deletableSegments and its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from wirekafka.config import LogConfig

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
