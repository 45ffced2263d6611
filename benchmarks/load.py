"""The load program (`load/*.c`): built once, run as a process of its own, and the broker sampled at its two marks."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.processes import Server, cpu_seconds
from compat_tests.harness.jars import CACHE, made_once

SOURCES = Path(__file__).resolve().parent / "load"


class LoadError(Exception):
    """The load program could not be built, or ended before its time; the text says why."""


@dataclass(slots=True)
class Measured:
    """One measured time: what the load counted, and what it cost on both sides.

    Attributes:
        counted: what the command printed at its end (`load/*.c` says what that is).
        seconds: how long was measured.
        broker_cpu_s, load_cpu_s: CPU time of the broker and of the load within it, user and system.
    """

    counted: dict[str, float]
    seconds: float
    broker_cpu_s: float
    load_cpu_s: float

    def per_second(self, what: str) -> float:
        """How many of these a second."""
        return self.counted[what] / self.seconds


def has_jemalloc() -> bool:
    """Whether the load is linked with jemalloc (Debian: libjemalloc-dev).

    One thread of librdkafka frees what another has allocated, and with glibc's malloc they wait for each other: the same records
    take twice as much CPU.
    """
    return Path("/usr/include/jemalloc/jemalloc.h").exists()


@cache
def program() -> Path:
    """The path of the load program, compiled if its sources have changed.

    Raises:
        LoadError: no compiler or no librdkafka.
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
    """Runs a command that measures nothing, to its end.

    Raises:
        LoadError: it failed.
    """
    with start(broker, command, **options) as process:
        process.communicate()
    if process.returncode:
        raise LoadError(f"load {command} ended with {process.returncode}")


def measure(broker: Server, command: str, **options: object) -> Measured:
    """Runs a command and samples the broker at the beginning and the end of the measured time.

    Raises:
        LoadError: it failed.
    """
    with start(broker, command, **options) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "begin\n":
            raise LoadError(f"load {command} did not begin")
        before = cpu_seconds(broker)
        line = process.stdout.readline()
        after = cpu_seconds(broker)
        if not line.startswith("end "):
            raise LoadError(f"load {command} did not end")
    counted = json.loads(line.removeprefix("end "))
    return Measured(counted, counted.pop("seconds"), after - before, counted.pop("cpu_s"))
