"""For each array of each API, a request with many elements in it, and the longest step of the loop that the request causes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from wirekafka.api.cluster_versions import MEMBERS_ONLY
from wirekafka.api.registry import Api, all_apis
from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.tests.api.data_plane import NOW_MS
from wirekafka.tests.api.longest_step import answer_of, measuring
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.codec import Field, encode, fields_of

MOST_SECONDS = 20
"""After this time a request without a response is abandoned."""


def largest_requests(count: int) -> Iterator[tuple[str, bytes]]:
    """Returns names and framed requests of the newest versions, one for each array of each API.

    Left out are Produce, which has records, and the requests that only a member of a cluster serves.

    Args:
        count: the number of elements in the array.
    """
    for api in all_apis():
        if api.key in MEMBERS_ONLY:
            continue
        version = api.versions[-1]
        for field in fields_of(api.request, version, api.is_flexible(version)):
            if field.element is not None and api.name != "Produce":
                yield f"{api.name}.{field.name}", frame_with(api, field, count)


def element(field: Field, number: int) -> Any:
    """Makes an element that differs from elements with other numbers."""
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
    """Frames a request with this many elements in one of its arrays."""
    assert array.element is not None
    version = api.versions[-1]
    is_flexible = api.is_flexible(version)
    asked: Any = api.request()
    for name, value in {"group_id": "group", "validate_only": True}.items():
        if name in asked.field_defaults:
            setattr(asked, name, value)
    setattr(asked, array.name, [element(array.element, number) for number in range(count)])
    return request(api.key, version, 1, b"\0" * is_flexible + encode(asked, version, is_flexible))


async def measure(dispatcher: Dispatcher, framed: bytes, most_seconds: float = MOST_SECONDS) -> tuple[float, str]:
    """Returns the longest step of the loop until the response comes, in ms, and the outcome of the request."""
    frame = memoryview(bytearray(framed))[4:]
    outcome = "answered at once"
    with measuring() as steps:
        await trio.lowlevel.checkpoint()
        try:
            answer = dispatcher.handle(frame, client(), NOW_MS)
            if isinstance(answer, Pending):
                outcome = "abandoned"
                with trio.move_on_after(most_seconds):
                    answered = await answer_of(answer)
                    outcome = f"refused: {answered}" if isinstance(answered, Exception) else "answered later"
                answer.abandon()
        except ProtocolError as error:
            outcome = f"refused: {error}"
        await trio.lowlevel.checkpoint()
    return steps.longest_ms, outcome
