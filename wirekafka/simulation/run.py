"""Runs seeds, and judges each run.

How it works: a run has failed if the checker finds a violation, if the cluster is not online, in sync and writable in time, if a
log cannot be opened, or if the broker's code logs an unexpected exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

import structlog

from wirekafka.faults import forget_logged
from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.world import Mode, World

MOST_VIOLATIONS = 5
"""The most violations of one run that are shown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run.

    Attributes:
        options: what the seed has decided.
        digest: the digest of the transcript; equal for equal runs.
        event_count: how many lines the transcript has.
        problems: the failures of the run; empty if there are none.
    """

    seed: int
    mode: Mode
    options: str
    digest: str
    event_count: int
    problems: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that repeats the run, with its transcript."""
        return f"python -m wirekafka.simulation --seed {self.seed} --mode {self.mode.value}"


def run_seed(seed: int, mode: Mode, read: Callable[[str], object] | None = None) -> Outcome:
    """Runs a seed.

    Args:
        read: receives each line of the transcript.
    """
    forget_logged()
    with _defects() as problems:
        world = World(seed, mode, read)
        try:
            replicas = world.run()
        except Exception as error:  # noqa: BLE001 - whatever ends a run is a finding
            problems += ["".join(format_exception(error))]
        else:
            problems += [str(violation) for violation in check(world.history, replicas, is_settled=True)[:MOST_VIOLATIONS]]
        world.close()
    transcript = world.events.transcript
    return Outcome(seed, mode, str(world.options), transcript.digest(), transcript.line_count, tuple(problems))


@contextmanager
def _defects() -> Iterator[list[str]]:
    """Collects the defects that the broker's code logs, and silences its log."""
    found: list[str] = []

    def take(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        error = event.get("exc_info")
        if isinstance(error, BaseException):
            found.append(f"{event['event']}: {''.join(format_exception(error))}")
        raise structlog.DropEvent

    former = structlog.get_config()
    structlog.configure(processors=[take])
    try:
        yield found
    finally:
        structlog.configure(**former)
