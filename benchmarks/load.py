"""Builds and runs the load program (`load/*.c`), and samples the broker when the program prints its two marks."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.processes import Server, cpu_seconds
from compat_tests.harness.jars import CACHE, made_once

SOURCES = Path(__file__).resolve().parent / "load"


class LoadError(Exception):
    """The load program could not be built, or ended too early; the text gives the reason."""


@dataclass(slots=True)
class Measured:
    """One measurement: the counts of the load, and the CPU time of the load and of the broker.

    Attributes:
        counted: the counts that the command printed at its end (see `load/*.c`).
        seconds: the duration of the measurement.
        each_broker_cpu_s: CPU time of the broker, or of each broker of a cluster, within it, user and system.
        load_cpu_s: that of the load.
    """

    counted: dict[str, float]
    seconds: float
    each_broker_cpu_s: list[float]
    load_cpu_s: float

    @property
    def broker_cpu_s(self) -> float:
        """The CPU time of all brokers."""
        return sum(self.each_broker_cpu_s)

    def per_second(self, what: str) -> float:
        """Returns a count per second."""
        return self.counted[what] / self.seconds


def has_jemalloc() -> bool:
    """Returns whether the load is linked with jemalloc (Debian: libjemalloc-dev).

    One thread of librdkafka frees memory that another thread has allocated. With glibc's malloc the threads wait for each other,
    and the same records take twice as much CPU.
    """
    return Path("/usr/include/jemalloc/jemalloc.h").exists()


@cache
def program() -> Path:
    """Returns the path of the load program, which is compiled if its sources have changed.

    Raises:
        LoadError: there is no compiler or no librdkafka.
    """
    if shutil.which("gcc") is None or not Path("/usr/include/librdkafka/rdkafka.h").exists():
        raise LoadError("the load program needs gcc and librdkafka (Debian: apt-get install gcc libc6-dev librdkafka-dev)")
    sources = sorted(SOURCES.glob("*.[ch]"))
    libraries = ["-lrdkafka", "-lpthread"]
    if has_jemalloc():
        libraries += ["-Wl,--no-as-needed", "-ljemalloc"]
    digest = hashlib.sha256(b"".join([*(path.read_bytes() for path in sources), *map(str.encode, libraries)])).hexdigest()[:12]

    def build(target: Path) -> None:
        files = [str(path) for path in sources if path.suffix == ".c"]
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", str(target / "load"), *files, *libraries], check=True)

    return made_once(CACHE / f"load-{digest}", build) / "load"


def start(broker: Server, command: str, **options: object) -> subprocess.Popen[str]:
    """Starts one command of the load program against the broker."""
    arguments = [f"{name}={value}" for name, value in {"bootstrap": broker.bootstrap, **options}.items()]
    return subprocess.Popen([str(program()), command, *arguments], stdout=subprocess.PIPE, text=True)


def run(broker: Server, command: str, **options: object) -> None:
    """Runs a command that measures nothing until it ends.

    Raises:
        LoadError: it failed.
    """
    with start(broker, command, **options) as process:
        process.communicate()
    if process.returncode:
        raise LoadError(f"load {command} ended with {process.returncode}")


def measure(broker: Server | Sequence[Server], command: str, **options: object) -> Measured:
    """Runs a command and samples the broker at the beginning and the end of the measured time.

    Args:
        broker: the broker, or the brokers of a cluster: the load begins with the first one.

    Raises:
        LoadError: it failed.
    """
    measured = broker if isinstance(broker, Sequence) else [broker]
    with start(measured[0], command, **options) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "begin\n":
            raise LoadError(f"load {command} did not begin")
        before = [cpu_seconds(each) for each in measured]
        line = process.stdout.readline()
        after = [cpu_seconds(each) for each in measured]
        if not line.startswith("end "):
            raise LoadError(f"load {command} did not end")
    used = [later - earlier for earlier, later in zip(before, after, strict=True)]
    counted = json.loads(line.removeprefix("end "))
    return Measured(counted, counted.pop("seconds"), used, counted.pop("cpu_s"))
