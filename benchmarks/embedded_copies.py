"""`python -m benchmarks.embedded_copies empty SECONDS` or `copies MEBIBYTES REPEATS`: what a test does with an embedded broker.

It prints a line of JSON: the milliseconds of each measurement, by name. The data is in the directory for temporary files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import load
from benchmarks.embedded_start import produce_one
from benchmarks.rows import BATCHES_OF_9000
from wirekafka.broker import Broker
from wirekafka.names import TopicPartition
from wirekafka.testing import EmbeddedBroker

Times = dict[str, list[float]]
RECORDS_A_BATCH = BATCHES_OF_9000["records"]
TOPIC = "large"


@dataclass(frozen=True, slots=True)
class Loaded:
    """An embedded broker as the load program sees it."""

    bootstrap: str
    pid: int


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    """Adds the milliseconds of the block to the times."""
    began = time.perf_counter()
    yield
    times[name].append((time.perf_counter() - began) * 1e3)


def empty(seconds: float) -> Times:
    """Empties a broker after a record was written, and writes a record to a new topic of the empty broker, again and again."""
    times: Times = defaultdict(list)
    with EmbeddedBroker() as broker:
        produce_one(broker.bootstrap)
        end = time.monotonic() + seconds
        while time.monotonic() < end or not times:
            with timed(times, "first"):
                with timed(times, "reset"):
                    broker.reset()
                broker.create_topic("orders")
                produce_one(broker.bootstrap)
    return times


def size_of(broker: EmbeddedBroker) -> int:
    """Returns the bytes in the log of the topic."""

    def look(parts: Broker) -> int:
        found = parts.logs.get(TopicPartition(TOPIC, 0))
        assert found is not None, "the topic exists"
        return found.reader.size_bytes

    return broker.on_loop(look)


def write(broker: EmbeddedBroker, mebibytes: int) -> None:
    """Writes batches of 1 MB until the topic has at least so many MiB."""
    broker.create_topic(TOPIC)
    while (missing := (mebibytes << 20) - size_of(broker)) > 0:
        batch_bytes = size_of(broker) or missing  # the first batch shows how large they are
        batches = -(-missing // batch_bytes)
        load.run(
            Loaded(broker.bootstrap, os.getpid()), "requests", topic=TOPIC, count=batches * RECORDS_A_BATCH, **BATCHES_OF_9000
        )


def copies(mebibytes: int, repeats: int) -> Times:
    """Copies, forks and empties a broker with so many MiB. Snapshots share the files, so only the last reset deletes them."""
    times: Times = defaultdict(list)
    with EmbeddedBroker(log_retention_hours=-1) as broker:
        write(broker, mebibytes)
        with timed(times, "first_snapshot"):
            kept = broker.snapshot()
        for _ in range(repeats):
            with timed(times, "snapshot"):
                snapshot = broker.snapshot()
            snapshot.close()
            with timed(times, "fork"):
                fork = broker.fork()
            fork.stop()
        for _ in range(repeats):
            with timed(times, "reset"):
                broker.reset()
            with timed(times, "restore"):
                broker.restore(kept)
            assert size_of(broker) >= mebibytes << 20
        kept.close()
        with timed(times, "first_after_deletion"):
            with timed(times, "deletion"):
                broker.reset()
            produce_one(broker.bootstrap)
    return times


COMMANDS: dict[str, Callable[..., Times]] = {"empty": empty, "copies": copies}


def main() -> None:
    print(json.dumps(COMMANDS[sys.argv[1]](*map(int, sys.argv[2:]))))


if __name__ == "__main__":
    main()
