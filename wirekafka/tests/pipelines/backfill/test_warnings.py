from __future__ import annotations

import time

from wirekafka.pipelines.backfill.job import target_warnings

DAY_MS = 86_400_000
SETTINGS = {"message.timestamp.type": "CreateTime", "retention.ms": str(7 * DAY_MS), "cleanup.policy": "delete"}


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_target_that_deletes_old_records_is_warned_of() -> None:
    (warning,) = target_warnings("t", SETTINGS, now_ms() - 8 * DAY_MS)
    assert "raise retention.ms" in warning


def test_a_target_that_keeps_the_records_is_not_warned_of() -> None:
    old = now_ms() - 8 * DAY_MS
    assert target_warnings("t", SETTINGS, now_ms() - 6 * DAY_MS) == []
    assert target_warnings("t", SETTINGS, None) == []
    assert target_warnings("t", {**SETTINGS, "retention.ms": "-1"}, old) == []
    assert target_warnings("t", {**SETTINGS, "cleanup.policy": "compact"}, old) == []


def test_a_target_that_replaces_timestamps_is_warned_of() -> None:
    (warning,) = target_warnings("t", {**SETTINGS, "message.timestamp.type": "LogAppendTime"}, 0)
    assert "set it to CreateTime" in warning
