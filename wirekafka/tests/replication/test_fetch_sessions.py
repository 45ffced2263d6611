from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.fetch_sessions import (
    EVICTION_MS,
    MAX_EPOCH,
    FetchSession,
    FetchSessions,
    HeldPartitions,
    SessionPartition,
)
from wirekafka.replication.purgatory import DelayedFetch, Purgatory
from wirekafka.replication.replica_sessions import ReplicaSession
from wirekafka.tests.replication.memory_log import append, make_partition


@dataclass
class Asked:
    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = 0
    partition_max_bytes: int = 1000


class Topics:
    def __init__(self, *topics: Any) -> None:
        self.topics = list(topics)

    def find(self, name: str) -> Any:
        return next((topic for topic in self.topics if topic.name == name), None)

    def find_partition(self, topic: str | bytes, index: int) -> Any:
        found = next((each for each in self.topics if topic in (each.name, each.topic_id)), None)
        if found is None and isinstance(topic, bytes):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if found is None or not 0 <= index < len(found.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found.partitions[index]


def make_topic(name: str = "flights", topic_id: bytes = b"1" * 16) -> Any:
    partition = make_partition(name)
    partition.topic_id = topic_id
    return SimpleNamespace(name=name, topic_id=topic_id, partitions=[partition])


def make_sessions(slot_count: int) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(slot_count, random_id=lambda most: next(numbers))


def open_session(topic: Any, *, uses_topic_ids: bool = False) -> tuple[FetchSession, SessionPartition]:
    session = make_sessions(1).create(1, uses_topic_ids=uses_topic_ids, now_ms=0)
    assert session is not None
    entry = session.put("" if uses_topic_ids else topic.name, topic.topic_id if uses_topic_ids else bytes(16), Asked())
    entry.locate(cast(Any, Topics(topic)))
    return session, entry


def test_session_partition_read_to_its_end_is_clean() -> None:
    session, entry = open_session(make_topic())
    assert entry.settle(0, 0, high_watermark=0, log_start_offset=0)
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    assert not session.dirty
    assert not entry.settle(0, 0, high_watermark=0, log_start_offset=0)


def test_session_partition_append_makes_it_dirty() -> None:
    topic = make_topic()
    session, entry = open_session(topic)
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    append(topic.partitions[0], 10)
    assert list(session.dirty) == [entry]


def test_session_partition_that_is_dirty_is_watched_only_while_a_fetch_waits() -> None:
    topic = make_topic()
    session, entry = open_session(topic)
    partition = topic.partitions[0]
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    assert list(partition.watchers) == [entry]
    append(partition, 10)
    assert not partition.watchers

    async def main() -> None:
        delayed = DelayedFetch(Purgatory(Clock()), max_wait_ms=100, missing_bytes=50, counted_bytes={}, answer=lambda: "answer")
        session.wait(delayed)
        append(partition, 10)
        assert list(partition.watchers) == [entry]
        delayed.pending.abandon()
        append(partition, 10)
        assert not partition.watchers

    trio.run(main)


def test_session_partition_that_gave_records_goes_to_the_end() -> None:
    session = FetchSession(1, HeldPartitions(), uses_topic_ids=False, now_ms=0)
    first, second = (session.put("flights", bytes(16), Asked(partition=index)) for index in range(2))
    first.told(10, 0, high_watermark=5, log_start_offset=0)
    assert list(session.dirty) == [second, first]


def test_session_partition_that_a_limit_left_out_stays_dirty_and_in_place() -> None:
    session = FetchSession(1, HeldPartitions(), uses_topic_ids=False, now_ms=0)
    first, second = (session.put("flights", bytes(16), Asked(partition=index)) for index in range(2))
    first.told(0, 0, high_watermark=5, log_start_offset=0)
    assert not first.settle(0, 0, high_watermark=5, log_start_offset=0)
    assert list(session.dirty) == [first, second]


def test_session_partition_with_an_error_is_told_again_once_it_is_gone() -> None:
    session, entry = open_session(make_topic())
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    session.put("flights", bytes(16), Asked())
    assert entry.settle(0, ErrorCode.KAFKA_STORAGE_ERROR, high_watermark=-1, log_start_offset=-1)
    entry.told(0, ErrorCode.KAFKA_STORAGE_ERROR, high_watermark=-1, log_start_offset=-1)
    assert list(session.dirty) == [entry]
    assert entry.settle(0, 0, high_watermark=0, log_start_offset=0)


def test_session_partition_of_a_deleted_topic_is_unknown() -> None:
    topic = make_topic()
    session, entry = open_session(topic, uses_topic_ids=True)
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    topic.partitions[0].close()
    assert list(session.dirty) == [entry]
    with pytest.raises(KafkaError) as error:
        entry.locate(cast(Any, Topics()))
    assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_session_partition_of_a_topic_created_anew_is_inconsistent_by_id_and_found_by_name() -> None:
    old, new = make_topic(), make_topic(topic_id=b"2" * 16)
    _, by_id = open_session(old, uses_topic_ids=True)
    _, by_name = open_session(old)
    old.partitions[0].close()
    with pytest.raises(KafkaError) as error:
        by_id.locate(cast(Any, Topics(new)))
    assert error.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    assert by_name.locate(cast(Any, Topics(new))) is new.partitions[0]


def test_session_partition_of_an_id_never_seen_is_unknown() -> None:
    session = FetchSession(1, HeldPartitions(), uses_topic_ids=True, now_ms=0)
    entry = session.put("", b"3" * 16, Asked())
    with pytest.raises(KafkaError) as error:
        entry.locate(cast(Any, Topics(make_topic())))
    assert error.value.code is ErrorCode.UNKNOWN_TOPIC_ID


def test_session_forget_lets_go_of_the_partition() -> None:
    topic = make_topic()
    session, entry = open_session(topic)
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    session.forget("flights", bytes(16), [0, 7])
    assert not session.partitions
    assert not session.dirty
    assert not topic.partitions[0].watchers


def test_session_epoch_after_the_largest_is_one() -> None:
    session = FetchSession(1, HeldPartitions(), uses_topic_ids=False, now_ms=0)
    assert session.epoch == 1
    session.epoch = MAX_EPOCH
    session.advance_epoch()
    assert session.epoch == 1


def test_sessions_remove_lets_go_of_partitions() -> None:
    topic, sessions = make_topic(), make_sessions(1)
    session = sessions.create(1, uses_topic_ids=False, now_ms=0)
    assert session is not None
    entry = session.put("flights", bytes(16), Asked())
    entry.locate(cast(Any, Topics(topic)))
    entry.told(0, 0, high_watermark=0, log_start_offset=0)
    assert topic.partitions[0].watchers
    sessions.remove(session.session_id)
    sessions.remove(session.session_id)
    assert not topic.partitions[0].watchers
    assert len(sessions) == 0


def fill(sessions: FetchSessions, *sizes: int) -> None:
    for size in sizes:
        session = sessions.create(size, uses_topic_ids=False, now_ms=0)
        assert session is not None
        for index in range(size):
            session.put("flights", bytes(16), Asked(partition=index))


def test_sessions_full_of_young_ones_refuse_another_one() -> None:
    sessions = make_sessions(2)
    fill(sessions, 1, 1)
    assert sessions.create(100, uses_topic_ids=False, now_ms=EVICTION_MS) is None


def test_sessions_full_evicts_the_one_idle_for_longest() -> None:
    sessions = make_sessions(2)
    fill(sessions, 9, 9)
    first = sessions.get(1)
    assert first is not None
    sessions.touch(first, EVICTION_MS)
    assert sessions.create(1, uses_topic_ids=False, now_ms=EVICTION_MS + 1) is not None
    assert [session.session_id for session in sessions] == [1, 3]


def test_sessions_full_evicts_the_smallest_for_a_larger_one_only() -> None:
    sessions = make_sessions(2)
    fill(sessions, 5, 3)
    now_ms = EVICTION_MS + 1
    for session in tuple(sessions):
        sessions.touch(session, now_ms)
    assert sessions.create(3, uses_topic_ids=False, now_ms=now_ms) is None
    assert sessions.create(4, uses_topic_ids=False, now_ms=now_ms) is not None
    assert [session.session_id for session in sessions] == [1, 3]


def test_sessions_without_slots_creates_none() -> None:
    assert make_sessions(0).create(1, uses_topic_ids=False, now_ms=0) is None


def limited_sessions(limit: int) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(100, random_id=lambda most: next(numbers), held=HeldPartitions(limit))


def test_sessions_together_hold_no_more_partitions_than_the_limit() -> None:
    sessions = limited_sessions(10)
    first = sessions.create(6, uses_topic_ids=False, now_ms=0)
    assert first is not None
    for index in range(6):
        first.put("flights", bytes(16), Asked(partition=index))
    assert sessions.create(5, uses_topic_ids=False, now_ms=1) is None
    assert sessions.create(4, uses_topic_ids=False, now_ms=1) is not None
    assert len(sessions) == 2


def test_sessions_without_room_replace_those_that_are_idle_until_the_new_one_fits() -> None:
    sessions = limited_sessions(10)
    for start in (0, 3, 6):
        session = sessions.create(3, uses_topic_ids=False, now_ms=start)
        assert session is not None
        for index in range(3):
            session.put("flights", bytes(16), Asked(partition=index))
    assert sessions.create(6, uses_topic_ids=False, now_ms=EVICTION_MS + 7) is not None
    assert [session.session_id for session in sessions] == [3, 4]
    assert sessions.held.count == 3


def test_session_that_is_larger_than_the_limit_evicts_nothing() -> None:
    sessions = limited_sessions(10)
    assert sessions.create(10, uses_topic_ids=False, now_ms=0) is not None
    assert sessions.create(11, uses_topic_ids=False, now_ms=10 * EVICTION_MS) is None
    assert len(sessions) == 1


def replica_session(session_id: int, held: HeldPartitions, **fields: Any) -> ReplicaSession:
    return ReplicaSession(session_id, held, replica_id=2, leaders={}, monotonic_ms=lambda: 0, **fields)


def test_session_of_a_follower_evicts_a_young_and_larger_one_of_a_consumer() -> None:
    sessions = FetchSessions(1)
    consumer = sessions.create(5, uses_topic_ids=False, now_ms=0)
    assert consumer is not None
    consumer.put("flights", bytes(16), Asked())
    follower = sessions.create(1, uses_topic_ids=False, now_ms=1, make=replica_session)
    assert [*sessions] == [follower]


def test_session_of_a_consumer_evicts_one_of_a_follower_only_if_it_is_stale() -> None:
    sessions = FetchSessions(1)
    follower = sessions.create(1, uses_topic_ids=False, now_ms=0, make=replica_session)
    assert follower is not None
    sessions.touch(follower, EVICTION_MS)
    assert sessions.create(100, uses_topic_ids=False, now_ms=EVICTION_MS + 1) is None
    assert sessions.create(100, uses_topic_ids=False, now_ms=2 * EVICTION_MS + 1) is not None


def test_session_of_a_follower_does_not_evict_a_young_one_of_another_follower() -> None:
    sessions = FetchSessions(1)
    assert sessions.create(1, uses_topic_ids=False, now_ms=0, make=replica_session) is not None
    assert sessions.create(5, uses_topic_ids=False, now_ms=EVICTION_MS, make=replica_session) is None


def test_session_gives_back_partitions_that_it_forgets_and_those_it_has_when_it_ends() -> None:
    sessions = limited_sessions(10)
    session = sessions.create(5, uses_topic_ids=False, now_ms=0)
    assert session is not None
    for index in (0, 1, 2, 3, 4, 4):
        session.put("flights", bytes(16), Asked(partition=index))
    assert sessions.held.count == 5
    session.forget("flights", bytes(16), [0, 1, 1, 77])
    assert sessions.held.count == 3
    sessions.remove(session.session_id)
    assert sessions.held.count == 0


class Watched(dict[int, FetchSession]):
    """Sessions by id, and how often all of them were looked through."""

    scan_count = 0

    def values(self) -> Any:
        self.scan_count += 1
        return super().values()


def test_session_that_evicts_many_looks_through_the_others_once() -> None:
    sessions = limited_sessions(100)
    fill(sessions, *[1] * 100)
    now_ms = EVICTION_MS + 1
    for session in tuple(sessions):
        sessions.touch(session, now_ms)
    watched = sessions._sessions = Watched(sessions._sessions)
    assert sessions.create(60, uses_topic_ids=False, now_ms=now_ms) is not None
    assert len(sessions) == 41
    assert watched.scan_count == 1
