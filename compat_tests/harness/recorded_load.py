"""Clients of several libraries in processes of their own, which record what they ask and what they are answered.

agents/load.py has the lines of their histories. Here the lines become events of `wirekafka.simulation.history`, which the checker
of the simulator judges together with the files of the brokers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from compat_tests.harness import jars, tools
from compat_tests.harness.clients import AGENTS
from compat_tests.harness.waiting import wait_until
from wirekafka.simulation.history import (
    CommittedOffset,
    Entry,
    Event,
    OffsetsAcknowledged,
    OffsetsRead,
    OffsetsSent,
    OffsetsUnknown,
    RecordRead,
    RecordSent,
    SendAcknowledged,
    SendUnknown,
    TransactionAborted,
    TransactionBegun,
    TransactionCommitted,
    TransactionEndRequested,
    TransactionUnknown,
)

PLAIN, TRANSACTED = "plain", "transacted"
MOST_LOADS = 16
HANGS = "librdkafka"
"""With confluent-kafka 2.16 the process may hang for good after the coordinator of its transactions was killed."""

STOP_TIMEOUT_S = 180.0
FRANZ_GO = "franz-go"
LEAST_GO = (1, 25)

Key = tuple[str, int]


def _order_of(at_ns: int, load: int) -> int:
    """Returns the place of an entry in the order of all loads, which have one clock: no two entries have the same place."""
    return at_ns * MOST_LOADS + load


def _none_if_absent(text: str) -> str | None:
    return None if text == "-" else text


def _read_offsets(load: int, group: str, topic: str, partition: str, offset: str, commit: str, asked_ns: str, age: str) -> Event:
    found = CommittedOffset(topic, int(partition), None if offset == "-1" else int(offset), _none_if_absent(commit))
    return OffsetsRead(group, (found,), _order_of(int(asked_ns), load), may_be_stale=age == "stale")


_EVENTS: dict[str, Callable[..., Event]] = {
    "sent": lambda _, producer, topic, partition, payload, transaction: RecordSent(
        producer, topic, int(partition), payload, transaction=_none_if_absent(transaction)
    ),
    "acked": lambda _, payload, offset: SendAcknowledged(payload, None if offset == "-1" else int(offset)),
    "unknown": lambda _, payload, reason: SendUnknown(payload, reason),
    "begun": lambda _, transaction, transactional_id, version: TransactionBegun(
        transaction, transactional_id, version=int(version)
    ),
    "end": lambda _, transaction, kind: TransactionEndRequested(transaction, kind == "commit"),
    "committed": lambda _, transaction: TransactionCommitted(transaction),
    "aborted": lambda _, transaction: TransactionAborted(transaction),
    "gave-up": lambda _, transaction, reason: TransactionUnknown(transaction, reason),
    "read": lambda _, consumer, topic, partition, offset, payload, position: RecordRead(
        consumer, topic, int(partition), int(offset), payload, is_read_committed=True, position=int(position)
    ),
    "offsets-sent": lambda _, commit, group, topic, partition, offset: OffsetsSent(
        commit, group, None, (CommittedOffset(topic, int(partition), int(offset), commit),)
    ),
    "offsets-acked": lambda _, commit: OffsetsAcknowledged(commit),
    "offsets-unknown": lambda _, commit, reason: OffsetsUnknown(commit, reason),
    "offsets-read": _read_offsets,
}


@dataclass
class Acknowledgements:
    """When a load got its acknowledgements for one partition.

    Attributes:
        last_ns: of the last one.
        longest_gap_ns: the longest time without one since `Loads.forget_gaps`.
    """

    last_ns: int
    longest_gap_ns: int = 0
    count: int = 0

    def add(self, at_ns: int) -> None:
        self.count += 1
        self.longest_gap_ns = max(self.longest_gap_ns, at_ns - self.last_ns)
        self.last_ns = max(self.last_ns, at_ns)


@dataclass
class RecordedLoad:
    """One process with its history.

    Attributes:
        entries: the history so far, up to the last `refresh`.
        acknowledged: by partition.
        read_ends: one past the last record that its consumer got, by partition.
        unknown_count: how many records its producers have given up.
    """

    name: str
    number: int
    command: list[str]
    directory: Path
    entries: list[Entry] = field(default_factory=list)
    acknowledged: dict[Key, Acknowledgements] = field(default_factory=dict)
    read_ends: dict[Key, int] = field(default_factory=dict)
    unknown_count: int = 0

    def __post_init__(self) -> None:
        self._partition_of: dict[str, Key] = {}
        self._new: list[tuple[int, Key]] = []
        self._history: IO[str] | None = None
        self._left = ""
        self._has_stopped = threading.Event()
        self.log_path = self.directory / f"{self.name}.log"
        self.history_path = self.directory / f"{self.name}.history"
        self.process: subprocess.Popen[str] | None = None

    def start(self, partition_count: int, bootstrap: list[str]) -> None:
        """Starts the process."""
        self.follow()
        arguments = [str(self.history_path), str(partition_count), *bootstrap]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        threading.Thread(target=self._await_stop, daemon=True).start()

    def follow(self) -> None:
        """Opens the history, which the process writes."""
        self.history_path.touch()
        self._history = self.history_path.open(encoding="utf-8")

    def _await_stop(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        if self.process.stdout.readline():
            self._has_stopped.set()

    def tell(self, word: str) -> None:
        """Sends a line to the process."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def until_stopped(self) -> None:
        """Waits until the writers have ended, after "stop"."""

        def has_stopped() -> bool:
            self.check_running()
            return self._has_stopped.is_set()

        wait_until(has_stopped, timeout_s=STOP_TIMEOUT_S, what=f"the writers of {self.name} end:\n{self.log_tail()}")

    def check_running(self) -> None:
        """Raises AssertionError if the process has ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended:\n{self.log_tail()}"

    def log_tail(self) -> str:
        """Returns the last lines that the process logged."""
        return self.log_path.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """Kills the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
        if self._history is not None:
            self._history.close()
            self._history = None

    def refresh(self) -> list[tuple[int, Key]]:
        """Reads the lines that the process has written since the last call; returns its acknowledgements: time and partition."""
        assert self._history is not None
        self._new = []
        *lines, self._left = (self._left + self._history.read()).split("\n")
        for line in lines:
            at, kind, *fields = line.split("\t")
            event = _EVENTS[kind](self.number, *fields)
            self.entries.append(Entry(_order_of(int(at), self.number), int(at) / 1e6, event))
            self._take(event, int(at))
        return self._new

    def _take(self, event: Event, at_ns: int) -> None:
        match event:
            case RecordSent(_, topic, partition, payload):
                self._partition_of[payload] = topic, partition
            case SendAcknowledged(payload):
                key = self._partition_of.pop(payload)
                self.acknowledged.setdefault(key, Acknowledgements(at_ns)).add(at_ns)
                self._new.append((at_ns, key))
            case SendUnknown(payload):
                self._partition_of.pop(payload)
                self.unknown_count += 1
            case RecordRead(_, topic, partition, offset):
                self.read_ends[topic, partition] = offset + 1


class Loads:
    """All loads of one cluster."""

    def __init__(self, directory: Path, partition_count: int) -> None:
        self._partition_count = partition_count
        self._keys = [(topic, index) for topic in (PLAIN, TRANSACTED) for index in range(partition_count)]
        self._by_any: dict[Key, Acknowledgements] = {}
        self._hung: list[RecordedLoad] = []
        directory.mkdir()
        java = jars.java_command(jars.KAFKA, "Load", programs=("load",), flags=tools.LOGGING, heap_mib=128)
        commands = {
            "librdkafka": [sys.executable, str(AGENTS / "load_of_confluent.py")],
            "aiokafka": [sys.executable, str(AGENTS / "load_of_aiokafka.py")],
            "java": java,
        }
        reason = missing_go()
        if reason is None:
            commands[FRANZ_GO] = [str(franz_go())]
        else:
            print(f"no load of {FRANZ_GO}: {reason}")
        self.loads = [RecordedLoad(name, number, command, directory) for number, (name, command) in enumerate(commands.items())]

    def start(self, bootstrap: list[str]) -> None:
        """Starts all loads, and waits until each has written to each partition."""
        for load in self.loads:
            load.start(self._partition_count, bootstrap)
        self.until_more(120, 1)
        self.forget_gaps()

    def refresh(self) -> None:
        """Reads the new lines of all histories."""
        new: list[tuple[int, Key]] = []
        for load in self.loads:
            load.check_running()
            new += load.refresh()
        for at_ns, key in sorted(new):
            self._by_any.setdefault(key, Acknowledgements(at_ns)).add(at_ns)

    def forget_gaps(self) -> None:
        """Measures the gaps from now on."""
        self.refresh()
        for acknowledged in (self._by_any, *(load.acknowledged for load in self.loads)):
            for each in acknowledged.values():
                each.longest_gap_ns = 0

    def longest_gap_s(self) -> float:
        """Returns the longest time that a partition of the topic `plain` has taken no records of any load."""
        self.refresh()
        return max(each.longest_gap_ns for (topic, _), each in self._by_any.items() if topic == PLAIN) / 1e9

    def longest_gaps_s(self) -> dict[str, float]:
        """Returns the longest time that a partition has taken no records, by load, idempotent and transactional records apart."""
        self.refresh()
        gaps: defaultdict[str, float] = defaultdict(float)
        for load in self.loads:
            for (topic, _), each in load.acknowledged.items():
                name = f"{load.name} {topic}"
                gaps[name] = max(gaps[name], each.longest_gap_ns / 1e9)
        return dict(gaps)

    def counts(self) -> dict[tuple[str, Key], int]:
        """Returns the number of acknowledged records, by load and partition."""
        self.refresh()
        return {
            (load.name, key): load.acknowledged[key].count if key in load.acknowledged else 0
            for load in self.loads
            for key in self._keys
        }

    def until_more(self, timeout_s: float, count: int) -> None:
        """Waits until each load has written so many more records to each partition."""
        wanted = {place: number + count for place, number in self.counts().items()}

        def missing() -> list[str]:
            return [f"{name} to {key}" for (name, key), number in self.counts().items() if number < wanted[name, key]]

        deadline = time.monotonic() + timeout_s
        while late := missing():
            if time.monotonic() > deadline and {place.partition(" ")[0] for place in late} == {HANGS}:
                self._give_up(late)
                return
            if time.monotonic() > deadline:
                tails = "\n".join(f"{load.name}: {load.log_tail()[-800:]}" for load in self.loads)
                raise AssertionError(f"not within {timeout_s} s: records of {late}\n{tails}")
            time.sleep(0.1)

    def _give_up(self, late: list[str]) -> None:
        """Kills the load that hangs; what it was told before still counts."""
        hung = next(load for load in self.loads if load.name == HANGS)
        print(f"\n{HANGS} hangs and is killed: no records of {late}\n{hung.log_tail()[-800:]}", flush=True)
        assert hung.process is not None
        hung.process.kill()
        hung.process.wait()
        hung.refresh()
        hung.close()
        self.loads.remove(hung)
        self._hung.append(hung)

    def stop(self) -> None:
        """Ends the writers, and waits until all that they were answered is recorded and each consumer has read all of it."""
        for load in self.loads:
            load.tell("stop")
        for load in self.loads:
            load.until_stopped()
        self.refresh()
        ends = self._visible_ends()

        def behind() -> list[str]:
            self.refresh()
            return [
                f"{load.name} of {key}: {load.read_ends.get(key, 0)} of {end}"
                for load in self.loads
                for key, end in ends.items()
                if load.read_ends.get(key, 0) < end
            ]

        wait_until(lambda: not behind(), timeout_s=120, what=f"all consumers read up to {ends}")

    def _visible_ends(self) -> dict[Key, int]:
        """Returns one past the last acknowledged record of each partition that all consumers must get."""
        committed = {
            entry.event.transaction
            for load in (*self.loads, *self._hung)
            for entry in load.entries
            if isinstance(entry.event, TransactionCommitted)
        }
        visible: dict[str, Key] = {}
        ends: defaultdict[Key, int] = defaultdict(int)
        for load in (*self.loads, *self._hung):
            for entry in load.entries:
                match entry.event:
                    case RecordSent() as sent if sent.transaction is None or sent.transaction in committed:
                        visible[sent.payload] = sent.topic, sent.partition
                    case SendAcknowledged(payload, offset) if payload in visible and offset is not None:
                        key = visible[payload]
                        ends[key] = max(ends[key], offset + 1)
        return dict(ends)

    def entries(self) -> Iterator[Entry]:
        """Yields the entries of all loads in the order of time."""
        yield from sorted((entry for load in (*self.loads, *self._hung) for entry in load.entries), key=lambda entry: entry.order)

    def close(self) -> None:
        """Kills all processes."""
        for load in self.loads:
            load.close()

    def __str__(self) -> str:
        lines = []
        for load in self.loads:
            acknowledged = sum(each.count for each in load.acknowledged.values())
            committed = sum(isinstance(entry.event, TransactionCommitted) for entry in load.entries)
            unknown = f"{load.unknown_count} records of unknown outcome"
            lines.append(f"{load.name}: {acknowledged} records acknowledged, {committed} transactions committed, {unknown}")
        return "\n".join(lines)


def missing_go() -> str | None:
    """Returns why the load of franz-go cannot be built; None if it can."""
    if shutil.which("go") is None:
        return f"needs Go {'.'.join(map(str, LEAST_GO))} or later"
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = tuple(int(part) for part in version.removeprefix("go").split(".")[:2] if part.isdecimal())
    if numbers < LEAST_GO:
        return f"needs Go {'.'.join(map(str, LEAST_GO))} or later; this is {version}"
    return None


def franz_go() -> Path:
    """Returns the program in agents/franz_go, built at its first use."""
    sources = AGENTS / "franz_go"
    names = ("go.mod", "go.sum", "main.go")
    digest = jars.digest_of(sources / name for name in names)

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            for name in names:
                shutil.copy(sources / name, place)
            command = ["go", "build", "-o", str(target / "load"), "."]
            environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
            subprocess.run(command, cwd=place, env=environment, check=True, timeout=600, capture_output=True, text=True)

    return jars.made_once(jars.CACHE / f"franz-go-{digest}", build) / "load"
