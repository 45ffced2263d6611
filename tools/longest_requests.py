"""The requests that hold the loop longest: `python -m tools.longest_requests [COUNT]`.

For each array of the newest version of each API, a request with so many elements in it (the most that a request may have, unless
COUNT says otherwise) goes through the dispatcher, and the longest step of the loop until its response is there is printed in ms
of CPU time, the longest first. A request that waits for other members of its group is abandoned. Topics, groups and other things
that the elements name do not exist. Produce is left out: its work is in the records.
"""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import structlog
import trio

from wirekafka.api.registry import Api, all_apis
from wirekafka.cli.serve import COLLECT_AFTER_OBJECTS
from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.slices import Slices
from wirekafka.testing.data_plane import NOW_MS, open_caller
from wirekafka.tests.api.longest_step import LongestStep, answer_of
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.codec import MOST_ELEMENTS, Field, encode, fields_of

MOST_SECONDS = 20
"""How long a response may take before its request is abandoned."""


def element(field: Field, number: int) -> Any:
    """An element that differs from those with other numbers."""
    name = f"n{number:06}"
    if field.struct is None:
        assert field.wire is not None
        values: dict[str, Any] = {"string": name, "bytes": b"", "uuid": number.to_bytes(16, "big")}
        return values.get(field.wire.name, number % 120)
    made = field.struct()
    named = next((each for each, value in made.field_defaults.items() if isinstance(value, str)), None)
    if named is not None:
        setattr(made, named, name)
    return made


def frame_with(api: Api, array: Field, count: int) -> bytes:
    """A framed request with so many elements in one of its arrays."""
    assert array.element is not None
    version = api.versions[-1]
    is_flexible = api.is_flexible(version)
    asked: Any = api.request()
    for name, value in {"group_id": "group", "validate_only": True}.items():
        if name in asked.field_defaults:
            setattr(asked, name, value)
    setattr(asked, array.name, [element(array.element, number) for number in range(count)])
    return request(api.key, version, 1, b"\0" * is_flexible + encode(asked, version, is_flexible))


async def measure(dispatcher: Dispatcher, framed: bytes) -> tuple[float, str]:
    """Returns the longest step of the loop until the response is there, in ms, and the outcome of the request."""
    frame = memoryview(bytearray(framed))[4:]
    steps = LongestStep()
    trio.lowlevel.add_instrument(steps)
    await trio.lowlevel.checkpoint()
    outcome = "answered at once"
    try:
        answer = dispatcher.handle(frame, client(), NOW_MS)
        if isinstance(answer, Pending):
            outcome = "abandoned"
            with trio.move_on_after(MOST_SECONDS):
                await answer_of(answer)
                outcome = "answered later"
            answer.abandon()
    except ProtocolError as error:
        outcome = f"refused: {error}"
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(steps)
    return steps.longest_ms, outcome


async def measure_all(folder: Path, count: int) -> list[tuple[float, str, str]]:
    """Measures one request for each array of each API."""
    rows: list[tuple[float, str, str]] = []
    async with open_caller(folder) as caller:
        caller.broker.slices = Slices(caller.broker.clock)
        dispatcher = Dispatcher(caller.broker)
        apis = all_apis()
        gc.collect()
        gc.freeze()  # as a broker does before it listens
        gc.set_threshold(COLLECT_AFTER_OBJECTS)
        for api in apis:
            version = api.versions[-1]
            fields = fields_of(api.request, version, api.is_flexible(version))
            for array in (field for field in fields if field.element is not None and api.name != "Produce"):
                framed = frame_with(api, array, count)
                gc.collect()
                rows.append((*await measure(dispatcher, framed), f"{api.name}.{array.name}"))
    return rows


def main() -> None:
    """Measures all APIs and prints the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MOST_ELEMENTS
    with tempfile.TemporaryDirectory() as folder:
        rows = trio.run(measure_all, Path(folder), count)
    for longest_ms, outcome, name in sorted(rows, reverse=True):
        print(f"{longest_ms:9.1f} ms  {name:45} {outcome}")


if __name__ == "__main__":
    main()
