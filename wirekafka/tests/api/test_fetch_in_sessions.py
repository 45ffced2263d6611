from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.replication.fetch_sessions import HeldPartitions
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import MIB, append, at, partitions_of, request_of, values
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, ForgottenTopic


class Session:
    """A consumer with a fetch session, of version 12 by default."""

    def __init__(self, caller: Caller, *asked: FetchPartition, version: int = 12, topic: str = "flights") -> None:
        self.caller, self.version = caller, version
        self.first = caller.ask(request_of(caller, *asked, topic=topic, session_epoch=0), version)
        self.session_id, self.epoch = self.first.session_id, 1

    def request(self, *asked: FetchPartition, **fields: Any) -> FetchRequest:
        request = request_of(self.caller, *asked, session_id=self.session_id, session_epoch=self.epoch, **fields)
        if not asked:
            request.topics = []
        self.epoch += 1
        return request

    def fetch(self, *asked: FetchPartition, **fields: Any) -> Any:
        return self.caller.ask(self.request(*asked, **fields), self.version)


@pytest.mark.parametrize("version", range(7, 19))
def test_session_tells_what_is_new_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        append(caller, batch(b"a"))
        session = Session(caller, at(0, 0), at(0, 1), at(0, 2), version=version)
        assert session.session_id > 0
        assert [len(values(data)) for data in partitions_of(session.first).values()] == [1, 0, 0]
        assert session.fetch(at(1, 0)).responses == []
        append(caller, batch(b"b"), index=2)
        response = session.fetch()
        assert response.session_id == session.session_id
        assert {index: values(data) for index, data in partitions_of(response).items()} == {2: [b"b"]}
        assert {index: values(data) for index, data in partitions_of(session.fetch()).items()} == {2: [b"b"]}
        assert session.fetch(at(1, 2)).responses == []

    run(body, tmp_path)


def test_session_that_waits_is_woken_by_its_partitions_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        session = Session(caller, at(0, 0), at(0, 1))
        pending = session.fetch(max_wait_ms=1000)
        append(caller, batch(b"no"), index=2)
        assert not pending.is_done
        append(caller, batch(b"yes"), index=1)
        assert pending.is_done
        assert {index: values(data) for index, data in partitions_of(await wait_for(pending)).items()} == {1: [b"yes"]}
        assert [len(partition.watchers) for partition in caller.broker.topics.find("flights").partitions] == [1, 1, 0]  # type: ignore[union-attr]

    run(body, tmp_path)


def test_session_that_has_waited_without_news_tells_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        session = Session(caller, at(0))
        response = await wait_for(session.fetch(max_wait_ms=1000))
        assert (response.session_id, response.responses) == (session.session_id, [])

    run(body, tmp_path)


def test_session_takes_partitions_in_turn_where_a_limit_allows_one(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        for index in range(3):
            append(caller, batch(b"a" * 1000), index=index)
            append(caller, batch(b"b" * 1000), index=index)
        session = Session(caller, at(0, 0), at(0, 1), at(0, 2))
        served = []
        offsets = {0: 0, 1: 0, 2: 0}
        for _ in range(6):
            found = partitions_of(session.fetch(*(at(offset, index) for index, offset in offsets.items()), max_bytes=1100))
            (index,) = (index for index, data in found.items() if data.records)
            offsets[index] += 1
            served.append(index)
        assert sorted(served[:3]) == [0, 1, 2]
        assert sorted(served[3:]) == [0, 1, 2]

    run(body, tmp_path)


def test_session_forgets_partitions_and_ends_without_any(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 2)
        session = Session(caller, at(0, 0), at(0, 1))
        session.fetch(forgotten_topics_data=[ForgottenTopic(topic="flights", topic_id=topic.topic_id, partitions=[0])])
        append(caller, batch(b"a"))
        assert session.fetch().responses == []
        last = session.fetch(forgotten_topics_data=[ForgottenTopic(topic="flights", topic_id=topic.topic_id, partitions=[1])])
        assert (last.session_id, last.responses) == (0, [])
        assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not any(partition.watchers for partition in topic.partitions)

    run(body, tmp_path)


def test_session_with_a_wrong_id_epoch_or_kind_of_topics_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        session = Session(caller, at(0))

        def code_of(session_id: int, epoch: int, version: int = 12) -> int:
            request = FetchRequest(session_id=session_id, session_epoch=epoch)
            return caller.ask(request, version).error_code

        assert code_of(session.session_id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert code_of(session.session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert code_of(session.session_id, 1, version=13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert session.fetch().error_code == 0

    run(body, tmp_path)


def test_session_named_by_a_full_fetch_is_closed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        session = Session(caller, at(0))
        last = caller.ask(request_of(caller, at(0), session_id=session.session_id, session_epoch=-1), 12)
        assert last.session_id == 0
        assert not topic.partitions[0].watchers
        assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(body, tmp_path)


def test_session_of_a_topic_that_is_deleted_and_created_anew(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        by_name, by_id = Session(caller, at(0)), Session(caller, at(0), version=13)
        waiting = by_name.fetch(max_wait_ms=1000)
        caller.broker.topics.delete(topic)
        assert partitions_of(await wait_for(waiting))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partitions_of(by_id.fetch(max_wait_ms=1000))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"new"))
        assert values(partitions_of(by_name.fetch(max_wait_ms=1000))[0]) == [b"new"]
        assert partitions_of(by_id.fetch(max_wait_ms=1000))[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID

    run(body, tmp_path)


def test_session_without_room_is_none(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert Session(caller, at(0)).session_id > 0
        assert Session(caller, at(0)).session_id == 0

    run(body, tmp_path, max_incremental_fetch_session_cache_slots="1")


def test_session_whose_next_request_comes_while_one_waits_ends_the_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        session = Session(caller, at(0))
        first = session.fetch(max_wait_ms=1000)
        second = session.fetch(max_wait_ms=1000)
        assert (await wait_for(first)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        append(caller, batch(b"a"))
        assert values(partitions_of(await wait_for(second))[0]) == [b"a"]

    run(body, tmp_path)


def test_session_is_told_of_a_new_log_start_offset(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a"))
        session = Session(caller, at(1))
        assert session.fetch().responses == []
        topic.partitions[0].delete_records(1)
        assert partitions_of(session.fetch())[0].log_start_offset == 1
        assert session.fetch().responses == []

    run(body, tmp_path)


class RandomReader:
    """A consumer with a session over all partitions of `flights`, which changes its partitions at random.

    Attributes:
        offsets: the offset of the next read of each partition.
        consumed: the values read from each partition.
        forgotten: the partitions that are not in the session now.
        pending: the fetch that waits, if one does.
    """

    def __init__(self, caller: Caller, random: Random, count: int) -> None:
        self.random = random
        self.count = count
        self.topic_id = caller.broker.topics.create("flights", count).topic_id
        self.offsets = dict.fromkeys(range(count), 0)
        self.consumed: dict[int, list[bytes | None]] = {index: [] for index in range(count)}
        self.forgotten: set[int] = set()
        self.pending: Pending[Any] | None = None
        self._changed: set[int] = set()
        self._session = Session(caller, *(at(0, index) for index in range(count)), version=random.choice([7, 12, 13, 17]))
        assert self._session.session_id

    def fetch(self) -> None:
        """Sends the next fetch, and takes its response unless the fetch waits."""
        random, changed = self.random, self._changed
        changed.update(random.sample(range(self.count), random.choice([0, 0, 1])))
        drop = {random.randrange(self.count)} if random.random() < 0.1 and len(self.forgotten) < self.count - 1 else set()
        drop -= self.forgotten
        asked = [at(self.offsets[index], index) for index in changed - drop]
        self.forgotten.difference_update(changed)
        self.forgotten.update(drop)
        changed.clear()
        topic = ForgottenTopic(topic="flights", topic_id=self.topic_id, partitions=list(drop))
        fields = {"max_wait_ms": 10_000, "max_bytes": random.choice([MIB, 150]), "forgotten_topics_data": [topic] if drop else []}
        response = self._session.fetch(*asked, **fields)
        if isinstance(response, Pending):
            self.pending = response
        else:
            self._take(response)

    async def take_late_response(self) -> None:
        """Takes the response of the waiting fetch, if it has come."""
        if self.pending is not None and self.pending.is_done:
            self._take(await wait_for(self.pending))
            self.pending = None

    def _take(self, response: Any) -> None:
        assert response.error_code == 0
        for index, data in partitions_of(response).items():
            assert index not in self.forgotten
            found = values(data)
            if found and self.random.random() < 0.8:
                self.consumed[index] += found
                self.offsets[index] += len(found)
                self._changed.add(index)


@pytest.mark.parametrize("seed", range(5))
def test_session_under_random_use_loses_no_record_and_never_waits_beside_one(tmp_path: Path, seed: int) -> None:
    async def body(caller: Caller) -> None:
        random = Random(seed)
        reader = RandomReader(caller, random, 6)
        ends = dict.fromkeys(range(6), 0)
        for number in range(400):
            if random.random() < 0.5:
                index = random.randrange(6)
                append(caller, batch(b"%d" % number), index=index)
                ends[index] += 1
            elif reader.pending is None:
                reader.fetch()
            await reader.take_late_response()
            if reader.pending is not None:
                assert {index for index in ends if reader.offsets[index] < ends[index]} <= reader.forgotten
        if reader.pending is not None:
            reader.pending.abandon()
        for index in range(6):
            data = partitions_of(caller.ask(request_of(caller, at(0, index)), 12))[index]
            assert values(data)[: reader.offsets[index]] == reader.consumed[index]

    run(body, tmp_path)


def limit_held_partitions(caller: Caller, limit: int) -> HeldPartitions:
    caller.broker.fetch_sessions.held = HeldPartitions(limit)
    return caller.broker.fetch_sessions.held


def test_session_that_grows_beyond_what_sessions_may_hold_is_closed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 4)
        held = limit_held_partitions(caller, 3)
        session = Session(caller, at(0, 0), at(0, 1))
        assert session.fetch(at(0, 0), at(0, 1), at(0, 2)).error_code == 0
        assert held.count == 3
        assert session.fetch(at(0, 3)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert held.count == 0

    run(body, tmp_path)


def test_session_of_partitions_that_do_not_exist_is_counted_as_any_other(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        held = limit_held_partitions(caller, 3)
        first = Session(caller, *(at(0, index) for index in range(3)), topic="unknown")
        assert first.session_id > 0
        assert held.count == 3
        assert Session(caller, at(0, 0), topic="unknown").session_id == 0

    run(body, tmp_path)


def test_fetch_that_waits_is_counted_until_it_is_answered_or_abandoned(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        held = limit_held_partitions(caller, 3)
        waiting = caller.ask(request_of(caller, at(0, 0), at(0, 1), max_wait_ms=1000, session_epoch=-1), 12)
        assert isinstance(waiting, Pending)
        assert held.count == 2
        at_once = caller.ask(request_of(caller, at(0, 0), at(0, 2), max_wait_ms=1000, session_epoch=-1), 12)
        assert not isinstance(at_once, Pending)
        append(caller, batch(b"a"))
        assert held.count == 0
        again = caller.ask(request_of(caller, at(1, 0), max_wait_ms=1000, session_epoch=-1), 12)
        assert held.count == 1
        again.abandon()
        assert held.count == 0

    run(body, tmp_path)


def test_session_tells_a_diverging_epoch_though_no_offset_has_changed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        append(caller, batch(b"a"))
        partition.leader_epoch = 2
        append(caller, batch(b"b"))
        session = Session(caller, at(2))
        assert session.fetch(at(2, last_fetched_epoch=2)).responses == []
        data = partitions_of(session.fetch(at(2, last_fetched_epoch=1)))[0]
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 1)

    run(body, tmp_path)
