"""The offsets of open transactions, which are not committed yet; a consumer that asks for stable offsets waits for them.

Rules of this file:
    Invariant: `_holders` has the transactions of each offset in `_offsets`, and nothing else.
    A transaction belongs to one partition of __consumer_offsets, whose marker ends it; a producer may have one in each partition.

Source: OffsetMetadataManager (pendingTransactionalOffsets, openTransactions); KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wirekafka.coordinator.groups.records import CommittedOffset, OffsetRecord


class OpenTransaction(NamedTuple):
    """A producer's transaction in a partition of __consumer_offsets."""

    partition: int
    producer_id: int


Place = tuple[str, str, int]
"""The group, topic and partition of an offset."""


class PendingOffsets:
    """The offsets of all open transactions."""

    def __init__(self) -> None:
        self._offsets: dict[OpenTransaction, dict[Place, CommittedOffset]] = {}
        self._holders: dict[str, dict[tuple[str, int], set[OpenTransaction]]] = {}
        """The transactions of each offset, by group, then topic and partition."""
        self._counts_by_topic: dict[str, dict[str, int]] = {}
        """The number of partitions with pending offsets, by topic, then group."""

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def add(self, transaction: OpenTransaction, record: OffsetRecord) -> None:
        """Stores an offset until its transaction ends."""
        assert record.value is not None, "no transaction deletes offsets"
        group_id, topic, partition = record.group_id, record.topic, record.partition
        self._offsets.setdefault(transaction, {})[group_id, topic, partition] = record.value
        places = self._holders.setdefault(group_id, {})
        holders = places.get((topic, partition))
        if holders is None:
            holders = places[topic, partition] = set()
            counts = self._counts_by_topic.setdefault(topic, {})
            counts[group_id] = counts.get(group_id, 0) + 1
        holders.add(transaction)

    def drop(self, place: Place) -> None:
        """Drops a deleted offset from all transactions, so that their commits do not restore it."""
        group_id, topic, partition = place
        for transaction in tuple(self._holders.get(group_id, {}).get((topic, partition), ())):
            offsets = self._offsets[transaction]
            del offsets[place]
            if not offsets:
                del self._offsets[transaction]
            self._let_go(transaction, place)

    def take(self, transaction: OpenTransaction) -> dict[Place, CommittedOffset]:
        """Removes and returns the offsets of a transaction that ends."""
        offsets = self._offsets.pop(transaction, {})
        for place in offsets:
            self._let_go(transaction, place)
        return offsets

    def has(self, place: Place) -> bool:
        """Whether an open transaction may change this offset."""
        group_id, topic, partition = place
        return (topic, partition) in self._holders.get(group_id, ())

    def has_group(self, group_id: str) -> bool:
        """Whether an open transaction may change offsets of the group."""
        return group_id in self._holders

    def topics(self) -> Iterator[str]:
        """Yields the topics with pending offsets, each once."""
        return iter(self._counts_by_topic)

    def groups_of_topic(self, topic: str) -> Iterator[str]:
        """Yields the ids of the groups with pending offsets in a topic, each once."""
        return iter(self._counts_by_topic.get(topic, ()))

    def of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Yields the partitions with pending offsets of a group, each once."""
        return iter(self._holders.get(group_id, ()))

    def forget_partition(self, partition: int) -> None:
        """Removes the transactions in a partition, because this broker has lost the partition."""
        for transaction in [each for each in self._offsets if each.partition == partition]:
            self.take(transaction)

    def _let_go(self, transaction: OpenTransaction, place: Place) -> None:
        group_id, topic, partition = place
        places = self._holders[group_id]
        holders = places[topic, partition]
        holders.remove(transaction)
        if not holders:
            del places[topic, partition]
            counts = self._counts_by_topic[topic]
            counts[group_id] -= 1
            if not counts[group_id]:
                del counts[group_id]
            if not counts:
                del self._counts_by_topic[topic]
        if not places:
            del self._holders[group_id]
