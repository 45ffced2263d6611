"""The requests that hold the loop longest: `python -m tools.longest_requests [COUNT]`.

For each array of the newest version of each API, a request with so many elements in it (the most that a request may have, unless
COUNT says otherwise) goes through the dispatcher, and the time until it returns is printed, the longest first. Topics, groups and
other things that the elements name do not exist. Produce is left out: its work is in the records.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from wirekafka.api.registry import Api, all_apis
from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.tests.api.data_plane import NOW_MS, Caller, run
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.codec import MOST_ELEMENTS, Field, encode, fields_of


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


def measure(dispatcher: Dispatcher, framed: bytes) -> tuple[float, str]:
    """How many seconds a request holds the loop, and what becomes of it."""
    frame = memoryview(bytearray(framed))[4:]
    begun = time.perf_counter()
    try:
        answer = dispatcher.handle(frame, client(), NOW_MS)
        outcome = "goes on in slices, or waits" if isinstance(answer, Pending) else "answered"
    except ProtocolError as error:
        outcome = f"refused: {error}"
    return time.perf_counter() - begun, outcome


def main() -> None:
    """Measures all APIs and prints the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MOST_ELEMENTS
    rows: list[tuple[float, str, str]] = []

    async def body(caller: Caller) -> None:
        dispatcher = Dispatcher(caller.broker)
        for api in all_apis():
            version = api.versions[-1]
            fields = fields_of(api.request, version, api.is_flexible(version))
            arrays = [field for field in fields if field.element is not None and api.name != "Produce"]
            rows.extend((*measure(dispatcher, frame_with(api, array, count)), f"{api.name}.{array.name}") for array in arrays)

    with tempfile.TemporaryDirectory() as folder:
        run(body, Path(folder))
    for seconds, outcome, name in sorted(rows, reverse=True):
        print(f"{seconds * 1000:9.1f} ms  {name:45} {outcome}")


if __name__ == "__main__":
    main()
