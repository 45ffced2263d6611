"""A model of ZooKeeper for tests with tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.zookeeper.model.client import ModelClient
from wirekafka.zookeeper.model.server import ModelServer

NOW_MS = 1_700_000_000_000


class Stage:
    """A model, with clients whose messages arrive at the next turns of the loop.

    Attributes:
        server: the model.
        client: the first client.
        zookeeper: the first client, for tasks.
    """

    def __init__(self) -> None:
        self.server = ModelServer(lambda: NOW_MS)
        self._token = trio.lowlevel.current_trio_token()
        self.client = self.connect()
        self.zookeeper = RetryingClient(self.client)

    def connect(self) -> ModelClient:
        """Returns a new client."""
        return ModelClient(self.server, self._token.run_sync_soon, lambda: NOW_MS)

    def expire(self, client: ModelClient | None = None) -> None:
        """Ends the session of a client, of the first one by default."""
        session_id = (client or self.client).session_id
        assert session_id is not None
        self.server.expire_session(session_id)


def play(act: Callable[[Stage], Awaitable[None]]) -> None:
    """Runs a test, on a clock that jumps over waits."""

    async def main() -> None:
        await act(Stage())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def until(condition: Callable[[], object]) -> None:
    """Waits until something has happened, for a limited time of the clock that jumps."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError("it has not happened")
