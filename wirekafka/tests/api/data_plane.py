"""A broker without sockets, for tests of the data plane: requests and responses go through the codec of their version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from wirekafka.api.registry import APIS, Call, Client, all_apis
from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.pending import Pending
from wirekafka.slices import Slices
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, iterate_records, read_batch_header
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.types import Message

NOW_MS = 1_700_000_000_000


class Caller:
    """One client of the broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = Client("127.0.0.1", 50_000, "PLAINTEXT", "127.0.0.1", 9092)
        self.now_ms = NOW_MS

    def ask(self, request: Message, version: int) -> Any:
        """The response, or a Pending of it, or None; both messages pass the codec."""
        api = next((api for api in APIS.values() if api.request is type(request)), None)
        if api is None:
            [api] = [api for api in all_apis() if api.request is type(request)]
        is_flexible = api.is_flexible(version)
        frame = memoryview(bytearray(encode(request, version, is_flexible)))
        call = Call(decode(api.request, version, is_flexible, frame), version, "test", self.client, self.now_ms)
        response = api.handler(self.broker, call)

        def through_codec(message: Message) -> Message:
            pieces: list[Any] = []
            api.response_writer(version)(pieces.append, message)
            data = b"".join(piece.read() if hasattr(piece, "read") else piece for piece in pieces)
            return decode(api.response, version, is_flexible, data)

        if response is None:
            return None
        return response.map(through_codec) if isinstance(response, Pending) else through_codec(response)


@asynccontextmanager
async def open_caller(path: Path, **settings: str) -> AsyncIterator[Caller]:
    """A caller of a broker whose timers run."""
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig({"log.dirs": str(path), **overrides})
    async with trio.open_nursery() as nursery:
        broker = await Broker.open(config, Clock(wall=lambda: NOW_MS / 1000))
        # No test depends on how fast the machine is: work is cut into slices only where a test says so.
        broker.slices = Slices(broker.clock, seconds=lambda: 0.0)
        broker.start(nursery)
        try:
            yield Caller(broker)
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await broker.close()


def run(body: Callable[..., Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test with a caller, under a clock that jumps."""

    async def main() -> None:
        async with open_caller(path, **settings) as caller:
            await body(caller)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def wait_for(pending: Pending[Any]) -> Any:
    """The response that was pending; the clock jumps there."""
    done = trio.Event()
    found: list[Any] = []
    pending.then(lambda response: (found.append(response), done.set()))
    await done.wait()
    return found[0]


def batch(*values: bytes, timestamp: int = NOW_MS, **settings: Any) -> bytearray:
    """A record batch with one record for each value, a millisecond apart."""
    records = [Record(value=value, timestamp=timestamp + number) for number, value in enumerate(values)]
    return build_batch(records, **settings)


def values_of(records: Any) -> list[bytes | None]:
    """The values of all records in whole batches of format 2; a limit may have torn the last one."""
    found: list[bytes | None] = []
    view = memoryview(bytes(records))
    while len(view) >= HEADER_SIZE:
        size = read_batch_header(view).size_bytes
        if size > len(view):
            break
        found += [record.value for record in iterate_records(view[:size])]
        view = view[size:]
    return found
