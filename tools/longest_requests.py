"""Measures the requests that hold the loop longest: `python -m tools.longest_requests [COUNT]`.

For each array of the newest version of each API, a request with COUNT elements in the array (by default, as many as a request
may have) goes through the dispatcher. The program prints the longest step of the loop until the response, in ms of CPU time, the
longest first. A request that waits for other members of its group is abandoned. The topics, groups and other names in the
elements do not exist. Produce is left out: its work is in the records. Then the program measures requests on a broker that holds
a topic of `PARTITIONS` partitions, groups of `MEMBERS` members, and some 20,000 small groups, transactional ids and settings.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import click
import structlog
import trio

from wirekafka.server.dispatch import Dispatcher
from wirekafka.slices import Slices
from wirekafka.testing.data_plane import open_caller
from wirekafka.tests.api import large_states
from wirekafka.tests.api.largest_requests import largest_requests, measure
from wirekafka.wire.codec import MOST_ELEMENTS

PARTITIONS, MEMBERS = 19_000, 1000


async def measure_all(folder: Path, count: int) -> list[tuple[float, str, str]]:
    """Measures one request for each array of each API."""
    async with open_caller(folder) as caller:
        caller.broker.slices = Slices(caller.broker.clock)
        dispatcher = Dispatcher(caller.broker)
        return [(*await measure(dispatcher, framed), name) for name, framed in largest_requests(count)]


async def measure_large_states(folder: Path) -> list[tuple[float, str, str]]:
    """Measures requests on a broker that holds much."""
    async with open_caller(folder, **large_states.SETTINGS) as caller:
        caller.broker.slices = Slices(caller.broker.clock)
        measured = await large_states.measured(caller, PARTITIONS, MEMBERS)
        return [(longest_ms, outcome, name) for longest_ms, name, outcome in measured]


@click.command()
@click.argument("count", type=click.IntRange(1, MOST_ELEMENTS), default=MOST_ELEMENTS)
def main(count: int) -> None:
    """Measures the requests that hold the loop longest, and prints them, the longest first.

    COUNT is the number of elements in the array of a request on an empty broker; by default, as many as a request may have.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        rows = trio.run(measure_all, Path(folder, "empty"), count)
        rows += trio.run(measure_large_states, Path(folder, "full"))
    for longest_ms, outcome, name in sorted(rows, reverse=True):
        click.echo(f"{longest_ms:9.1f} ms  {name:45} {outcome}")


if __name__ == "__main__":
    main()
