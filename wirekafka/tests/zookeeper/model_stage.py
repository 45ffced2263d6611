"""A model of ZooKeeper with clients, for tests: everything that is under way happens when the test waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from wirekafka.zookeeper.model.client import ModelClient, Step
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import Create, ZooKeeperClient

ROOT = "/stage"
NOW_MS = 1_700_000_000_000


class ModelStage:
    """A `Stage` of the contract.

    Attributes:
        now_ms: the time, which only the test moves.
    """

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.server = ModelServer(lambda: self.now_ms)
        self._steps: deque[Step] = deque()
        maker = self.new_client()
        self.run()
        maker.submit(Create(ROOT, None), lambda result: None)
        maker.close()
        self.run()

    def new_client(self, chroot: str = "", timeout_ms: int = 18_000) -> ModelClient:
        """Returns a client that has not connected yet. Its chroot is as ZooKeeper knows it."""
        return ModelClient(self.server, self._steps.append, lambda: self.now_ms, timeout_ms=timeout_ms, chroot=chroot)

    def run(self) -> None:
        """Runs every step, and the steps that follow from them."""
        while self._steps:
            self._steps.popleft()()

    def run_one(self) -> None:
        """Runs the first step."""
        self._steps.popleft()()

    async def open(self, chroot: str = "") -> ModelClient:
        client = self.new_client(ROOT + chroot)
        self.run()
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        self.run()
        assert condition(), "nothing more is going to happen"

    async def break_connection(self, client: ZooKeeperClient) -> None:
        assert isinstance(client, ModelClient)
        client.lose_connection()

    async def expire(self, client: ZooKeeperClient) -> None:
        assert client.session_id is not None
        self.server.expire_session(client.session_id)
