"""The topic ids of the replicas on a broker: no two topics have the same id.

A fetcher names partitions by their topic ids, so a second topic of an id would take the answers for the first one, and the leader
would refuse the requests for all partitions.

Rules of this file: pure.
"""

from __future__ import annotations

from collections import Counter

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import ZERO_TOPIC_ID


class TopicIds:
    """The topics by their ids. The zero id stands for none, and may be that of many topics."""

    __slots__ = ("_names", "_replica_counts")

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._replica_counts: Counter[bytes] = Counter()

    def check(self, topic: str, topic_id: bytes) -> None:
        """Raises unless the topic may have the id.

        Raises:
            KafkaError: INCONSISTENT_TOPIC_ID.
        """
        name = self._names.get(topic_id, topic)
        if name != topic:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"the topic {name} has the topic id of {topic}")

    def add(self, topic: str, topic_id: bytes) -> None:
        """Notes a replica of a topic with this id."""
        if topic_id != ZERO_TOPIC_ID:
            self._names[topic_id] = topic
            self._replica_counts[topic_id] += 1

    def remove(self, topic_id: bytes) -> None:
        """Forgets a replica, which was added; the last one frees the id."""
        if topic_id == ZERO_TOPIC_ID:
            return
        self._replica_counts[topic_id] -= 1
        if not self._replica_counts[topic_id]:
            del self._replica_counts[topic_id], self._names[topic_id]
