"""Finds out how many seeds it takes until a planted bug is found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wirekafka.simulation.planted.planting import PlantedBug, plant
from wirekafka.simulation.run import Outcome, run_seed
from wirekafka.simulation.world import Mode


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Attributes:
        run_count: how many runs there were, the last one included.
        outcome: the run that has found the bug; None if none has.
    """

    bug: PlantedBug
    run_count: int
    outcome: Outcome | None

    def __str__(self) -> str:
        if self.outcome is None:
            return f"{self.bug.name}: not found in {self.run_count} runs"
        lines = self.outcome.problems[0].splitlines()
        problem = lines[-1] if "Traceback" in lines[0] else lines[0]
        return f"{self.bug.name}: found by seed {self.outcome.seed}, run {self.run_count}: {problem}"


def search(bug: PlantedBug, seeds: Iterable[int], mode: Mode = Mode.SAFETY) -> Search:
    """Runs seeds with a planted bug until one of them fails."""
    run_count = 0
    with plant(bug):
        for seed in seeds:
            run_count += 1
            outcome = run_seed(seed, mode)
            if outcome.problems:
                return Search(bug, run_count, outcome)
    return Search(bug, run_count, None)
