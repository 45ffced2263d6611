"""What an audit reads, and how its times are written.

Rules of this file: pure, except that `chosen_topics` asks the brokers or lists the directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy

from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection, listed

DEFAULT_GRACE_S = 300

ALL_TOPICS = TopicSelection(pattern=r"(?!__|wirekafka\.).*")
"""All topics but internal ones, and but those in which pipelines keep their progress."""


@dataclass(slots=True)
class AuditOptions:
    """What an audit reads.

    Attributes:
        cluster: the brokers; None if only `data_dirs` are read, and then consumer groups are not audited.
        topics: the topics to count; the topic of the claims is left out.
        data_dirs: data directories that have all partitions of the topics. Their files are read instead of asking the brokers.
        lakes: the paths of lakes.
        claims_topic: the topic in which producers write claims; None without claims.
        checkpoints: checkpoint directories of streaming queries whose lag is wanted, besides those of the lakes.
        since_ms, until_ms: only the records with timestamps from the first up to the second, excluded, in whole minutes.
        grace_s: how long after the end of a minute its claims may still come.
    """

    cluster: Cluster | None
    topics: TopicSelection = ALL_TOPICS
    data_dirs: tuple[Path, ...] = ()
    lakes: tuple[str, ...] = ()
    claims_topic: str | None = None
    checkpoints: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    grace_s: float = DEFAULT_GRACE_S

    def check(self) -> None:
        """Raises unless the options can be used together.

        Raises:
            PipelineError: they cannot.
        """
        if self.cluster is None and not self.data_dirs:
            raise PipelineError("an audit needs brokers or data directories: give --bootstrap or --data-dir")
        if self.cluster is None and self.claims_topic is not None:
            raise PipelineError("claims are read from the brokers: give --bootstrap with --claims")
        if self.grace_s < 0:
            raise PipelineError(f"the grace period is {self.grace_s} s, and it must be 0 or more")
        for name in ("since_ms", "until_ms"):
            time_ms = getattr(self, name)
            if time_ms is not None and time_ms % MINUTE_MS:
                raise PipelineError(f"{name} is {time_ms}, which is no whole minute")
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise PipelineError("no time lies between --since and --until: --until must be later")


def parse_minute(text: str) -> int:
    """Returns a time, which must be a whole minute, in ms since 1970 UTC.

    Args:
        text: ms since 1970, or ISO 8601 such as 2013-01-01 or 2013-01-01T05:17; UTC without an offset.

    Raises:
        ValueError: the text is no time, or no whole minute.
    """
    if re.fullmatch(r"\d{1,15}", text):
        time_ms = int(text)
    else:
        time = datetime.fromisoformat(text)
        time_ms = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    if time_ms % MINUTE_MS:
        raise ValueError(f"{text} is no whole minute")
    return time_ms


def format_minute(minute_ms: int | None) -> str | None:
    """Returns the minute of a time as ISO 8601, such as 2013-01-01T05:17Z; None for None."""
    if minute_ms is None:
        return None
    return f"{numpy.datetime64(minute_ms // MINUTE_MS, 'm')}Z"


def format_time(time_ms: int | None) -> str | None:
    """Returns a time as ISO 8601 in whole seconds, such as 2013-01-01T05:17:03Z; None for None."""
    if time_ms is None:
        return None
    return f"{numpy.datetime64(time_ms // 1000, 's')}Z"


def selected(selection: TopicSelection, known: Iterable[str], where: str) -> list[str]:
    """Returns the names of the topics that are selected and known.

    Args:
        selection: the topics that are wanted.
        known: the topics that exist.
        where: what has them, for the error.

    Raises:
        PipelineError: a topic that is named does not exist, or no topic matches.
    """
    names = set(known)
    missing = [name for name in selection.names if name not in names]
    if missing:
        raise PipelineError(f"unknown topic {', '.join(missing)} in {where}; the topics there: {listed(names)}")
    if selection.pattern is None:
        return sorted(selection.names)
    found = sorted(name for name in names if re.fullmatch(selection.pattern, name))
    if not found:
        raise PipelineError(f"no topic of {where} matches; the topics there: {listed(names)}")
    return found
