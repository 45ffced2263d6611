"""A member of a group, with kafka-python 3."""

from __future__ import annotations

from collections.abc import Iterable

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from members import Part


class Listener(ConsumerRebalanceListener):
    def __init__(self, part: Part, consumer: KafkaConsumer) -> None:
        self.part, self.consumer = part, consumer

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        epoch = self.consumer._coordinator._generation.generation_id
        self.part.assigned(epoch, [place.partition for place in assigned])

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.part.revoked(place.partition for place in revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self.part.revoked((place.partition for place in lost), is_lost=True)


def take(part: Part) -> None:
    """Reads and commits until the line `leave` comes."""
    consumer = KafkaConsumer(
        bootstrap_servers=part.bootstrap,
        group_id=part.group,
        client_id=part.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=part.session_ms,
        heartbeat_interval_ms=part.session_ms // 6,
        fetch_max_wait_ms=200,
        max_poll_records=100,
        partition_assignment_strategy=[RangePartitionAssignor],
        reconnect_backoff_ms=10,
    )
    consumer.subscribe([part.topic], listener=Listener(part, consumer))
    while not part.is_told_to_leave:
        # A long timeout, because the library loses an assignment that arrives as the timeout ends (see with_kafka_python.py).
        polled = consumer.poll(timeout_ms=2000)
        ranges = {place.partition: (found[0].offset, found[-1].offset) for place, found in polled.items() if found}
        if ranges:
            commit(part, consumer, ranges)
    part.closing()
    consumer.close()


def commit(part: Part, consumer: KafkaConsumer, ranges: dict[int, tuple[int, int]]) -> None:
    part.read(ranges)
    try:
        consumer.commit(
            {
                TopicPartition(part.topic, partition): OffsetAndMetadata(last + 1, "", -1)
                for partition, (_, last) in ranges.items()
            }
        )
    except KafkaError as error:
        part.refused(error)
    else:
        part.committed(ranges)
