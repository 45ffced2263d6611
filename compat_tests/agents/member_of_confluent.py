"""A member of a group, with confluent-kafka, in the classic or the consumer protocol."""

from __future__ import annotations

import struct
import time

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from members import Part

MOST_RECORDS = 100
POLL_S = 0.2


def take(part: Part) -> None:
    """Reads and commits until the line `leave` comes."""
    consumer = Consumer(settings_of(part))
    is_incremental = part.options["protocol"] == "consumer" or part.options["assignor"] == "cooperative-sticky"
    messages: list[Message] = []

    def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
        part.assigned(epoch_of(consumer), [place.partition for place in places])
        (consumer.incremental_assign if is_incremental else consumer.assign)(places)

    def taken(consumer: Consumer, places: list[TopicPartition], *, is_lost: bool = False) -> None:
        gone = {place.partition for place in places}
        part.revoked(gone, is_lost=is_lost)
        # The next owners of these partitions begin at the committed offsets.
        messages[:] = [message for message in messages if message.partition() not in gone]
        if is_incremental:
            consumer.incremental_unassign(places)
        else:
            consumer.unassign()

    def lost(consumer: Consumer, places: list[TopicPartition]) -> None:
        taken(consumer, places, is_lost=True)

    consumer.subscribe([part.topic], on_assign=assigned, on_revoke=taken, on_lost=lost)
    while not part.is_told_to_leave:
        messages.clear()
        deadline = time.monotonic() + POLL_S
        while len(messages) < MOST_RECORDS and (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is not None and message.error() is None:
                messages.append(message)
        if messages:
            commit(part, consumer, ranges_of(messages))
    part.closing()
    consumer.close()


def settings_of(part: Part) -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": part.bootstrap,
        "group.id": part.group,
        "client.id": part.name,
        "group.protocol": part.options["protocol"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 200,
        "reconnect.backoff.ms": 10,
    }
    if part.options["protocol"] == "classic":
        settings |= {
            "partition.assignment.strategy": part.options["assignor"],
            "session.timeout.ms": part.session_ms,
            "heartbeat.interval.ms": part.session_ms // 6,
        }
    return settings


def epoch_of(consumer: Consumer) -> int:
    """The generation or the member epoch, which librdkafka writes into the group metadata for transactions."""
    epoch: int = struct.unpack_from("<i", consumer.consumer_group_metadata(), len(b"CGMDv2:"))[0]
    return epoch


def ranges_of(messages: list[Message]) -> dict[int, tuple[int, int]]:
    ranges: dict[int, tuple[int, int]] = {}
    for message in messages:
        first, _ = ranges.get(message.partition(), (message.offset(), 0))
        ranges[message.partition()] = (first, message.offset())
    return ranges


def commit(part: Part, consumer: Consumer, ranges: dict[int, tuple[int, int]]) -> None:
    part.read(ranges)
    places = [TopicPartition(part.topic, partition, last + 1) for partition, (_, last) in ranges.items()]
    try:
        for place in consumer.commit(offsets=places, asynchronous=False):
            if place.error is not None:
                raise KafkaException(place.error)
    except KafkaException as error:
        part.refused(error)
    else:
        part.committed(ranges)
