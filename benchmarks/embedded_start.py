"""`python -m benchmarks.embedded_start STARTS`: how long embedded brokers take until their first record is acknowledged.

It prints a line of JSON: `first`, the monotonic clock when the record of the first broker was acknowledged, of which the process
that has started this one takes the time of the start; and `warm`, the milliseconds that each later broker took.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Producer

from wirekafka.testing import EmbeddedBroker


def produce_one(bootstrap: str) -> None:
    """Writes a record by a new producer, and returns once it is acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce("orders", b"one")
    assert producer.flush(60) == 0, "the record is acknowledged"


def main() -> None:
    with EmbeddedBroker() as broker:
        produce_one(broker.bootstrap)
        first = time.monotonic()
    warm = []
    for _ in range(int(sys.argv[1])):
        began = time.monotonic()
        with EmbeddedBroker() as broker:
            produce_one(broker.bootstrap)
            warm.append((time.monotonic() - began) * 1e3)
    print(json.dumps({"first": first, "warm": warm}))


if __name__ == "__main__":
    main()
