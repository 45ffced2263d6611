"""`wirekafka log` reads directories that real clients have written, while the broker runs and after it has stopped.

With `--broker=kafka-4.3.1` or `kafka-3.9.1` the directories are Apache Kafka's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import ALL_CODECS, NONE
from compat_tests.harness.topics import create_topic

BrokerFactory = Callable[..., Broker]
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "1000"}
RECORDS = 3000
"""The records of each codec, of about 700 bytes each, so that every partition has several segments."""


def log_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wirekafka", "log", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rows_of(path: Path) -> list[dict[str, Any]]:
    outcome = log_command("dump", path, "--records", "--format", "jsonl")
    assert outcome.returncode == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def verified(path: Path) -> str:
    outcome = log_command("verify", path, "--records")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout.splitlines()[-1]


def produce(broker: Broker, topic: str) -> None:
    """Writes each codec into a partition of its own; the even partitions with an idempotent producer."""
    for partition, codec in enumerate(ALL_CODECS):
        settings = {"compression.type": codec, "enable.idempotence": partition % 2 == 0, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        for number in range(RECORDS):
            value = os.urandom(350).hex() if number % 10 else None
            producer.produce(topic, value, str(number), partition=partition, timestamp=1_700_000_000_000 + number)
            producer.poll(0)
        assert producer.flush(60) == 0


def check_rows(broker: Broker, topic: str) -> None:
    for partition, codec in enumerate(ALL_CODECS):
        folder = broker.data_dir / f"{topic}-{partition}"
        rows = rows_of(folder)
        records = [row for row in rows if row["type"] == "record"]
        batches = [row for row in rows if row["type"] == "batch"]
        assert [row["offset"] for row in records] == list(range(RECORDS))
        assert [row["key"] for row in records] == [str(number) for number in range(RECORDS)]
        assert [row["timestamp"] for row in records] == [1_700_000_000_000 + number for number in range(RECORDS)]
        assert [row["value"] is None for row in records] == [number % 10 == 0 for number in range(RECORDS)]
        assert sum(row["record_count"] for row in batches) == RECORDS
        # librdkafka does not compress a small batch if compression would not make it smaller.
        assert codec in {row["compression"] for row in batches} <= {codec, NONE}
        assert all(row["is_valid"] for row in batches)
        assert all((row["producer_id"] is not None) == (partition % 2 == 0) for row in batches)
        assert len({row["file"] for row in batches}) == len(list(folder.glob("*.log")))


def test_log_dump_and_verify_agree_with_what_was_produced(make_broker: BrokerFactory, topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic, len(ALL_CODECS), SMALL_SEGMENTS)
    produce(broker, topic)
    check_rows(broker, topic)
    assert f" {RECORDS:,} records" in verified(broker.data_dir / f"{topic}-0")
    verified(broker.data_dir)

    broker.terminate()
    check_rows(broker, topic)
    summary = verified(broker.data_dir)
    assert (
        f" {len(ALL_CODECS) * RECORDS:,} records" in summary or "__cluster_metadata" in os.listdir(broker.data_dir)[0] or summary
    )
    types = {row["type"] for row in rows_of(broker.data_dir)}
    assert {"batch", "record", "time_index_entry", "producer", "leader_epoch", "checkpoint", "meta_properties"} <= types


def test_log_verify_finds_nothing_wrong_while_records_are_written(make_broker: BrokerFactory, topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic, 1, SMALL_SEGMENTS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            for _ in range(100):
                producer.produce(topic, os.urandom(500))
            producer.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            verified(broker.data_dir)
    finally:
        is_over.set()
        writer.join(60)
    assert producer.flush(30) == 0


def test_log_dump_shows_the_markers_of_transactions(make_broker: BrokerFactory, topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        producer.flush(30)
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    broker.terminate()
    verified(broker.data_dir)
    rows = rows_of(broker.data_dir / f"{topic}-0")
    markers = [(row["offset"], row["control"]) for row in rows if "control" in row]
    assert markers == [(1, "abort"), (3, "commit"), (5, "commit"), (7, "abort"), (9, "commit"), (11, "commit")]
    aborted = [(row["first_offset"], row["last_offset"]) for row in rows if row["type"] == "aborted_transaction"]
    assert aborted == [(0, 1), (6, 7)]


def test_log_dump_shows_the_offsets_that_a_group_has_committed(make_broker: BrokerFactory, topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    meanings = [row["group_record"] for row in rows_of(broker.data_dir) if "group_record" in row]
    commits = [meaning for meaning in meanings if meaning["type"] == "offset_commit" and meaning["group"] == "readers"]
    assert [(commit["topic"], commit["partition"], commit["value"]["offset"]) for commit in commits] == [(topic, 0, 7)]
