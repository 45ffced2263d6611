"""The end of a rebalance, the members that remain in the group, and the timers."""

from typing import Any

import pytest

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.classic.group import ClassicGroup, GroupState
from wirekafka.coordinator.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    PartitionCommit,
    SyncRequest,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.groups.classic.test_membership import answer, make_join, world_with_members
from wirekafka.tests.coordinator.groups.test_offsets import commit
from wirekafka.tests.coordinator.groups.world import START_MS, World

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t"
"""The metadata of a consumer that subscribes to the topic `t`."""


def group_of(world: World) -> ClassicGroup:
    group = world.group("g")
    assert group is not None
    return group


def static(instance: str, **changes: Any) -> JoinRequest:
    return make_join(client_id=instance, group_instance_id=instance, **changes)


def renew_session(world: World, member_id: str) -> None:
    """Returns the effects of a heartbeat."""
    group, effects = group_of(world), Effects()
    world.coordinator.rebalancer.renew_session(group, group.members[member_id], effects)
    world.run(effects)


def world_with_static_follower() -> tuple[World, Pending[JoinResult]]:
    """Makes a group that waits for the assignment of its leader, client-1; its follower, one-2, is static."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join())
    joined = world.join(static("one"))
    world.pass_time(0)
    assert answer(joined).member_id == "one-2"
    return world, joined


@pytest.mark.parametrize(("rebalance_timeout_ms", "ends_ms"), [(20_000, 20_000), (7000, 7000), (6000, 6000), (2000, 3000)])
def test_first_rebalance_goes_on_while_members_come_but_no_longer_than_they_want_to_wait(
    rebalance_timeout_ms: int, ends_ms: int
) -> None:
    world = World()
    first = world.join(make_join(rebalance_timeout_ms=rebalance_timeout_ms))
    while not first.is_done:
        world.pass_time(500)
        if not first.is_done:
            world.join(make_join(rebalance_timeout_ms=rebalance_timeout_ms))
    assert world.now_ms == START_MS + ends_ms
    assert "timer join g in 0 ms" not in world.story


def test_first_rebalance_after_a_group_was_empty_waits_for_nobody_who_came_before() -> None:
    world = World()
    world.join(make_join(rebalance_timeout_ms=3000))
    world.join(make_join(rebalance_timeout_ms=3000))
    world.pass_time(3000)
    world.pass_time(10_000)
    assert group_of(world).state is GroupState.EMPTY
    again = world.join(make_join())
    world.pass_time(3000)
    assert again.is_done


def test_rebalance_is_over_once_the_last_who_was_given_an_id_is_given_up() -> None:
    world = world_with_members()
    joining = world.join(make_join(member_id="client-1"))
    assert answer(joining).generation_id == 2
    world.join(make_join(session_timeout_ms=6000, is_member_id_required=True))
    joining = world.join(make_join(member_id="client-1", protocols=[("range", b"new")]))
    world.pass_time(5999)
    assert not joining.is_done
    world.pass_time(1)
    assert answer(joining).generation_id == 3


def test_rebalance_goes_on_while_none_but_static_members_are_left_and_none_has_joined() -> None:
    world, _ = world_with_static_follower()
    world.sync(SyncRequest("g", "client-1", 1))
    world.sync(SyncRequest("g", "one-2", 1, "one"))
    group = group_of(world)
    group.members["one-2"].session_timeout_ms = 60_000
    renew_session(world, "one-2")
    world.pass_time(10_000)
    assert (group.state, list(group.members)) == (GroupState.PREPARING_REBALANCE, ["one-2"])
    world.pass_time(20_000)
    assert (group.state, group.generation_id) == (GroupState.PREPARING_REBALANCE, 1)
    joined = world.join(static("one", member_id="one-2"))
    assert answer(joined).generation_id == 2


def test_assignment_of_the_generation_before_is_not_shown_once_its_rebalance_is_interrupted() -> None:
    world = world_with_members()
    world.join(make_join(member_id="client-1"))
    described = world.coordinator.describe("g")
    assert described is not None
    assert [member.assignment for member in described.members] == [b"0"]
    world.join(make_join())
    described = world.coordinator.describe("g")
    assert described is not None
    assert [member.assignment for member in described.members] == [b"", b""]


def test_static_member_that_is_replaced_before_it_asks_for_its_assignment_is_not_waited_for() -> None:
    world, _ = world_with_static_follower()
    world.sync(SyncRequest("g", "client-1", 1))
    again: JoinResult = answer(world.join(static("one", session_timeout_ms=1_800_000)))
    assert (again.error, again.member_id, again.generation_id) == (ErrorCode.NONE, "one-3", 1)
    group = group_of(world)
    for _ in range(4):
        world.pass_time(9000)
        renew_session(world, "client-1")
    assert (group.state, group.generation_id, list(group.members)) == (GroupState.STABLE, 1, ["client-1", "one-3"])


def test_static_member_that_is_back_while_the_group_waits_lives_as_long_as_its_join_is_parked() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=15_000))
    world.join(static("one", session_timeout_ms=6000))
    again = world.join(static("one", session_timeout_ms=6000))
    world.pass_time(15_000)
    assert answer(again).error is ErrorCode.NONE


def test_static_member_whose_new_id_cannot_be_stored_stays_as_it_was() -> None:
    world, _ = world_with_static_follower()
    world.sync(SyncRequest("g", "client-1", 1))
    world.sync(SyncRequest("g", "one-2", 1, "one"))
    world.disk_error = ErrorCode.KAFKA_STORAGE_ERROR
    changed = static("one", session_timeout_ms=30_000, rebalance_timeout_ms=40_000, protocols=[("range", b"new")])
    assert answer(world.join(changed)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    member = group_of(world).members["one-2"]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms, member.protocols) == (10_000, 20_000, [("range", b"m")])


def test_what_members_read_is_known_after_a_restart() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join(protocols=[("range", SUBSCRIPTION)]))
    world.pass_time(0)
    world.sync(SyncRequest("g", "client-1", 1))
    for topic in ("t", "other"):
        commit(world, CommitRequest("g", [PartitionCommit(topic, 0, 5)], "client-1", 1))
    world.reload()
    errors, _ = world.coordinator.offsets.delete("g", [("t", 0), ("other", 0)])
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]


def test_offsets_do_not_expire_in_a_rebalance() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join(protocols=[("range", SUBSCRIPTION)]))
    world.pass_time(0)
    world.sync(SyncRequest("g", "client-1", 1))
    commit(world, CommitRequest("g", [PartitionCommit("other", 0, 5, commit_timestamp_ms=0)], "client-1", 1))
    world.join(make_join())
    world.now_ms += 10**12
    world.expire()
    assert world.coordinator.offsets.of_group("g")


def test_offsets_of_an_empty_group_whose_record_does_not_say_since_when_age_from_their_commit() -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))
    group = group_of(world)
    group.protocol_type, group.state_timestamp_ms = "consumer", None
    group.update_subscribed_topics()
    world.now_ms += 999
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.now_ms += 1
    world.expire()
    assert not world.coordinator.offsets.of_group("g")


def test_offsets_of_an_empty_group_age_from_when_it_lost_its_members() -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))
    group = group_of(world)
    group.protocol_type, group.state_timestamp_ms = "consumer", START_MS + 500
    group.update_subscribed_topics()
    world.now_ms += 1499
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.now_ms += 1
    world.expire()
    assert not world.coordinator.offsets.of_group("g")


def test_commit_from_outside_is_refused_while_the_group_has_members() -> None:
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        commit(world_with_members(), CommitRequest("g", [PartitionCommit("t", 0, 5)]))


def test_rebalance_that_no_static_member_joins_waits_a_second_before_it_looks_again() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(static("one"))
    world.pass_time(0)
    group_of(world).members["one-1"].rebalance_timeout_ms = 0
    effects = Effects()
    world.coordinator.rebalancer.prepare(group_of(world), "a test", world.now_ms, effects)
    world.run(effects)
    world.story.clear()
    world.pass_time(5000)
    assert [line for line in world.story if line.endswith("join g is due")] == [
        f"at {due_ms} ms join g is due" for due_ms in (0, 1000, 2000, 3000, 4000, 5000)
    ]
