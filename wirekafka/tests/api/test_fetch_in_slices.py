"""Fetch of many partitions: it is read in slices, between which partitions, sessions and clients change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka import slices
from wirekafka.api.fetch.fetch_pass import PARTITIONS_A_STEP, PARTITIONS_AT_ONCE
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.slices import Slices
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import MIB, append, at, partitions_of, request_of, values
from wirekafka.tests.api.longest_step import LIMIT_MS, run_and_measure
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

MANY = PARTITIONS_AT_ONCE + 2 * PARTITIONS_A_STEP
LAST = MANY - 1
TO_MANY = tuple(at(0, index) for index in range(MANY))
LONG_WAIT = 60_000


def one_step_a_slice() -> Callable[[], float]:
    """Seconds by which a slice is over after its first step."""
    numbers = count()
    return lambda: next(numbers) * slices.SLICE_SECONDS / 2


def take_one_step_a_turn(caller: Caller) -> None:
    """Makes each slice of the broker end after its first step."""
    caller.broker.slices = Slices(caller.broker.clock, seconds=one_step_a_slice())


async def let_steps_pass(step_count: int) -> None:
    for _ in range(step_count):
        await trio.sleep(0.001)


def ask(caller: Caller, session_id: int = 0, session_epoch: int = -1, *asked: FetchPartition, **fields: Any) -> Any:
    request = request_of(caller, *asked, session_id=session_id, session_epoch=session_epoch, **fields)
    if not asked:
        request.topics = []
    return caller.ask(request, 12)


async def open_session(caller: Caller, **fields: Any) -> int:
    """Opens a session of many partitions with a first fetch."""
    opened = await wait_for(ask(caller, 0, 0, *TO_MANY, **fields))
    assert opened.session_id > 0
    session_id: int = opened.session_id
    return session_id


def test_fetch_of_many_partitions_is_answered_after_several_slices(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        append(caller, batch(b"a"))
        append(caller, batch(b"z"), index=LAST)
        at_once = partitions_of(ask(caller, 0, -1, *TO_MANY))
        take_one_step_a_turn(caller)
        pending = ask(caller, 0, -1, *TO_MANY)
        assert isinstance(pending, Pending)
        found = partitions_of(await wait_for(pending))
        assert [values(found[index]) for index in (0, 1, LAST)] == [[b"a"], [], [b"z"]]
        assert found == at_once

    run(body, tmp_path)


def test_fetch_of_many_partitions_that_finds_nothing_waits_for_a_commit(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        pending = ask(caller, 0, -1, *TO_MANY, max_wait_ms=LONG_WAIT)
        await let_steps_pass(MANY)
        assert not pending.is_done
        assert caller.broker.fetch_sessions.held.count == MANY
        append(caller, batch(b"a"), index=LAST)
        began = trio.current_time()
        assert values(partitions_of(await wait_for(pending))[LAST]) == [b"a"]
        assert trio.current_time() - began < LONG_WAIT / 1000
        assert caller.broker.fetch_sessions.held.count == 0

    run(body, tmp_path)


def test_fetch_of_many_partitions_does_not_wait_if_records_are_committed_behind_its_reading(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        began = trio.current_time()
        pending = ask(caller, 0, -1, *TO_MANY, max_wait_ms=LONG_WAIT)
        append(caller, batch(b"a"))
        await wait_for(pending)
        assert trio.current_time() - began < LONG_WAIT / 1000

    run(body, tmp_path)


def test_fetch_of_many_partitions_whose_client_leaves_reads_no_further(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        pending = ask(caller, 0, -1, *TO_MANY, max_wait_ms=LONG_WAIT)
        pending.abandon()
        await let_steps_pass(MANY)
        assert caller.broker.fetch_sessions.held.count == 0
        assert not any(partition.watchers for partition in caller.broker.topics.find("flights").partitions)  # type: ignore[union-attr]

    run(body, tmp_path)


def test_session_of_many_partitions_is_read_in_slices_and_told_what_is_new(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        session_id = await open_session(caller)
        append(caller, batch(b"z"), index=LAST)
        pending = ask(caller, session_id, 1, *TO_MANY)
        assert isinstance(pending, Pending)
        found = partitions_of(await wait_for(pending))
        assert {index: values(data) for index, data in found.items()} == {LAST: [b"z"]}

    run(body, tmp_path)


def test_session_of_many_partitions_loses_no_record_that_is_committed_between_slices(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", MANY)
        for partition in topic.partitions:
            append(caller, batch(b"a"), index=partition.index)
        take_one_step_a_turn(caller)
        asked = tuple(at(1, index) for index in range(MANY))
        session_id = (await wait_for(ask(caller, 0, 0, *asked))).session_id
        topic.partitions[0].delete_records(1)
        pending = ask(caller, session_id, 1, *asked)
        append(caller, batch(b"b"))
        first = partitions_of(await wait_for(pending))
        assert [*first] == [0], "its log start offset is new"
        found = partitions_of(ask(caller, session_id, 2))
        assert {index: values(data) for index, data in found.items()} == {0: [b"b"]}

    run(body, tmp_path)


@pytest.mark.parametrize("given_count", [1, 70], ids=["one", "those of two slices"])
def test_session_of_many_partitions_takes_them_in_turn_where_a_limit_allows_few(tmp_path: Path, given_count: int) -> None:
    """Each fetch names all partitions in the same order, and the session reads them in its own order."""

    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", MANY)
        for partition in topic.partitions:
            append(caller, batch(b"a"), index=partition.index)
        take_one_step_a_turn(caller)
        session_id = await open_session(caller, max_bytes=1)
        limit = given_count * topic.partitions[0].log.size_bytes
        given: list[int] = []
        fetch_count = MANY // given_count + 2 if given_count > 1 else 5
        for epoch in range(1, 1 + fetch_count):
            pending = ask(caller, session_id, epoch, *TO_MANY, max_bytes=limit)
            assert isinstance(pending, Pending), "all partitions are read, in slices"
            given += [index for index, data in partitions_of(await wait_for(pending)).items() if data.records]
        assert given == [number % MANY for number in range(fetch_count * given_count)]

    run(body, tmp_path)


def test_session_of_many_partitions_that_a_limit_leaves_out_is_given_their_records_in_later_fetches(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        session_id = await open_session(caller)
        for partition in topic.partitions:
            append(caller, batch(b"a"), index=partition.index)
        limit = 100 * topic.partitions[0].log.size_bytes
        served: list[int] = []
        moved: tuple[FetchPartition, ...] = ()
        for epoch in range(1, 1 + -(-MANY // 100)):
            fetched = ask(caller, session_id, epoch, *moved, max_bytes=limit)
            found = partitions_of(await wait_for(fetched) if isinstance(fetched, Pending) else fetched)
            given = [index for index, data in found.items() if data.records]
            served += given
            moved = tuple(at(1, index) for index in given)
        assert sorted(served) == [*range(MANY)]

    run(body, tmp_path)


def test_session_of_many_partitions_that_finds_nothing_waits_for_a_commit(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        session_id = await open_session(caller)
        pending = ask(caller, session_id, 1, *TO_MANY, max_wait_ms=LONG_WAIT)
        await let_steps_pass(MANY)
        assert not pending.is_done
        began = trio.current_time()
        append(caller, batch(b"z"), index=LAST)
        found = partitions_of(await wait_for(pending))
        assert {index: values(data) for index, data in found.items()} == {LAST: [b"z"]}
        assert trio.current_time() - began < LONG_WAIT / 1000

    run(body, tmp_path)


@pytest.mark.parametrize("epoch_of_next", [-1, 2], ids=["closed", "asked again"])
def test_session_of_many_partitions_that_ends_or_is_asked_between_slices_ends_the_fetch(
    tmp_path: Path, epoch_of_next: int
) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", MANY)
        take_one_step_a_turn(caller)
        session_id = await open_session(caller)
        first = ask(caller, session_id, 1, *TO_MANY)
        assert isinstance(first, Pending)
        second = ask(caller, session_id, epoch_of_next)
        assert (await wait_for(first)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        answered = await wait_for(second) if isinstance(second, Pending) else second
        assert answered.error_code == 0
        if epoch_of_next == -1:
            assert not any(partition.watchers for partition in topic.partitions)

    run(body, tmp_path)


@pytest.mark.time_limits
@pytest.mark.parametrize("partition_count", [1, 19_000], ids=["one", "unknown"])
@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "session"])
def test_fetch_of_the_most_partitions_does_not_hold_the_loop(tmp_path: Path, partition_count: int, epoch: int) -> None:
    def prepare(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        caller.broker.slices = Slices(caller.broker.clock)

    asked = [FetchPartition(partition=index % partition_count, partition_max_bytes=MIB) for index in range(19_000)]
    request = FetchRequest(topics=[FetchTopic(topic="flights", partitions=asked)], session_epoch=epoch)
    response, longest_ms = run_and_measure(tmp_path, prepare, lambda caller: caller.ask(request, 12))
    assert sum(len(topic.partitions) for topic in response.responses) == len(asked)
    assert longest_ms < LIMIT_MS
