"""The jobs that each client does while a fault hits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

TOPIC, GROUP, TRANSACTIONAL_ID = "orders", "readers", "writer"

REQUEST_TIMEOUT_MS = 10_000
DELIVERY_TIMEOUT_MS = 40_000
MOST_SECONDS = 120
"""A job that has not ended by then is given up."""

GIVEN_UP = "waits more than two minutes"


@dataclass
class Result:
    """What a program has seen.

    Attributes:
        error: in words, such as "commit raises KafkaTimeoutError"; None if there was none.
        values: of the records that were read, in order.
    """

    error: str | None = None
    values: list[bytes] = field(default_factory=list)

    def has_read(self, count: int) -> bool:
        """Whether so many different records were read."""
        return len(set(self.values)) >= count


class Client(Protocol):
    """A client library. Its settings are the defaults, but for the timeouts of this module and `auto.offset.reset=earliest`."""

    def write(self, bootstrap: str) -> Result:
        """Writes one record to `TOPIC`, and waits for its acknowledgement."""

    def read(self, bootstrap: str, count: int) -> Result:
        """Reads partition 0 of `TOPIC` without a group, until it has so many different records."""

    def join(self, bootstrap: str, count: int) -> Result:
        """Reads `TOPIC` in `GROUP`, until it has so many different records; commits after each poll that has some."""

    def transact(self, bootstrap: str) -> Result:
        """Writes one record in a transaction and commits it. After an error in the transaction it aborts."""


def run_transaction(
    steps: Iterable[tuple[str, Callable[[], object]]], abort: Callable[[], object], name_of: Callable[[Exception], str]
) -> Result:
    """Does the steps of a transaction. After an error it aborts, unless the error was that of the first step.

    Args:
        name_of: returns the name of an error of the library, and raises any other error.
    """
    is_open = False
    for step, do in steps:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - name_of raises what is not the library's
            told = f"{step} raises {name_of(error)}"
            return Result(f"{told}, {_abort(abort, name_of)}" if is_open else told)
        is_open = True
    return Result()


def _abort(abort: Callable[[], object], name_of: Callable[[Exception], str]) -> str:
    try:
        abort()
    except Exception as error:  # noqa: BLE001 - name_of raises what is not the library's
        return f"and so does abort: {name_of(error)}"
    return "abort works"
