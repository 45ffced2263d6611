"""The table of topics, as every part of the broker reads it.

How it works: `wirekafka.metadata.topics.Topics` is the table of a broker without other brokers, which creates and deletes the
topics itself. `wirekafka.metadata.cluster_topics.ClusterTopics` is the table of a member of a cluster, whose controller decides
about topics.

Rules of this file:
    Invariant: the partitions of a topic in the table are numbered from 0, without a gap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import Features
from wirekafka.metadata.group_configs import GroupConfigs
from wirekafka.names import INTERNAL_TOPICS

P = TypeVar("P")
"""The type of a partition in the room that hosts the partitions."""

UNKNOWN_TOPIC_OR_PARTITION_MESSAGE = "This server does not host this topic-partition."


class Topic(Generic[P]):
    """One topic.

    Attributes:
        partitions: by index.
        overrides: the topic's own settings, as text.
        log_config: all settings of the topic, resolved.
        is_internal: coordinators keep their state in the topic.
        described: the partitions as the Metadata API describes them; None after a change of the partitions.
    """

    __slots__ = ("described", "is_internal", "log_config", "name", "overrides", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, overrides: Mapping[str, str], log_config: LogConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: list[P] = []
        self.overrides = dict(overrides)
        self.log_config = log_config
        self.is_internal = name in INTERNAL_TOPICS
        self.described: object = None

    def __repr__(self) -> str:
        return f"<Topic {self.name} of {len(self.partitions)} partitions>"


class TopicTable(ABC, Generic[P]):
    """The table of topics.

    Attributes:
        group_configs: the own settings of groups.
        features: the features and their levels.
        on_delete: called with each deleted topic, after its name is free.
        on_change: called with each topic that is created or gets more partitions.
    """

    def __init__(self, group_configs: GroupConfigs, features: Features) -> None:
        self.on_delete: list[Callable[[Topic[P]], object]] = []
        self.on_change: list[Callable[[Topic[P]], object]] = []
        self.group_configs = group_configs
        self.features = features
        self._by_name: dict[str, Topic[P]] = {}
        self._by_id: dict[bytes, Topic[P]] = {}

    @abstractmethod
    def create_internal(self, name: str) -> Topic[P]:
        """Creates a topic in which coordinators keep their state.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, if no coordinator has a topic of this name; COORDINATOR_NOT_AVAILABLE, if the
                topic is not there yet; further errors of the table.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes all partitions, which ends the requests that wait for them."""

    def __iter__(self) -> Iterator[Topic[P]]:
        """Iterates over the topics by name, in alphabetical order."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Topic[P] | None:
        """Returns the topic with this name, or None."""
        return self._by_name.get(name)

    def find_by_id(self, topic_id: bytes) -> Topic[P] | None:
        """Returns the topic with this id, or None."""
        return self._by_id.get(topic_id)

    def get(self, topic: str | bytes) -> Topic[P]:
        """Returns the topic with this name, or with this id if it is given as bytes.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION if no topic has the name; UNKNOWN_TOPIC_ID if no topic has the id.
        """
        if isinstance(topic, str):
            found = self._by_name.get(topic)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION_MESSAGE)
        else:
            found = self._by_id.get(topic)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return found

    def find_partition(self, topic: str | bytes, index: int) -> P:
        """Returns a partition that exists, online or offline, whichever broker leads it.

        Requests that read or write a partition's log use `Broker.find_partition` instead.

        Args:
            topic: the topic's name, or its id as bytes.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID.
        """
        # This method reads the tables itself: a call of `get` would cost the hot path 0.05 us.
        found = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)
        if found is None:
            found = self.get(topic)
        partitions = found.partitions
        if not 0 <= index < len(partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION_MESSAGE)
        return partitions[index]
