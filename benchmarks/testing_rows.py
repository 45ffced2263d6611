"""Rows about brokers in tests: how long tests wait for a broker, and for an empty one, beside a process of Apache Kafka.

wirekafka is an `EmbeddedBroker` in a process of Python that the row starts. Apache Kafka is a process on storage that was
formatted before, so that only the broker's own start counts. Both have the same client, confluent-kafka, in Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.brokers import PACKAGE, FormattedKafka, formatted_storage
from benchmarks.embedded_start import produce_one
from benchmarks.rows import Figure, Figures, Row, Timing
from compat_tests.harness.broker import WIREKAFKA, running

SUITES = Path(__file__).resolve().parent / "small_tests"
PLUGIN = "wirekafka.testing.pytest_plugin"
STARTS = 5
TESTS = 200
KAFKAS = 5
"""The tests that have a process of Apache Kafka each."""
REPEATS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """What a row measures: the kind of its brokers, and an empty directory for all their files."""

    kind: str
    directory: Path

    @property
    def is_wirekafka(self) -> bool:
        """Whether the brokers are embedded ones."""
        return self.kind == WIREKAFKA

    def storage(self) -> Path:
        """Returns formatted storage of Apache Kafka."""
        return formatted_storage(self.directory / "formatted")


@dataclass(frozen=True, slots=True)
class KindRow(Row):
    """A row that starts the brokers of a kind itself.

    Attributes:
        has_kafka: Apache Kafka can do what is measured.
    """

    run: Callable[[Place, Timing], Figures]
    has_kafka: bool = True


def run_module(directory: Path, module: str, *arguments: object) -> Any:
    """Runs a module of this package; returns what it prints as JSON."""
    return json.loads(run_python(directory, "-m", f"benchmarks.{module}", *map(str, arguments)))


def run_python(directory: Path, *arguments: str, **environment: str) -> str:
    """Runs Python, which keeps what it compiles, and its temporary files in the directory; returns what it prints."""
    paths = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    own = {"TMPDIR": str(directory), "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
    command, environ = [sys.executable, *arguments], os.environ | own | environment
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start(place: Place, timing: Timing, *, starts: int = STARTS) -> Figures:
    """Measures from the start of a process to the first record; of wirekafka, also the later brokers of the process."""
    cold, warm = [], []
    if not place.is_wirekafka:
        storage = place.storage()
        for number in range(starts):
            with running(broker := FormattedKafka(place.directory / str(number), storage)):
                produce_one(broker.bootstrap)
                cold.append((time.monotonic() - broker.spawned_s) * 1e3)
        return {"cold": median(cold)}
    run_module(place.directory, "embedded_start", 1)  # compiles the modules
    for _ in range(starts):
        began = time.monotonic()
        found = run_module(place.directory, "embedded_start", starts)
        cold.append((found["first"] - began) * 1e3)
        warm += found["warm"]
    return {"cold": median(cold), "warm": median(warm)}


def empty(place: Place, timing: Timing) -> Figures:
    """Measures how long it takes to empty the broker between two tests, and to have the first record of the next test."""
    if place.is_wirekafka:
        times = run_module(place.directory, "embedded_copies", "empty", timing.seconds)
    else:
        times = _kafka_topics(place, timing)
    return {"reset": median(times["reset"]), "longest": max(times["reset"]), "first": median(times["first"])}


def _kafka_topics(place: Place, timing: Timing) -> dict[str, list[float]]:
    """Creates a topic, writes a record and deletes the topic, again and again."""
    times: dict[str, list[float]] = {"reset": [], "first": []}
    with running(broker := FormattedKafka(place.directory / "broker", place.storage())):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        end = time.monotonic() + timing.warmup + timing.seconds
        while (began := time.monotonic()) < end or not times["reset"]:
            admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
            produce_one(broker.bootstrap)
            written = time.monotonic()
            admin.delete_topics(["orders"])["orders"].result(60)
            deleted = time.monotonic()
            if began > end - timing.seconds:
                times["reset"].append((deleted - written) * 1e3)
                times["first"].append((deleted - began) * 1e3)
    return times


def copies(place: Place, timing: Timing, *, mebibytes: int, repeats: int = REPEATS) -> Figures:
    """Measures what a test does with a broker that has so much data."""
    times = run_module(place.directory, "embedded_copies", "copies", mebibytes, repeats)
    return {name: median(each) for name, each in times.items()}


def suite(place: Place, timing: Timing, *, tests: int = TESTS) -> Figures:
    """Measures a run of pytest whose tests share a broker, with the start of pytest and of the broker."""
    if place.is_wirekafka:
        seconds, each = run_suite(place.directory, "suite_shared.py", tests)
    else:
        seconds, each = run_suite(place.directory, "suite_kafka_shared.py", tests, place.storage())
    return {"suite": seconds, "each": median(each)}


def suite_own(place: Place, timing: Timing, *, tests: int = TESTS, kafkas: int = KAFKAS) -> Figures:
    """Measures a run of pytest whose tests have a broker each."""
    if not place.is_wirekafka:
        return {"each": median(run_suite(place.directory, "suite_kafka_own.py", kafkas, place.storage())[1])}
    seconds, each = run_suite(place.directory, "suite_own.py", tests)
    return {"suite": seconds, "each": median(each)}


def run_suite(directory: Path, name: str, tests: int, storage: Path | None = None) -> tuple[float, list[float]]:
    """Runs a file of small tests; returns the seconds of the whole run, and the milliseconds of each test with its fixtures."""
    report, files = directory / "report.xml", directory / "files"
    # The package registers its plugin when it is installed; a checkout beside an older installation names it.
    plugins = [] if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ["-p", PLUGIN]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--basetemp", str(files), "--junit-xml", str(report)]
    environment = {"SMALL_TESTS": str(tests)} | ({} if storage is None else {"SMALL_TESTS_STORAGE": str(storage)})
    began = time.monotonic()
    run_python(directory, "-m", "pytest", *plugins, *options, str(SUITES / name), **environment)
    seconds = time.monotonic() - began
    shutil.rmtree(files, ignore_errors=True)
    each = [float(case.attrib["time"]) * 1e3 for case in ElementTree.parse(report).iter("testcase")]
    assert len(each) == tests, f"{len(each)} tests ran instead of {tests}"
    return seconds, each


_FIGURES_OF_COPIES = {
    "first_snapshot": Figure("ms, first snapshot"),
    "snapshot": Figure("ms, snapshot"),
    "fork": Figure("ms, fork"),
    "restore": Figure("ms, restore"),
    "reset": Figure("ms, reset", asked=5),
    "deletion": Figure("ms, reset that deletes the data", asked=5),
    "first_after_deletion": Figure("ms, the same to the first record"),
}

TESTING_ROWS = (
    KindRow(
        "testing-start",
        "From nothing to the first produced record",
        {"cold": Figure("ms from the start of a process"), "warm": Figure("ms in a process that had a broker", asked=150)},
        start,
    ),
    KindRow(
        "testing-empty",
        "Empty broker between tests (Apache Kafka: a topic is deleted)",
        {
            "reset": Figure("ms, p50", asked=5),
            "longest": Figure("ms, longest"),
            "first": Figure("ms to the first record of the next test"),
        },
        empty,
    ),
    KindRow(
        "testing-copies",
        "A broker with 1 MiB",
        _FIGURES_OF_COPIES,
        partial(copies, mebibytes=1),
        has_kafka=False,
    ),
    KindRow(
        "testing-suite",
        f"{TESTS} small tests, one broker for all",
        {"suite": Figure("s"), "each": Figure("ms a test, p50")},
        suite,
    ),
    KindRow(
        "testing-suite-own",
        f"The same, a broker for each (Apache Kafka: {KAFKAS} tests)",
        {"suite": Figure("s"), "each": Figure("ms a test, p50")},
        suite_own,
    ),
)

LARGE_COPIES = KindRow(
    "testing-copies-10g",
    "A broker with 10 GiB",
    _FIGURES_OF_COPIES,
    partial(copies, mebibytes=10 << 10),
    has_kafka=False,
)
"""It writes 10 GiB, so it runs only where it is named."""
