"""Members of share groups, with the Java client (java/src/sharing)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from compat_tests.harness import jars

PROGRAM = "Sharing"
LOGGING = (f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",)


class Refused(Exception):
    """The client raised an exception: its class and its message."""


@dataclass(frozen=True)
class Shared:
    """A record that a member has acquired."""

    topic: str
    partition: int
    offset: int
    delivery_count: int
    value: str


def _command() -> list[str]:
    return jars.java_command(jars.KAFKA, PROGRAM, programs=("sharing",), flags=LOGGING)


class ShareClient:
    """A process that has members of share groups, by name."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def _ask(self, *fields: object, timeout_s: float = 120) -> list[list[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, fields)) + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        found: list[list[str]] = []
        try:
            for line in self.process.stdout:
                kind, *rest = line.rstrip("\n").split("\t")
                if kind == "ok":
                    return found
                if kind == "error":
                    raise Refused(*rest)
                found.append([kind, *rest])
        finally:
            timer.cancel()
        raise AssertionError(f"no answer to {fields}")

    def open(self, name: str, bootstrap: str, group: str, *topics: str, **options: object) -> None:
        """Makes a member join."""
        text = ",".join(f"{key.replace('_', '.')}={value}" for key, value in options.items())
        self._ask("open", name, bootstrap, group, ",".join(topics), text)

    def poll(self, name: str, timeout_ms: int = 500) -> list[Shared]:
        """Returns the records that the member receives."""
        return [
            Shared(topic, int(partition), int(offset), int(count), value)
            for _, topic, partition, offset, count, value in self._ask("poll", name, timeout_ms)
        ]

    def poll_until(self, name: str, count: int, timeout_s: float = 60) -> list[Shared]:
        """Polls without accepting until the first records come; in explicit mode the next poll needs their acknowledgement."""
        for _ in range(int(timeout_s * 2)):
            found = self.poll(name)
            if found:
                assert len(found) >= count, found
                return found
        raise AssertionError(f"{name} got nothing")

    def acknowledge(self, name: str, records: Iterable[Shared], how: str) -> None:
        """Acknowledges records with a type: ACCEPT, RELEASE, REJECT or RENEW."""
        for record in records:
            self._ask("acknowledge", name, record.topic, record.partition, record.offset, how)

    def commit(self, name: str) -> dict[int, str]:
        """Commits the acknowledgements; returns the errors of the partitions that refused them."""
        return {int(partition): error for _, partition, error in self._ask("commit", name)}

    def close_member(self, name: str) -> None:
        """Makes a member leave."""
        self._ask("close", name)

    def close(self) -> None:
        """Kills the process, to simulate a crash."""
        self.process.kill()
        self.process.communicate()


class Worker:
    """A member in a process of its own that works until it is killed.

    Attributes:
        lines: the lines that it has printed so far.
        last_record_s: when it last received a record, by the monotonic clock.
    """

    def __init__(self, log: Path, bootstrap: str, group: str, topic: str) -> None:
        self.lines: list[list[str]] = []
        self.last_record_s = 0.0
        with log.open("ab") as errors:
            command = [*_command(), bootstrap, group, topic]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.lines.append(line.rstrip("\n").split("\t"))
                if line.startswith("record"):
                    self.last_record_s = time.monotonic()

    def of_kind(self, kind: str) -> list[str]:
        """Returns the values of the reports of one kind: an acknowledgement type, or `record` for a delivery."""
        return [line[-1] for line in tuple(self.lines) if line[0] == kind]

    def kill(self) -> None:
        """Kills the process (kill -9), to simulate a crash."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
