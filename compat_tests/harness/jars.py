"""Jars from Maven Central and the classes of the test's own Java programs, made once into `.cache/` of the checkout.

Every step is done in a directory of its own that is renamed when it is whole, under a lock, so that parallel test
processes and interrupted runs do no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
CACHE = HERE.parent / ".cache"
POM = HERE / "java" / "pom.xml"
SOURCES = HERE / "java" / "src"

KAFKA = "kafka-4.3.1"
OLDER_KAFKA = "kafka-3.9.1"
OLD_CLIENTS = "kafka-0.10.0.0"
STREAMS = "kafka-streams-4.3.1"
SPARK_KAFKA = "spark-kafka-4.0.0"


def missing_program() -> str | None:
    """Why no Java program can be run here; None where one can."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (Debian: openjdk-17-jdk-headless, maven)" if missing else None


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock `name` of the cache against every other test process."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, which `make` fills the first time."""
    with locked(target.name):
        if not target.exists():
            unfinished = target.with_name(target.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(target)
    return target


@cache
def jars(profile: str) -> Path:
    """The directory with the jars of one profile of the pom."""
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]

    def resolve(target: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(POM), "-P", profile, *goal], check=True, timeout=600)

    with locked("maven"):
        return made_once(CACHE / "jars" / f"{profile}-{digest}", resolve)


@cache
def classes(programs: tuple[str, ...], profile: str) -> Path:
    """The classes of the programs in `java/src/`, compiled together against the jars of the profile."""
    sources = [path for program in programs for path in sorted((SOURCES / program).glob("*.java"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]

    def build(target: Path) -> None:
        files = [str(path) for path in sources]
        command = ["javac", "-nowarn", "-cp", f"{jars(profile)}/*", "-d", str(target), *files]
        subprocess.run(command, check=True, timeout=120, capture_output=True)

    return made_once(CACHE / "classes" / f"{'+'.join(programs)}-{digest}", build)


def java_command(
    profile: str, main: str, *, heap_mib: int = 256, programs: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> list[str]:
    """The command line of a Java program that is short-lived or idle most of the time: little heap, little compiling."""
    path = [f"{jars(profile)}/*"]
    if programs:
        path.insert(0, str(classes(programs, profile)))
    tuning = [f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return ["java", *tuning, *flags, "-cp", os.pathsep.join(path), main]
