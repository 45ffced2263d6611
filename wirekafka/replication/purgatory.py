"""The purgatory: requests that wait, each with a condition, a deadline and a completion, and without a task.

How it works: a Fetch that finds too few bytes becomes a `DelayedFetch`. It counts the bytes that become readable in the
partitions it watches, which costs O(1) for each append, and reads again only once there are enough, or its wait time has passed.
So an append does not wake a fetch that would have to wait again. For a consumer that reads committed records only, the bytes of a
transaction become readable when the last stable offset moves past them. The response is made inside the append that allows it,
unless the purgatory is held. A Produce of many partitions holds it, so that a consumer gets all their records in one response.

Source: kafka.server.DelayedFetch, org.apache.kafka.server.purgatory.DelayedOperationPurgatory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from wirekafka.clock import Clock
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition


class Delayed(Protocol):
    """A request that waits in the purgatory."""

    def finish(self) -> None:
        """Completes the request if its condition is true; does nothing if the request is completed."""


ANSWERED_AT_ONCE = 64
"""How many requests one event completes before the loop does other work: a few milliseconds, at 40 us for each request."""

SECONDS_AT_ONCE = 0.005
"""How long one event completes requests before the loop does other work. A Fetch of 500 partitions takes 2 ms (2026-11)."""


class Purgatory:
    """The requests of one broker whose response is due, and the clock for the deadlines.

    An event is one commit to a partition or one `release`. The first requests that an event makes ready are completed inside the
    event. The others are completed in the next turns of the loop: `ANSWERED_AT_ONCE` in each, or what takes `SECONDS_AT_ONCE`.

    Args:
        clock: Sets the timers.
        seconds: Measures how long requests take.

    Invariant: `_is_draining` is True as long as a timer is set that completes the requests in `_ready`.
    """

    __slots__ = ("_answered_count", "_event", "_event_end", "_hold_count", "_is_draining", "_ready", "_seconds", "clock")

    def __init__(self, clock: Clock, seconds: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._seconds = seconds
        self._hold_count = 0
        self._ready: dict[Delayed, None] = {}
        self._is_draining = False
        self._event: tuple[object, int] = (None, 0)
        self._answered_count = 0
        self._event_end = 0.0

    def hold(self) -> None:
        """Postpones all responses until `release`, which the same plain def must call. Holds may nest."""
        self._hold_count += 1

    def release(self) -> None:
        """Ends a hold. The end of the outermost hold completes the requests that became ready during the hold."""
        self._hold_count -= 1
        if self._ready and not self._is_draining and not self._hold_count:
            self._drain()

    def answer(self, delayed: Delayed, partition: Partition | None = None) -> None:
        """Completes a request whose condition is true: now, on release, or in a later turn of the loop.

        Args:
            partition: The partition whose commit made the request ready; None for any other event, which completes few requests.
        """
        if self._hold_count or delayed in self._ready:
            self._ready[delayed] = None
            return
        if partition is not None:
            event = (partition, partition.log.high_watermark)
            if event != self._event:
                self._event, self._answered_count, self._event_end = event, 0, self._seconds() + SECONDS_AT_ONCE
            self._answered_count += 1
            if self._answered_count > ANSWERED_AT_ONCE or (self._answered_count > 1 and self._seconds() > self._event_end):
                self._ready[delayed] = None
                self._drain_later()
                return
        delayed.finish()

    def _drain(self) -> None:
        end = self._seconds() + SECONDS_AT_ONCE
        for delayed in [*islice(self._ready, ANSWERED_AT_ONCE)]:
            self._ready.pop(delayed, None)
            delayed.finish()
            if self._seconds() > end:
                break
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
    """A Fetch that waits for bytes. It is the watcher of its partitions, unless a session watches them for it.

    The fetch is completed when one of these conditions is true (the letters are Kafka's):

    A, B. This broker no longer leads the partition, or no longer hosts it: `on_gone`.
    C.    The partition no longer exists: `on_gone`.
    D.    Its log directory is offline: `on_gone`. A read error before that ends the fetch without a wait.
    E.    The leader epoch of the request is fenced: a change of the leader closes the partition, so `on_gone`.
    F.    The offset is on an older segment than the log end. Not needed: appended bytes are counted, and the first read has
          counted the earlier bytes.
    G.    The bytes of all partitions reach `min_bytes`, where a partition counts up to its own limit: `count`.
    H.    Truncation made the fetch diverge: only followers truncate, and they close the partition first, so `on_gone`.

    The fetch is also completed when `max_wait_ms` have passed.

    Args:
        missing_bytes: How many more bytes are needed to complete the fetch.
        counted_bytes: The bytes that the first read found, by partition, without partitions where it found none.
        only_stable: Whether bytes count only once they are before the last stable offset.
        answer: Reads again and returns the response or, for a fetch of many partitions, a Pending of it; it never raises.
        on_end: Called once when the wait ends, because the fetch was completed or abandoned.

    Attributes:
        pending: The response.
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
        self._answer: Callable[[], Any] | None = answer
        """None once the fetch reads again."""
        self._on_end = on_end
        self._timer = purgatory.clock.call_later(max_wait_ms, self.finish)
        self.pending: Pending[Any] = Pending(on_abandon=self._let_go)

    def watch(self, partition: Partition, limit_bytes: int) -> None:
        """Watches the partition, and counts its committed bytes up to the limit."""
        self._limits[partition] = limit_bytes
        partition.watchers[self] = None

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        """Counts bytes of a partition that this fetch watches itself."""
        self.count(partition, size_bytes, stable_bytes, self._limits[partition])

    def on_gone(self, partition: Partition) -> None:
        """Completes the fetch: cases A to E and H."""
        self._purgatory.answer(self)

    def count(self, partition: Partition, size_bytes: int, stable_bytes: int, limit_bytes: int) -> None:
        """Case G: counts more bytes of a partition, up to the limit of the fetch for that partition."""
        counted = self._counted_bytes.get(partition, 0)
        counts_now = min(counted + (stable_bytes if self._only_stable else size_bytes), limit_bytes)
        if counts_now <= counted or self._missing_bytes <= 0:
            return
        self._counted_bytes[partition] = counts_now
        self._missing_bytes -= counts_now - counted
        if self._missing_bytes <= 0:
            self._purgatory.answer(self, partition)

    def finish(self) -> None:
        """Completes the fetch with the records that there are; does nothing if the fetch is completed."""
        if self.pending.is_done or self._answer is None:
            return
        answer, self._answer = self._answer, None
        self._let_go()
        self.pending.complete_with(answer())

    def _let_go(self) -> None:
        self._timer.cancel()
        self._on_end()
        for partition in self._limits:
            partition.watchers.pop(self, None)
        self._limits = {}


class DelayedReplicaFetch(DelayedFetch):
    """A Fetch of another replica that waits for bytes, committed or not. It is the `ReplicaWatcher` of its partitions.

    Attributes:
        held_back: the partitions that the first read left out because of a throttle. Their bytes do not count.
    """

    __slots__ = ("held_back",)

    def __init__(self, purgatory: Purgatory, **fields: Any) -> None:
        super().__init__(purgatory, **fields)
        self.held_back: frozenset[Partition] = frozenset()

    def watch(self, partition: Partition, limit_bytes: int) -> None:
        """Watches the partition, and counts its appended bytes up to the limit."""
        self._limits[partition] = limit_bytes
        partition.replica_watchers[self] = None

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        """Counts bytes of a partition that this fetch watches itself."""
        self.count_appended(partition, size_bytes, self._limits[partition])

    def count_appended(self, partition: Partition, size_bytes: int, limit_bytes: int) -> None:
        """Counts appended bytes of a partition. Few replicas fetch from a partition, so all are answered in the event."""
        counted = self._counted_bytes.get(partition, 0)
        counts_now = min(counted + size_bytes, limit_bytes)
        if counts_now <= counted or self._missing_bytes <= 0 or partition in self.held_back:
            return
        self._counted_bytes[partition] = counts_now
        self._missing_bytes -= counts_now - counted
        if self._missing_bytes <= 0:
            self._purgatory.answer(self)

    def _let_go(self) -> None:
        for partition in self._limits:
            partition.replica_watchers.pop(self, None)
        super()._let_go()
