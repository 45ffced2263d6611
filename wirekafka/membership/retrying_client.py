"""A client of ZooKeeper for the tasks of a member: one `await` for each request, which is repeated after a lost connection.

Rules of this file:
    A request is sent again after each lost connection and each expiry of the session, so it may be applied twice. The caller
    sends only requests that may be applied twice, or reads the outcome back.
    A watch is a hint: `Hint.wait` returns after an event of the watched znode and after each connection, because watches end
    with the connection. The caller reads again.
    A request waits for a connection without a limit, because ZooKeeper may be unavailable for long. The log says so every
    `REMINDER_S` seconds.

Source: kafka.zk.KafkaZkClient.retryRequestsUntilConnected, kafka.zookeeper.ZooKeeperClient.
"""

from __future__ import annotations

import structlog
import trio

from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.session import (
    Create,
    Operation,
    R,
    SessionState,
    WatchEvent,
    ZooKeeperClient,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

REMINDER_S = 30.0
_RETRIED = (ZooKeeperErrorCode.CONNECTION_LOSS, ZooKeeperErrorCode.SESSION_EXPIRED)


class Hint:
    """Wakes the one task that waits for a change of a znode."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def give(self) -> None:
        """Ends the current wait, or the next one."""
        self._event.set()

    async def wait(self) -> None:
        """Waits for a hint. Returns at once if `give` was called since the last wait.

        Cancellation: the hint is kept for the next wait.
        """
        await self._event.wait()
        self._event = trio.Event()


class RetryingClient:
    """A client of ZooKeeper for tasks.

    Attributes:
        client: the client that sends the requests.
    """

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self._hints: dict[str, Hint] = {}
        self._state_changed = trio.Event()
        self._remind_at = 0.0
        """The time from which on the log may say again that there is no connection."""
        client.add_state_listener(self._on_state)
        client.add_watch_listener(self._on_watch)

    def hint(self, path: str) -> Hint:
        """Returns the hint of a znode, which the caller watches by its reads. There is one hint for each path."""
        return self._hints.setdefault(path, Hint())

    async def ask(self, operation: Operation[R]) -> R:
        """Sends a request, and sends it again after each lost connection; returns its result.

        Raises:
            ZooKeeperError: ZooKeeper refuses the request; SESSION_EXPIRED once the client is closed.

        Cancellation: the request may be applied.
        """
        while True:
            outcome = await self._outcome(operation)
            if not isinstance(outcome, ZooKeeperError):
                return outcome
            if outcome.code not in _RETRIED or self.client.state is SessionState.CLOSED:
                raise outcome
            await self._until_connected()

    async def find(self, operation: Operation[R]) -> R | None:
        """Sends a request as `ask` does; returns None if the znode does not exist.

        Raises:
            ZooKeeperError: as `ask`.

        Cancellation: as `ask`.
        """
        try:
            return await self.ask(operation)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
        return None

    async def create_persistent(self, path: str, data: bytes | None = None) -> bool:
        """Creates a persistent znode, with its parents; returns False if it exists.

        After a lost connection it may also return False although this call has created the znode.

        Raises:
            ZooKeeperError: as `ask`.

        Cancellation: some of the znodes may be created.
        """
        for parent in paths.parents(path):
            await self.create_only(parent, None)
        return await self.create_only(path, data)

    async def create_sequential(self, prefix: str, data: bytes) -> None:
        """Creates a persistent znode with the next number after the prefix, and its parents if they do not exist.

        After a lost connection it may create two znodes.

        Raises:
            ZooKeeperError: as `ask`.

        Cancellation: the znode may be created.
        """
        create = Create(prefix, data, sequential=True)
        try:
            await self.ask(create)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            for parent in paths.parents(prefix):
                await self.create_only(parent, None)
            await self.ask(create)

    async def create_only(self, path: str, data: bytes | None) -> bool:
        """Creates a persistent znode whose parent exists; returns False as `create_persistent` does.

        Raises:
            ZooKeeperError: as `ask`; NO_NODE if the parent does not exist.

        Cancellation: the znode may be created.
        """
        try:
            await self.ask(Create(path, data))
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                raise
            return False
        return True

    async def _outcome(self, operation: Operation[R]) -> R | ZooKeeperError:
        outcomes: list[R | ZooKeeperError] = []
        done = trio.Event()

        def end(outcome: R | ZooKeeperError) -> None:
            outcomes.append(outcome)
            done.set()

        self.client.submit(operation, end)
        await done.wait()
        return outcomes[0]

    async def _until_connected(self) -> None:
        while self.client.state not in (SessionState.CONNECTED, SessionState.CLOSED):
            with trio.move_on_after(REMINDER_S) as wait:
                await self._state_changed.wait()
            if wait.cancelled_caught:
                self._remind()

    def _remind(self) -> None:
        """Logs that there is no connection, once for all tasks that wait for it."""
        now = trio.current_time()
        if now >= self._remind_at:
            self._remind_at = now + REMINDER_S / 2
            log.warning(
                "There is still no connection to ZooKeeper; requests to it wait",
                remedy="look at the servers of zookeeper.connect, and at the network between them and this broker",
            )

    def _on_state(self, state: SessionState) -> None:
        self._state_changed.set()
        self._state_changed = trio.Event()
        if state is SessionState.CONNECTED:
            for hint in self._hints.values():
                hint.give()

    def _on_watch(self, event: WatchEvent) -> None:
        hint = self._hints.get(event.path)
        if hint is not None:
            hint.give()
