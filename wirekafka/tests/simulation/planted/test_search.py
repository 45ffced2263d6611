"""Runs of the simulator find known bugs of brokers."""

from __future__ import annotations

import pytest

from wirekafka.simulation.planted.__main__ import main
from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.planting import PlantedBug
from wirekafka.simulation.planted.search import search

MOST_SEEDS = 150
FOUND_IN_CI = pytest.mark.long("make planted finds this bug in CI")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("acknowledge-before-commit", marks=FOUND_IN_CI),
        pytest.param("read-past-high-watermark", marks=FOUND_IN_CI),
        "high-watermark-over-proposed-isr",
        "commit-without-followers",
        pytest.param("elect-uncleanly-by-mistake", marks=FOUND_IN_CI),
        pytest.param("remove-last-in-sync-replica", marks=FOUND_IN_CI),
        pytest.param("delete-znodes-before-logs", marks=FOUND_IN_CI),
        pytest.param("forget-deletions", marks=FOUND_IN_CI),
    ],
)
def test_search_finds_a_planted_bug_within_a_few_seeds(name: str) -> None:
    found = search(PLANTED[name], range(MOST_SEEDS))

    assert found.outcome is not None
    assert found.outcome.problems


def test_search_that_finds_nothing_says_so() -> None:
    found = search(PlantedBug("none", "", "", ()), range(1))

    assert str(found) == "none: not found in 1 runs"


def test_command_fails_if_a_bug_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["last-stable-offset-past-marker", "--seeds", "1"]) == 1
    assert capsys.readouterr().out == "last-stable-offset-past-marker: not found in 1 runs\n"
