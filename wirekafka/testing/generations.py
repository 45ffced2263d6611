"""One port and the brokers that serve it one after the other: a new one replaces the old one without a moment in between.

How it works: the next broker is opened beside the one that runs, is bound to the same port, and does not listen yet. The switch
lets it listen and closes the old one, whose connections end. Clients connect again, as after the restart of a broker.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.server.listener import BoundListener, Published
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.testing.advancing_clock import AdvancingClock
from wirekafka.testing.fillable_storage import FillableStorage


class Generation:
    """One broker, from its opening to the removal of its data directory.

    Attributes:
        running: the broker.
        path: its data directory.
        has_ended: it is closed.
    """

    def __init__(self, running: RunningBroker, path: str, scope: trio.CancelScope) -> None:
        self.running = running
        self.path = path
        self.has_ended = trio.Event()
        self._scope = scope

    def end(self) -> None:
        """Begins to close the broker; its connections are closed soon."""
        self._scope.cancel()


class Generations:
    """Opens the brokers of one port.

    Args:
        settings: the settings of all of them.
        clock: the time of the loop; None if the loop follows another clock.
        published: as `open_broker`.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        clock: AdvancingClock | None,
        nursery: trio.Nursery,
        published: Published | None = None,
    ) -> None:
        self._published = published
        self._settings = dict(settings)
        self._clock = clock
        self._nursery = nursery
        self._ending: set[Generation] = set()
        self._has_ports = False

    async def open(self, path: str) -> Generation:
        """Opens a broker on a data directory. It does not listen.

        Raises:
            ConfigError, KafkaError, ListenError, DirectoryLockedError, OSError: as `open_broker`.
        """
        opened = await self._nursery.start(self._run, path)
        if isinstance(opened, Exception):
            raise opened
        assert isinstance(opened, Generation), "a task reports a broker or an error"
        return opened

    def switch(self, old: Generation | None, new: Generation) -> None:
        """Lets a broker serve the port from now on, and ends the one that served it before."""
        if self._clock is not None:
            self._clock.set_to_now(new.running.broker.clock)
        new.running.listen()
        if old is not None:
            self._ending.add(old)
            # Its socket would get a part of the new connections until it is closed.
            old.running.stop_listening()
            old.end()

    def open_soon(self, path: str, then: Callable[[Generation], object]) -> None:
        """Opens a broker beside the one that serves. If it cannot be opened, nothing happens."""

        async def open_it() -> None:
            with suppress(Exception):
                then(await self.open(path))

        self._nursery.start_soon(open_it)

    async def until_old_ones_have_ended(self) -> None:
        """Waits until all brokers that were replaced are closed."""
        for each in list(self._ending):
            await each.has_ended.wait()

    async def _run(self, path: str, task_status: trio.TaskStatus[Generation | Exception]) -> None:
        clock = Clock() if self._clock is None else self._clock.of_broker()
        generation = None
        try:
            with trio.CancelScope() as scope:
                config = BrokerConfig.load(None, self._settings | {"log.dirs": path})
                if not self._has_ports:
                    _check_free(config)
                async with open_broker(
                    config, clock, published=self._published, is_spare=True, storage=FillableStorage()
                ) as running:
                    generation = Generation(running, path, scope)
                    self._keep_ports(config, running)
                    task_status.started(generation)
                    await trio.sleep_forever()
        except Exception as error:
            if generation is not None:
                raise
            task_status.started(error)
        finally:
            if self._clock is not None:
                self._clock.forget(clock)
            if generation is not None:
                generation.has_ended.set()
                self._ending.discard(generation)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(shutil.rmtree, path, ignore_errors=True))

    def _keep_ports(self, config: BrokerConfig, running: RunningBroker) -> None:
        """Gives the brokers after this one its ports."""
        self._has_ports = True
        named = zip(config.listeners, running.addresses, strict=True)
        self._settings["listeners"] = ",".join(f"{listener.name}://{address}" for listener, address in named)


def _check_free(config: BrokerConfig) -> None:
    """Raises if another socket listens on a port of the settings. Brokers of one user may share a port, so `open` would not.

    Raises:
        ListenError: the port is taken.
    """
    for listener in config.listeners:
        BoundListener(listener, config).close()
