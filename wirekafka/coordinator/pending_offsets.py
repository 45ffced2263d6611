"""Offsets of transactions that are still open: nobody's offsets yet, but whoever wants stable ones has to wait for them.

Rules of this file:
    Invariant: `_producers[group_id]` are the transactions that hold offsets of the group, and nothing else.
    A transaction belongs to one partition of __consumer_offsets, whose marker ends it; a producer may have one in each.

Source: OffsetMetadataManager (pendingTransactionalOffsets, openTransactionsByGroup); KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wirekafka.coordinator.records import CommittedOffset, OffsetRecord


class OpenTransaction(NamedTuple):
    """A producer's transaction in a partition of __consumer_offsets."""

    partition: int
    producer_id: int


Place = tuple[str, str, int]
"""What an offset is of: group, topic, partition."""


class PendingOffsets:
    """The offsets of all open transactions."""

    def __init__(self) -> None:
        self._offsets: dict[OpenTransaction, dict[Place, CommittedOffset]] = {}
        self._producers: dict[str, dict[OpenTransaction, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def add(self, transaction: OpenTransaction, record: OffsetRecord) -> None:
        """Keeps an offset until its transaction ends."""
        assert record.value is not None, "no transaction deletes offsets"
        self._offsets.setdefault(transaction, {})[record.group_id, record.topic, record.partition] = record.value
        self._producers.setdefault(record.group_id, {})[transaction] = None

    def drop(self, place: Place) -> None:
        """Forgets an offset in whatever transactions it is: it was deleted, and shall not come back with a commit."""
        group_id = place[0]
        for transaction in list(self._producers.get(group_id, ())):
            offsets = self._offsets[transaction]
            offsets.pop(place, None)
            if not any(group == group_id for group, _, _ in offsets):
                self._forget(transaction, group_id)
            if not offsets:
                del self._offsets[transaction]

    def take(self, transaction: OpenTransaction) -> dict[Place, CommittedOffset]:
        """The offsets of a transaction that ends; they are pending no more."""
        offsets = self._offsets.pop(transaction, {})
        for group_id in {group_id for group_id, _, _ in offsets}:
            self._forget(transaction, group_id)
        return offsets

    def has(self, place: Place) -> bool:
        """Whether some transaction is about to change this offset."""
        return any(place in self._offsets[transaction] for transaction in self._producers.get(place[0], ()))

    def has_group(self, group_id: str) -> bool:
        """Whether some transaction is about to change offsets of the group."""
        return group_id in self._producers

    def of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """The partitions of which a group's offsets are pending, each once."""
        places = {
            place: None
            for transaction in self._producers.get(group_id, ())
            for place in self._offsets[transaction]
            if place[0] == group_id
        }
        for _, topic, partition in places:
            yield topic, partition

    def clear(self) -> None:
        """Forgets everything: the log that holds it is gone."""
        self._offsets.clear()
        self._producers.clear()

    def _forget(self, transaction: OpenTransaction, group_id: str) -> None:
        transactions = self._producers[group_id]
        del transactions[transaction]
        if not transactions:
            del self._producers[group_id]
