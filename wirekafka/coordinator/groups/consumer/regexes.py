"""The regular expressions that members subscribe to. The broker evaluates them.

Rules of this file: an expression must match the whole name of a topic. Expressions are resolved again when topics change, but at
most once in ten seconds, and also when the refresh interval has passed.

Source: TopicRegexResolver, GroupMetadataManager.maybeUpdateRegularExpressions, Utils.throwIfRegularExpressionIsInvalid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wirekafka.coordinator.groups.consumer.member import ResolvedRegex
from wirekafka.coordinator.groups.modern.topics import TopicImage
from wirekafka.coordinator.patterns import check_pattern, matches_of, work_of
from wirekafka.errors import ErrorCode, KafkaError

MIN_REFRESH_INTERVAL_MS = 10_000
"""The shortest time between two refreshes of a group's expressions (REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""

WORK_AT_ONCE = 40_000
"""The work that one heartbeat spends on expressions: about 20 ms (2026-11). Later heartbeats resolve the other expressions."""


def check_regex(regex: str) -> None:
    """Raises unless members may subscribe to the regular expression.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    try:
        check_pattern(regex)
    except ValueError as error:
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error


def some_of(due: Iterable[str]) -> list[str]:
    """Returns the first of the due expressions: at least one, and as many as one heartbeat may compile."""
    some: list[str] = []
    work = 0
    for regex in due:
        work += work_of(regex)
        if some and work > WORK_AT_ONCE:
            break
        some.append(regex)
    return some


def resolve(regexes: Collection[str], image: TopicImage, now_ms: int) -> dict[str, ResolvedRegex]:
    """Returns the topics that match each expression. An invalid expression, which an older log may have, matches no topic."""
    if not regexes:
        return {}
    matches = matches_of(sorted(regexes), [topic.name for topic in image])
    return {regex: ResolvedRegex(frozenset(names), image.version, now_ms) for regex, names in matches.items()}
