"""What a backfill is told: which records of a lake go to which topics."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster

KIND = "backfill"

Partitioning = Literal["keep", "by-key"]


@dataclass(slots=True, frozen=True)
class OffsetBound:
    """An offset that bounds a range, for every partition, those of one topic, or one partition."""

    offset: int
    topic: str | None = None
    partition: int | None = None

    @classmethod
    def parse(cls, text: str) -> OffsetBound:
        """Reads OFFSET, TOPIC=OFFSET or TOPIC:PARTITION=OFFSET.

        Raises:
            ValueError: the text has another form.
        """
        found = re.fullmatch(r"(?:([A-Za-z0-9._-]+)(?::(\d+))?=)?(\d+)", text)
        if found is None:
            raise ValueError(f"{text!r} is not OFFSET, TOPIC=OFFSET or TOPIC:PARTITION=OFFSET")
        return cls(int(found[3]), found[1], None if found[2] is None else int(found[2]))

    def condition(self, topic: str, operator: str) -> str | None:
        """Returns the condition of SQL that a record of the topic fulfils; None if the bound is one of another topic."""
        if self.topic not in (None, topic):
            return None
        compared = f"offset {operator} {self.offset}"
        return compared if self.partition is None else f"(partition <> {self.partition} OR {compared})"


def parse_time_ms(text: str) -> int:
    """Reads milliseconds since 1970, or ISO 8601 (UTC without an offset).

    Raises:
        ValueError: the text has another form.
    """
    if re.fullmatch(r"-?\d{5,}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 2026-01-01, 2026-01-01T05:17:00, or ms since 1970") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(slots=True, frozen=True)
class BackfillOptions:
    """Which records of a lake are written to which topics.

    Attributes:
        cluster: the cluster of the target topics.
        lake: the path or URI of the lake.
        topics: the topics of the lake that are written; all if there are none.
        target: the target topic. Without it, each topic is written to the topic that has its name after `prefix`.
        prefix: begins the names of the target topics.
        partitions: `keep` writes each record to the partition that it came from; `by-key` lets the hash of the key choose, as
            Kafka's Java client does.
        create_partitions: the number of partitions of target topics that are missing; None: as many as the lake has seen.
        from_offsets: records below these offsets are left out,
        to_offsets: and those from these offsets on.
        from_ms: records with a timestamp before this one are left out (ms since 1970),
        to_ms: and those from this one on.
        name: identifies the backfill; a backfill with a name of before goes on where that one ended. By default the name is
            made from the lake, the topics, the range and the target.

    Raises:
        PipelineError: the range of times is empty.
    """

    cluster: Cluster
    lake: str
    topics: tuple[str, ...] = ()
    target: str | None = None
    prefix: str = ""
    partitions: Partitioning = "keep"
    create_partitions: int | None = None
    from_offsets: tuple[OffsetBound, ...] = field(default=())
    to_offsets: tuple[OffsetBound, ...] = field(default=())
    from_ms: int | None = None
    to_ms: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise PipelineError("no time lies between --from-time and --to-time: --to-time must be later")

    @property
    def backfill_name(self) -> str:
        """The name of the backfill in Kafka."""
        if self.name is not None:
            return self.name
        bounds = [[bound.offset, bound.topic, bound.partition] for bound in self.from_offsets]
        ends = [[bound.offset, bound.topic, bound.partition] for bound in self.to_offsets]
        identity = [
            _absolute(self.lake),
            sorted(self.topics),
            self.target,
            self.prefix,
            self.partitions,
            bounds,
            ends,
            self.from_ms,
            self.to_ms,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def targets(self, lake_topics: list[str]) -> dict[str, str]:
        """Returns the target topic of each topic of the lake that is written.

        Raises:
            PipelineError: the lake lacks a topic, an offset is given for another topic, or two topics have the same target.
        """
        missing = sorted(set(self.topics) - set(lake_topics))
        if missing:
            known = ", ".join(sorted(lake_topics)) or "none"
            raise PipelineError(f"the lake {self.lake} has no topic {', '.join(missing)}; its topics: {known}")
        chosen = sorted(self.topics or lake_topics)
        if not chosen:
            raise PipelineError(f"the lake {self.lake} has no records yet")
        unknown = sorted({bound.topic for bound in self._bounds if bound.topic is not None} - set(chosen))
        if unknown:
            others = ", ".join(chosen)
            raise PipelineError(f"an offset is given for the topic {unknown[0]}, which is none of those to write: {others}")
        if self.target is not None and len(chosen) > 1:
            raise PipelineError(f"one target for {len(chosen)} topics ({', '.join(chosen)}): name one topic, or use --prefix")
        return {topic: self.target or f"{self.prefix}{topic}" for topic in chosen}

    @property
    def _bounds(self) -> tuple[OffsetBound, ...]:
        return self.from_offsets + self.to_offsets

    def bounded_partitions(self, topic: str) -> list[int]:
        """Returns the partitions of a topic for which an offset is given."""
        return sorted({each.partition for each in self._bounds if each.partition is not None and each.topic == topic})

    def refuse_unknown_partitions(self, topic: str, known: Iterable[int]) -> None:
        """Refuses an offset for a partition that the lake lacks.

        Args:
            topic: a topic of the lake.
            known: its partitions that have records in the lake.

        Raises:
            PipelineError: the lake lacks the partition.
        """
        partitions = sorted(known)
        unknown = [number for number in self.bounded_partitions(topic) if number not in partitions]
        if unknown:
            others = ", ".join(map(str, partitions)) or "none"
            raise PipelineError(
                f"an offset is given for the partition {unknown[0]} of {topic}, and the lake {self.lake} has records of these "
                f"alone: {others}"
            )

    def conditions(self, topic: str) -> list[str]:
        """Returns the conditions of SQL that the records of a topic fulfil; those on `date` spare Spark the other directories."""
        offsets = [bound.condition(topic, ">=") for bound in self.from_offsets]
        offsets += [bound.condition(topic, "<") for bound in self.to_offsets]
        found = [condition for condition in offsets if condition is not None]
        if self.from_ms is not None:
            found += [f"timestamp >= timestamp_millis({self.from_ms})", f"date >= {_utc_date(self.from_ms)}"]
        if self.to_ms is not None:
            found += [f"timestamp < timestamp_millis({self.to_ms})", f"date <= {_utc_date(self.to_ms)}"]
        return found


def _utc_date(time_ms: int) -> str:
    return f"date_from_unix_date({time_ms // 86_400_000})"


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
