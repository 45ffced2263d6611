"""What a mirror remembers at the target about each topic: in the compacted topic `wirekafka.mirror.NAME.topics`.

The checkpoint of Spark may be lost, and another mirror may use the same name by mistake. So the facts that keep a mirror from
doubling or mixing records are at the target, beside the records:

- the cluster that a topic comes from, and the ids of the topic and of its mirror. An id changes if a topic is deleted and created
  again, and its offsets begin at 0 again;
- the clusters through which the records have come. A topic that has come from the target already is not mirrored back to it, so
  mirrors in circles are found whatever the topics are called. MirrorMaker 2 finds them by the prefixes of the names;
- the settings that were copied, so that only changes at the source are copied again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, partition_counts
from wirekafka.pipelines.mirror.compacted import CompactedTopic, write_records
from wirekafka.pipelines.mirror.options import KIND
from wirekafka.pipelines.mirror.topic_plan import Topic, TopicChange
from wirekafka.pipelines.mirror.topics import apply_change, read_topics

REGISTRY_NAME = "wirekafka.{kind}.{name}.topics"


@dataclass(slots=True)
class MirroredTopic:
    """A topic that is mirrored.

    Attributes:
        topic: its name at the source.
        target: the name of its mirror.
        source_cluster: the id of the source.
        source_id: the id of the topic.
        target_id: the id of the mirror.
        origins: the ids of all clusters through which the records have come, the source first.
        configs: the settings that were copied last.
    """

    topic: str
    target: str
    source_cluster: str
    source_id: str
    target_id: str
    origins: list[str]
    configs: dict[str, str] = field(default_factory=dict)

    def key(self) -> bytes:
        """Returns the key of the topic's record."""
        return json.dumps({"topic": self.topic}).encode()

    def value(self) -> bytes:
        """Returns the value of the topic's record."""
        return json.dumps(asdict(self)).encode()


def registry_topic(name: str) -> str:
    """Returns the name of the topic that has the registry of a mirror."""
    return REGISTRY_NAME.format(kind=KIND, name=name)


class Registry:
    """The mirrored topics of one mirror, as the target has them."""

    def __init__(self, target: Cluster, name: str) -> None:
        self.target = target
        self._records = CompactedTopic(target, registry_topic(name))
        self._exists = False

    @property
    def topic(self) -> str:
        """The name of the topic that has the records."""
        return self._records.name

    def read(self) -> dict[str, MirroredTopic]:
        """Returns the mirrored topics by their name at the source; reads what is new.

        Raises:
            PipelineError: no broker answers.
        """
        self._records.refresh()
        found = [MirroredTopic(**json.loads(value)) for value in self._records.records.values()]
        return {entry.topic: entry for entry in found}

    def write(self, entries: Iterable[MirroredTopic]) -> None:
        """Stores topics.

        Durability: all replicas in sync have the records on return.

        Raises:
            PipelineError: the target does not answer, or refuses.
        """
        records = {entry.key(): entry.value() for entry in entries}
        if not records:
            return
        if not self._exists:
            if not read_topics(self.target, [self.topic]):
                apply_change(self.target, TopicChange(self.topic, True, 1, {"cleanup.policy": "compact"}))
            self._exists = True
        write_records(self.target, self.topic, records)


def origins_at(source: Cluster) -> dict[str, list[str]]:
    """Returns the topics of a cluster that are mirrors themselves, and the clusters that their records have come through.

    Raises:
        PipelineError: no broker answers.
    """
    prefix, suffix = REGISTRY_NAME.format(kind=KIND, name="{}").split("{}")
    found: dict[str, list[str]] = {}
    for name in partition_counts(source):
        if name.startswith(prefix) and name.endswith(suffix):
            registry = Registry(source, name[len(prefix) : -len(suffix)])
            for entry in registry.read().values():
                found.setdefault(entry.target, []).extend(entry.origins)
    return found


def check_entry(entry: MirroredTopic, source_cluster: str, target_name: str, source: Topic, target: Topic | None) -> None:
    """Checks that a topic and its mirror are still those that the mirror has written.

    Args:
        entry: what the mirror remembers of the topic.
        source_cluster: the id of the source.
        target_name: the name of the mirror now.
        source: the topic.
        target: the mirror; None if it does not exist.

    Raises:
        PipelineError: the source is another cluster, or one of the topics was created again.
    """
    again = f"--restart-topic {entry.topic}"
    if entry.source_cluster != source_cluster:
        raise name_is_taken(entry, source_cluster)
    if entry.target != target_name:
        raise PipelineError(
            f"{entry.topic} was mirrored to {entry.target} until now, not to {target_name}: keep --rename, or choose another "
            "--name to mirror everything again under the new names"
        )
    if entry.source_id != source.topic_id:
        raise PipelineError(
            f"the topic {entry.topic} was deleted and created again at the source, so its offsets are others: delete "
            f"{entry.target} at the target and mirror it from its beginning with {again}, or leave the topic out"
        )
    if target is None:
        raise PipelineError(
            f"the topic {entry.target} was deleted at the target: mirror {entry.topic} from its beginning with {again}, "
            "or leave the topic out"
        )
    if entry.target_id != target.topic_id:
        raise PipelineError(
            f"the topic {entry.target} was deleted and created again at the target: mirror {entry.topic} from its beginning "
            f"with {again}, or leave the topic out"
        )


def name_is_taken(entry: MirroredTopic, source_cluster: str) -> PipelineError:
    """Returns the error for a mirror whose name belongs to a mirror of another cluster."""
    return PipelineError(
        f"this --name belongs to a mirror of the cluster {entry.source_cluster} ({entry.topic} to {entry.target}), and the "
        f"source is the cluster {source_cluster}: choose another --name"
    )


def circular(origins: Mapping[str, list[str]], target_cluster: str) -> frozenset[str]:
    """Returns the topics whose records have come from the target."""
    return frozenset(topic for topic, clusters in origins.items() if target_cluster in clusters)
