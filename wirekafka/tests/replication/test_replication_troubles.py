"""The log lines about partitions that are not replicated."""

from __future__ import annotations

import structlog

from wirekafka.replication.replication_troubles import DELAY_MS, ReplicationTroubles
from wirekafka.tests.controller.played_brokers import PlayedTimers


def test_partitions_with_one_trouble_are_logged_in_one_line() -> None:
    timers = PlayedTimers()
    troubles = ReplicationTroubles(timers)
    with structlog.testing.capture_logs() as lines:
        for index in range(3_000):
            troubles.note(f"big-{index}", "the leader answers UNKNOWN_TOPIC_ID", tries_again=True)
        troubles.note("small-0", "the disk is full", tries_again=False)
        assert lines == []
        timers.pass_time(DELAY_MS)
        timers.pass_time(DELAY_MS)
    assert [(line["reason"], line["count"], line["tries_again"]) for line in lines] == [
        ("the leader answers UNKNOWN_TOPIC_ID", 3_000, True),
        ("the disk is full", 1, False),
    ]
    assert lines[0]["first"] == [f"big-{index}" for index in range(10)]


def test_trouble_after_a_line_is_logged_in_the_next_one() -> None:
    timers = PlayedTimers()
    troubles = ReplicationTroubles(timers)
    with structlog.testing.capture_logs() as lines:
        for index in range(2):
            troubles.note(f"big-{index}", "the disk is full", tries_again=False)
            timers.pass_time(DELAY_MS)
    assert [line["first"] for line in lines] == [["big-0"], ["big-1"]]


def test_end_of_the_replication_logs_what_is_left() -> None:
    troubles = ReplicationTroubles(PlayedTimers())
    with structlog.testing.capture_logs() as lines:
        troubles.note("big-0", "the disk is full", tries_again=False)
        troubles.flush()
        troubles.flush()
    assert len(lines) == 1
