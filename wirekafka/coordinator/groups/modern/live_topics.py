"""The broker's topics, in the form that the group coordinator uses.

Source: CoordinatorMetadataImage, GroupMetadataManager.onMetadataUpdate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicView
from wirekafka.replication.replica_manager import HostedTopic, HostedTopics


class LiveTopics:
    """The table of topics as a `TopicImage`.

    Args:
        now_ms: the wall clock, by which versions increase over restarts too.

    Attributes:
        hashes: the hashes of topics, each dropped when its topic changes.
    """

    def __init__(self, topics: HostedTopics, rack: str | None, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._now_ms = now_ms
        self.rack = rack
        self.revision = 1
        self.version = now_ms()
        self.hashes = MetadataHashes(self)
        topics.on_change.append(self._on_change)
        topics.on_delete.append(self._on_delete)

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
