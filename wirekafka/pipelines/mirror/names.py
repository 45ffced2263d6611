"""Which topics are mirrored, and the names of their mirrors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import TopicSelection

PLACEHOLDER = "{topic}"
KEEP_NAMES = PLACEHOLDER

LEFT_OUT = r"__.*|wirekafka\..*"
"""Topics that no pattern selects: Kafka's internal ones and those in which the pipelines keep their progress."""

LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Source: org.apache.kafka.common.internals.Topic."""


@dataclass(slots=True, frozen=True)
class TopicNames:
    """How the mirror of a topic is called.

    Attributes:
        template: the name of the mirror, with `{topic}` for the name of the topic at the source.
    """

    template: str = KEEP_NAMES

    def check(self) -> None:
        """Checks the template.

        Raises:
            PipelineError: it does not contain `{topic}` once, or other characters than a topic may have.
        """
        rest = self.template.replace(PLACEHOLDER, "", 1)
        if PLACEHOLDER not in self.template or re.search(r"[^a-zA-Z0-9._-]", rest):
            raise PipelineError(
                f"the new name {self.template!r} is malformed: write {PLACEHOLDER} once, and letters, digits, '.', '_' and '-' "
                f"around it, as in 'site1.{PLACEHOLDER}'"
            )

    def target_of(self, topic: str) -> str:
        """Returns the name of a topic's mirror.

        Raises:
            PipelineError: the name is too long for Kafka.
        """
        name = self.template.replace(PLACEHOLDER, topic)
        if LEGAL_NAME.fullmatch(name) is None:
            raise PipelineError(
                f"the mirror of {topic} would be called {name}, which is no legal name of a topic: change --rename"
            )
        return name

    def affixes(self) -> tuple[str, str]:
        """Returns what stands before and after the name of the topic."""
        before, _, after = self.template.partition(PLACEHOLDER)
        return before, after


def mirrored_selection(topics: TopicSelection, excluded: frozenset[str] = frozenset()) -> TopicSelection:
    """Returns the selection that Spark reads: a pattern selects no internal topic, none of the pipelines, and none of `excluded`.

    Names are left as they are.
    """
    if topics.pattern is None:
        return topics
    left_out = "|".join([LEFT_OUT, *(re.escape(name) for name in sorted(excluded))])
    return TopicSelection(pattern=f"(?!(?:{left_out})$)(?:{topics.pattern})")


def check_names(topics: TopicSelection) -> None:
    """Checks that topics given by name may be mirrored.

    Raises:
        PipelineError: a topic is internal to Kafka or to the pipelines.
    """
    internal = [name for name in topics.names if re.fullmatch(LEFT_OUT, name)]
    if internal:
        raise PipelineError(f"{', '.join(internal)} cannot be mirrored: internal to Kafka or to the pipelines")
