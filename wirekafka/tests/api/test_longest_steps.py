"""No request holds the loop for long: the largest requests, measured in CPU time of the loop's thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.slices import Slices
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.largest_requests import largest_requests, measure
from wirekafka.tests.api.longest_step import LIMIT_MS, open_caller, run_and_measure
from wirekafka.tests.api.sharing import Member
from wirekafka.tests.api.transacting import Transactor
from wirekafka.wire.codec import MOST_ELEMENTS

pytestmark = pytest.mark.time_limits


def test_request_with_the_most_elements_in_any_array_does_not_hold_the_loop(tmp_path: Path) -> None:
    async def main() -> dict[str, float]:
        async with open_caller(tmp_path, auto_create_topics_enable="false", group_initial_rebalance_delay_ms="0") as caller:
            caller.broker.slices = Slices(caller.broker.clock)
            dispatcher = Dispatcher(caller.broker)
            longest: dict[str, float] = {}
            for name, framed in largest_requests(MOST_ELEMENTS):
                longest[name], outcome = await measure(dispatcher, framed)
                assert outcome != "abandoned", name
            return longest

    longest = trio.run(main)
    assert len(longest) > 40
    assert {name: round(ms) for name, ms in longest.items() if ms > LIMIT_MS} == {}


MEMBERS = 1000
"""The number of members in a group of `group.max.size` 1000."""


def joining(instance: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        group_instance_id=instance,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\7flights")],
    )


def test_rebalance_of_a_large_group_does_not_hold_the_loop(tmp_path: Path) -> None:
    answered: list[Any] = []
    all_answered: Pending[Any] = Pending()

    def note(response: Any) -> None:
        answered.append(response)
        if len(answered) == MEMBERS:
            all_answered.complete(None)

    def prepare(caller: Caller) -> None:
        caller.broker.slices = Slices(caller.broker.clock)
        for number in range(MEMBERS):
            caller.ask(joining(f"i{number}"), 5).then(note)

    _, longest_ms = run_and_measure(
        tmp_path, prepare, lambda _: all_answered, group_max_size=str(MEMBERS), group_initial_rebalance_delay_ms="500"
    )
    assert {answer.error_code for answer in answered} == {0}
    assert max(len(answer.members) for answer in answered) == MEMBERS
    assert longest_ms < LIMIT_MS


def test_sync_of_a_large_group_does_not_hold_the_loop(tmp_path: Path) -> None:
    joined: list[Any] = []
    synced: list[Any] = []
    all_joined: Pending[Any] = Pending()
    all_synced: Pending[Any] = Pending()

    def note(response: Any, noted: list[Any], all_noted: Pending[Any]) -> None:
        noted.append(response)
        if len(noted) == MEMBERS:
            all_noted.complete(None)

    def sync(caller: Caller, member: Any, assignments: list[SyncGroupRequestAssignment]) -> None:
        generation_id, member_id = member.generation_id, member.member_id
        request = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation_id, assignments=assignments)
        response = caller.ask(request, 2)
        if not isinstance(response, Pending):
            response, answer = Pending(), response
            response.complete(answer)
        response.then(lambda answer: note(answer, synced, all_synced))

    def sync_followers(caller: Caller) -> None:
        for member in joined:
            if not member.members:
                sync(caller, member, [])

    def prepare(caller: Caller) -> Any:
        caller.broker.slices = Slices(caller.broker.clock)
        for number in range(MEMBERS):
            caller.ask(joining(f"i{number}"), 5).then(lambda answer: note(answer, joined, all_joined))
        return all_joined.map(lambda _: sync_followers(caller))

    def sync_leader(caller: Caller) -> Any:
        [leader] = [member for member in joined if member.members]
        sync(caller, leader, [SyncGroupRequestAssignment(member_id=each.member_id, assignment=bytes(100)) for each in joined])
        return all_synced

    _, longest_ms = run_and_measure(
        tmp_path, prepare, sync_leader, group_max_size=str(MEMBERS), group_initial_rebalance_delay_ms="500"
    )
    assert {answer.error_code for answer in synced} == {0}
    assert longest_ms < LIMIT_MS


def test_heartbeat_of_a_share_group_with_the_most_members_does_not_hold_the_loop(tmp_path: Path) -> None:
    members: list[Member] = []

    def prepare(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1000)
        members.extend(Member(caller, f"m{number}") for number in range(199))
        caller.broker.slices = Slices(caller.broker.clock)

    def join(caller: Caller) -> Any:
        request = ShareGroupHeartbeatRequest(group_id="g", member_id="last", member_epoch=0, subscribed_topic_names=["flights"])
        return Member(caller, "last", joins=False).ask(request, 1)

    response, longest_ms = run_and_measure(tmp_path, prepare, join)
    assert response.error_code == 0
    assert longest_ms < LIMIT_MS


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_a_transaction_over_many_partitions_does_not_hold_the_loop(tmp_path: Path, is_commit: bool) -> None:
    producers: list[Transactor] = []

    def prepare(caller: Caller) -> None:
        caller.broker.slices = Slices(caller.broker.clock)
        caller.broker.topics.create("flights", 1000)
        producer = Transactor(caller)
        for index in range(1000):
            producer.send(b"a", index=index)
        producers.append(producer)

    code, longest_ms = run_and_measure(
        tmp_path, prepare, lambda _: producers[0].end(is_commit=is_commit), transaction_state_log_num_partitions="1"
    )
    assert code == 0
    assert longest_ms < LIMIT_MS


@pytest.mark.parametrize("key_type", [0, 1])
def test_first_search_for_coordinators_does_not_hold_the_loop(tmp_path: Path, key_type: int) -> None:
    keys = [f"k{number}" for number in range(1000)]
    response, longest_ms = run_and_measure(
        tmp_path,
        lambda caller: None,
        lambda caller: caller.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys), 4),
    )
    assert {each.error_code for each in response.coordinators} == {0}
    assert longest_ms < LIMIT_MS
