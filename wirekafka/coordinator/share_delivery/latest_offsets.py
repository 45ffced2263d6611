"""Asks the leaders of partitions for the offsets up to which consumers can read, by which the lag of share groups is known.

Source: org.apache.kafka.coordinator.group.PartitionMetadataClient, NetworkPartitionMetadataClient of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from wirekafka.coordinator.cluster import CoordinatorCluster, PeerQueue, by_topic
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_fetcher import Channel

VERSION = 9
"""The version that all members of a cluster serve."""

PARTITIONS_IN_REQUEST = 500

CONSUMER = -1
"""The replica id of a client."""
LATEST = -1
"""The time that stands for the latest offset."""

Offsets = dict[TopicPartition, "int | KafkaError"]


class _Question(NamedTuple):
    partition: TopicPartition
    take: Callable[[int | KafkaError], object]


class LatestOffsets:
    """Asks for the latest offsets of partitions, wherever they are led.

    Args:
        find: returns a partition; raises a KafkaError if there is none.
    """

    def __init__(self, cluster: CoordinatorCluster, clock: Clock, find: Callable[[str, int], Partition]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._find = find
        self._queues = cluster.open_queues("latest-offsets", self._make_queue)

    def ask(self, partitions: Iterable[TopicPartition]) -> Pending[Offsets]:
        """Returns a Pending of the offset, or of the error, of each partition."""
        wanted = [*dict.fromkeys(partitions)]
        found: Offsets = {}
        done: Pending[Offsets] = Pending()

        def note(partition: TopicPartition, offset: int | KafkaError) -> None:
            found[partition] = offset
            if len(found) == len(wanted):
                done.complete(found)

        if not wanted:
            done.complete(found)
        for each in wanted:
            self._ask_one(each, partial(note, each))
        return done

    def _ask_one(self, partition: TopicPartition, take: Callable[[int | KafkaError], object]) -> None:
        try:
            leader_id = self._cluster.leader_of(partition)
            if leader_id == self._cluster.node_id:
                take(self._find(*partition).log.high_watermark)
                return
        except KafkaError as error:
            take(error)
            return
        self._queues.put(leader_id, _Question(partition, take))

    def _make_queue(self, channel: Channel) -> PeerQueue[_Question, ListOffsetsRequest, ListOffsetsResponse]:
        return PeerQueue(
            channel, self._clock, LIST_OFFSETS, VERSION, most_items=PARTITIONS_IN_REQUEST, build=_request, take=_take
        )


def _request(questions: list[_Question]) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=each, timestamp=LATEST) for each in indexes])
        for name, indexes in by_topic(question.partition for question in questions).items()
    ]
    return ListOffsetsRequest(replica_id=CONSUMER, topics=topics)


def _take(questions: list[_Question], response: ListOffsetsResponse | None) -> None:
    found: Offsets = {}
    for topic in [] if response is None else response.topics:
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            found[name] = KafkaError(ErrorCode.of(each.error_code)) if each.error_code else each.offset
    missing = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "The leader of the partition has not answered.")
    for question in questions:
        question.take(found.get(question.partition, missing))
