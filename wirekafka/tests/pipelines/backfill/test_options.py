from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wirekafka.pipelines.backfill.options import BackfillOptions, OffsetBound, parse_time_ms
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster


def options(**fields: Any) -> BackfillOptions:
    return BackfillOptions(Cluster("localhost:9092"), "/lake", **fields)


@pytest.mark.parametrize(
    ("text", "bound"),
    [("7", OffsetBound(7)), ("a.b=7", OffsetBound(7, "a.b")), ("a.b:3=7", OffsetBound(7, "a.b", 3))],
)
def test_an_offset_bound_names_all_partitions_a_topic_or_a_partition(text: str, bound: OffsetBound) -> None:
    assert OffsetBound.parse(text) == bound


@pytest.mark.parametrize("text", ["", "-1", "a:b=1", "a=", "=1", "a:1", "a b=1"])
def test_an_offset_bound_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TOPIC:PARTITION=OFFSET"):
        OffsetBound.parse(text)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2013-01-01", 1_356_998_400_000),
        ("2013-01-01T01:00:00+01:00", 1_356_998_400_000),
        ("2013-01-01T00:00:00.250Z", 1_356_998_400_250),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601_in_utc(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


def test_a_time_of_another_form_is_refused_with_those_that_are_accepted() -> None:
    with pytest.raises(ValueError, match="'yesterday' is no time: write 2026-01-01"):
        parse_time_ms("yesterday")


def test_conditions_of_a_topic_have_its_bounds_alone() -> None:
    bounds = (OffsetBound(5), OffsetBound(6, "a"), OffsetBound(7, "b", 2))
    made = options(from_offsets=bounds, to_offsets=(OffsetBound(9, "a", 1),), from_ms=86_400_000, to_ms=86_400_001)
    times = [
        "timestamp >= timestamp_millis(86400000)",
        "date >= date_from_unix_date(1)",
        "timestamp < timestamp_millis(86400001)",
        "date <= date_from_unix_date(1)",
    ]
    assert made.conditions("a") == ["offset >= 5", "offset >= 6", "(partition <> 1 OR offset < 9)", *times]
    assert made.conditions("b") == ["offset >= 5", "(partition <> 2 OR offset >= 7)", *times]


def test_the_default_name_stays_for_the_same_backfill_and_differs_for_others() -> None:
    made = options(topics=("b", "a"), from_ms=1)
    assert made.backfill_name == options(topics=("a", "b"), from_ms=1).backfill_name
    others: list[dict[str, Any]] = [
        {"lake": "/other"},
        {"from_ms": 2},
        {"to_ms": 2},
        {"prefix": "x"},
        {"partitions": "by-key"},
        {"topics": ("a",)},
    ]
    assert len({made.backfill_name, *(replace(made, **other).backfill_name for other in others)}) == 1 + len(others)
    assert options(name="mine").backfill_name == "mine"


def test_targets_are_the_topics_themselves_or_have_a_prefix_or_the_given_name() -> None:
    assert options().targets(["b", "a"]) == {"a": "a", "b": "b"}
    assert options(prefix="old-", topics=("b",)).targets(["b", "a"]) == {"b": "old-b"}
    assert options(target="t", topics=("b",)).targets(["b", "a"]) == {"b": "t"}


@pytest.mark.parametrize(
    ("fields", "topics", "text"),
    [
        ({"topics": ("c",)}, ["a", "b"], "no topic c; its topics: a, b"),
        ({"target": "t"}, ["a", "b"], "one target for 2 topics"),
        ({"from_offsets": (OffsetBound(1, "c"),)}, ["a", "b"], "the topic c, which is none of those to write: a, b"),
        ({"to_offsets": (OffsetBound(1, "b"),), "topics": ("a",)}, ["a", "b"], "the topic b, which is none of those to write: a"),
        ({}, [], "no records yet"),
    ],
)
def test_targets_that_cannot_be_are_refused(fields: dict[str, Any], topics: list[str], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        options(**fields).targets(topics)


def test_an_offset_for_a_partition_without_records_is_refused() -> None:
    made = options(from_offsets=(OffsetBound(1, "a", 7), OffsetBound(1, "b", 8)))
    made.refuse_unknown_partitions("a", [0, 7])
    with pytest.raises(PipelineError, match="the partition 7 of a, and the lake /lake has records of these alone: 0, 3"):
        made.refuse_unknown_partitions("a", [3, 0])


def test_a_range_without_times_is_refused() -> None:
    with pytest.raises(PipelineError, match="--to-time must be later"):
        options(from_ms=5, to_ms=5)
