"""Shared by the tests of APIs: a caller of a broker without sockets, record batches, and the values in a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing

from wirekafka.testing.data_plane import NOW_MS, Caller, open_caller, wait_for
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, iterate_records, read_batch_header

__all__ = ["NOW_MS", "Caller", "batch", "open_caller", "run", "values_of", "wait_for"]


def run(body: Callable[..., Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test with a caller, under a clock that jumps."""

    async def main() -> None:
        async with open_caller(path, **settings) as caller:
            await body(caller)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def batch(*values: bytes, timestamp: int = NOW_MS, **settings: Any) -> bytearray:
    """Builds a record batch with one record for each value, a millisecond apart."""
    records = [Record(value=value, timestamp=timestamp + number) for number, value in enumerate(values)]
    return build_batch(records, **settings)


def values_of(records: Any) -> list[bytes | None]:
    """Returns the values of all records in whole batches of format 2; a size limit may have cut the last batch."""
    found: list[bytes | None] = []
    view = memoryview(bytes(records))
    while len(view) >= HEADER_SIZE:
        size = read_batch_header(view).size_bytes
        if size > len(view):
            break
        found += [record.value for record in iterate_records(view[:size])]
        view = view[size:]
    return found
