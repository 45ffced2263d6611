"""Whole runs of simulated clusters: nothing is lost, and a seed always gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wirekafka.simulation.run import run_seed
from wirekafka.simulation.world import Mode


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_cluster_with_faults_violates_no_property(seed: int, mode: Mode) -> None:
    outcome = run_seed(seed, mode)
    assert not outcome.problems, f"{outcome.options}\n{outcome.problems[0]}\n{outcome.command}"


def test_seed_run_twice_gives_the_same_transcript() -> None:
    lines: list[str] = []
    first = run_seed(3, Mode.SAFETY, lines.append)
    again: list[str] = []
    second = run_seed(3, Mode.SAFETY, again.append)
    assert lines == again
    assert first == second


def test_seed_run_in_processes_with_different_hashes_gives_the_same_transcript() -> None:
    program = "from wirekafka.simulation.run import *; print(run_seed(3, Mode.SAFETY).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, capture_output=True
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {f"{run_seed(3, Mode.SAFETY).digest}\n".encode()}


def test_seeds_give_different_runs() -> None:
    assert len({run_seed(seed, Mode.SAFETY).digest for seed in range(3)}) == 3


def test_transcript_begins_with_all_options() -> None:
    lines: list[str] = []
    outcome = run_seed(3, Mode.LIVENESS, lines.append)
    assert lines[0] == f"0.000 seed: 3 liveness: {outcome.options}"
    assert outcome.command == "python -m wirekafka.simulation --seed 3 --mode liveness"
