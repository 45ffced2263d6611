"""Fetch sessions: the partitions that a consumer fetches, remembered, so that a request names only what has changed (KIP-227).

Theory of operation: a session watches its partitions. A partition with new records, a new request or an error is dirty. A fetch
reads the dirty partitions only, so a consumer of 500 partitions pays for those that have something. A partition leaves the dirty
set when a read at its fetch offset finds nothing and there is nothing new to tell. A partition that gave records moves to the end
of the set, so a byte limit does not starve the others. A dirty partition is watched only while a fetch of the session waits, so
the session of a consumer that has died costs each of its partitions one call and no more.

Rules of this file:
    Invariant: a partition that is not dirty has nothing to read at its fetch offset, its client knows its high watermark, and
    it is watched.
    Invariant: while a fetch of the session waits, every partition that was found is watched.
    Memory: `HeldPartitions` bounds the partitions of all sessions and of all waiting fetches together.

Differs from Apache Kafka: Kafka reads all partitions of a session on each of its fetches, and so tells a log start offset that
retention moved at once; this broker tells it with the next change of that partition. Privileged sessions are for followers, which
this broker does not have.

Source: kafka.server.FetchSession (FetchSessionCacheShard, CachedPartition), KIP-227.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Protocol

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import DelayedFetch

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF
EVICTION_MS = 120_000
"""How long a session is safe from a larger one, and after how much idleness it is stale
(MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


MAX_HELD_PARTITIONS = 1 << 18
"""How many partitions all sessions and waiting fetches may name together; each takes about 0.5 KiB. Apache Kafka bounds only the
number of sessions."""


class HeldPartitions:
    """How much memory sessions and waiting fetches take, counted in the partitions that they name.

    Attributes:
        limit: the most that may be held.
        count: how many are held.
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
    """What a client asks of one partition: the part of its request, kept as it was read."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    partition_max_bytes: int


Key = tuple[str | bytes, int]
"""Topic name, or topic id where the session uses these, and partition index."""


class SessionPartition:
    """One partition of a session; the watcher of the partition itself.

    Attributes:
        topic: its topic's name; empty until an id is resolved.
        topic_id: its topic's id; zero where the session uses names.
        asked: what the client asked last.
        partition: where it is read; None until it is found, and to be looked up again once it is gone.
        sent_high_watermark, sent_log_start_offset: what the client knows; -1 if nothing.
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
        """The partition itself; looks it up unless it was found before and is still there.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; UNKNOWN_TOPIC_ID for an id never seen; INCONSISTENT_TOPIC_ID if the topic
                was deleted and its name has another id now.
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
        """Marks the partition dirty, and counts the bytes for the fetch that waits."""
        session = self.session
        session.dirty[self] = None
        waiting = session.waiting
        if waiting is None or waiting.pending.is_done:
            del partition.watchers[self]
        else:
            waiting.count(partition, size_bytes, stable_bytes, self.asked.partition_max_bytes)

    def on_gone(self, partition: Partition) -> None:
        """Looks the topic up again with the next fetch, and ends the fetch that waits."""
        session = self.session
        session.dirty[self] = None
        if session.waiting is not None:
            session.waiting.on_gone(partition)

    def _mark_clean(self) -> None:
        """Leaves the partition out of the next fetches until its watcher is told of new records."""
        self.session.dirty.pop(self, None)
        self.watch()

    def settle(self, size_bytes: int, error_code: int, high_watermark: int, log_start_offset: int) -> bool:
        """Returns whether the response includes the partition; a partition that is left out and read to its end becomes clean.

        Source: CachedPartition.maybeUpdateResponseData.
        """
        if size_bytes or error_code:
            return True
        if high_watermark != self.sent_high_watermark or log_start_offset != self.sent_log_start_offset:
            return True
        if self.asked.fetch_offset >= high_watermark:
            self._mark_clean()
        return False

    def told(self, size_bytes: int, error_code: int, high_watermark: int, log_start_offset: int) -> None:
        """Notes what the response says of this partition."""
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
            self._mark_clean()


class FetchSession:
    """What one consumer fetches from this broker.

    Attributes:
        session_id: positive; what the client names it by.
        epoch: the epoch that the next request must have.
        partitions: all of them, by key.
        dirty: those that the next fetch must read, in the order in which it reads them.
        waiting: the fetch of this session that waits, if one does.
    """

    __slots__ = ("created_ms", "dirty", "epoch", "held", "last_used_ms", "partitions", "session_id", "uses_topic_ids", "waiting")

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
        """Adds a partition, or notes what is asked of it now; it is dirty either way."""
        key: Key = (topic_id if self.uses_topic_ids else topic, asked.partition)
        entry = self.partitions.get(key)
        if entry is None:
            entry = self.partitions[key] = SessionPartition(self, topic, topic_id, asked)
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
        """A fetch of this session waits: whatever is appended counts for it."""
        self.waiting = delayed
        for entry in self.dirty:
            entry.watch()

    def advance_epoch(self) -> None:
        """The next request has the next epoch; after the largest comes 1.

        A fetch of this session that still waits came on a connection that its client has given up; it is answered, with
        INVALID_FETCH_SESSION_EPOCH.
        """
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        if self.waiting is not None:
            self.waiting.finish()

    def close(self) -> None:
        """Answers the fetch that waits, and stops watching the partitions."""
        if self.waiting is not None:
            self.waiting.finish()
        for entry in self.partitions.values():
            entry.detach()
        self.held.give_back(len(self.partitions))
        self.partitions = {}
        self.dirty = {}


class FetchSessions:
    """The sessions of one broker, the least recently used first.

    Args:
        slot_count: how many there may be (`max.incremental.fetch.session.cache.slots`); 0 means no sessions at all.
        random_id: a random number from 1 to its argument.
        held: counts the partitions of sessions and waiting fetches.
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
        """The session with that id, if it is still there."""
        return self._sessions.get(session_id)

    def create(self, partition_count: int, *, uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        """Returns a new session; None if there is no room for it and no session that it may replace."""
        if not self._make_room(partition_count, now_ms):
            return None
        session_id = self._random_id(MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random_id(MAX_EPOCH)
        session = self._sessions[session_id] = FetchSession(session_id, self.held, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Notes that the session is in use."""
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def remove(self, session_id: int) -> None:
        """Closes a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _make_room(self, partition_count: int, now_ms: int) -> bool:
        """Evicts sessions until a new one with so many partitions has a slot and fits; returns whether it does.

        A session may be evicted if it has been idle for EVICTION_MS, the one idle for longest first; or else the smallest
        of those that are as old as that, if the new one is larger. (A scan over all slots, and only when there is no room.)

        Source: FetchSessionCacheShard.tryEvict.
        """
        if partition_count > self.held.limit:
            return False
        while len(self._sessions) >= self.slot_count or not self.held.fits(partition_count):
            evictable = self._find_evictable(partition_count, now_ms)
            if evictable is None:
                return False
            self.remove(evictable.session_id)
        return True

    def _find_evictable(self, partition_count: int, now_ms: int) -> FetchSession | None:
        """Returns the session that a new one with so many partitions may replace; None if there is none."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.last_used_ms > EVICTION_MS:
            return oldest
        old = (session for session in self if now_ms - session.created_ms > EVICTION_MS)
        smallest = min(old, key=lambda session: (len(session.partitions), session.session_id), default=None)
        if smallest is None or partition_count <= len(smallest.partitions):
            return None
        return smallest
