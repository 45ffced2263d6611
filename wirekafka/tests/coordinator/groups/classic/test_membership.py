"""The errors of JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the responses to waiting requests."""

from typing import Any

import pytest

from wirekafka.coordinator.groups.requests import (
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.groups.world import World


def make_join(**changes: Any) -> JoinRequest:
    request = JoinRequest("g", "", "client", "/host", 10_000, 20_000, "consumer", [("range", b"m")], is_member_id_required=False)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def answer(pending: Pending[Any]) -> Any:
    assert pending.is_done
    return pending._result


def world_with_members(count: int = 1) -> World:
    """Makes a stable group g of generation 1 with members client-1, client-2, ..; the first one leads."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    for _ in range(count):
        world.join(make_join())
    world.pass_time(0)
    world.sync(SyncRequest("g", "client-1", 1, assignments={f"client-{number + 1}": b"%d" % number for number in range(count)}))
    return world


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "new", "member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "new", "protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "client-1", "protocols": [("x", b"")]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "client-1", "group_instance_id": "one"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_join_that_breaks_a_rule_is_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    world = world_with_members()
    result: JoinResult = answer(world.join(make_join(**changes)))
    assert result.error is error
    assert list(world.coordinator.groups) == ["g"]


def test_join_with_session_timeouts_at_the_bounds_is_accepted() -> None:
    world = World()
    for timeout_ms in (6000, 1_800_000):
        assert not world.join(make_join(session_timeout_ms=timeout_ms)).is_done


def test_join_of_a_pending_member_under_a_static_name_is_refused() -> None:
    world = World()
    given: JoinResult = answer(world.join(make_join(is_member_id_required=True)))
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    result: JoinResult = answer(world.join(make_join(member_id=given.member_id, group_instance_id="one")))
    assert result.error is ErrorCode.INVALID_REQUEST


def test_member_id_holds_so_much_of_a_long_client_id_as_fits() -> None:
    given: JoinResult = answer(World().join(make_join(client_id="x" * 32_767, is_member_id_required=True)))
    assert given.member_id == "x" * 255 + "-1"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (SyncRequest("", "client-1", 1), ErrorCode.INVALID_GROUP_ID),
        (SyncRequest("nobody", "client-1", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (SyncRequest("g", "nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (SyncRequest("g", "client-1", 2), ErrorCode.ILLEGAL_GENERATION),
        (SyncRequest("g", "client-1", 1, protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (SyncRequest("g", "client-1", 1, protocol_name="sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (SyncRequest("g", "client-1", 1, "one"), ErrorCode.UNKNOWN_MEMBER_ID),
        (SyncRequest("g", "client-1", 1, None, "consumer", "range"), ErrorCode.NONE),
    ],
)
def test_sync_is_answered_by_the_rules(request_: SyncRequest, error: ErrorCode) -> None:
    result: SyncResult = answer(world_with_members().sync(request_))
    assert result.error is error


@pytest.mark.parametrize(
    ("beat", "error"),
    [
        (HeartbeatRequest("", "client-1", 1), ErrorCode.INVALID_GROUP_ID),
        (HeartbeatRequest("nobody", "client-1", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (HeartbeatRequest("g", "nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (HeartbeatRequest("g", "client-1", 0), ErrorCode.ILLEGAL_GENERATION),
        (HeartbeatRequest("g", "client-1", 1), ErrorCode.NONE),
    ],
)
def test_heartbeat_is_answered_by_the_rules(beat: HeartbeatRequest, error: ErrorCode) -> None:
    world = world_with_members()
    assert world.coordinator.membership.heartbeat(beat, world.now_ms)[0] is error


def test_leave_answers_each_member_for_itself() -> None:
    world = world_with_members(2)
    leaving = [LeavingMember("client-2"), LeavingMember("client-2"), LeavingMember("", "one"), LeavingMember("client-1", "one")]
    assert world.leave("g", *leaving) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert list(world.existing_group("g").members) == ["client-1"]


def test_leave_of_a_static_member_under_another_id_is_fenced() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join(group_instance_id="one"))
    world.pass_time(0)
    assert world.leave("g", LeavingMember("other", "one")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.leave("g", LeavingMember("", "one")) == [ErrorCode.NONE]


def test_leave_of_a_group_that_is_not_there_finds_no_members() -> None:
    world = World()
    assert world.leave("g", LeavingMember("a")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    result, _ = world.coordinator.membership.leave("", [LeavingMember("a")], 0)
    assert result.error is ErrorCode.INVALID_GROUP_ID


def test_member_that_is_removed_while_parked_in_join_is_told_so() -> None:
    world = world_with_members(2)
    joining = world.join(make_join(member_id="client-1"))
    world.leave("g", LeavingMember("client-1"))
    assert answer(joining).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_is_removed_while_parked_in_sync_is_told_so() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join())
    world.join(make_join())
    world.pass_time(0)
    syncing = world.sync(SyncRequest("g", "client-2", 1))
    world.leave("g", LeavingMember("client-2"))
    assert answer(syncing).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_second_sync_of_a_member_answers_the_first() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join())
    world.join(make_join())
    world.pass_time(0)
    first = world.sync(SyncRequest("g", "client-2", 1))
    second = world.sync(SyncRequest("g", "client-2", 1))
    assert answer(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.is_done


def test_unload_tells_all_who_are_parked_to_look_elsewhere() -> None:
    world = world_with_members(2)
    joining = world.join(make_join(member_id="client-1"))
    world.unload()
    assert answer(joining).error is ErrorCode.NOT_COORDINATOR
    assert not world.timers
    assert not world.coordinator.groups
