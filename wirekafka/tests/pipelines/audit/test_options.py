from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines.audit.options import ALL_TOPICS, AuditOptions, format_minute, format_time, parse_minute, selected
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection

CLUSTER = Cluster("localhost:9092")


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1357016400000", 1_357_016_400_000),
        ("2013-01-01T05:00", 1_357_016_400_000),
        ("2013-01-01T05:00Z", 1_357_016_400_000),
        ("2013-01-01T00:00-05:00", 1_357_016_400_000),
        ("2013-01-01", 1_356_998_400_000),
    ],
)
def test_minute_is_parsed_in_utc(text: str, time_ms: int) -> None:
    assert parse_minute(text) == time_ms


@pytest.mark.parametrize("text", ["yesterday", "2013-01-01T05:00:01", "1357016400001", ""])
def test_text_that_is_no_whole_minute_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_minute(text)


def test_minute_is_formatted_as_it_is_parsed() -> None:
    assert format_minute(1_357_016_400_000) == "2013-01-01T05:00Z"
    assert parse_minute(format_minute(1_357_016_400_000) or "") == 1_357_016_400_000


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [(-1, "1969-12-31T23:59:59Z"), (253_402_300_800_000, "10000-01-01T00:00:00Z"), (2**63 - 1, "292278994-08-17T07:12:55Z")],
)
def test_time_of_any_timestamp_is_formatted(time_ms: int, expected: str) -> None:
    assert format_time(time_ms) == expected
    assert format_minute(time_ms) == f"{expected[:-4]}Z"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cluster": None}, "--bootstrap or --data-dir"),
        ({"cluster": None, "data_dirs": (Path("/d"),), "claims_topic": "c"}, "--bootstrap with --claims"),
        ({"cluster": CLUSTER, "grace_s": -1.0}, "0 or more"),
        ({"cluster": CLUSTER, "since_ms": 1}, "no whole minute"),
        ({"cluster": CLUSTER, "since_ms": 60_000, "until_ms": 60_000}, "--until must be later"),
    ],
)
def test_options_that_contradict_each_other_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        AuditOptions(**values).check()


def test_all_topics_are_without_internal_ones_and_progress() -> None:
    known = ["orders", "__consumer_offsets", "wirekafka.mirror.west", "wirekafka-news", "_own"]
    assert selected(ALL_TOPICS, known, "here") == ["_own", "orders", "wirekafka-news"]


def test_named_topic_that_is_unknown_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PipelineError, match="unknown topic x in here; the topics there: a, b"):
        selected(TopicSelection(("a", "x")), ["b", "a"], "here")


def test_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(PipelineError, match="no topic of here matches"):
        selected(TopicSelection(pattern="x.*"), ["a"], "here")
