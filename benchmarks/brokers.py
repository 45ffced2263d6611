"""The two brokers as they are measured: default settings, Apache Kafka with the JVM flags of its own start script."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil

from compat_tests.harness import jars
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka

PACKAGE = Path(__file__).resolve().parent.parent / "wirekafka"

__all__ = [
    "KINDS",
    "Broker",
    "MeasuredKafka",
    "MeasuredWirekafka",
    "Server",
    "await_metadata",
    "cpu_seconds",
    "open_broker",
    "resident_bytes",
]

SETTINGS = {"offsets.topic.replication.factor": "1", "log.retention.hours": "168"}
"""What Apache Kafka's own config/server.properties sets and its code does not, where it matters here."""

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


KINDS: dict[str, type[MeasuredWirekafka | MeasuredKafka]] = {"wirekafka": MeasuredWirekafka, "kafka": MeasuredKafka}


def open_broker(kind: str, directory: Path) -> MeasuredWirekafka | MeasuredKafka:
    """A broker that is not started yet, in an empty directory."""
    directory.mkdir(parents=True)
    broker = KINDS[kind](directory)
    broker.settings = dict(SETTINGS)
    return broker


class Server(Protocol):
    """What is measured: a process, and where it is reached."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...


def cpu_seconds(broker: Server) -> float:
    """CPU time of the broker's process so far, user and system."""
    times = psutil.Process(broker.pid).cpu_times()
    return times.user + times.system


def resident_bytes(broker: Broker) -> int:
    """VmRSS: what the process holds in memory."""
    return int(psutil.Process(broker.pid).memory_info().rss)


def await_metadata(broker: MeasuredWirekafka | MeasuredKafka) -> float:
    """Asks for Metadata on a new connection; milliseconds from the start of the process to the answer."""
    with socket.create_connection(broker.address, timeout=30) as connection:
        ask_metadata(connection)
    return (time.monotonic() - broker.spawned_s) * 1000


def ask_metadata(connection: socket.socket) -> None:
    """One Metadata request (version 1, no topics) and its whole answer."""
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
