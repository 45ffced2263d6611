"""One whole run of the pipelines with Apache Kafka in the place of wirekafka: replay, ingest, check, backfill, mirror.

Only the address differs from a run against wirekafka. The mirror goes from Apache Kafka to wirekafka.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker, running
from compat_tests.harness.exactly_once import read_all
from compat_tests.harness.pipelines import ROOT
from compat_tests.spark.conftest import MakePipeline

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-whole-run"),
    pytest.mark.wirekafka_only("the brokers are part of the test"),
    pytest.mark.timeout(600),
]

EVENTS, WEATHER = "flights.events", "flights.weather"
PARTITIONS = {EVENTS: 4, WEATHER: 1}
DAYS = 3


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Broker]:
    with running(CLASSES[jars.KAFKA](tmp_path / "kafka")) as broker:
        yield broker


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Broker]:
    with running(CLASSES[WIREKAFKA](tmp_path / "target")) as broker:
        yield broker


def replay(bootstrap: str) -> None:
    """Sends the flights of some days, with late, duplicate and malformed events."""
    command = [sys.executable, "-m", "examples.flights.replay", "--bootstrap", bootstrap, "--days", str(DAYS)]
    command += ["--malformed", "0.02"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def contents(bootstrap: str, topic: str, source: str | None = None) -> dict[int, list[Message]]:
    """Returns the committed records by partition; `source` is the topic that has as many partitions."""
    return read_all(bootstrap, topic, "read_committed", PARTITIONS.get(source or topic, 1))


def content(message: Message) -> tuple[bytes | None, bytes | None, object, object]:
    return message.key(), message.value(), message.headers(), message.timestamp()


def test_a_whole_run_against_apache_kafka(kafka: Broker, target: Broker, pipeline: MakePipeline, tmp_path: Path) -> None:
    replay(kafka.bootstrap)
    lake, source = tmp_path / "lake", ("--bootstrap", kafka.bootstrap)
    sent = contents(kafka.bootstrap, EVENTS)
    assert sum(map(len, sent.values())) > 1000

    fields = ("--format", "json", "--keep-value-bytes", "--dead-letters", "bad", "--once")
    pipeline("ingest", lake, *source, "--topic", EVENTS, "--topic", WEATHER, *fields).check()
    pipeline("check", lake, *source, "--json").check()

    pipeline("backfill", lake, *source, "--topic", EVENTS, "--to", "again").check()
    dead = {places(message)[1:] for messages in contents(kafka.bootstrap, "bad").values() for message in messages}
    assert dead, "the replay mixed malformed records in"
    for partition, again in contents(kafka.bootstrap, "again", EVENTS).items():
        fitting = [message for message in sent[partition] if (partition, message.offset()) not in dead]
        assert [content(message) for message in again] == [content(message) for message in fitting]

    clusters = ("--source-bootstrap", kafka.bootstrap, "--target-bootstrap", target.bootstrap)
    pipeline("mirror", EVENTS, WEATHER, *clusters, "--checkpoint", tmp_path / "mirror", "--once").check()
    for topic in (EVENTS, WEATHER):
        mirrored, original = contents(target.bootstrap, topic), contents(kafka.bootstrap, topic)
        for partition, messages in original.items():
            assert [content(message) for message in mirrored[partition]] == [content(message) for message in messages]


def places(message: Message) -> tuple[str, int, int]:
    """Returns the topic, the partition and the offset that a dead letter came from."""
    headers = {name: value.decode() for name, value in message.headers() if value is not None}
    found = {name.rpartition(".")[2]: value for name, value in headers.items()}
    return found["topic"], int(found["partition"]), int(found["offset"])
