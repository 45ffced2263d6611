from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wirekafka.log.retention import count_expired
from wirekafka.tests.log.logs import config_with


@dataclass
class Piece:
    base_offset: int
    size: int
    largest_timestamp: int


PIECES = [Piece(0, 100, 1000), Piece(10, 100, 2000), Piece(20, 100, 1500), Piece(30, 100, 4000)]


def count(
    pieces: list[Piece] = PIECES, *, start: int = 0, high_watermark: int = 40, now_ms: int = 5000, end: int = 40, **changes: Any
) -> int:
    config = config_with(**({"retention_ms": None, "retention_bytes": None} | changes))
    found, _ = count_expired(
        pieces, config=config, log_start_offset=start, high_watermark=high_watermark, log_end_offset=end, now_ms=now_ms
    )
    return found


def test_without_limits_nothing_expires() -> None:
    assert count() == 0


def test_age_is_that_of_the_largest_timestamp_and_must_pass_the_limit() -> None:
    assert count(retention_ms=4000) == 0
    assert count(retention_ms=3999) == 1


def test_segment_behind_one_that_stays_stays_too() -> None:
    assert count(retention_ms=3200) == 1


def test_last_segment_expires_too_but_not_an_empty_one() -> None:
    assert count(retention_ms=0) == 4
    assert count([*PIECES, Piece(40, 0, 0)], retention_ms=0) == 4


def test_size_leaves_at_least_the_limit() -> None:
    assert count(retention_bytes=400) == 0
    assert count(retention_bytes=301) == 0
    assert count(retention_bytes=300) == 1
    assert count(retention_bytes=0) == 4


def test_uncommitted_records_hold_their_segment() -> None:
    assert count(retention_ms=0, high_watermark=25) == 2
    assert count(retention_ms=0, high_watermark=39) == 3


def test_records_before_the_start_go_whatever_the_policy() -> None:
    assert count(start=19, cleanup_policy=frozenset({"compact"})) == 1
    assert count(start=20, cleanup_policy=frozenset({"compact"})) == 2
    assert count(start=40, cleanup_policy=frozenset({"compact"})) == 3


def test_compacted_topic_with_delete_has_both() -> None:
    assert count(retention_ms=0, cleanup_policy=frozenset({"compact"})) == 0
    assert count(retention_ms=0, cleanup_policy=frozenset({"compact", "delete"})) == 4
