"""ShareFetch of many partitions: it reads and acquires in slices, between which records, sessions and clients change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import trio

from wirekafka import slices
from wirekafka.api.share_acknowledge import session_key
from wirekafka.coordinator.share_delivery.fetching import PARTITIONS_A_STEP
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.slices import Slices
from wirekafka.tests.api.data_plane import Caller, wait_for
from wirekafka.tests.api.sharing import Member, acquired, append, run, topic_id

MANY = 2 * PARTITIONS_A_STEP + 20
LONG_WAIT = 60_000


async def joined(caller: Caller, *member_ids: str) -> list[Member]:
    """Returns members with sessions of many partitions; each slice of the broker then ends after its first step."""
    caller.broker.topics.add_partitions(caller.broker.topics.get("flights"), MANY)
    members = [Member(caller, member_id) for member_id in member_ids]
    for member in members:
        await member.fetch(*range(MANY))
    numbers = count()
    caller.broker.slices = Slices(caller.broker.clock, seconds=lambda: next(numbers) * 2 * slices.SLICE_SECONDS)
    return members


def ask(member: Member, **fields: Any) -> Any:
    return member.ask(member.fetch_request(**fields), 2)


def next_offsets(caller: Caller) -> list[int]:
    """Returns the offset behind the acquired records, by partition."""
    loaded = [caller.broker.share_groups.partitions.find(ShareKey("g", topic_id(caller), index)) for index in range(MANY)]
    return [each.share.next_offset for each in loaded if each is not None]


def watcher_count(caller: Caller) -> int:
    return sum(len(partition.watchers) for partition in caller.broker.topics.get("flights").partitions)


def between_slices(caller: Caller, look: Callable[[], bool]) -> None:
    """Calls `look` between each two slices, until it returns True. Timers that are due at one time fire in their order."""
    caller.broker.clock.call_later(0, lambda: look() or between_slices(caller, look))


def watching_acquisitions(caller: Caller, pending: Any) -> list[list[int]]:
    """Returns a list that gets the offsets behind the acquired records after each slice, until the response."""
    seen: list[list[int]] = []

    def look() -> bool:
        seen.append(next_offsets(caller))
        return bool(pending.is_done)

    between_slices(caller, look)
    return seen


def test_share_fetch_of_many_partitions_acquires_from_them_in_several_steps(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [member] = await joined(caller, "m")
        for index in range(MANY):
            append(caller, b"a", partition=index)
        pending = ask(member)
        assert isinstance(pending, Pending)
        seen = watching_acquisitions(caller, pending)
        assert acquired(await wait_for(pending)) == {index: [(0, 0, 1)] for index in range(MANY)}
        assert any(any(offsets) and not all(offsets) for offsets in seen)
        assert watcher_count(caller) == 0

    run(body, tmp_path)


def test_share_fetch_of_many_partitions_that_waits_is_woken_and_acquires_in_several_steps(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [member] = await joined(caller, "m")
        pending = ask(member, max_wait_ms=LONG_WAIT, min_bytes=2000)
        await trio.sleep(0.001)
        assert watcher_count(caller) == MANY
        for index in range(MANY):
            append(caller, b"a", partition=index)
        seen = watching_acquisitions(caller, pending)
        began = trio.current_time()
        assert acquired(await wait_for(pending))
        assert any(any(offsets) and not all(offsets) for offsets in seen)
        assert trio.current_time() - began < LONG_WAIT / 1000

    run(body, tmp_path)


def test_share_fetch_of_many_partitions_finds_a_record_that_is_committed_behind_its_reading(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [member] = await joined(caller, "m")
        pending = ask(member, max_wait_ms=LONG_WAIT)

        def append_once_watched() -> bool:
            if watcher_count(caller):
                append(caller, b"a")
            return watcher_count(caller) > 0

        between_slices(caller, append_once_watched)
        began = trio.current_time()
        assert acquired(await wait_for(pending))
        assert trio.current_time() - began < LONG_WAIT / 1000

    run(body, tmp_path)


def test_records_that_another_member_acquires_between_steps_are_delivered_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first, second = await joined(caller, "m", "n")
        for index in range(MANY):
            append(caller, b"a", partition=index)
        asked = [ask(first), ask(second)]
        found = [acquired(await wait_for(pending)) for pending in asked]
        assert sorted([*found[0], *found[1]]) == [*range(MANY)]

    run(body, tmp_path)


def test_share_fetch_of_many_partitions_whose_session_ends_acquires_no_further(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [member] = await joined(caller, "m")
        for index in range(MANY):
            append(caller, b"a", partition=index)
        pending = ask(member)

        acquired_count: list[int] = []

        def end_once_some_are_acquired() -> bool:
            acquired_count.append(sum(next_offsets(caller)))
            if acquired_count[-1]:
                caller.broker.share_groups.close_session(session_key("g", member.member_id))
            return acquired_count[-1] > 0

        between_slices(caller, end_once_some_are_acquired)
        assert (await wait_for(pending)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert 0 < acquired_count[-1] < MANY
        assert watcher_count(caller) == 0

    run(body, tmp_path)


def test_share_fetch_of_many_partitions_whose_client_leaves_stops_watching(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [member] = await joined(caller, "m")
        pending = ask(member, max_wait_ms=LONG_WAIT)
        await trio.sleep(0.001)
        assert watcher_count(caller) == MANY
        pending.abandon()
        assert watcher_count(caller) == 0

    run(body, tmp_path)
