"""The measured brokers: wirekafka and Apache Kafka with defaults (Kafka with its start script's JVM flags), and the floor."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import load
from compat_tests.harness import jars
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.waiting import wait_until

PACKAGE = Path(__file__).resolve().parent.parent / "wirekafka"

SETTINGS = {"offsets.topic.replication.factor": "1", "log.retention.hours": "168", "log.segment.delete.delay.ms": "100"}
"""The settings of Apache Kafka's config/server.properties that differ from the defaults and matter for the benchmarks, and a
short delay before the files of a deleted topic are removed."""

KAFKA_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dcom.sun.management.jmxremote=true",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)
"""Source: kafka-server-start.sh and kafka-run-class.sh of Apache Kafka 4."""


class MeasuredWirekafka(Wirekafka):
    """`wirekafka serve` with its defaults, its modules compiled as pip leaves them."""

    spawned_s = 0.0

    def _spawn(self, command: list[str], environment: Mapping[str, str] = {}) -> None:
        compiled = {**environment, "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(PACKAGE)], env={**os.environ, **compiled}, check=True)
        self.spawned_s = time.monotonic()
        super()._spawn(command, compiled)


class MeasuredKafka(ApacheKafka):
    """Apache Kafka in KRaft mode with its start script's JVM flags, GC log included."""

    spawned_s = 0.0

    def command(self) -> list[str]:
        gc_log = f"-Xlog:gc*:file={self.directory}/kafkaServer-gc.log:time,tags:filecount=10,filesize=100M"
        path = f"{jars.jars(self.profile)}/*"
        return [
            "java",
            *KAFKA_FLAGS,
            gc_log,
            *self.logging_flags,
            "-cp",
            path,
            "kafka.Kafka",
            str(self.directory / "server.properties"),
        ]

    def _spawn(self, command: list[str], environment: Mapping[str, str] = {}) -> None:
        self.spawned_s = time.monotonic()
        super()._spawn(command, environment)


class FormattedKafka(MeasuredKafka):
    """Apache Kafka with its defaults, on a copy of what `formatted_storage` has made: only the broker has to start."""

    def __init__(self, directory: Path, storage: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory)
        self.settings = dict(SETTINGS)
        self._storage = storage

    def _format(self) -> None:
        shutil.copytree(self._storage, self.data_dir, dirs_exist_ok=True)


def formatted_storage(directory: Path) -> Path:
    """Formats storage of Apache Kafka in an empty directory; returns the data directory."""
    made = open_broker("kafka", directory)
    assert isinstance(made, MeasuredKafka)
    made.prepare()
    return made.data_dir


def delete_topics(broker: AnyBroker) -> None:
    """Deletes all topics but internal ones, and waits until their files are gone."""
    load.run(broker, "delete")
    wait_until(
        lambda: all(path.name.startswith("__") for path in broker.data_dir.iterdir() if path.is_dir()),
        timeout_s=60,
        what="the files of deleted topics are gone",
    )


class Floor(Broker):
    """The C program that does only the work that no broker can avoid, for the rows about bytes (`load/floor.c`)."""

    spawned_s = 0.0

    def command(self) -> list[str]:
        return [str(load.program()), "floor", f"directory={self.data_dir}"]

    def start(self) -> None:
        self._spawn(self.command())
        self.bootstrap = f"127.0.0.1:{int(self._read_ready_line())}"


AnyBroker = MeasuredWirekafka | MeasuredKafka | Floor
FLOOR = "floor"
KINDS: dict[str, type[AnyBroker]] = {"wirekafka": MeasuredWirekafka, "kafka": MeasuredKafka, FLOOR: Floor}


def open_broker(kind: str, directory: Path) -> AnyBroker:
    """Makes a broker in an empty directory; the caller starts the broker."""
    directory.mkdir(parents=True)
    broker = KINDS[kind](directory)
    broker.settings = dict(SETTINGS)
    return broker


def await_metadata(broker: AnyBroker) -> float:
    """Sends Metadata on a new connection; returns the milliseconds from the start of the process to the response."""
    with socket.create_connection(broker.address, timeout=30) as connection:
        ask_metadata(connection)
    return (time.monotonic() - broker.spawned_s) * 1000


def ask_metadata(connection: socket.socket) -> None:
    """Sends one Metadata request (version 1, no topics) and receives the whole response."""
    body = struct.pack(">hhih4si", 3, 1, 1, 4, b"load", 0)
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    _receive(connection, size)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        assert chunk, "the broker closed the connection"
        received += chunk
    return received
