"""Histories are read back from their JSON lines as they were recorded."""

from __future__ import annotations

import pytest

from wirekafka.simulation.history import (
    CommittedOffset,
    Entry,
    Event,
    History,
    LeaderSeen,
    LogStartMoved,
    LossPermitted,
    OffsetsAcknowledged,
    OffsetsFailed,
    OffsetsRead,
    OffsetsSent,
    OffsetsUnknown,
    RecordRead,
    RecordSent,
    SendAcknowledged,
    SendFailed,
    SendUnknown,
    TopicCreated,
    TransactionAborted,
    TransactionBegun,
    TransactionCommitted,
    TransactionEndRequested,
    TransactionUnknown,
)

EVENTS: tuple[Event, ...] = (
    TopicCreated("orders", 2, min_insync_replicas=2, is_compacted=True, has_retention=True),
    LogStartMoved("orders", 1, 7),
    LeaderSeen("orders", 1, 3, 101),
    LossPermitted("orders", 1, "unclean election"),
    RecordSent("p1", "orders", 1, "für p1 \u2028 1", "key", -1, 1000, 0, 4, "t1"),
    SendAcknowledged("p1-1", 12),
    SendAcknowledged("p1-2", None),
    SendFailed("p1-3", "MESSAGE_TOO_LARGE"),
    SendUnknown("p1-4", "timeout"),
    RecordRead("c1", "orders", 1, 12, "p1-1", is_read_committed=True, position=10),
    TransactionBegun("t1", "payments", 1000, 2, 2),
    TransactionEndRequested("t1", is_commit=True),
    TransactionCommitted("t1"),
    TransactionAborted("t2"),
    TransactionUnknown("t3", "connection lost"),
    OffsetsSent("m1-1", "readers", 5, (CommittedOffset("orders", 0, 3, "m1-1"), CommittedOffset("orders", 1, 9, "m1-1")), "t1"),
    OffsetsAcknowledged("m1-1"),
    OffsetsFailed("m1-2", "ILLEGAL_GENERATION"),
    OffsetsUnknown("m1-3", "timeout"),
    OffsetsRead("readers", (CommittedOffset("orders", 0, None),), asked=3, is_stable=True),
)


def test_history_of_all_events_is_read_back_from_its_lines() -> None:
    history = History()
    for at_ms, event in enumerate(EVENTS):
        history.add(event, at_ms / 2)

    assert History.from_lines(history.to_lines()).entries == history.entries


def test_entry_is_one_line_even_if_a_payload_has_line_ends() -> None:
    line = Entry(1, 0, SendUnknown("a\nb\r", "timeout")).to_json()

    assert "\n" not in line
    assert "\r" not in line


def test_lines_of_several_recorders_are_merged_by_their_order() -> None:
    first = [Entry(1, 0, SendAcknowledged("a", 0)).to_json(), Entry(4, 0, SendAcknowledged("d", 3)).to_json()]
    second = [Entry(2, 0, SendAcknowledged("b", 1)).to_json(), "\n", Entry(3, 0, SendAcknowledged("c", 2)).to_json()]

    assert [entry.order for entry in History.from_lines(first + second)] == [1, 2, 3, 4]


def test_lines_of_recorders_that_gave_one_place_twice_are_refused() -> None:
    line = Entry(1, 0, SendAcknowledged("a", 0)).to_json()

    with pytest.raises(ValueError, match="two entries have the order 1"):
        History.from_lines([line, line])


@pytest.mark.parametrize("line", ["[]", '{"order":1}', '{"order":1,"at_ms":0,"event":"Sent"}', "not JSON"])
def test_line_that_is_no_entry_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        History.from_lines([line])


def test_history_gives_each_event_the_next_place() -> None:
    history = History([Entry(7, 1.5, SendFailed("a", "error"))])

    assert history.add(SendFailed("b", "error"), 2).order == 8
    assert history.last_order == 8
