"""Where requests wait for what they asked for: a condition, a deadline, a completion, and no task.

Theory of operation: a Fetch that finds too few bytes becomes a `DelayedFetch`. It counts the bytes that become readable in the
partitions it watches, which costs O(1) for each append, and reads again only once there are enough, or its time is up. So an
append wakes nobody who would go on waiting. For who reads committed records only, the bytes of a transaction become readable
when the last stable offset moves past them. An answer is made inside the append that allows it, unless the purgatory is
held: a Produce of many partitions holds it, so that a consumer of them all gets them in one answer.

Source: kafka.server.DelayedFetch, org.apache.kafka.server.purgatory.DelayedOperationPurgatory.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from wirekafka.clock import Clock
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition


class Delayed(Protocol):
    """A request that waits in the purgatory."""

    def finish(self) -> None:
        """There may be enough for it: answers if there is; does nothing once it has answered."""


ANSWERED_AT_ONCE = 64
"""How many requests one event answers before the loop goes on with other work: a few milliseconds, at 40 us each."""


class Purgatory:
    """The requests of one broker that are ready to be answered, and the clock that ends all waiting.

    The first requests that an event makes ready are answered inside the event, which is one commit to a partition or one
    `release`. The others are answered in the next turns of the loop, `ANSWERED_AT_ONCE` in each.

    Invariant: `_is_draining` is True as long as a timer is set that answers requests in `_ready`.
    """

    __slots__ = ("_answered_count", "_event", "_is_draining", "_hold_count", "_ready", "clock")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._hold_count = 0
        self._ready: dict[Delayed, None] = {}
        self._is_draining = False
        self._event: tuple[object, int] = (None, 0)
        self._answered_count = 0

    def hold(self) -> None:
        """Answers no request from now to `release`, which the same plain def calls. Holds may nest."""
        self._hold_count += 1

    def release(self) -> None:
        """Ends a hold; the end of the outermost one answers the requests that became ready meanwhile."""
        self._hold_count -= 1
        if self._ready and not self._is_draining and not self._hold_count:
            self._drain()

    def answer(self, delayed: Delayed, partition: Partition | None = None) -> None:
        """Answers a request that need not wait any more: now, on release, or in a later turn of the loop.

        Args:
            partition: the partition whose commit made it ready; None for any other event, which answers few requests.
        """
        if self._hold_count or delayed in self._ready:
            self._ready[delayed] = None
            return
        if partition is not None:
            event = (partition, partition.log.high_watermark)
            if event != self._event:
                self._event, self._answered_count = event, 0
            self._answered_count += 1
            if self._answered_count > ANSWERED_AT_ONCE:
                self._ready[delayed] = None
                self._drain_later()
                return
        delayed.finish()

    def _drain(self) -> None:
        for delayed in [*islice(self._ready, ANSWERED_AT_ONCE)]:
            self._ready.pop(delayed, None)
            delayed.finish()
        if self._ready:
            self._drain_later()

    def _drain_later(self) -> None:
        if not self._is_draining:
            self._is_draining = True
            self.clock.call_later(0, self._on_drain_due)

    def _on_drain_due(self) -> None:
        self._is_draining = False
        self._drain()


class DelayedFetch:
    """A Fetch that waits for bytes; itself the watcher of its partitions, unless a session watches them for it.

    It is answered when one of these is true (the letters are Kafka's):

    A, B. The partition is led elsewhere, or not on this broker any more: `on_gone`.
    C.    The partition does not exist any more: `on_gone`.
    D.    Its log directory is offline: `on_gone`; a read error before that is answered without waiting.
    E.    The epoch that the client believes in is fenced: leadership moves by closing the partition, so `on_gone`.
    F.    The offset is on an older segment than the log's end. Not needed: bytes are counted as they are appended, and what
          was there before has been counted by the first read.
    G.    The bytes of all partitions reach `min_bytes`; none counts for more than its own limit: `count`.
    H.    Truncation made the fetch diverge: only followers truncate, and they close the partition first, so `on_gone`.

    And when `max_wait_ms` have passed.

    Args:
        missing_bytes: how many bytes must be appended until there are enough.
        counted_bytes: what the first read found, by partition; partitions where it found nothing are left out.
        only_stable: bytes count once they are before the last stable offset.
        answer: reads again and makes the response; it never raises.
        on_end: called once when the fetch waits no more, answered or abandoned.

    Attributes:
        pending: the reply.
    """

    __slots__ = (
        "_answer",
        "_counted_bytes",
        "_limits",
        "_missing_bytes",
        "_on_end",
        "_only_stable",
        "_purgatory",
        "_timer",
        "pending",
    )

    def __init__(
        self,
        purgatory: Purgatory,
        *,
        max_wait_ms: int,
        missing_bytes: int,
        counted_bytes: dict[Partition, int],
        answer: Callable[[], Any],
        only_stable: bool = False,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._purgatory = purgatory
        self._missing_bytes = missing_bytes
        self._counted_bytes = counted_bytes
        self._only_stable = only_stable
        self._limits: dict[Partition, int] = {}
        self._answer = answer
        self._on_end = on_end
        self._timer = purgatory.clock.call_later(max_wait_ms, self.finish)
        self.pending: Pending[Any] = Pending(on_abandon=self._let_go)

    def watch(self, partition: Partition, limit_bytes: int) -> None:
        """Counts what is appended to the partition, up to the limit."""
        self._limits[partition] = limit_bytes
        partition.watchers[self] = None

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        """Counts bytes of a partition that this fetch watches itself."""
        self.count(partition, size_bytes, stable_bytes, self._limits[partition])

    def on_gone(self, partition: Partition) -> None:
        """Cases A to E, H."""
        self._purgatory.answer(self)

    def count(self, partition: Partition, size_bytes: int, stable_bytes: int, limit_bytes: int) -> None:
        """Case G: so many more bytes of a partition, of which the fetch takes no more than the limit."""
        counted = self._counted_bytes.get(partition, 0)
        counts_now = min(counted + (stable_bytes if self._only_stable else size_bytes), limit_bytes)
        if counts_now <= counted or self._missing_bytes <= 0:
            return
        self._counted_bytes[partition] = counts_now
        self._missing_bytes -= counts_now - counted
        if self._missing_bytes <= 0:
            self._purgatory.answer(self, partition)

    def finish(self) -> None:
        """Answers with whatever there is; does nothing the second time."""
        if self.pending.is_done:
            return
        self._let_go()
        self.pending.complete(self._answer())

    def _let_go(self) -> None:
        self._timer.cancel()
        self._on_end()
        for partition in self._limits:
            partition.watchers.pop(self, None)
        self._limits = {}
