"""What a transactional sink is told, and the names that it has in Kafka.

A sink is known by its kind (`mirror`, `backfill`, `dead-letters`) and its name. Both stand in the names of its topics, its groups
and its transactional ids, so another run with the same kind and name goes on where the last one ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster

MAX_TOPIC_CHARS = 249


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """A transactional sink: the cluster it writes to, its identity, its target topics, and the size of its transactions.

    Attributes:
        cluster: the cluster of the target topics.
        kind: which pipeline writes; letters, digits, `_` and `-`.
        name: which run of the pipeline; letters, digits, `_` and `-`. Two sinks of one cluster that read different sources have
            different names.
        targets: each topic that the frames may name, and the number of partitions with which it is created if it is missing.
            With None, a missing topic is an error.
        target_settings: the settings with which a missing target topic is created.
        source_ids: what distinguishes a source topic from another one that had the same name before, usually its topic id.
            Offsets of another topic say nothing about this one, so a different id is an error.
        maps_offsets: whether the offset of each source record in the target is stored, see `read_runs`. Each row then needs a
            partition.
        chunk_records: a transaction is committed after about this many records,
        chunk_bytes: or after about this many bytes of keys, values and headers,
        chunk_s: or after about this many seconds.
    """

    cluster: Cluster
    kind: str
    name: str
    targets: Mapping[str, int | None]
    target_settings: Mapping[str, str] = field(default_factory=dict)
    source_ids: Mapping[str, str] = field(default_factory=dict)
    maps_offsets: bool = False
    chunk_records: int = 200_000
    chunk_bytes: int = 64 << 20
    chunk_s: float = 10.0

    def __post_init__(self) -> None:
        for what, word in (("kind", self.kind), ("name", self.name)):
            if re.fullmatch(r"[A-Za-z0-9_-]+", word) is None:
                raise PipelineError(f"the {what} {word!r} must have letters, digits, _ and - only")
        if len(self.runs_topic) > MAX_TOPIC_CHARS:
            raise PipelineError(
                f"the name {self.name!r} is too long: the topic {self.runs_topic!r} has over {MAX_TOPIC_CHARS} characters"
            )

    @property
    def progress_topic(self) -> str:
        """The compacted topic of the sink's progress: one partition, and one key for each source partition."""
        return f"wirekafka.{self.kind}.{self.name}"

    @property
    def runs_topic(self) -> str:
        """The compacted topic that maps source offsets to target offsets."""
        return f"{self.progress_topic}.offsets"

    def identity(self, source_topic: str, source_partition: int) -> str:
        """Returns the transactional id of a source partition, which is also the group whose offset is its progress.

        The kind and the name have no dots, and a partition is a number, so no two source partitions have the same identity.
        """
        return f"{self.progress_topic}.{source_topic}.{source_partition}"
