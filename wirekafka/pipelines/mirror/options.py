"""What a mirror is told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.mirror.names import TopicNames, check_names

KIND = "mirror"
DEFAULT_NAME = "default"

ISOLATIONS = ("read_committed", "read_uncommitted")


@dataclass(slots=True)
class MirrorOptions:
    """A mirror from one cluster to another.

    Attributes:
        source: where the topics are read.
        target: where they are mirrored to.
        topics: names, or a pattern; topics that match a pattern later are mirrored too.
        checkpoint: a directory of any file system of Hadoop, for Spark's checkpoint. Unused if only groups are translated.
        name: names the mirror at the target: its progress and its offsets are in the topic `wirekafka.mirror.NAME` there. Mirrors
            from different sources into one target need different names.
        names: how the mirrors of topics are called.
        groups: a pattern of the consumer groups whose offsets are translated; None for no group.
        groups_every_s: seconds between two translations.
        allows_group_rewind: a group's offset at the target may be set back to an earlier record.
        isolation: `read_committed`, or `read_uncommitted`, which mirrors aborted records too.
        batch_records: about the number of records that one batch reads at most.
        once: ends when everything is mirrored that was there at the start.
        allows_data_loss: goes on although the source has deleted records before they were mirrored.
        allows_existing: mirrors into topics of the target that have records of others.
        restarted_topics: topics that are mirrored from their beginning again, because they or their mirrors were created again.
    """

    source: Cluster
    target: Cluster
    topics: TopicSelection
    checkpoint: str
    name: str = DEFAULT_NAME
    names: TopicNames = field(default_factory=TopicNames)
    groups: str | None = None
    groups_every_s: float = 10.0
    allows_group_rewind: bool = False
    isolation: str = ISOLATIONS[0]
    batch_records: int = 500_000
    once: bool = False
    allows_data_loss: bool = False
    allows_existing: bool = False
    restarted_topics: tuple[str, ...] = ()

    def check(self) -> None:
        """Checks what can be checked without a broker.

        Raises:
            PipelineError: a name, a pattern or the isolation is malformed.
        """
        self.names.check()
        check_names(self.topics)
        if re.fullmatch(r"[a-zA-Z0-9_-]{1,100}", self.name) is None:
            raise PipelineError(f"the mirror's name {self.name!r} is malformed: use up to 100 letters, digits, '_' and '-'")
        if self.isolation not in ISOLATIONS:
            raise PipelineError(f"unknown isolation {self.isolation!r}: use {' or '.join(ISOLATIONS)}")
        try:
            re.compile(self.groups or "")
        except re.error as error:
            raise PipelineError(f"the pattern of groups {self.groups!r} is malformed: {error}") from None
