"""The rows about brokers in tests, in small: they measure something, and leave nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import load
from benchmarks.rows import Timing
from benchmarks.testing_rows import LARGE_COPIES, TESTING_ROWS, Place, copies, run_python, start, suite, suite_own
from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars

pytestmark = pytest.mark.wirekafka_only("its benchmarks, which start both brokers")

TIMING = Timing(warmup=1, seconds=1)
FIGURES = {row.name: set(row.figures) for row in (*TESTING_ROWS, LARGE_COPIES)}


@pytest.fixture(scope="module", autouse=True)
def _load_program() -> None:
    try:
        load.program()
    except load.LoadError as error:
        skip_or_fail(str(error))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("wirekafka", tmp_path)


def test_start_is_measured_in_a_new_process_and_in_one_that_had_a_broker(place: Place) -> None:
    found = start(place, TIMING, starts=1)
    assert set(found) == FIGURES["testing-start"]
    assert all(value > 0 for value in found.values())


@pytest.mark.java
def test_command_measures_the_row_that_it_is_told(place: Place) -> None:
    written = place.directory / "figures.json"
    options = ["--only", "testing-empty", "--broker", "wirekafka", "--rounds", "1", "--seconds", "1", "--free-memory"]
    run_python(place.directory, "-m", "benchmarks", *options, "--directory", str(place.directory), "--json", str(written))
    [row] = json.loads(written.read_text())["figures"].values()
    found = {name: values for name, [values] in row["wirekafka"].items()}
    assert set(found) == FIGURES["testing-empty"]
    assert 0 < found["reset"] < found["first"]


def test_copies_of_a_large_broker_are_measured_and_removed(place: Place) -> None:
    found = copies(place, TIMING, mebibytes=3, repeats=1)
    assert set(found) == FIGURES["testing-copies-10g"]
    assert all(value > 0 for value in found.values())
    assert list(place.directory.iterdir()) == []


def test_suites_run_the_tests_that_are_asked_for(place: Place) -> None:
    shared, own = suite(place, TIMING, tests=2), suite_own(place, TIMING, tests=2)
    assert set(shared) == set(own) == FIGURES["testing-suite"]
    assert all(found["each"] < found["suite"] * 1e3 for found in (shared, own))


@pytest.mark.long("one JVM formats storage and another one runs the broker")
@pytest.mark.java
def test_suite_runs_beside_apache_kafka(place: Place) -> None:
    assert suite(Place(jars.KAFKA, place.directory), TIMING, tests=1)["suite"] > 0
