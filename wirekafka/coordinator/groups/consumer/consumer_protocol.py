"""The subscriptions and assignments that consumers embed in requests of the classic protocol.

Consumer groups with classic members need both: the broker reads the members' subscriptions and writes the members' assignments.

Rule of this file: a subscription or assignment of an unknown newer version is read as the newest known version; the bytes after
its fields are skipped, which the format intends.

Source: org.apache.kafka.clients.consumer.internals.ConsumerProtocol, ConsumerProtocolSubscription.json and
ConsumerProtocolAssignment.json; GroupMetadataManager.prepareAssignment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

from wirekafka.coordinator.groups.modern.topics import Partitions, TopicImage
from wirekafka.errors import ProtocolError
from wirekafka.wire import codec
from wirekafka.wire.types import Int32, Message, NullableBytes, NullableString, String, nullable, since

NEWEST_VERSION = 3

M = TypeVar("M", bound=Message)


class EmbeddedTopic(Message):
    """Partitions of one topic."""

    topic: String = ""
    partitions: list[Int32] = []


class Subscription(Message):
    """ConsumerProtocolSubscription: the metadata of a member."""

    topics: list[String] = []
    user_data: Annotated[NullableBytes, nullable(0)] = None
    owned_partitions: Annotated[list[EmbeddedTopic], since(1)] = []
    generation_id: Annotated[Int32, since(2)] = -1
    rack_id: Annotated[NullableString, since(3), nullable(3)] = None


class Assignment(Message):
    """ConsumerProtocolAssignment: the partitions that are assigned to a member."""

    assigned_partitions: list[EmbeddedTopic] = []
    user_data: Annotated[NullableBytes, nullable(0)] = None


def version_of_metadata(metadata: bytes) -> int:
    """Returns the version of a member's metadata, at most `NEWEST_VERSION`.

    Raises:
        ProtocolError: The bytes are not the metadata of a consumer.
    """
    if len(metadata) < 2:
        raise ProtocolError("a consumer's metadata begins with a version")
    version = int.from_bytes(metadata[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"version {version} of a consumer's metadata is not known")
    return min(version, NEWEST_VERSION)


def assignment_version(metadata: bytes) -> int:
    """Returns the version in which a member gets its assignment: the version of its metadata, or 0 if that cannot be read.

    A member sends metadata for each of its protocols. The broker has validated the metadata of only one of them.
    """
    try:
        return version_of_metadata(metadata)
    except ProtocolError:
        return 0


def read_subscription(metadata: bytes) -> Subscription:
    """Returns the subscription of a member.

    Raises:
        ProtocolError: The bytes are not the metadata of a consumer.
    """
    return _read(Subscription, metadata)


def read_assignment(assignment: bytes, image: TopicImage) -> tuple[Partitions, bool]:
    """Returns the assigned partitions that exist, and whether the assignment has user data of the assignor.

    Raises:
        ProtocolError: The bytes are not the assignment of a consumer.
    """
    if not assignment:
        return {}, False
    found = decode_assignment(assignment)
    return partitions_of(found.assigned_partitions, image), bool(found.user_data)


def decode_assignment(assignment: bytes) -> Assignment:
    """Returns the assignment of a member.

    Raises:
        ProtocolError: The bytes are not the assignment of a consumer.
    """
    return _read(Assignment, assignment)


def partitions_of(topics: Sequence[EmbeddedTopic], image: TopicImage) -> Partitions:
    """Returns those of the partitions that exist, by topic id."""
    partitions: Partitions = {}
    for named in topics:
        topic = image.find(named.topic)
        if topic is None:
            continue
        count = len(topic.partitions)
        found = frozenset(index for index in named.partitions if 0 <= index < count)
        if found:
            partitions[topic.topic_id] = partitions.get(topic.topic_id, frozenset()) | found
    return partitions


def write_assignment(partitions: Mapping[bytes, Iterable[int]], image: TopicImage, version: int) -> bytes:
    """Returns the encoded assignment, without deleted topics, in the given version."""
    named = []
    for topic_id, indexes in partitions.items():
        topic = image.find_by_id(topic_id)
        if topic is not None:
            named.append(EmbeddedTopic(topic=topic.name, partitions=sorted(indexes)))
    return version.to_bytes(2, "big") + codec.encode(Assignment(assigned_partitions=named), version, False)


def _read(cls: type[M], data: bytes) -> M:
    version = version_of_metadata(data)
    try:
        message: M = codec.reader(cls, version, False)(data, 2, len(data))[0]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a {cls.__name__}: {error}") from None
    return message
