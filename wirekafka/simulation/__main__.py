"""The command `python -m wirekafka.simulation`: repeats one seed with its transcript, or runs many seeds with a progress bar.

Exit status: 0 if no run has failed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice

from wirekafka.simulation.run import Outcome, run_seed
from wirekafka.simulation.world import Mode

_BATCH_SEEDS = 10
"""How many runs a process makes for one request."""


def main(arguments: list[str]) -> int:
    """Runs the command, and returns the exit status."""
    options = _parse(arguments)
    modes = tuple(Mode) if options.mode is None else (Mode(options.mode),)
    if options.seed is not None:
        outcomes = [run_seed(options.seed, mode, print) for mode in modes]
        for outcome in outcomes:
            _tell(outcome)
            print(f"{outcome.event_count} events, digest {outcome.digest}")
        return int(any(outcome.problems for outcome in outcomes))
    runs = [(seed, mode) for seed in range(options.first, options.first + options.seeds) for mode in modes]
    return _run_all(runs, options.workers)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wirekafka.simulation", description="Simulates clusters, and judges them.")
    parser.add_argument("--seed", type=int, help="run this seed only, and print its transcript")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="one mode only, not both")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="how many processes (one for each CPU)")
    return parser.parse_args(arguments)


def _run_all(runs: list[tuple[int, Mode]], workers: int) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    failed: list[Outcome] = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs, {task.fields[failed]} failed"), TimeRemainingColumn())
    with Progress(*columns) as progress, ProcessPoolExecutor(workers) as pool:
        task = progress.add_task("", total=len(runs), failed=0)
        for done in as_completed([pool.submit(_run, batch) for batch in _batches(runs)]):
            outcomes = done.result()
            failed += [outcome for outcome in outcomes if outcome.problems]
            progress.update(task, advance=len(outcomes), failed=len(failed))
    for outcome in sorted(failed, key=lambda outcome: (outcome.seed, outcome.mode.value)):
        _tell(outcome)
    print(f"{len(runs)} runs, {len(failed)} failed")
    return int(bool(failed))


def _batches(runs: list[tuple[int, Mode]]) -> Iterator[list[tuple[int, Mode]]]:
    remaining = iter(runs)
    while batch := list(islice(remaining, _BATCH_SEEDS)):
        yield batch


def _run(runs: list[tuple[int, Mode]]) -> list[Outcome]:
    return [run_seed(seed, mode) for seed, mode in runs]


def _tell(outcome: Outcome) -> None:
    if not outcome.problems:
        return
    print(f"Seed {outcome.seed} has failed in mode {outcome.mode.value}: {outcome.options}", file=sys.stderr)
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    print(f"To repeat it: {outcome.command}\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
