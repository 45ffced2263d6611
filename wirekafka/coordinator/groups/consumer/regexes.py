"""Regular expressions by which members subscribe, evaluated here.

Rules of this file: a topic matches as a whole. Which topics match is looked up anew when there are new topics, but not more
often than every ten seconds, and now and then anyway.

Source: TopicRegexResolver, GroupMetadataManager.maybeUpdateRegularExpressions, Utils.throwIfRegularExpressionIsInvalid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wirekafka.coordinator.groups.consumer.member import ResolvedRegex
from wirekafka.coordinator.groups.modern.topics import TopicImage
from wirekafka.coordinator.patterns import check_pattern, matches_of, work_of
from wirekafka.errors import ErrorCode, KafkaError

MIN_REFRESH_INTERVAL_MS = 10_000
"""How often a group's expressions are looked up again at most (REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""

WORK_AT_ONCE = 40_000
"""How much work one heartbeat does to look expressions up: about 20 ms (2026-11). The heartbeats that follow do the rest."""


def check_regex(regex: str) -> None:
    """Raises unless it is a regular expression that members may subscribe by.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    try:
        check_pattern(regex)
    except ValueError as error:
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error


def some_of(due: Iterable[str]) -> list[str]:
    """The first of the expressions that are due: as many as one heartbeat may compile, and one at least."""
    some: list[str] = []
    work = 0
    for regex in due:
        work += work_of(regex)
        if some and work > WORK_AT_ONCE:
            break
        some.append(regex)
    return some


def resolve(regexes: Collection[str], image: TopicImage, now_ms: int) -> dict[str, ResolvedRegex]:
    """The topics that match each of the expressions; none for one that cannot be compiled, which an older log may have."""
    if not regexes:
        return {}
    matches = matches_of(sorted(regexes), [topic.name for topic in image])
    return {regex: ResolvedRegex(frozenset(names), image.version, now_ms) for regex, names in matches.items()}
