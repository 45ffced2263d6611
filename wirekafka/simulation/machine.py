"""The machine of one broker: its disk and its clock, which outlive the process of the broker, and the broker that runs."""

from __future__ import annotations

import errno

from wirekafka.simulation.broker import Broker
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.dice import Dice
from wirekafka.simulation.disk import Disk
from wirekafka.simulation.events import MS, Process

RESTART_US = 500 * MS
"""How soon a supervisor starts a broker again that has ended by itself."""


class Machine:
    """The machine of one broker.

    Attributes:
        broker: the broker that runs; None while it is down.
        start_count: how often a broker was started.
        clock_offset_ms: how far the wall clock is off.
        has_power: whether brokers can start.
    """

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._dice: Dice = cluster.dice.fork(f"machine {broker_id}")
        self.broker_id = broker_id
        self.disk = Disk(lambda: cluster.events.now_us * 1_000)
        self.disk.on_sync = self._take_time_for_sync
        self.broker: Broker | None = None
        self.start_count = 0
        self.clock_offset_ms = 0
        self.has_power = True
        self._has_lost_power = False

    def clock_ms(self) -> int:
        """Returns the time of the wall clock, since 1970."""
        return self._cluster.wall_clock_ms() + self.clock_offset_ms

    def _take_time_for_sync(self) -> None:
        if self.broker is not None and self._cluster.options.sync_us:
            self.broker.process.pause(self._cluster.options.sync_us)

    def start(self) -> None:
        """Starts a broker, unless one runs. Without room on the disk it ends at once, and is started again later."""
        if self.broker is not None or not self.has_power:
            return
        self.start_count += 1
        self._note("starts")
        try:
            self.broker = Broker(
                self._cluster,
                self.broker_id,
                self.disk,
                number=self.start_count,
                has_lost_power=self._has_lost_power,
                clock_ms=self.clock_ms,
                halt=self.crash_and_restart,
            )
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._note("cannot start: the disk is full")
            self._cluster.events.call_later(RESTART_US, self.start)
            return
        self._has_lost_power = False

    def crash(self) -> None:
        """Kills the broker; the page cache stays."""
        broker, self.broker = self.broker, None
        if broker is not None:
            self._note("crashes")
            broker.process.end()
            broker.logs.close()

    def crash_and_restart(self) -> None:
        """Kills the broker, and starts one soon."""
        self.crash()
        self._cluster.events.call_later(RESTART_US, self.start)

    def lose_power(self) -> None:
        """Kills the broker, and drops the writes that are not on the disk."""
        self.crash()
        self.has_power = False
        self._note(f"loses power: {self.disk.lose_power(self._dice)}")
        self._has_lost_power = True

    def restore_power(self) -> None:
        """Starts a broker on what the loss of power has left."""
        self.has_power = True
        self.start()

    @property
    def process(self) -> Process | None:
        """The process of the broker; None while it is down."""
        return None if self.broker is None else self.broker.process

    def _note(self, what: str) -> None:
        self._cluster.events.note(f"machine {self.broker_id}", what)
