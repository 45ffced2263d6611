"""The topics that a pipeline reads."""

from __future__ import annotations

import re

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection, partition_counts


@pytest.mark.parametrize("pattern", ["a(", "*", "(?i)orders", r"\p{Lu}.*"])
def test_topic_selection_of_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(f"the pattern {pattern!r} is malformed")):
        TopicSelection(pattern=pattern)


@pytest.mark.parametrize("setting", [{"foo": "bar"}, {"security.protocol": "none"}, {"socket.timeout.ms": "soon"}])
def test_setting_that_librdkafka_refuses_is_named(setting: dict[str, str]) -> None:
    (name,) = setting
    with pytest.raises(PipelineError, match=f'refuses a setting .*"{name}".* Check --client-option'):
        partition_counts(Cluster("127.0.0.1:1", client_settings=setting))
