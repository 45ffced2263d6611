"""Classic groups with unusual metadata, which only a broker with consumer groups reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from wirekafka.coordinator.groups.classic.group import ClassicGroup
from wirekafka.coordinator.groups.consumer.consumer_protocol import Subscription, write_assignment
from wirekafka.coordinator.groups.consumer.member import ConsumerMember
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes, MigrationPolicy
from wirekafka.coordinator.groups.requests import (
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld, subscription
from wirekafka.wire import codec

GROUP = "g"
SUBSCRIPTION = subscription(["a"])
Protocols = list[tuple[str, bytes]]


class Stage(ConsumerWorld):
    """A topic `a` of four partitions, and classic members with any metadata."""

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        super().__init__(GroupSettings(initial_rebalance_delay_ms=0), settings, GroupTimes(assignment_interval_ms=0))
        self.image.put("a", 4)
        topic = self.image.find("a")
        assert topic is not None
        self.topic_id = topic.topic_id

    def classic(self, member_id: str, protocols: Protocols, joined: list[JoinResult] | None = None) -> None:
        request = JoinRequest(GROUP, member_id, "c", "/::1", 10_000, 20_000, "consumer", protocols, is_member_id_required=False)
        self.join(request, (joined if joined is not None else []).append)

    def classic_group(self, *protocols: Protocols) -> list[str]:
        """Makes a group of this many members; returns their ids in order, the leader's first."""
        joined: list[JoinResult] = []
        for each in protocols:
            self.classic("", each, joined)
        self.pass_time(0)
        assert {result.error for result in joined} == {ErrorCode.NONE}
        return [result.member_id for result in sorted(joined, key=lambda result: result.member_id)]

    def give(self, members: list[str], assignments: Mapping[str, bytes]) -> None:
        group = self.coordinator.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        for member_id in members:
            self.sync(SyncRequest(GROUP, member_id, group.generation_id, assignments=dict(assignments)), lambda result: None)

    def beat(self, epoch: int = 0, topics: tuple[str, ...] = ("a",)) -> ConsumerHeartbeatResult:
        """Makes a member of the consumer protocol join or leave."""
        request = ConsumerHeartbeat(GROUP, "m", epoch, rebalance_timeout_ms=20_000, subscribed_topic_names=list(topics), owned={})
        return self.heartbeat(request)

    def consumer_members(self) -> dict[str, ConsumerMember]:
        group = self.consumer_group(GROUP)
        assert group is not None
        return group.members

    def assignment(self, *indexes: int) -> bytes:
        return write_assignment({self.topic_id: indexes}, self.image, 0)


def test_group_in_which_two_have_the_same_partition_is_not_converted() -> None:
    stage = Stage()
    members = stage.classic_group([("range", SUBSCRIPTION)], [("range", SUBSCRIPTION)])
    stage.give(members, dict.fromkeys(members, stage.assignment(0, 1)))
    with pytest.raises(KafkaError) as raised:
        stage.beat()
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert "the same partition" in (raised.value.message or "")
    assert isinstance(stage.coordinator.groups[GROUP], ClassicGroup)


def test_partitions_that_there_are_not_are_left_behind_in_a_conversion() -> None:
    stage = Stage()
    members = stage.classic_group([("range", SUBSCRIPTION)])
    twice = struct.pack(">hi", 0, 2) + struct.pack(">h1sii", 1, b"a", 1, 0) + struct.pack(">h1siiii", 1, b"a", 3, 1, 4, -1)
    stage.give(members, {members[0]: twice + struct.pack(">i", -1)})
    assert stage.beat().assignment == {stage.topic_id: frozenset({2, 3})}
    assert stage.consumer_members()[members[0]].assigned[stage.topic_id].keys() == {0, 1}


def test_group_is_converted_while_its_members_change_their_protocols() -> None:
    stage = Stage()
    both: Protocols = [("range", SUBSCRIPTION), ("sticky", subscription(["a"], ["a-0"]))]
    member, other = stage.classic_group(both, both)
    stage.give([member, other], {member: stage.assignment(0), other: stage.assignment(1)})
    stage.classic(member, both[1:])
    group = stage.coordinator.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.protocol_name == "range"
    stage.beat()
    assert stage.consumer_members()[member].subscribed_topic_names == {"a"}


def test_group_that_is_too_large_for_the_other_protocol_keeps_its_own() -> None:
    stage = Stage(ConsumerSettings(max_size=1))
    stage.classic_group([("range", SUBSCRIPTION)], [("range", SUBSCRIPTION)])
    with pytest.raises(KafkaError) as raised:
        stage.beat()
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert "exceeds the consumer group maximum size" in (raised.value.message or "")

    stage = Stage(ConsumerSettings(classic_max_size=1))
    members = stage.classic_group([("range", SUBSCRIPTION)], [("range", SUBSCRIPTION)])
    stage.give(members, {})
    stage.beat()
    stage.beat(epoch=-1)
    assert list(stage.consumer_members()) == members


IN_A_RACK: Protocols = [("range", (3).to_bytes(2, "big") + codec.encode(Subscription(topics=["a", "b"], rack_id="r"), 3, False))]


def test_classic_member_of_a_consumer_group_keeps_the_rack_that_it_named() -> None:
    stage = Stage()
    stage.beat()
    for protocols in (IN_A_RACK, [("range", SUBSCRIPTION)]):
        stage.classic("c", protocols)
        assert stage.consumer_members()["c"].rack_id == "r"


def test_classic_members_are_converted_with_all_that_they_have_said() -> None:
    stage = Stage()
    (member_id,) = stage.classic_group(IN_A_RACK)
    stage.beat()
    member = stage.consumer_members()[member_id]
    assert (member.rack_id, member.client_id, member.client_host, member.rebalance_timeout_ms) == ("r", "c", "/::1", 20_000)
    assert (member.subscribed_topic_names, member.member_epoch, member.previous_member_epoch) == ({"a", "b"}, 1, 1)
    assert member.classic is not None
    assert member.classic.session_timeout_ms == 10_000


UNREADABLE_FIRST: Protocols = [("mine", b""), ("range", SUBSCRIPTION)]
"""The metadata of a member's preferred protocol is invalid."""


def unreadable_group(stage: Stage) -> str:
    """Makes a converted group with a classic member and a consumer member without subscription; returns the classic member."""
    other, member = stage.classic_group([("range", SUBSCRIPTION)], UNREADABLE_FIRST)
    stage.give([other, member], {other: stage.assignment(0), member: stage.assignment(1)})
    stage.beat(topics=())
    return member


def test_classic_member_with_unreadable_metadata_is_given_its_partitions() -> None:
    stage = Stage()
    member = unreadable_group(stage)
    synced: list[SyncResult] = []
    stage.sync(SyncRequest(GROUP, member, 1), synced.append)
    assert synced == [SyncResult(ErrorCode.NONE, None, None, stage.assignment(1))]


def test_group_becomes_classic_again_though_metadata_of_a_member_is_unreadable() -> None:
    stage = Stage()
    member = unreadable_group(stage)
    other = next(name for name in stage.consumer_members() if name not in ("m", member))
    stage.leave(GROUP, LeavingMember(other))
    stage.beat(epoch=-1)
    group = stage.coordinator.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert list(group.members) == [member]
    assert (group.protocol_name, group.members[member].assignment) == ("mine", stage.assignment(1))


def test_large_classic_group_is_converted_in_one_batch_or_not_at_all() -> None:
    stage = Stage()
    members = stage.classic_group(*[[("range", SUBSCRIPTION)]] * 400)
    stage.give(members, {members[0]: stage.assignment(0, 1)})
    request = ConsumerHeartbeat(GROUP, "m", 0, rebalance_timeout_ms=20_000, subscribed_topic_names=["a"], owned={})
    _, effects = stage.machine.heartbeats.heartbeat(request, stage.now_ms)
    assert len(effects.records) > 1000
    assert effects.is_atomic


def test_records_of_a_conversion_never_have_a_target_of_a_later_epoch_than_the_groups() -> None:
    stage = Stage()
    members = stage.classic_group([("range", SUBSCRIPTION)], [("range", SUBSCRIPTION)])
    stage.give(members, {members[0]: stage.assignment(0, 1)})
    classic = stage.group(GROUP)
    assert classic is not None
    classic.generation_id = 57
    request = ConsumerHeartbeat(GROUP, "m", 0, rebalance_timeout_ms=20_000, subscribed_topic_names=["a"], owned={})
    _, effects = stage.machine.heartbeats.heartbeat(request, stage.now_ms)
    group = stage.machine.groups.new_group(GROUP)
    for record in effects.records[1:]:
        group.apply(record)  # type: ignore[arg-type]
        assert group.assignment_epoch <= group.group_epoch


def test_group_without_members_in_its_first_rebalance_becomes_a_consumer_group() -> None:
    stage = Stage()
    joined: list[JoinResult] = []
    stage.classic("", [("range", SUBSCRIPTION)], joined)
    group = stage.group(GROUP)
    assert group is not None
    (member_id,) = group.members
    stage.leave(GROUP, LeavingMember(member_id))
    assert (group.state_name, len(group.members)) == ("PreparingRebalance", 0)
    assert stage.beat().member_epoch == 1
    assert list(stage.consumer_members()) == ["m"]
    stage.pass_time(60_000)


def classic_heartbeat(stage: Stage, member_id: str) -> ErrorCode:
    """Returns the answer to a Heartbeat of a classic member in its own generation."""
    request = HeartbeatRequest(GROUP, member_id, stage.consumer_members()[member_id].member_epoch)
    error, effects = stage.coordinator.membership.heartbeat(request, stage.now_ms)
    stage.run(effects)
    return error


def settle_with_classic_member(stage: Stage) -> None:
    """Two members of either protocol, m and c, have two partitions each, and m leaves."""
    epoch = stage.beat().member_epoch
    stage.pass_time(1000)
    stage.classic("c", [("range", SUBSCRIPTION)])
    given = stage.heartbeat(ConsumerHeartbeat(GROUP, "m", epoch)).assignment
    assert given is not None
    owned = {topic_id: list(indexes) for topic_id, indexes in given.items()}
    stage.heartbeat(ConsumerHeartbeat(GROUP, "m", epoch, owned=owned))
    stage.classic("c", [("range", SUBSCRIPTION)])
    assert [len(member.assigned[stage.topic_id]) for member in stage.consumer_members().values()] == [2, 2]
    assert classic_heartbeat(stage, "c") is ErrorCode.NONE
    stage.beat(epoch=-1)


def test_classic_members_that_may_not_downgrade_take_over_the_partitions_of_the_last_consumer_member() -> None:
    stage = Stage(ConsumerSettings(migration_policy=MigrationPolicy.UPGRADE))
    settle_with_classic_member(stage)
    assert classic_heartbeat(stage, "c") is ErrorCode.REBALANCE_IN_PROGRESS
    stage.classic("c", [("range", SUBSCRIPTION)])
    assert stage.consumer_members()["c"].assigned[stage.topic_id].keys() == {0, 1, 2, 3}
    assert classic_heartbeat(stage, "c") is ErrorCode.NONE


def test_classic_member_is_not_told_to_join_again_before_the_next_target_may_be_computed() -> None:
    stage = Stage(ConsumerSettings(migration_policy=MigrationPolicy.UPGRADE))
    stage.times = stage.times._replace(assignment_interval_ms=1000)
    settle_with_classic_member(stage)
    stage.pass_time(999)
    assert classic_heartbeat(stage, "c") is ErrorCode.NONE
    stage.pass_time(1)
    assert classic_heartbeat(stage, "c") is ErrorCode.REBALANCE_IN_PROGRESS
