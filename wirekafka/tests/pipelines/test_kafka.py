"""The topics that a pipeline reads."""

from __future__ import annotations

import re

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import TopicSelection


@pytest.mark.parametrize("pattern", ["a(", "*", "(?i)orders", r"\p{Lu}.*"])
def test_topic_selection_of_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(f"the pattern {pattern!r} is malformed")):
        TopicSelection(pattern=pattern)
