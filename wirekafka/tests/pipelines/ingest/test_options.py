"""The options of an ingest, and the names that they lead to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.kafka import Cluster, TopicSelection


def options(**changes: Any) -> IngestOptions:
    given: dict[str, Any] = {"lake": "/data/my lake/", "topics": TopicSelection(("orders",)), "record_format": "json", **changes}
    return IngestOptions(Cluster("localhost:9092"), **given)


def test_dead_letter_topic_without_a_name_is_named_after_the_directory() -> None:
    assert options().dead_letter_topic == "my-lake.dead-letters"
    assert options(dead_letters="bad").dead_letter_topic == "bad"
    assert options(record_format="raw").dead_letter_topic is None


def test_selection_of_a_pattern_passes_over_the_topics_that_the_ingest_writes() -> None:
    pattern = options(topics=TopicSelection(pattern="my.*|w.*")).selection.pattern
    assert pattern is not None
    names = ["my-lake", "my-lake.dead-letters", "my-lake.dead-letters2", "wirekafka.dead-letters.x", "words", "other"]
    assert [name for name in names if re.fullmatch(pattern, name)] == ["my-lake", "my-lake.dead-letters2", "words"]


def test_schema_file_of_a_topic_comes_before_that_of_all() -> None:
    files = {"": Path("all"), "orders": Path("one")}
    assert options(schema_files=files).schema_file("orders") == Path("one")
    assert options(schema_files=files).schema_file("others") == Path("all")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"record_format": "avro"}, "needs a schema file"),
        ({"record_format": "avro-confluent"}, "needs a schema registry"),
        ({"schema_registry": "http://x"}, "json uses no schema registry"),
        ({"record_format": "raw", "schema_files": {"": Path("x")}}, "raw uses no schema file"),
        ({"record_format": "raw", "dead_letters": "x"}, "needs no dead-letter topic"),
        ({"dead_letters": "orders"}, "the dead-letter topic orders cannot be read too"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        options(**changes)


@pytest.mark.parametrize("interval", ["10 seconds", "1 minute", "interval 2 hours 30 minutes", "0 seconds", "1.5 Seconds"])
def test_an_interval_as_spark_writes_it_is_accepted(interval: str) -> None:
    assert options(interval=interval).interval == interval


@pytest.mark.parametrize("interval", ["", "foo", "10", "10s", "1 month"])
def test_an_interval_that_spark_does_not_know_is_refused(interval: str) -> None:
    with pytest.raises(PipelineError, match="write it as '10 seconds'"):
        options(interval=interval)


def test_starting_offsets_that_spark_does_not_know_are_refused() -> None:
    assert options(starting_offsets='{"orders":{"0":23}}').starting_offsets == '{"orders":{"0":23}}'
    with pytest.raises(PipelineError, match="write earliest, latest"):
        options(starting_offsets="newest")
