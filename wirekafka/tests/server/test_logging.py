from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest
import structlog

from wirekafka.server import logging as module
from wirekafka.server.logging import (
    CLIENT_BURST,
    CLIENT_SECONDS,
    CLIENTS_BURST,
    EVENT_BURST,
    MOST_LIMITED,
    MOST_TRACEBACK_CHARS,
    MOST_VALUE_CHARS,
    JsonRenderer,
    RateLimit,
    TextRenderer,
)

TEXT = TextRenderer(has_colours=False)
JSON = JsonRenderer()

LINE = re.compile(r"(\S+) \[(\w+) *\] (.*)\n")


def render(renderer: TextRenderer | JsonRenderer, event: str = "Something happened", level: str = "info", **values: Any) -> str:
    return renderer(None, level, {"event": event, **values})


def test_text_line_has_time_with_zone_level_event_and_values() -> None:
    line = render(TEXT, "Connection closed", "warning", client="192.0.2.7:40000", count=3)
    match = LINE.fullmatch(line)
    assert match is not None
    assert datetime.fromisoformat(match[1]).utcoffset() is not None
    assert (match[2], match[3]) == ("warning", "Connection closed              client=192.0.2.7:40000 count=3")


def test_json_line_has_time_with_zone_level_event_and_values() -> None:
    line = render(JSON, "Started", listeners=["127.0.0.1:9092"], node_id=1, share=0.5, rack=None, error=KeyError("x"))
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("time")).utcoffset() is not None
    assert told == {
        "level": "info",
        "event": "Started",
        "listeners": ["127.0.0.1:9092"],
        "node_id": 1,
        "share": 0.5,
        "rack": None,
        "error": "KeyError('x')",
    }


@pytest.mark.parametrize("renderer", [TEXT, JSON])
@pytest.mark.parametrize(
    "text", ["a\nforged line", "a\r", "\x1b[31mred", "\x9b2J", "\u202eright to left", "\u2028", "\udcff", "\0"]
)
def test_characters_that_are_not_printable_are_escaped(renderer: TextRenderer | JsonRenderer, text: str) -> None:
    for values in ({"group": text}, {"groups": [text]}, {text: 1}, {"group": {text: text}}, {"error": ValueError(text)}):
        line = render(renderer, text, **values)
        assert line.endswith("\n")
        assert line[:-1].isprintable(), line
        line.encode()


@pytest.mark.parametrize("text", ["two words", "a=b", "", "it's", 'say "so"'])
def test_text_value_that_would_look_like_several_is_quoted(text: str) -> None:
    assert f" group={text!r} next=1\n" in render(TEXT, group=text, next=1)


@pytest.mark.parametrize("renderer", [TEXT, JSON])
def test_long_values_are_cut(renderer: TextRenderer | JsonRenderer) -> None:
    line = render(renderer, group="g" * 32_000, groups=["h" * 32_000], names=list(range(100_000)), error=ValueError("i" * 32_000))
    assert "g" * MOST_VALUE_CHARS + "... (32000 characters)" in line
    assert "g" * (MOST_VALUE_CHARS + 1) not in line
    assert len(line) < 10 * MOST_VALUE_CHARS


def raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_traceback_is_indented_so_that_its_message_forges_no_line() -> None:
    line = render(TEXT, level="error", exc_info=raised("bad\n2026-11-22T10:00:00+00:00 [info     ] All is well"))
    first, *rows = line.splitlines()
    assert first.endswith("[error    ] Something happened")
    assert rows[0] == "    Traceback (most recent call last):"
    assert all(row.startswith("    ") for row in rows)
    assert any("ValueError: bad" in row for row in rows)


def test_traceback_of_an_exception_that_is_being_handled_is_logged() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        assert "ValueError: bad" in render(TEXT, exc_info=True)
        assert "ValueError: bad" in json.loads(render(JSON, exc_info=True))["exception"]
    assert "Traceback" not in render(TEXT, exc_info=None)


def test_long_traceback_is_cut_in_the_middle() -> None:
    told = json.loads(render(JSON, exc_info=raised("x" * 1_000_000 + "the end")))["exception"]
    assert len(told) < MOST_TRACEBACK_CHARS + 10
    assert told.startswith("Traceback")
    assert told.endswith("the end')")


@pytest.mark.parametrize("renderer", [TEXT, JSON])
def test_value_that_has_no_text_costs_only_itself(renderer: TextRenderer | JsonRenderer) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    line = render(renderer, bad=Silent(), good="yes")
    assert "<Silent whose repr raises ZeroDivisionError>" in line
    assert "yes" in line


@pytest.mark.parametrize("renderer", [TEXT, JSON])
def test_line_that_cannot_be_rendered_says_so(renderer: TextRenderer | JsonRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(value: object) -> str:
        raise MemoryError

    monkeypatch.setattr(module, "_traceback_of", fail)
    line = render(renderer)
    assert "A log line could not be rendered" in line
    assert "MemoryError" in line


def test_coloured_line_is_the_plain_line_in_colours() -> None:
    coloured = render(TextRenderer(has_colours=True), group="a b")
    plain = re.sub(r"\x1b\[\d+m", "", coloured)
    assert plain != coloured
    assert plain.partition(" ")[2] == render(TEXT, group="a b").partition(" ")[2]


class Limited:
    """A rate limit whose clock a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limit = RateLimit(lambda: self.now)

    def log(self, event: str = "Connection closed", level: str = "warning", **values: Any) -> dict[str, Any] | None:
        """Returns the logged line; None if it is suppressed."""
        try:
            return dict(self.limit(None, level, {"event": event, **values}))
        except structlog.DropEvent:
            return None


def test_repeated_line_of_a_client_is_suppressed_and_counted() -> None:
    it = Limited()
    told = [it.log(client=f"192.0.2.7:{port}", reason=f"reason {port}") for port in range(1000)]
    assert [line is not None for line in told] == [True] * CLIENT_BURST + [False] * (1000 - CLIENT_BURST)
    it.now += CLIENT_SECONDS
    line = it.log(client="192.0.2.7:1", reason="again")
    assert line is not None
    assert line["suppressed"] == 1000 - CLIENT_BURST
    assert it.log(client="192.0.2.7:1", reason="again") is None
    it.now += CLIENT_SECONDS
    line = it.log(client="192.0.2.7:1", reason="again")
    assert line is not None
    assert line["suppressed"] == 1


def test_other_clients_and_other_events_are_logged_while_one_is_suppressed() -> None:
    it = Limited()
    for port in range(100):
        it.log(client=f"192.0.2.7:{port}")
    assert it.log(client="192.0.2.8:1") is not None
    assert it.log(client="::1:1") is not None
    assert it.log("Connection refused", client="192.0.2.7:1") is not None
    assert it.log("Connection closed") is not None


def test_all_clients_together_have_a_limit() -> None:
    it = Limited()
    told = [it.log(client=f"192.0.{number // 256}.{number % 256}:1") for number in range(5000)]
    assert sum(line is not None for line in told) == CLIENTS_BURST


def test_event_without_a_client_has_a_limit_too() -> None:
    it = Limited()
    told = [it.log("a timer failed", "error") for _ in range(2 * EVENT_BURST)]
    assert sum(line is not None for line in told) == EVENT_BURST


def test_debug_lines_are_not_limited() -> None:
    it = Limited()
    assert all(it.log("Request", "debug", client="192.0.2.7:1") is not None for _ in range(1000))


def test_limit_remembers_so_many_clients_and_no_more() -> None:
    it = Limited()
    for number in range(3 * MOST_LIMITED):
        it.now += CLIENT_SECONDS
        assert it.log(client=f"client-{number}") is not None
    assert len(it.limit._buckets) <= MOST_LIMITED
