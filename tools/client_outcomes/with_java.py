"""The Java client, in a JVM that does the jobs one after the other (compat_tests/java/src/outcomes)."""

from __future__ import annotations

import subprocess
from types import TracebackType

from compat_tests.harness import jars
from compat_tests.harness.tools import LOGGING
from tools.client_outcomes.jobs import (
    DELIVERY_TIMEOUT_MS,
    GIVEN_UP,
    GROUP,
    MOST_SECONDS,
    REQUEST_TIMEOUT_MS,
    TOPIC,
    TRANSACTIONAL_ID,
    Result,
)


class JavaClient:
    """The jobs in the Java client; its JVM runs from the first job on."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def write(self, bootstrap: str) -> Result:
        """Writes one record."""
        return self._do("write", bootstrap)

    def read(self, bootstrap: str, count: int) -> Result:
        """Reads a partition."""
        return self._do("read", bootstrap, count)

    def join(self, bootstrap: str, count: int) -> Result:
        """Reads in a group."""
        return self._do("join", bootstrap, count)

    def transact(self, bootstrap: str) -> Result:
        """Writes in a transaction."""
        return self._do("transact", bootstrap)

    def _do(self, job: str, bootstrap: str, count: int = 0) -> Result:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{job}\t{bootstrap}\t{count}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the JVM has ended"
        error, values = line.rstrip("\n").split("\t")
        return Result(GIVEN_UP if error == "GIVEN_UP" else error or None, [each.encode() for each in values.split(",") if each])

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        timeouts = (REQUEST_TIMEOUT_MS, DELIVERY_TIMEOUT_MS, MOST_SECONDS * 1000)
        command = jars.java_command(jars.KAFKA, "Outcomes", programs=("outcomes",), flags=LOGGING)
        arguments = [TOPIC, GROUP, TRANSACTIONAL_ID, *map(str, timeouts)]
        # The client logs warnings of each fault.
        return subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
