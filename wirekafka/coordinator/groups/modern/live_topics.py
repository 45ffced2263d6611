"""The broker's topics, in the form that the group coordinator uses.

In a cluster the topics are those of the image, which a broker that has just started gets from the controller. Until then no
group may compute an assignment, because members would lose the partitions of the topics that are not known yet.

Differs from Apache Kafka: in a cluster, the racks of brokers are no part of the hash by which a group detects changes of topics.
With ZooKeeper, the rack of a stopped broker is unknown, so each stop of a broker would begin a new group epoch.

Source: CoordinatorMetadataImage, GroupMetadataManager.onMetadataUpdate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicView
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.replica_manager import HostedTopic, HostedTopics


class LiveTopics:
    """The table of topics as a `TopicImage`.

    Args:
        rack: the rack of a broker that leads all partitions; None in a cluster.
        is_known: whether the topics of the cluster are known.
        now_ms: the wall clock, by which versions increase over restarts too.

    Attributes:
        hashes: the hashes of topics, each dropped when its topic changes.
    """

    def __init__(
        self,
        topics: HostedTopics,
        rack: str | None,
        now_ms: Callable[[], int],
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self._topics = topics
        self._is_known = is_known
        self._now_ms = now_ms
        self.rack = rack
        self.revision = 1
        self.version = now_ms()
        self.hashes = MetadataHashes(self)
        topics.on_change.append(self._on_change)
        topics.on_delete.append(self._on_delete)

    def check_known(self) -> None:
        """Raises unless the topics of the cluster are known.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not self._is_known():
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The controller has not sent the topics of the cluster yet.")

    def outgrow(self, version: int) -> None:
        """Makes `version` greater than a greater one, which another broker has stored by its own clock."""
        if version > self.version:
            self.version = version + 1

    def find(self, name: str) -> TopicView | None:
        """Returns the topic with this name; None if there is none."""
        return self._topics.find(name)

    def find_by_id(self, topic_id: bytes) -> TopicView | None:
        """Returns the topic with this id; None if there is none."""
        return self._topics.find_by_id(topic_id)

    def __iter__(self) -> Iterator[TopicView]:
        """Iterates over all topics."""
        return iter(self._topics)

    def _on_change(self, topic: HostedTopic) -> None:
        self.hashes.forget(topic.name)
        self.revision += 1
        self.version = max(self._now_ms(), self.version + 1)

    def _on_delete(self, topic: HostedTopic) -> None:
        self.hashes.forget(topic.name)
        self.revision += 1
