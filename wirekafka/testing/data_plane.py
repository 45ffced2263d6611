"""A broker without sockets: requests and responses pass through the codec of their version, and nothing else.

    async with open_caller(path, num_partitions="3") as caller:
        response = caller.ask(MetadataRequest(topics=None), 12)

The wall clock stands still at `NOW_MS`. The timers follow trio's clock, so a test with `trio.testing.MockClock` never waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from wirekafka.api.registry import APIS, Call, Client, all_apis
from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.pending import Pending
from wirekafka.slices import Slices
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.types import Message

NOW_MS = 1_700_000_000_000
"""The wall-clock time, in milliseconds since 1970."""


class Caller:
    """One client of the broker.

    Attributes:
        broker: the broker, which a test may inspect and change.
        client: the client of the requests.
        now_ms: the time at which requests are read.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = Client("127.0.0.1", 50_000, "PLAINTEXT", "127.0.0.1", 9092)
        self.now_ms = NOW_MS

    def ask(self, request: Message, version: int) -> Any:
        """Returns the response, a `Pending` of it, or None if the client wants no response.

        Raises:
            KafkaError, ProtocolError: the handler refused the request as a whole.
        """
        api = next((api for api in APIS.values() if api.request is type(request)), None)
        if api is None:
            [api] = [api for api in all_apis() if api.request is type(request)]
        is_flexible = api.is_flexible(version)
        frame = memoryview(bytearray(encode(request, version, is_flexible)))
        call = Call(decode(api.request, version, is_flexible, frame), version, "test", self.client, self.now_ms)
        response = api.handler_on(self.broker)(self.broker, call)

        def through_codec(message: Message | list[Any] | Exception) -> Message | Exception:
            if isinstance(message, Exception):
                # An exception of a handler after a wait; the dispatcher makes a response of it.
                return message
            pieces: list[Any] = message if isinstance(message, list) else []
            if not isinstance(message, list):
                api.response_writer(version)(pieces.append, message)
            data = b"".join(piece.read() if hasattr(piece, "read") else piece for piece in pieces)
            return decode(api.response, version, is_flexible, data)  # type: ignore[no-any-return]

        if response is None:
            return None
        return response.map(through_codec) if isinstance(response, Pending) else through_codec(response)


@asynccontextmanager
async def open_caller(path: Path, **settings: str) -> AsyncIterator[Caller]:
    """Opens a broker on a data directory, with a caller, and closes the broker cleanly at the end.

    Args:
        path: the data directory; it is created if it does not exist.
        settings: Kafka's settings, with `_` for each dot.
    """
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig({"log.dirs": str(path), **overrides})
    async with trio.open_nursery() as nursery:
        broker = await Broker.open(config, Clock(wall=lambda: NOW_MS / 1000))
        # The speed of the machine affects no test: work is cut into slices only if a test says so.
        broker.slices = Slices(broker.clock, seconds=lambda: 0.0)
        broker.start(nursery)
        try:
            yield Caller(broker)
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await broker.close()


async def wait_for(pending: Pending[Any]) -> Any:
    """Returns the response when it is complete."""
    done = trio.Event()
    found: list[Any] = []

    def take(response: Any) -> None:
        found.append(response)
        done.set()

    pending.then(take)
    await done.wait()
    return found[0]
