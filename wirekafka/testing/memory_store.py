"""The metadata of a broker in memory, for tests of what uses a `MetadataStore`: topics, features, settings.

    store = MemoryStore()
    topics = Topics.open(config, logs, store, host)

The content stays after `close`, so that a test may open the same store again, as after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.store import StoredTopic


class MemoryStore:
    """A `MetadataStore` that never touches a disk.

    Attributes:
        error: the error of every change, which then changes nothing; None for success. A test sets it.
    """

    def __init__(self) -> None:
        self.topics: dict[str, StoredTopic] = {}
        self.deleted: dict[bytes, str] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.feature_levels: dict[str, int] = {}
        self.features_epoch = 0
        self.is_sync_put_off = False
        self.error: ErrorCode | None = None

    def _check(self) -> None:
        if self.error is not None:
            raise KafkaError(self.error)

    def put_topic(self, name: str, topic_id: bytes, partition_count: int, overrides: Mapping[str, str]) -> None:
        """Stores the state of a topic; its leader epoch stays."""
        self._check()
        former = self.topics.get(name)
        leader_epoch = former.leader_epoch if former is not None and former.topic_id == topic_id else 0
        self.topics[name] = StoredTopic(topic_id, partition_count, dict(overrides), leader_epoch)

    def delete_topic(self, name: str) -> None:
        """Removes the topic, and stores its id as deleted."""
        self._check()
        self.deleted[self.topics.pop(name).topic_id] = name

    def put_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Stores the dynamic settings of a broker."""
        self._check()
        self.broker_configs[broker] = dict(configs)

    def put_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Stores the settings of a group; no settings remove the group."""
        self._check()
        if configs:
            self.group_configs[group_id] = dict(configs)
        else:
            self.group_configs.pop(group_id, None)

    def put_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Stores the levels of all features."""
        self._check()
        self.feature_levels, self.features_epoch = dict(levels), epoch

    @contextmanager
    def together(self) -> Iterator[None]:
        """Notes in `is_sync_put_off` that the block is open."""
        self.is_sync_put_off = True
        try:
            yield
        finally:
            self.is_sync_put_off = False

    def forget_deleted_topic(self, topic_id: bytes) -> None:
        """Removes the id of a deleted topic."""
        self.deleted.pop(topic_id, None)

    def forget_deleted(self) -> None:
        """Removes the ids of all deleted topics."""
        self._check()
        self.deleted.clear()

    def close(self) -> None:
        """Does nothing."""
