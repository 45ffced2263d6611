"""Which topics are mirrored, and what their mirrors are called."""

from __future__ import annotations

import re

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import TopicSelection
from wirekafka.pipelines.mirror.names import TopicNames, check_names, mirrored_selection


def selected(selection: TopicSelection, *names: str) -> list[str]:
    assert selection.pattern is not None
    return [name for name in names if re.fullmatch(selection.pattern, name)]


def test_a_template_without_change_keeps_the_name() -> None:
    assert TopicNames().target_of("orders") == "orders"


def test_a_template_adds_what_is_around_the_placeholder() -> None:
    names = TopicNames("site1.{topic}-copy")
    assert names.target_of("orders") == "site1.orders-copy"
    assert names.affixes() == ("site1.", "-copy")


@pytest.mark.parametrize("template", ["copy", "{topic}{topic}", "a b{topic}", "{topic}/x", ""])
def test_a_template_that_gives_no_legal_name_is_refused(template: str) -> None:
    with pytest.raises(PipelineError, match=r"\{topic\} once"):
        TopicNames(template).check()


def test_a_name_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(PipelineError, match="change --rename"):
        TopicNames("prefix.{topic}").target_of("t" * 249)


def test_a_pattern_selects_no_internal_topics_and_none_of_the_pipelines() -> None:
    selection = mirrored_selection(TopicSelection(pattern=".*"))
    names = ("orders", "__consumer_offsets", "wirekafka.mirror.default", "wirekafka.mirror.default.topics", "wirekafka", "_x")
    assert selected(selection, *names) == ["orders", "wirekafka", "_x"]


def test_a_pattern_selects_none_of_the_excluded_topics_but_longer_names() -> None:
    selection = mirrored_selection(TopicSelection(pattern="a|a.b|axb|ab"), frozenset({"a.b"}))
    assert selected(selection, "a", "a.b", "axb", "ab") == ["a", "axb", "ab"]


def test_a_pattern_of_alternatives_stays_one_pattern() -> None:
    selection = mirrored_selection(TopicSelection(pattern="orders|__.*"))
    assert selected(selection, "orders", "__consumer_offsets", "orders2") == ["orders"]


def test_named_topics_are_read_as_they_are() -> None:
    assert mirrored_selection(TopicSelection(("orders",)), frozenset({"orders"})) == TopicSelection(("orders",))


@pytest.mark.parametrize("name", ["__consumer_offsets", "wirekafka.mirror.default"])
def test_an_internal_topic_by_name_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match="cannot be mirrored"):
        check_names(TopicSelection(("orders", name)))
