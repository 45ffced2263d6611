"""The port to the storage of the cluster's metadata: topics, features, and the settings of brokers and groups.

The modules of `metadata/` read the attributes of a store and call its methods, and know nothing else about it. The store of a
single broker is `wirekafka.metadata.journal.Journal`; the fake for tests is `wirekafka.testing.memory_store.MemoryStore`.

Rules of every store:
    A change is durable before the call that makes it returns, and before any other code sees it.
    A change that fails has changed nothing.
    A deleted topic's id stays in `deleted` until its folders are known to be deleted. Otherwise a crash could restore the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class StoredTopic:
    """One topic in the store.

    Attributes:
        overrides: the topic's own settings.
        leader_epoch: the leader epoch of a partition is not less. The partitions of a topic that comes from a cluster may have
            had leaders in whose epochs no record was written, and clients know the epochs.
    """

    topic_id: bytes
    partition_count: int
    overrides: dict[str, str] = field(default_factory=dict)
    leader_epoch: int = 0


class GroupConfigStore(Protocol):
    """The settings of groups."""

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The settings of the groups that set any, by group id."""

    def put_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Stores the settings of a group; no settings remove the group.

        Durability, Raises: as `MetadataStore.put_topic`.
        """


class FeatureStore(Protocol):
    """The levels of features."""

    @property
    def feature_levels(self) -> Mapping[str, int]:
        """The levels of the features that were ever changed, by name."""

    @property
    def features_epoch(self) -> int:
        """The number of changes of levels."""

    def put_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Stores the levels of all features.

        Durability, Raises: as `MetadataStore.put_topic`.
        """


class MetadataStore(GroupConfigStore, FeatureStore, Protocol):
    """The metadata that the broker needs before it opens a partition."""

    @property
    def topics(self) -> Mapping[str, StoredTopic]:
        """The topics, by name."""

    @property
    def deleted(self) -> Mapping[bytes, str]:
        """The names of deleted topics whose folders may still exist, by topic id; "" if the name is not known."""

    @property
    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The dynamic settings of brokers, by broker id; "" stands for all brokers."""

    @property
    def is_sync_put_off(self) -> bool:
        """Whether a `together` block is open."""

    def put_topic(self, name: str, topic_id: bytes, partition_count: int, overrides: Mapping[str, str]) -> None:
        """Stores the state of a topic; its leader epoch stays.

        Durability: on disk when it returns.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; nothing has changed then.
        """

    def delete_topic(self, name: str) -> None:
        """Removes the topic, and stores its id as deleted.

        Durability, Raises: as `put_topic`.
        """

    def put_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Stores the dynamic settings of a broker; "" stands for all brokers.

        Durability, Raises: as `put_topic`.
        """

    def together(self) -> AbstractContextManager[None]:
        """Makes all changes inside the block durable at its end, in one wait.

        Durability: the changes are on disk when the block ends, and not before.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR at the end of the block; the changes are in effect, but a crash of the machine may
                lose them.
        """

    def forget_deleted_topic(self, topic_id: bytes) -> None:
        """Removes the id of a deleted topic whose folders no longer have a partition's name on disk.

        Durability: none. The id may come back with the next start, which finds no folder and removes it again.
        """

    def forget_deleted(self) -> None:
        """Removes the ids of all deleted topics, whose folders no longer exist.

        Durability, Raises: as `put_topic`.
        """

    def close(self) -> None:
        """Ends the use of the store."""
