"""Mutation testing: `python -m tools.mutate [WORD ...]` changes one line at a time and reports the changes that no test notices.

The mutations are in `tools/mutations.toml`. Each has a file, a fragment of it, the replacement of the fragment, and the tests
that should then fail. Words select the mutations whose file or fragment contains one of them.

Each worker has a copy of the tree, so several run at once and the tree itself is never changed. Before the mutations, the
named tests run once on an unchanged copy: if they fail, the mutations are not tried.

The exit code is 0 if all mutations were noticed, 1 if some survived, 2 if a fragment is not in its file exactly once or the tests
fail without a mutation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import click

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutations.toml")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".cache", ".hypothesis", "compat_tests", "docker")
MOST_SECONDS = 900
"""Tests that run longer have noticed the mutation: it has caused an endless wait."""

TESTS_FAILED = 1
"""pytest's exit code when it ran and a test failed."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One changed line.

    Attributes:
        path: the file, from the top of the tree.
        old: a fragment that is in the file exactly once.
        new: the replacement.
        tests: the test files and directories that should notice.
    """

    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}: {' '.join(self.old.split())}  ->  {' '.join(self.new.split()) or '(nothing)'}"

    def is_stale(self, tree: Path) -> bool:
        """Returns whether the fragment is missing from the file or is there more than once."""
        path = tree / self.path
        return not path.exists() or path.read_text().count(self.old) != 1


def read_mutations(path: Path) -> list[Mutation]:
    """Reads the list; paths and tests in it are relative to `wirekafka/` and `wirekafka/tests/`."""
    return [
        Mutation(f"wirekafka/{file['path']}", old, new, tuple(f"wirekafka/tests/{test}" for test in file["tests"]))
        for file in tomllib.loads(path.read_text())["file"]
        for old, new in file["mutations"]
    ]


def copy_tree(place: Path) -> Path:
    """Copies the tree, without what the unit tests do not need."""
    return Path(shutil.copytree(ROOT, place, ignore=LEFT_OUT))


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int | None, str]:
    """Runs the tests in a copy until the first failure; returns pytest's exit code, None after `MOST_SECONDS`, and its output."""
    options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout", "120"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def is_noticed(tree: Path, mutation: Mutation) -> bool:
    """Changes the line in a copy, runs the tests in the copy, and restores the line.

    Raises:
        SyntaxError: the changed file is not valid Python.
        RuntimeError: pytest could not run the tests.
    """
    path = tree / mutation.path
    text = path.read_text()
    broken = text.replace(mutation.old, mutation.new)
    compile(broken, mutation.path, "exec")
    path.write_text(broken)
    try:
        code, output = run_tests(tree, mutation.tests)
    finally:
        path.write_text(text)
    if code not in (0, TESTS_FAILED, None) and "Error" not in output:
        raise RuntimeError(f"pytest ended with {code} for {mutation}:\n{output[-2000:]}")
    return code != 0


def try_all(mutations: list[Mutation], trees: list[Path]) -> list[Mutation]:
    """Tries the mutations, as many at a time as there are copies; returns those that survived."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)
    survived: list[Mutation] = []
    lock = threading.Lock()

    def attempt(mutation: Mutation) -> None:
        tree = free.get()
        try:
            began = time.monotonic()
            noticed = is_noticed(tree, mutation)
            with lock:
                click.echo(f"{'noticed ' if noticed else 'SURVIVED'} {time.monotonic() - began:5.1f} s  {mutation}")
                if not noticed:
                    survived.append(mutation)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as workers:
        list(workers.map(attempt, mutations))
    return survived


@click.command()
@click.argument("words", nargs=-1)
@click.option("--jobs", default=2, show_default=True, help="How many mutations are tried at a time.")
@click.option("--check", is_flag=True, help="Only look whether each fragment is in its file.")
def main(words: tuple[str, ...], jobs: int, check: bool) -> None:
    """Changes one line at a time and reports the changes that no test notices."""
    mutations = [each for each in read_mutations(LIST) if not words or any(word in f"{each.path} {each.old}" for word in words)]
    stale = [each for each in mutations if each.is_stale(ROOT)]
    for each in stale:
        click.echo(f"not in its file once: {each}")
    if check or not mutations:
        sys.exit(2 if stale or not mutations else 0)
    mutations = [each for each in mutations if each not in stale]
    with tempfile.TemporaryDirectory(prefix="mutate-") as place:
        trees = [copy_tree(Path(place) / str(number)) for number in range(jobs)]
        tests = tuple(dict.fromkeys(test for each in mutations for test in each.tests))
        code, output = run_tests(trees[0], tests)
        if code:
            click.echo(f"{output[-3000:]}\nthe tests fail without a mutation")
            sys.exit(2)
        survived = try_all(mutations, trees)
    click.echo(f"{len(mutations) - len(survived)} of {len(mutations)} mutations were noticed")
    for each in survived:
        click.echo(f"survived: {each}")
    sys.exit(2 if stale else 1 if survived else 0)


if __name__ == "__main__":
    main()
