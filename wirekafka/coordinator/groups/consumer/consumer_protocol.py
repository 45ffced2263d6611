"""What consumers of the classic protocol say to each other, of which the broker must read and write what it serves them.

Rule of this file: a version newer than is known is read as the newest that is; what follows is skipped, as it was meant to be.

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
    """ConsumerProtocolAssignment: what a member is assigned."""

    assigned_partitions: list[EmbeddedTopic] = []
    user_data: Annotated[NullableBytes, nullable(0)] = None


def version_of_metadata(metadata: bytes) -> int:
    """The version in which a member speaks, of those known here.

    Raises:
        ProtocolError: it is no consumer's metadata.
    """
    if len(metadata) < 2:
        raise ProtocolError("a consumer's metadata begins with a version")
    version = int.from_bytes(metadata[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"{version} is no version of a consumer's metadata")
    return min(version, NEWEST_VERSION)


def assignment_version(metadata: bytes) -> int:
    """The version in which a member is given its assignment: its own; the first one, if its metadata cannot be read.

    A group goes by the metadata for one of the protocols that its members name; nobody has looked at the others.
    """
    try:
        return version_of_metadata(metadata)
    except ProtocolError:
        return 0


def read_subscription(metadata: bytes) -> Subscription:
    """To what a member subscribes.

    Raises:
        ProtocolError: it is no consumer's metadata.
    """
    return _read(Subscription, metadata)


def read_assignment(assignment: bytes, image: TopicImage) -> tuple[Partitions, bool]:
    """Those of the partitions that exist, and whether the assignor has added something of its own.

    Raises:
        ProtocolError: it is no consumer's assignment.
    """
    if not assignment:
        return {}, False
    found = _read(Assignment, assignment)
    return partitions_of(found.assigned_partitions, image), bool(found.user_data)


def partitions_of(topics: Sequence[EmbeddedTopic], image: TopicImage) -> Partitions:
    """Those of the partitions that exist, by the topics' ids."""
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
    """An assignment of those topics that exist, for a member that speaks this version."""
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
