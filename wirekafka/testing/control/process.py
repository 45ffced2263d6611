"""Brokers of `wirekafka serve` for tests: with a control port, and with temporary data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.testing.advancing_clock import AdvancingClock
from wirekafka.testing.async_broker import DIRECTORIES, AsyncEmbeddedBroker, has_memory, open_embedded
from wirekafka.testing.fillable_storage import FillableStorage

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig
    from wirekafka.server.first_topics import FirstTopic
    from wirekafka.server.listener import Published

LEAST_MEMORY_BYTES = 1 << 30
"""With less, as in a container, where 64 MiB are usual, temporary data is on the disk."""


@dataclass(frozen=True, slots=True)
class TestProcess:
    """A broker that runs.

    Attributes:
        broker: what the control port offers.
        control_url: of the control port; None without one.
    """

    __test__ = False  # for pytest, which collects classes by their names

    broker: AsyncEmbeddedBroker
    control_url: str | None

    @property
    def running(self) -> RunningBroker:
        """The broker that serves. `reset` and `restore` replace it."""
        return self.broker.running


@asynccontextmanager
async def open_for_tests(
    config: BrokerConfig,
    published: Published | None,
    first_topics: Sequence[FirstTopic],
    *,
    control_port: int | None,
    is_temporary: bool,
) -> AsyncIterator[TestProcess]:
    """Runs a broker for as long as the block lasts; it serves when the block begins.

    Its time can be moved if the loop runs on an `AdvancingClock`, and if it is not a member of a cluster: the others would take a
    member whose time jumps for dead.

    Args:
        published, first_topics: as `open_broker`. After a reset there are no topics.
        control_port: 0 lets the kernel choose; None for a broker without a control port.
        is_temporary: the data is in a temporary directory, in memory if there is room, and is removed at the end. Not for a
            member of a cluster.

    Raises:
        ConfigError, KafkaError, ListenError, DirectoryLockedError, OSError: as `open_broker`.
    """
    opened = (_temporary if is_temporary else _kept)(config, published, first_topics)
    async with opened as broker:
        if control_port is None:
            yield TestProcess(broker, None)
            return
        from wirekafka.testing.control.port import open_control

        async with open_control(broker, control_port) as url:
            yield TestProcess(broker, url)


@asynccontextmanager
async def _kept(
    config: BrokerConfig, published: Published | None, first_topics: Sequence[FirstTopic]
) -> AsyncIterator[AsyncEmbeddedBroker]:
    found = trio.lowlevel.current_clock()
    clock = found if isinstance(found, AdvancingClock) and not config.is_member else None
    own_clock = None if clock is None else clock.of_broker()
    disk = FillableStorage()
    async with open_broker(config, own_clock, published=published, first_topics=first_topics, storage=disk) as running:
        yield AsyncEmbeddedBroker.around(running, clock)


@asynccontextmanager
async def _temporary(
    config: BrokerConfig, published: Published | None, first_topics: Sequence[FirstTopic]
) -> AsyncIterator[AsyncEmbeddedBroker]:
    assert not config.is_member, "other brokers have replicas of the data of a member"
    settings = {name: text for name, text in config.overrides.items() if name not in DIRECTORIES}
    storage = "memory" if has_memory(LEAST_MEMORY_BYTES) else "disk"
    async with open_embedded(storage=storage, data=None, published=published, **settings) as broker:
        if first_topics:
            from wirekafka.server.first_topics import create_first_topics

            create_first_topics(broker.broker, first_topics)
        yield broker
