"""What the log has about clients that fail."""

from __future__ import annotations

import structlog

from wirekafka.tests.server.frames import client
from wirekafka.troubles import MOST_KINDS, MOST_NAME_CHARS, MOST_OF_A_KIND, ClientTroubles


def test_trouble_is_logged_in_one_line_with_its_remedy() -> None:
    with structlog.testing.capture_logs() as lines:
        ClientTroubles().tell(client(), "app", "Topic a does not exist", "Create the topic", subject="a")
    assert lines == [
        {
            "event": "A client fails",
            "log_level": "warning",
            "client": "192.0.2.7:40000",
            "client_id": "app",
            "reason": "Topic a does not exist",
            "remedy": "Create the topic",
        }
    ]


def test_trouble_is_told_once_for_each_host_client_id_and_subject() -> None:
    troubles = ClientTroubles()
    with structlog.testing.capture_logs() as lines:
        for host, client_id, subject in [
            ("a", "app", "t"),
            ("a", "app", "t"),
            ("b", "app", "t"),
            ("a", "other", "t"),
            ("a", "app", "u"),
        ]:
            troubles.tell(client(host), client_id, "reason", "remedy", subject=subject, is_certain=False)
    assert [line["log_level"] for line in lines] == ["info"] * 4


def test_host_gets_so_many_lines_of_a_kind_and_no_more() -> None:
    troubles = ClientTroubles()
    told = [troubles.is_new("a", "kind", None, str(number)) for number in range(2 * MOST_OF_A_KIND)]
    assert sum(told) == MOST_OF_A_KIND
    assert troubles.is_new("a", "another kind", None)


def test_oldest_kind_is_forgotten_when_there_are_too_many() -> None:
    troubles = ClientTroubles()
    for number in range(MOST_KINDS + 1):
        assert troubles.is_new(str(number), "kind", None)
    assert not troubles.is_new("1", "kind", None)
    assert troubles.is_new("0", "kind", None)


def test_long_client_id_is_cut() -> None:
    with structlog.testing.capture_logs() as lines:
        ClientTroubles().tell(client(), "x" * 30_000, "reason", "remedy")
    assert lines[0]["client_id"] == "x" * MOST_NAME_CHARS + "..."
