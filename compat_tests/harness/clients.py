"""Every client behind one interface: an agent, which is a process with the library (see agents/agent.py)."""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compat_tests.harness import jars
from compat_tests.harness.waiting import wait_until

AGENTS = jars.HERE / "agents"
OLD_KAFKA_PYTHON = "kafka-python-2.0.6"

NONE, GZIP, SNAPPY, LZ4, ZSTD = "none", "gzip", "snappy", "lz4", "zstd"
ALL_CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)


@dataclass(frozen=True)
class Record:
    """A record as a client sends or receives it, without its partition and offset."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = field(default=0, compare=False)
    offset: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class Client:
    """A client library, and what it supports.

    Attributes:
        command: starts its agent.
        codecs: the codecs that it reads and writes.
        modern: whether it has headers, idempotence and search by timestamp.
        java: whether it needs a JVM.
    """

    name: str
    command: tuple[str, ...]
    codecs: tuple[str, ...] = ALL_CODECS
    modern: bool = True
    java: bool = False

    def __str__(self) -> str:
        return self.name


def python_agent(module: str, interpreter: str = sys.executable) -> tuple[str, ...]:
    """Returns the command of an agent in Python."""
    return (interpreter, str(AGENTS / "agent.py"), module)


def java_agent(profile: str, dialect: str) -> tuple[str, ...]:
    """Returns the command of an agent in Java; the agent is compiled at its first use."""
    flags = (
        f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",
        f"-Dlog4j.configuration=file:{jars.HERE / 'java' / 'log4j.properties'}",
    )
    return tuple(jars.java_command(profile, "Agent", programs=("agent", dialect), flags=flags, heap_mib=192))


def old_kafka_python() -> Path:
    """Returns the interpreter of a virtual environment with kafka-python 2.0.6, which cannot be installed beside 3."""

    def install(target: Path) -> None:
        venv.create(target, with_pip=True)
        codecs = ["python-snappy==0.7.3", "lz4==4.4.5", "xxhash==3.6.0", "zstandard==0.25.0"]
        packages = ["kafka-python==2.0.6", "crc32c==2.9.post0", *codecs]
        subprocess.run([str(target / "bin" / "python"), "-m", "pip", "install", "-q", *packages], check=True, timeout=300)

    return jars.made_once(jars.CACHE / OLD_KAFKA_PYTHON, install) / "bin" / "python"


KAFKA_PYTHON = Client("kafka-python-3", python_agent("with_kafka_python"))
CONFLUENT = Client("confluent-kafka", python_agent("with_confluent"))
AIOKAFKA = Client("aiokafka", python_agent("with_aiokafka"))
KAFKA_PYTHON_2 = Client(OLD_KAFKA_PYTHON, ("old-python",))
JAVA = Client("java-4.3.1", ("java", jars.KAFKA, "dialect-4.3.1"), java=True)
JAVA_3_9 = Client("java-3.9.1", ("java", jars.OLDER_KAFKA, "dialect-4.3.1"), java=True)
JAVA_0_10 = Client(
    "java-0.10.0.0", ("java", jars.OLD_CLIENTS, "dialect-0.10.0.0"), (NONE, GZIP, SNAPPY, LZ4), modern=False, java=True
)

CLIENTS = (KAFKA_PYTHON, CONFLUENT, AIOKAFKA, KAFKA_PYTHON_2, JAVA)
"""The clients that work with every current broker."""

TRANSACTIONAL_CLIENTS = (KAFKA_PYTHON, CONFLUENT, AIOKAFKA, JAVA, JAVA_3_9)
"""The clients with transactions: Java 4.3.1 uses transactions v2 (KIP-890), the others use the older protocol."""


def command_of(client: Client) -> list[str]:
    """Returns the command line that starts the client's agent."""
    if client.command[0] == "old-python":
        return list(python_agent("with_kafka_python", str(old_kafka_python())))
    if client.java:
        return list(java_agent(client.command[1], client.command[2]))
    return list(client.command)


def pack(value: bytes | None) -> str:
    """Encodes bytes as a field of a line."""
    return "-" if value is None else base64.b64encode(value).decode()


def unpack(text: str) -> bytes | None:
    """Decodes the bytes of a field."""
    return None if text == "-" else base64.b64decode(text)


def pack_headers(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Encodes headers as a field of a line."""
    return ",".join(f"{pack(name.encode()).rstrip('=')}:{pack(value)}" for name, value in headers)


def unpack_headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    """Decodes the headers of a field."""
    headers = []
    for item in filter(None, text.split(",")):
        name, _, value = item.partition(":")
        headers.append(((unpack(name + "=" * (-len(name) % 4)) or b"").decode(), unpack(value)))
    return tuple(headers)


def format_options(options: dict[str, object]) -> str:
    """Encodes options as a field."""
    return ";".join(f"{name}={value}" for name, value in options.items())


def format_record(record: Record) -> str:
    """Encodes a record as a line."""
    time_ms = "-" if record.timestamp_ms is None else record.timestamp_ms
    return f"{record.partition}\t{pack(record.key)}\t{pack(record.value)}\t{time_ms}\t{pack_headers(record.headers)}"


def parse_record(fields: list[str]) -> Record:
    """Decodes the record of an answer."""
    partition, offset, key, value, timestamp, headers = fields
    time_ms = None if timestamp in ("None", "-1") else int(timestamp)
    return Record(unpack(key), unpack(value), unpack_headers(headers), time_ms, int(partition), int(offset))


class AgentError(Exception):
    """The error that the library in the agent raised."""


class Agent:
    """A client's process, which runs one operation at a time; if the process hangs, the operation raises AssertionError."""

    def __init__(self, client: Client, log: Path) -> None:
        self.client = client
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command_of(client), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.pump = threading.Thread(target=self._pump, daemon=True)
        self.pump.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Iterable[Record],
        *,
        codec: str = NONE,
        timeout_s: float = 90,
        **options: object,
    ) -> None:
        """Writes the records and waits until all are acknowledged.

        Raises:
            AgentError: they are not.
        """
        lines = [format_record(record) for record in records]
        self._send(f"produce\t{bootstrap}\t{topic}\t{codec}\t{format_options(options)}\t{len(lines)}", *lines)
        list(self._answers(timeout_s))

    def read(self, bootstrap: str, topic: str, count: int, *, timeout_s: float = 30, **options: object) -> list[Record]:
        """Returns the records of the topic, at least `count` unless the timeout ends, in order within each partition."""
        self._send(f"read\t{bootstrap}\t{topic}\t{count}\t{int(timeout_s * 1000)}\t{format_options(options)}")
        return [parse_record(fields[1:]) for fields in self._answers(timeout_s + 30) if fields[0] == "record"]

    def find(
        self, bootstrap: str, topic: str, partition: int, timestamp_ms: int, *, timeout_s: float = 20
    ) -> tuple[int | None, Record | None]:
        """Seeks to a timestamp; returns the offset found, and the first record read from there."""
        self._send(f"find\t{bootstrap}\t{topic}\t{partition}\t{timestamp_ms}\t{int(timeout_s * 1000)}")
        answers = list(self._answers(timeout_s + 30))
        offset = next(int(fields[1]) for fields in answers if fields[0] == "offset")
        records = [parse_record(fields[1:]) for fields in answers if fields[0] == "record"]
        return (None if offset < 0 else offset), (records[0] if records else None)

    def open_transactions(self, bootstrap: str, transactional_id: str, **options: object) -> Transactions:
        """Opens a transactional producer and initialises it.

        Raises:
            AgentError: the initialisation failed.
        """
        name = os.urandom(4).hex()
        self.step("open", name, bootstrap, transactional_id, format_options(options))
        return Transactions(self, name)

    def step(self, *fields: object) -> None:
        """Sends one line; returns the answer.

        Raises:
            AgentError: the library raised an error.
        """
        self._send("\t".join(map(str, fields)))
        list(self._answers(70))

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self.pump.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()

    def _send(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def _answers(self, timeout_s: float) -> Iterator[list[str]]:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.client} did not answer within {timeout_s} s:\n{self.log_tail()}") from None
            assert line is not None, f"{self.client}'s process ended:\n{self.log_tail()}"
            fields = line.split("\t")
            if fields[0] == "ok":
                return
            if fields[0] == "error":
                raise AgentError(f"{self.client}: {fields[1]}")
            yield fields

    def log_tail(self) -> str:
        """Returns the last lines that the library logged."""
        return self.log.read_text(errors="replace")[-4000:]


@dataclass(frozen=True)
class Transactions:
    """A transactional producer in an agent. Every method raises AgentError with the error that the library raised."""

    agent: Agent
    name: str

    def begin(self) -> None:
        self.agent.step("begin", self.name)

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        """Sends values without waiting for their delivery."""
        for value in values:
            self.agent.step("send", self.name, topic, partition, pack(value.encode()))

    def flush(self) -> None:
        """Waits until the sent records are delivered."""
        self.agent.step("flush", self.name)

    def offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Adds a group's offsets by partition to the transaction."""
        packed = ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
        self.agent.step("offsets", self.name, group, topic, packed)

    def commit(self) -> None:
        self.agent.step("commit", self.name)

    def abort(self) -> None:
        self.agent.step("abort", self.name)

    def close(self) -> None:
        self.agent.step("close", self.name)


class Member(Agent):
    """A member of a group, with its assignments and the records that it has read so far.

    Attributes:
        assigned: its partitions since its last rebalance; None before the first.
        assignments: the number of assignments that it has received.
        records: all records that it has read.
    """

    def __init__(self, client: Client, log: Path, bootstrap: str, group: str, topic: str, **options: object) -> None:
        super().__init__(client, log)
        self.assigned: list[int] | None = None
        self.assignments = 0
        self.records: list[Record] = []
        self.uncommitted: list[str] = []
        self.failure: str | None = None
        self.has_left = False
        self._send(f"join\t{bootstrap}\t{group}\t{topic}\t{format_options(options)}")

    def refresh(self) -> None:
        """Reads the lines that the process has printed."""
        while not self.lines.empty():
            line = self.lines.get()
            fields = ["gone"] if line is None else line.split("\t")
            if fields[0] == "record":
                self.records.append(parse_record(fields[1:]))
            elif fields[0] == "assigned":
                self.assigned = [int(number) for number in fields[1].split(",") if number]
                self.assignments += 1
            elif fields[0] == "uncommitted":
                self.uncommitted.append(fields[1])
            elif fields[0] == "ok":
                self.has_left = True
            elif fields[0] == "error":
                self.failure = fields[1]
        assert self.failure is None, f"{self.client}: {self.failure}\n{self.log_tail()}"

    def leave(self, timeout_s: float = 60) -> None:
        """Makes the member leave the group, and waits until it has left."""
        self._send("leave")
        self.wait_until_left(timeout_s)

    def wait_until_left(self, timeout_s: float = 60) -> None:
        """Waits until a member that leaves by itself has left."""

        def left() -> bool:
            self.refresh()
            return self.has_left

        try:
            wait_until(left, timeout_s=timeout_s, what=f"{self.client} has left its group")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self}\n{self.log_tail()}") from None

    def __str__(self) -> str:
        read, uncommitted = len(self.records), len(self.uncommitted)
        return f"{self.client} with partitions {self.assigned} has read {read} records and failed to commit {uncommitted} times"
