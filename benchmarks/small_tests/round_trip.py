"""What each small test does: it writes ten records and reads them with a new producer and a new consumer.

The environment says how many tests there are (`SMALL_TESTS`), and where Apache Kafka's formatted storage is
(`SMALL_TESTS_STORAGE`).
"""

from __future__ import annotations

import os

from confluent_kafka import Consumer, Producer, TopicPartition

NUMBERS = range(int(os.environ.get("SMALL_TESTS", "200")))
VALUES = [b"%d" % number for number in range(10)]


def check_round_trip(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[bytes | None] = []
        while len(read) < len(VALUES):
            read += [message.value() for message in consumer.consume(len(VALUES) - len(read), timeout=60)]
        assert read == VALUES
    finally:
        consumer.close()
