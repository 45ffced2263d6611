"""Jars from Maven Central, the classes of the tests' own Java programs, and Spark's classes as a JVM has them in memory.

All are made once, into `.cache/` of the checkout.

    python -m compat_tests.harness.jars

makes them before any test asks for them.

Every step works in a directory of its own, which is renamed when it is complete, under a lock, so that parallel test
processes and interrupted runs do no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
CACHE = HERE.parent / ".cache"
POM = HERE / "java" / "pom.xml"
PEERS_POM = HERE / "java" / "peers.xml"
SOURCES = HERE / "java" / "src"

KAFKA = "kafka-4.3.1"
OLDER_KAFKA = "kafka-3.9.1"
OLD_CLIENTS = "kafka-0.10.0.0"
PEER_2_8 = "kafka-2.8.2"
PEER_3_3 = "kafka-3.3.2"
TOOLS_3_9 = "kafka-tools-3.9.1"
STREAMS = "kafka-streams-4.3.1"
SPARK_PIPELINES = "spark-pipelines-4.0.0"
PROFILES = (KAFKA, OLDER_KAFKA, OLD_CLIENTS, PEER_2_8, PEER_3_3, TOOLS_3_9, STREAMS, SPARK_PIPELINES)


def missing_program() -> str | None:
    """Returns why no Java program can run here; None if Java is installed."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (Debian: openjdk-17-jdk-headless, maven)" if missing else None


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock `name` of the cache; other test processes wait for it."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Returns `target`, which `make` fills the first time."""
    with locked(target.name):
        if not target.exists():
            unfinished = target.with_name(target.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(target)
    return target


QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""The options of a JVM that runs for some seconds: it compiles little."""


def digest_of(sources: Iterable[Path]) -> str:
    """Returns a name for what is made from these files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


@cache
def jars(profile: str) -> Path:
    """Returns the directory with the jars of one profile of the pom."""
    pom = PEERS_POM if profile in (PEER_2_8, PEER_3_3, TOOLS_3_9) else POM
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]

    def resolve(target: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), "-P", profile, *goal], check=True, timeout=600)

    with locked("maven"):
        return made_once(CACHE / "jars" / f"{profile}-{digest}", resolve)


@cache
def classes(programs: tuple[str, ...], profile: str) -> Path:
    """Returns the classes of the programs in `java/src/`, compiled together against the jars of the profile."""
    sources = [path for program in programs for path in sorted((SOURCES / program).glob("*.java"))]
    digest = digest_of(sources)

    def build(target: Path) -> None:
        files = [str(path) for path in sources]
        command = ["javac", "-nowarn", "-cp", f"{jars(profile)}/*", "-d", str(target), *files]
        subprocess.run(command, check=True, timeout=120, capture_output=True)

    return made_once(CACHE / "classes" / f"{'+'.join(programs)}-{digest}", build)


@cache
def spark_options() -> tuple[str, ...]:
    """Returns the options of the JVM of a Spark session that lives for seconds or minutes.

    The JVM maps the classes of Spark from an archive. Until a first query of Delta Lake has ended, Spark needs 11 to 13 s of CPU
    time instead of 14 to 17 s (2 cores, 2026-11-24). A JVM whose class path is another one ignores the archive.

    Source: JEP 350, Dynamic CDS Archives
    """
    import pyspark

    version = subprocess.run(["java", "-version"], check=True, capture_output=True, timeout=60).stderr
    digest = hashlib.sha256(version + f"{pyspark.__file__} {pyspark.__version__}".encode()).hexdigest()[:12]

    def record(target: Path) -> None:
        command = [sys.executable, "-m", "compat_tests.harness.spark_archive", str(target / "classes.jsa")]
        subprocess.run(command, check=True, timeout=280, cwd=HERE.parent)

    archive = made_once(CACHE / "classes" / f"spark-{digest}", record) / "classes.jsa"
    return (*QUICK_START, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


def java_command(
    profile: str, main: str, *, heap_mib: int = 256, programs: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> list[str]:
    """Returns the command line of a short-lived or mostly idle Java program: a small heap, little compilation."""
    path = [f"{jars(profile)}/*"]
    if programs:
        path.insert(0, str(classes(programs, profile)))
    return ["java", f"-Xmx{heap_mib}m", *QUICK_START, *flags, "-cp", os.pathsep.join(path), main]


if __name__ == "__main__":
    for each in PROFILES:
        jars(each)
    spark_options()
