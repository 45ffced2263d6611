"""The fetchers of a broker: execute the decisions of `Fetcher`, by connections to the leaders and by the followers.

How it works: a partition has one `FollowerReplica`, and belongs to one of `num.replica.fetchers` fetchers of its leader. A
`ReplicaFetcher` sends the requests of its `Fetcher` over one connection, passes the parts of the responses to the followers, in
slices, and has one timer. A leader without followers here has no fetcher and no connection.

Rules of this file:
    `Fetcher` makes all decisions, except for which fetcher a partition belongs to.
    The frame of a response lives as long as an append needs its records, because the records are views of the frame.
    A request that cannot be encoded counts as a lost connection, so that the fetcher continues.

Source: kafka.server.AbstractFetcherManager, kafka.server.ReplicaFetcherManager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, assert_never

import structlog

from wirekafka.faults import isolate, log_once
from wirekafka.hashing import java_string_hash, spread
from wirekafka.pending import Pending, Work
from wirekafka.replication.fetcher import (
    Deliver,
    Effects,
    Event,
    FetchAnswered,
    Fetcher,
    FetcherSettings,
    FollowedPartition,
    OffsetsAnswered,
    Request,
    Requested,
    RequestFailed,
    SendAtOnce,
    SendDue,
    SendFetch,
    SendListOffsets,
    SendSoon,
    TimeCame,
    WakeAt,
)
from wirekafka.replication.follower_replica import Commit, FollowerReplica
from wirekafka.replication.following import AskEarliestOffset, AskLatestOffset, Fetch, StopFetching
from wirekafka.replication.replication_troubles import ReplicationTroubles
from wirekafka.wire.messages.fetch import FETCH, FetchResponse
from wirekafka.wire.messages.list_offsets import LIST_OFFSETS, ListOffsetsResponse
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

if TYPE_CHECKING:
    from wirekafka.log.log import Log

log = structlog.get_logger(__name__)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Channel(Protocol):
    """A connection to a broker, which connects when it is needed, and again after a failure."""

    def send(self, kind: RequestType[Q, A], request: Q, version: int, on_end: Callable[[A | None], object]) -> None:
        """Sends a request; calls back once, later, with the response, or with None if there is none."""

    def close(self) -> None:
        """Closes the connection. The callbacks of unfinished requests are not called."""


class Timer(Protocol):
    """One call in the future."""

    def cancel(self) -> None:
        """Prevents the call."""


class Timers(Protocol):
    """A monotonic clock, and calls in the future."""

    def monotonic_ms(self) -> int:
        """Returns the time."""

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once."""


class Runner(Protocol):
    """Runs work in slices, as `Slices` does."""

    def run(self, work: Work[int]) -> int | Pending[int]:
        """Runs the work; returns its result, or a Pending of it."""


class ReplicaFetcher:
    """One fetcher for one leader.

    Args:
        leader_id: the leader, for the log lines.
        replicas: the followers of the broker.
        slices: runs the work on an answer, so that an answer for many partitions does not hold the loop.
    """

    def __init__(
        self,
        settings: FetcherSettings,
        channel: Channel,
        timers: Timers,
        slices: Runner,
        replicas: dict[FollowedPartition, FollowerReplica],
        *,
        leader_id: int,
    ) -> None:
        self._leader_id = leader_id
        self._trouble: str | None = None
        """What was logged last."""
        self._back_off_ms = settings.back_off_ms
        self._fetcher = Fetcher(settings)
        self._channel = channel
        self._timers = timers
        self._slices = slices
        self._replicas = replicas
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._is_closed = False
        self.partitions: set[FollowedPartition] = set()

    def request(self, partition: FollowedPartition, request: Request, log_start_offset: int) -> None:
        """Takes what a follower needs from the leader."""
        self._handle(Requested(partition, request, log_start_offset))

    def close(self) -> None:
        """Ends the fetcher and its connection. A delivery ends at its next step: it may be what closes the fetcher."""
        self._is_closed = True
        self._channel.close()
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, event: Event) -> None:
        if self._is_closed:
            return
        try:
            self._execute(self._fetcher.step(event, self._timers.monotonic_ms()))
        except Exception as error:
            if isinstance(event, Requested):  # the follower handles it
                raise
            self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Opens a new session after the back-off, because the leader and the fetcher may be at odds after a defect."""
        log_once(error, "A fetcher could not handle an event; it tries again", leader=self._leader_id)
        self._timers.call_later(self._back_off_ms, partial(self._handle, RequestFailed()))

    def _execute(self, effects: Effects) -> None:
        if not effects:
            return
        if isinstance(effects[0], Deliver):
            delivering = self._slices.run(self._execute_in_steps(effects))
            if isinstance(delivering, Pending):
                delivering.then(self._end_delivery)
            return
        for _ in self._execute_in_steps(effects):
            pass

    def _end_delivery(self, result: object) -> None:
        if isinstance(result, Exception):
            self._recover(result)

    def _execute_in_steps(self, effects: Effects) -> Work[int]:
        for effect in effects:
            if self._is_closed:
                break
            match effect:
                case Deliver(partition, event):
                    replica = self._replicas.get(partition)
                    if replica is not None:
                        with isolate(
                            "A follower could not handle a response of its leader", partition=str(replica.log.topic_partition)
                        ):
                            replica.handle(event)
                    yield
                case SendFetch(request, version):
                    self._send(FETCH, request, version, self._take_fetch)
                case SendListOffsets(request, version):
                    self._send(LIST_OFFSETS, request, version, self._take_offsets)
                case SendSoon():
                    self._timers.call_later(0, partial(self._handle, SendDue()))
                case SendAtOnce():
                    self._handle(SendDue())
                case WakeAt(time_ms):
                    self._wake_at(time_ms)
                case _:
                    assert_never(effect)
        return len(effects)

    def _send(self, kind: RequestType[Q, A], request: Q, version: int, on_end: Callable[[A | None], object]) -> None:
        try:
            self._channel.send(kind, request, version, on_end)
        except Exception as error:  # noqa: BLE001 - the fetcher would wait for the answer without an end
            log_once(error, "A request to a leader could not be written", leader=self._leader_id, request=kind.name)
            self._timers.call_later(0, partial(on_end, None))

    def _take_fetch(self, response: FetchResponse | None) -> None:
        self._handle(RequestFailed() if response is None else FetchAnswered(response))
        trouble = self._fetcher.trouble
        if trouble is not None and trouble != self._trouble:
            log.warning("The answers of a leader cannot be used; the fetcher tries again", leader=self._leader_id, reason=trouble)
        self._trouble = trouble

    def _take_offsets(self, response: ListOffsetsResponse | None) -> None:
        self._handle(RequestFailed() if response is None else OffsetsAnswered(response))

    def _wake_at(self, time_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= time_ms:
                return
            self._timer.cancel()
        self._timer_ms = time_ms
        self._timer = self._timers.call_later(max(time_ms - self._timers.monotonic_ms(), 0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._handle(TimeCame())


class ReplicaFetchers:
    """The partitions that a broker follows, and its fetchers.

    Args:
        fetcher_count: `num.replica.fetchers`, for each leader.
        connect: returns the connection to a broker for the fetcher with this number.
    """

    def __init__(
        self,
        settings: FetcherSettings,
        *,
        fetcher_count: int,
        connect: Callable[[int, int], Channel],
        timers: Timers,
        slices: Runner,
    ) -> None:
        self._settings = settings
        self._fetcher_count = fetcher_count
        self._connect = connect
        self._timers = timers
        self._slices = slices
        self._troubles = ReplicationTroubles(timers)
        self._replicas: dict[FollowedPartition, FollowerReplica] = {}
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._places: dict[FollowedPartition, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._fetchers)

    def follow(
        self, partition: FollowedPartition, log: Log, leader_id: int | None, leader_epoch: int, commit: Commit | None = None
    ) -> None:
        """Follows the leader of a partition from now on.

        Args:
            log: the log of this replica, which only the follower writes.
            leader_id: None if there is no leader, or its broker is not alive.
            commit: advances the high watermark; by default, that of the log only.
        """
        replica = self._replicas.get(partition)
        if replica is None:
            replica = self._replicas[partition] = FollowerReplica(
                log,
                back_off_ms=self._settings.back_off_ms,
                run=self._slices.run,
                request=partial(self._request, partition),
                now_ms=self._timers.monotonic_ms,
                troubles=self._troubles,
            )
        replica.follow(leader_id, leader_epoch, commit)

    def stop(self, partition: FollowedPartition) -> None:
        """Ends following, because this broker leads the partition now, or no longer has it."""
        replica = self._replicas.pop(partition, None)
        if replica is not None:
            replica.close()
            self._leave(partition)

    def close(self) -> None:
        """Ends all followers and connections."""
        for replica in self._replicas.values():
            replica.close()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._replicas, self._fetchers, self._places = {}, {}, {}
        self._troubles.flush()

    def _request(self, partition: FollowedPartition, request: Request) -> None:
        match request:
            case Fetch(int(leader_id)) | AskLatestOffset(int(leader_id)) | AskEarliestOffset(int(leader_id)):
                fetcher = self._enter(partition, leader_id)
            case StopFetching():
                self._leave(partition)
                return
            case _:
                fetcher = self._fetchers[self._places[partition]]
        fetcher.request(partition, request, self._replicas[partition].log.reader.log_start_offset)

    def _enter(self, partition: FollowedPartition, leader_id: int) -> ReplicaFetcher:
        """Returns the fetcher of the leader for this partition, which leaves the fetcher of a former leader."""
        place = leader_id, fetcher_of(partition.topic, partition.partition, self._fetcher_count)
        if self._places.get(partition) != place:
            self._leave(partition)
            self._places[partition] = place
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcher(
                self._settings, self._connect(*place), self._timers, self._slices, self._replicas, leader_id=leader_id
            )
        fetcher.partitions.add(partition)
        return fetcher

    def _leave(self, partition: FollowedPartition) -> None:
        """Removes the partition from its fetcher, and closes the fetcher if it has no other partition."""
        place = self._places.pop(partition, None)
        if place is None:
            return
        fetcher = self._fetchers[place]
        fetcher.partitions.discard(partition)
        if fetcher.partitions:
            fetcher.request(partition, StopFetching(), 0)
        else:
            del self._fetchers[place]
            fetcher.close()


def fetcher_of(topic: str, index: int, fetcher_count: int) -> int:
    """Returns the number of the fetcher for a partition.

    Source: AbstractFetcherManager.getFetcherId.
    """
    number = (31 * java_string_hash(topic) + index) & 0xFFFFFFFF
    return spread(number - (number >> 31 << 32), fetcher_count)
