"""A mirror notices that a topic, a mirror or the source is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.mirror.registry import MirroredTopic, check_entry, circular
from wirekafka.pipelines.mirror.topic_plan import Topic

ENTRY = MirroredTopic("orders", "copy", "cluster-a", "id-1", "id-2", ["cluster-a"], {"cleanup.policy": "delete"})
SOURCE, TARGET = Topic(1, "id-1"), Topic(1, "id-2")


def test_the_same_topics_pass() -> None:
    check_entry(ENTRY, "cluster-a", "copy", SOURCE, TARGET)


@pytest.mark.parametrize(
    ("cluster", "name", "source", "target", "says"),
    [
        ("cluster-b", "copy", SOURCE, TARGET, "choose another --name"),
        ("cluster-a", "other", SOURCE, TARGET, "keep --rename"),
        (
            "cluster-a",
            "copy",
            Topic(1, "id-9"),
            TARGET,
            "orders was deleted .* at the source.*--restart-topic orders",
        ),
        ("cluster-a", "copy", SOURCE, None, "copy was deleted at the target.*--restart-topic orders"),
        (
            "cluster-a",
            "copy",
            SOURCE,
            Topic(1, "id-9"),
            "copy was deleted and .*--restart-topic orders",
        ),
    ],
)
def test_another_topic_is_an_error_that_says_what_to_do(
    cluster: str, name: str, source: Topic, target: Topic | None, says: str
) -> None:
    with pytest.raises(PipelineError, match=says):
        check_entry(ENTRY, cluster, name, source, target)


def test_topics_that_came_from_the_target_are_circular() -> None:
    origins = {"a": ["cluster-x"], "b": ["cluster-y", "cluster-x"], "c": ["cluster-z"]}
    assert circular(origins, "cluster-x") == {"a", "b"}


def test_an_entry_is_the_same_after_its_record_was_read() -> None:
    import json

    assert MirroredTopic(**json.loads(ENTRY.value())) == ENTRY
    assert replace(ENTRY, target="x").key() == ENTRY.key()
