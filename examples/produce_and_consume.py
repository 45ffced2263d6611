"""Writes ten records and reads them back.

Run: pip install kafka-python; python examples/produce_and_consume.py [HOST:PORT]
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer

TOPIC = "greetings"
COUNT = 10


def produce(bootstrap: str) -> None:
    """Sends the records and waits until the broker has acknowledged all of them. The first one creates the topic."""
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = [producer.send(TOPIC, key=b"%d" % number, value=b"greeting %d" % number) for number in range(COUNT)]
        for future in sent:
            place = future.get(timeout=10)
        print(f"produced {COUNT} records, the last at offset {place.offset} of {place.topic}-{place.partition}")


def consume(bootstrap: str) -> None:
    """Reads the topic from its beginning until no record arrives for two seconds."""
    with KafkaConsumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=2000) as consumer:
        for record in consumer:
            print(f"offset {record.offset}: {record.key.decode()} = {record.value.decode()}")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    produce(address)
    consume(address)
