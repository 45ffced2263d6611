"""Fetch sessions: the broker keeps the partitions that a consumer fetches, so a request names only changed ones (KIP-227).

How it works: a session watches its partitions. A partition with new records, a new request or an error is dirty. A fetch
reads only the dirty partitions, so a fetch of 500 partitions costs only as much as those with new records. A partition leaves the
dirty set when a read at its fetch offset finds no records and its offsets have not changed. A partition that returned records
moves to the end of the set, so a byte limit does not starve other partitions. A dirty partition is watched only while a fetch of
the session waits, so the session of a crashed consumer costs each of its partitions only one call.

Rules of this file:
    Invariant: a partition that is not dirty has nothing to read at its fetch offset, its client knows its high watermark, and
    it is watched.
    Invariant: while a fetch of the session waits, every partition that was found is watched.
    Memory: `HeldPartitions` bounds the partitions of all sessions and of all waiting fetches together.

Differs from Apache Kafka: Kafka reads all partitions of a session on each of its fetches, so the next response has a log start
offset that retention has moved. This broker sends it with the next change of that partition.

Source: kafka.server.FetchSession (FetchSessionCacheShard, CachedPartition), KIP-227.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import DelayedFetch

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF
EVICTION_MS = 120_000
"""How long a session is protected from eviction by a larger one, and the idle time after which a session is stale
(MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


MAX_HELD_PARTITIONS = 1 << 18
"""How many partitions all sessions and waiting fetches may name together; each takes about 0.5 KiB. Apache Kafka bounds only the
number of sessions."""


class HeldPartitions:
    """The memory of sessions and waiting fetches, counted in the partitions that they name.

    Attributes:
        limit: The largest number of partitions.
        count: The current number of partitions.
    """

    __slots__ = ("count", "limit")

    def __init__(self, limit: int = MAX_HELD_PARTITIONS) -> None:
        self.limit = limit
        self.count = 0

    def fits(self, partition_count: int) -> bool:
        """Whether so many more partitions are within the limit."""
        return self.count + partition_count <= self.limit

    def take(self, partition_count: int) -> None:
        """Counts partitions that are held from now on."""
        self.count += partition_count

    def give_back(self, partition_count: int) -> None:
        """Counts partitions that are not held any more."""
        self.count -= partition_count
        assert self.count >= 0, "more partitions were given back than taken"


class PartitionTable(Protocol):
    """The topics of this broker, as sessions look partitions up in them."""

    def find(self, name: str) -> object:
        """Returns the topic with this name, None if there is none."""

    def find_partition(self, topic: str | bytes, index: int) -> Partition:
        """Returns a partition by its topic's name or id, or raises UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID."""


class Asked(Protocol):
    """The part of a Fetch request for one partition, as it was decoded."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


Key = tuple[str | bytes, int]
"""The topic name, or the topic id if the session uses topic ids, and the partition index."""


class SessionPartition:
    """One partition of a session. It is the watcher of the `Partition`.

    Attributes:
        topic: The topic name; empty until the topic id is resolved.
        topic_id: The topic id; zero if the session uses names.
        asked: The client's last request for the partition.
        partition: The partition; None until it is found. It is looked up again if it is closed or deleted.
        sent_high_watermark, sent_log_start_offset: The offsets that the client knows; -1 if it knows none.
    """

    __slots__ = ("asked", "partition", "sent_high_watermark", "sent_log_start_offset", "session", "topic", "topic_id")

    def __init__(self, session: FetchSession, topic: str, topic_id: bytes, asked: Asked) -> None:
        self.session = session
        self.topic = topic
        self.topic_id = topic_id
        self.asked = asked
        self.partition: Partition | None = None
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    def locate(self, topics: PartitionTable) -> Partition:
        """Returns the partition, and looks it up if it is not known or was closed or deleted.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; UNKNOWN_TOPIC_ID for an id never seen; INCONSISTENT_TOPIC_ID if the topic
                was deleted and a new topic has its name.
        """
        partition = self.partition
        if partition is not None and not partition.is_gone:
            return partition
        topic = self.topic_id if self.session.uses_topic_ids else self.topic
        try:
            partition = self.partition = topics.find_partition(topic, self.asked.partition)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_ID or not self.topic:
                raise
            was_replaced = topics.find(self.topic) is not None
            code = ErrorCode.INCONSISTENT_TOPIC_ID if was_replaced else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code) from None
        self.topic = partition.topic
        return partition

    def watch(self) -> None:
        """Watches the partition for its next append."""
        if self.partition is not None:
            self.partition.watchers[self] = None

    def detach(self) -> None:
        """Stops watching the partition."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        """Marks the partition dirty, and counts the bytes for the waiting fetch of the session."""
        session = self.session
        session.dirty[self] = None
        waiting = session.waiting
        if waiting is None or waiting.pending.is_done:
            del partition.watchers[self]
        else:
            waiting.count(partition, size_bytes, stable_bytes, self.asked.partition_max_bytes)

    def on_gone(self, partition: Partition) -> None:
        """Marks the partition dirty, so that the next fetch looks the topic up again, and ends the waiting fetch."""
        session = self.session
        session.dirty[self] = None
        if session.waiting is not None:
            session.waiting.on_gone(partition)

    def mark_clean(self) -> None:
        """Excludes the partition from the next fetches until its watcher is called for new records.

        Does nothing if records were committed since the fetch read the partition, which may be some slices ago.
        """
        if self.partition is not None and self.partition.log.high_watermark > self.asked.fetch_offset:
            return
        self.session.dirty.pop(self, None)
        self.watch()

    def settle(self, size_bytes: int, error_code: int, high_watermark: int, log_start_offset: int) -> bool:
        """Returns whether the response includes the partition. An excluded partition that is read to its end becomes clean.

        Source: CachedPartition.maybeUpdateResponseData.
        """
        if size_bytes or error_code:
            return True
        if high_watermark != self.sent_high_watermark or log_start_offset != self.sent_log_start_offset:
            return True
        if self.asked.fetch_offset >= high_watermark:
            self.mark_clean()
        return False

    def told(self, size_bytes: int, error_code: int, high_watermark: int, log_start_offset: int) -> None:
        """Notes the offsets and the error that the response sends for this partition."""
        if error_code:
            # With -1, the next response without the error includes the partition again.
            self.sent_high_watermark = -1
            return
        self.sent_high_watermark = high_watermark
        self.sent_log_start_offset = log_start_offset
        if size_bytes:
            dirty = self.session.dirty
            dirty.pop(self, None)
            dirty[self] = None
        elif self.asked.fetch_offset >= high_watermark:
            self.mark_clean()


class FetchSession:
    """The fetch session of one consumer.

    Class attributes:
        is_privileged: no session of a consumer evicts it.
        entry_type: what the session keeps for each partition.

    Attributes:
        session_id: The id that the client sends; positive.
        epoch: The epoch that the next request must have.
        partitions: All partitions of the session, by key.
        dirty: The partitions that the next fetch must read, in the order in which it reads them.
        waiting: The waiting fetch of this session; None if no fetch waits.
    """

    __slots__ = ("created_ms", "dirty", "epoch", "held", "last_used_ms", "partitions", "session_id", "uses_topic_ids", "waiting")

    is_privileged: ClassVar[bool] = False
    entry_type: ClassVar[type[SessionPartition]] = SessionPartition

    def __init__(self, session_id: int, held: HeldPartitions, *, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.held = held
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[Key, SessionPartition] = {}
        self.dirty: dict[SessionPartition, None] = {}
        self.waiting: DelayedFetch | None = None

    def put(self, topic: str, topic_id: bytes, asked: Asked) -> SessionPartition:
        """Adds a partition, or updates the request for it, and marks it dirty."""
        key: Key = (topic_id if self.uses_topic_ids else topic, asked.partition)
        entry = self.partitions.get(key)
        if entry is None:
            entry = self.partitions[key] = self.entry_type(self, topic, topic_id, asked)
            self.held.take(1)
        else:
            entry.asked = asked
        self.dirty[entry] = None
        return entry

    def forget(self, topic: str, topic_id: bytes, indexes: list[int]) -> None:
        """Removes partitions that the consumer no longer fetches."""
        name: str | bytes = topic_id if self.uses_topic_ids else topic
        for index in indexes:
            entry = self.partitions.pop((name, index), None)
            if entry is not None:
                self.held.give_back(1)
                entry.detach()
                self.dirty.pop(entry, None)

    def wait(self, delayed: DelayedFetch) -> None:
        """Registers the waiting fetch of this session, which counts appended bytes from now on."""
        self.waiting = delayed
        for entry in self.dirty:
            entry.watch()

    def advance_epoch(self) -> None:
        """Sets the epoch of the next request; `MAX_EPOCH` is followed by 1.

        If a fetch of this session still waits, its client has abandoned the connection of that fetch. The fetch is completed
        with INVALID_FETCH_SESSION_EPOCH.
        """
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        if self.waiting is not None:
            self.waiting.finish()

    def close(self) -> None:
        """Completes the waiting fetch, and stops watching the partitions. A fetch in slices ends with its next slice."""
        if self.waiting is not None:
            self.waiting.finish()
        self.epoch = FINAL_EPOCH
        for entry in self.partitions.values():
            entry.detach()
        self.held.give_back(len(self.partitions))
        self.partitions = {}
        self.dirty = {}


class MakeSession(Protocol):
    """Makes a session, as the class of one does."""

    def __call__(self, session_id: int, held: HeldPartitions, *, uses_topic_ids: bool, now_ms: int) -> FetchSession:
        """Returns the session."""


class FetchSessions:
    """The sessions of one broker, the least recently used first.

    Args:
        slot_count: The largest number of sessions (`max.incremental.fetch.session.cache.slots`); 0 means no sessions.
        random_id: Returns a random number from 1 to its argument.
        held: Counts the partitions of sessions and waiting fetches.
    """

    def __init__(
        self,
        slot_count: int,
        random_id: Callable[[int], int] = lambda most: random.randint(1, most),
        held: HeldPartitions | None = None,
    ) -> None:
        self.slot_count = slot_count
        self.held = held or HeldPartitions()
        self._random_id = random_id
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def get(self, session_id: int) -> FetchSession | None:
        """Returns the session with this id; None if it does not exist."""
        return self._sessions.get(session_id)

    def create(
        self, partition_count: int, *, uses_topic_ids: bool, now_ms: int, make: MakeSession = FetchSession
    ) -> FetchSession | None:
        """Returns a new session; None if there is no room for it and no session that it may replace."""
        if not self._make_room(partition_count, now_ms, is_privileged=make is not FetchSession):
            return None
        session_id = self._random_id(MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random_id(MAX_EPOCH)
        session = self._sessions[session_id] = make(session_id, self.held, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Notes that the session is in use."""
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def remove(self, session_id: int) -> None:
        """Closes a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _make_room(self, partition_count: int, now_ms: int, *, is_privileged: bool) -> bool:
        """Evicts sessions until a new session of `partition_count` partitions has room; returns whether it has.

        The first choice is the session that was idle for longest, if it was idle for EVICTION_MS. The second choice is the
        smallest session older than EVICTION_MS, if the new session is larger; this scans all slots, once for all evictions.
        The session of a follower replaces consumers' sessions of any age and size, and is replaced by no consumer's.

        Source: FetchSessionCacheShard.tryEvict.
        """
        if partition_count > self.held.limit:
            return False
        evictable: Iterator[FetchSession] | None = None
        while len(self._sessions) >= self.slot_count or not self.held.fits(partition_count):
            evictable = evictable or self._evictable((is_privileged, partition_count), now_ms)
            session = next(evictable, None)
            if session is None:
                return False
            self.remove(session.session_id)
        return True

    def _evictable(self, rank: tuple[bool, int], now_ms: int) -> Iterator[FetchSession]:
        """Yields the sessions that a new one may replace, the first choice first.

        Args:
            rank: whether the new session is privileged, and its number of partitions.
        """
        is_privileged, _ = rank
        sessions = [*self]
        old = []
        for session in sessions:
            if now_ms - session.last_used_ms > EVICTION_MS:
                yield session
                continue
            is_unprotected = now_ms - session.created_ms > EVICTION_MS or (is_privileged and not session.is_privileged)
            if is_unprotected and rank_of(session) < rank:
                old.append(session)
        yield from sorted(old, key=lambda session: (rank_of(session), session.session_id))


def rank_of(session: FetchSession) -> tuple[bool, int]:
    """Returns by what sessions are compared when one must go (FetchSession.EvictableKey)."""
    return session.is_privileged, len(session.partitions)
