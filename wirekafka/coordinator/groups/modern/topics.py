"""The interfaces to topics for the group coordinator, and the hash by which a group detects changes of topics.

How it works: a group stores a hash over the topics to which its members subscribe: their ids, names, partitions and racks.
When topics change, the groups that subscribe to them compute the hash again, and a different hash begins a new group epoch. The
hash is Apache Kafka's, bit for bit, so a broker that takes a group over sees no change.

Source: CoordinatorMetadataImage, ModernGroup.computeMetadataHash, Utils.computeTopicHash and computeGroupHash of Apache Kafka
4.3 (XXH3 of 64 bits over what hash4j's HashStream64 writes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol

Partitions = dict[bytes, frozenset[int]]
"""Partitions by the id of their topic; shared, so never changed in place. Invariant: no topic has an empty set."""

_HASH_VERSION = b"\0"


class TopicView(Protocol):
    """A topic in the form that the group coordinator uses."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def topic_id(self) -> bytes:
        """The topic's id."""

    @property
    def partitions(self) -> Sized:
        """The topic's partitions, of which only the number is used."""


class TopicImage(Protocol):
    """All current topics."""

    @property
    def revision(self) -> int:
        """Changes when a topic is created, extended or deleted; starts again with each start of the broker."""

    @property
    def version(self) -> int:
        """Grows when a topic is created or extended; greater than in any earlier run of the broker."""

    @property
    def rack(self) -> str | None:
        """The rack of the one broker that leads all partitions; None if the broker has none, or in a cluster."""

    def check_known(self) -> None:
        """Raises unless the topics are known, so that assignments may be computed.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """

    def outgrow(self, version: int) -> None:
        """Makes `version` greater than a greater one, which another broker has stored by its own clock."""

    def find(self, name: str) -> TopicView | None:
        """Returns the topic with this name; None if there is none."""

    def find_by_id(self, topic_id: bytes) -> TopicView | None:
        """Returns the topic with this id; None if there is none."""

    def __iter__(self) -> Iterator[TopicView]:
        """Iterates over all topics."""


class MetadataHashes:
    """The hashes of topics, cached until the topics change."""

    def __init__(self, image: TopicImage) -> None:
        self._image = image
        self._by_name: dict[str, int] = {}

    def forget(self, name: str) -> None:
        """Drops the hash of a topic, because the topic has changed or was deleted."""
        self._by_name.pop(name, None)

    def of_topics(self, names: Iterable[str]) -> int:
        """Returns the hash over those of the topics that exist; 0 if none exists."""
        # Java sorts strings in the same order, because the names of topics are ASCII.
        hashes = [self._of_topic(name) for name in sorted(names) if self._image.find(name) is not None]
        return _xxh3(b"".join(struct.pack("<q", value) for value in hashes)) if hashes else 0

    def _of_topic(self, name: str) -> int:
        value = self._by_name.get(name)
        if value is None:
            topic = self._image.find(name)
            assert topic is not None
            value = self._by_name[name] = topic_hash(topic, self._image.rack)
        return value


def topic_hash(topic: TopicView, rack: str | None) -> int:
    """Returns the hash of one topic, all of whose partitions are in the same rack."""
    partition_count = len(topic.partitions)
    head = _HASH_VERSION + _long(topic.topic_id[:8]) + _long(topic.topic_id[8:]) + _string(topic.name)
    rack_bytes = b"" if rack is None else struct.pack("<i", _java_length(rack)) + _string(rack)
    body = b"".join(struct.pack("<i", index) + rack_bytes for index in range(partition_count))
    return _xxh3(head + struct.pack("<i", partition_count) + body)


def _xxh3(data: bytes) -> int:
    # Imported for the first group that needs it, so that a broker without such groups starts faster.
    import xxhash

    number = xxhash.xxh3_64_intdigest(data)
    return number - (1 << 64) if number >= 1 << 63 else number


def _long(big_endian: bytes) -> bytes:
    return big_endian[::-1]


def _string(text: str) -> bytes:
    """Returns the UTF-16 code units of a string, followed by their number."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units + struct.pack("<i", len(units) // 2)


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
