"""Applications that process a topic exactly once, and the checks of what they have written.

The applications read the topic of a `Source`, at one broker or at a cluster. Each check reads the output under read_committed
and compares it with the input, record by record.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from compat_tests.harness import jars
from compat_tests.harness.chaos import Source, Worker
from compat_tests.harness.clients import AGENTS

PARTITIONS = 6
"""Of the source and of each target."""

COPIERS, COUNTERS = "copiers", "counters"
"""The groups of the applications."""

LOGGING = (f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",)


def copying_workers(bootstrap: str, directory: Path, target: str, librdkafka_count: int = 4) -> list[Worker]:
    """Makes workers in confluent-kafka and one in Java, all of one group, which copy the topic `source`."""
    python = [sys.executable, str(AGENTS / "copying_worker.py")]
    java = jars.java_command(jars.KAFKA, "CopyingWorker", programs=("copying",), flags=LOGGING, heap_mib=128)
    return [
        Worker([*command, bootstrap, COPIERS, "source", target, f"copier-{number}"], directory / f"copier-{number}.log")
        for number, command in enumerate([python] * librdkafka_count + [java])
    ]


def counting_workers(bootstrap: str, directory: Path, target: str, count: int = 2) -> list[Worker]:
    """Makes instances of a Kafka Streams application that counts the records of the topic `source` by key."""
    command = jars.java_command(jars.STREAMS, "CountingApp", programs=("streams",), flags=LOGGING, heap_mib=192)
    return [
        Worker(
            [*command, bootstrap, COUNTERS, "source", target, str(directory / f"state-{number}")],
            directory / f"app-{number}.log",
        )
        for number in range(count)
    ]


def read_all(bootstrap: str, topic: str, isolation: str, partition_count: int = PARTITIONS) -> dict[int, list[Message]]:
    """Returns the records of a topic by partition, up to the end for this isolation level."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    found: dict[int, list[Message]] = {partition: [] for partition in range(partition_count)}
    unfinished = set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        deadline = time.monotonic() + 60
        while unfinished:
            assert time.monotonic() < deadline, f"{topic} has no end in partitions {unfinished}"
            for message in consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    found[message.partition()].append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    unfinished.discard(message.partition())
    finally:
        consumer.close()
    return found


def source_values(bootstrap: str, source: Source) -> dict[int, list[bytes | None]]:
    """Returns the input by partition; checks that each number is there once."""
    found = read_all(bootstrap, source.topic, "read_uncommitted")
    values = {partition: [message.value() for message in messages] for partition, messages in found.items()}
    assert sorted(int(value or b"-1") for each in values.values() for value in each) == list(range(source.sent))
    return values


def check_copies(bootstrap: str, source: Source, target: str) -> None:
    """Checks that each partition of the target has the records of the source's partition once and in order."""
    copied = read_all(bootstrap, target, "read_committed")
    for partition, written in source_values(bootstrap, source).items():
        values = [message.value() for message in copied[partition]]
        missing, repeated = set(written) - set(values), [value for value, count in Counter(values).items() if count > 1]
        assert (missing, repeated) == (set(), []), f"partition {partition}"
        assert values == written, f"partition {partition} is in order"


def check_counts(bootstrap: str, source: Source, target: str) -> None:
    """Checks that the target has each count of each key once and in order."""
    source_values(bootstrap, source)
    counts: dict[str, list[int]] = defaultdict(list)
    for messages in read_all(bootstrap, target, "read_committed").values():
        for message in messages:
            counts[(message.key() or b"").decode()].append(int(message.value() or b"-1"))
    assert counts == {key: list(range(1, count + 1)) for key, count in source.by_key.items()}
