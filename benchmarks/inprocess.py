"""`python -m benchmarks.inprocess [--against REVISION]`: the CPU time of the hot paths, of this tree and of another commit.

Both trees are measured in turn, each in a process of its own, round after round, so that other load of the machine affects them
equally. A row's figure is the least of all rounds. The ratio is the median of the rounds' ratios; below 1, this tree is faster.
The range is from the first to the third quartile of the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "hot_paths.py"

Figures = dict[str, float]


def measure(tree: Path, seconds: float) -> Figures:
    """Returns the microseconds of each row, measured by this tree's script on the package in `tree`."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", str(SCRIPT), str(seconds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextmanager
def work_tree(revision: str) -> Iterator[Path]:
    """Checks the commit out in a folder of its own, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="against-") as place:
        tree = Path(place) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=HERE, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=HERE, check=True)


def compare(tree: Path, other: Path, rounds: int, seconds: float) -> Iterator[tuple[Figures, Figures]]:
    """Measures both trees in each round; the trees take turns in being the first."""
    for number in range(rounds):
        click.echo(f"round {number + 1} of {rounds}", err=True)
        if number % 2:
            theirs = measure(other, seconds)
            yield measure(tree, seconds), theirs
        else:
            ours = measure(tree, seconds)
            yield ours, measure(other, seconds)


@click.command()
@click.option("--against", help="The commit to compare with.")
@click.option("--rounds", default=5, show_default=True, help="How often each tree is measured.")
@click.option("--seconds", default=0.3, show_default=True, help="How long each row is measured in a round.")
def main(against: str | None, rounds: int, seconds: float) -> None:
    """Prints the microseconds of CPU that each hot path takes in the broker."""
    if against is None:
        for name, figure in measure(HERE.parent, seconds).items():
            click.echo(f"{name:34} {figure:8.2f} us")
        return
    with work_tree(against) as other:
        pairs = list(compare(HERE.parent, other, rounds, seconds))
    click.echo(f"{'':34} {against[:12]:>12} {'this tree':>12} {'ratio':>8}")
    for name in pairs[0][0]:
        ours, theirs = min(pair[0][name] for pair in pairs), min(pair[1][name] for pair in pairs)
        ratios = sorted(pair[0][name] / pair[1][name] for pair in pairs)
        spread = f"({ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f})"
        click.echo(f"{name:34} {theirs:9.2f} us {ours:9.2f} us {statistics.median(ratios):8.2f} {spread}")


if __name__ == "__main__":
    main()
