"""Assignments that are too large for the loop: the answers to members, and the state of the group, until they are computed."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.member import ConsumerMember
from wirekafka.coordinator.groups.consumer.records import MemberRecord, TargetEpochRecord, TargetRecord
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from wirekafka.coordinator.groups.consumer.settings import GroupTimes
from wirekafka.coordinator.groups.modern import target_assignment
from wirekafka.coordinator.groups.modern.target_assignment import STORED_AT_ONCE
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.share.records import ShareMember, ShareMemberRecord, ShareTargetRecord
from wirekafka.coordinator.groups.share.requests import ShareHeartbeat
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld
from wirekafka.tests.coordinator.groups.share.world import ShareWorld


class Stage(ConsumerWorld):
    """A topic `a` of 10,000 partitions."""

    def __init__(self) -> None:
        super().__init__(times=GroupTimes(assignment_interval_ms=0))
        self.image.put("a", 10_000)

    def joining(self, member_id: str, instance_id: str | None = None) -> ConsumerHeartbeatResult:
        return self.heartbeat(self.joins(member_id, instance_id))

    def joins(self, member_id: str, instance_id: str | None = None) -> ConsumerHeartbeat:
        request = ConsumerHeartbeat("g", member_id, 0, rebalance_timeout_ms=20_000, subscribed_topic_names=["a"], owned={})
        request.instance_id = instance_id
        return request

    def beat(self, member_id: str, epoch: int | None = None) -> ConsumerHeartbeatResult:
        epoch = self.modern.members[member_id].member_epoch if epoch is None else epoch
        return self.heartbeat(ConsumerHeartbeat("g", member_id, epoch))

    def put_members(self, count: int) -> None:
        """Adds members of the topic `a` without heartbeats."""
        names = frozenset("a")
        self.run(
            Effects(
                records=[MemberRecord("g", f"m{n}", ConsumerMember(f"m{n}", subscribed_topic_names=names)) for n in range(count)]
            )
        )

    @property
    def modern(self) -> ConsumerGroup:
        group = self.consumer_group("g")
        assert group is not None
        return group


def count_of(assignment: Partitions | None) -> int:
    return sum(map(len, (assignment or {}).values()))


def test_member_of_a_large_group_gets_its_partitions_with_the_heartbeat_after_they_are_computed() -> None:
    stage = Stage()
    assert count_of(stage.joining("m").assignment) == 0
    assert stage.modern.state_name == "Assigning"
    assert len(stage.work.waiting) == 1
    stage.work.run()
    assert stage.modern.assignment_epoch == stage.modern.group_epoch
    assert count_of(stage.beat("m").assignment) == 10_000
    assert stage.modern.state_name == "Stable"


def test_heartbeats_while_an_assignment_is_computed_get_the_current_one_and_begin_no_other() -> None:
    stage = Stage()
    stage.joining("m")
    stage.work.run()
    stage.beat("m")
    stage.joining("n")
    assert stage.beat("m").assignment is None
    assert count_of(stage.beat("n").assignment) == 0
    assert len(stage.work.waiting) == 1
    stage.work.run()
    assert [count_of(stage.modern.targets[name]) for name in "mn"] == [5000, 5000]


def test_small_group_is_assigned_in_the_heartbeat() -> None:
    stage = Stage()
    stage.image.delete("a")
    stage.image.put("a", 100)
    assert count_of(stage.joining("m").assignment) == 100
    assert stage.work.waiting == []


def test_thousand_members_over_ten_thousand_partitions_are_stored_in_pieces() -> None:
    stage = Stage()
    stage.put_members(999)
    _, effects = stage.machine.heartbeats.heartbeat(stage.joins("m"), stage.now_ms)
    assert len(effects.records) <= 4
    work = effects.background
    assert work is not None
    effects.background = None
    stage.run(effects)
    assert work.begin()
    sizes = []
    for piece in work.then(work.compute(), stage.now_ms):
        sizes.append(sum(1 + 1 + count_of(record.target) for record in piece.records if isinstance(record, TargetRecord)))
        assert stage.modern.assignment_epoch == 1
        assert stage.run(piece) is None
    assert max(sizes) <= STORED_AT_ONCE
    assert sum(sizes) == 12_000
    assert stage.modern.assignment_epoch == 2
    assert {count_of(target) for target in stage.modern.targets.values()} == {10}


def test_share_group_whose_members_subscribe_to_different_topics_is_stored_a_member_at_a_time() -> None:
    world = ShareWorld()
    names = [f"t{number}" for number in range(500)]
    for name in names:
        world.image.put(name, 1)
    members = [ShareMember(f"m{n}", subscribed_topic_names=frozenset(names[n:])) for n in range(199)]
    world.run(Effects(records=[ShareMemberRecord("g", member.member_id, member) for member in members]))
    request = ShareHeartbeat("g", "m", 0, subscribed_topic_names=names)
    _, effects = world.shares.heartbeat(request, world.shares.uninitialized(request), world.now_ms)
    work = effects.background
    assert work is not None
    effects.background = None
    world.run(effects)
    assert work.begin()
    largest = 0
    for piece in work.then(work.compute(), world.now_ms):
        targets = [record.target for record in piece.records if isinstance(record, ShareTargetRecord)]
        largest = max(largest, sum(1 + 2 * count_of(target) for target in targets))
        assert world.run(piece) is None
    assert largest <= STORED_AT_ONCE
    group = world.shares.group("g")
    assert group.assignment_epoch == group.group_epoch
    assert all(group.targets[member.member_id].keys() == _ids(world, member) for member in members)
    assert world.heartbeat(ShareHeartbeat("g", "m", 1)).assignment == group.targets["m"]


def _ids(world: ShareWorld, member: ShareMember) -> set[bytes]:
    return {world.image.topics[name].topic_id for name in member.subscribed_topic_names}


def test_member_that_leaves_while_an_assignment_is_computed_gets_no_record() -> None:
    stage = Stage()
    stage.joining("m")
    stage.joining("n")
    stage.work.run()
    stage.joining("o")
    stage.heartbeat(ConsumerHeartbeat("g", "n", -1))
    stage.work.run()
    group = stage.modern
    assert group.targets.keys() <= {"m", "o"}
    assert group.assignment_epoch < group.group_epoch
    stage.beat("m")
    stage.work.run()
    assert [count_of(group.targets[name]) for name in "mo"] == [5000, 5000]
    assert group.assignment_epoch == group.group_epoch


def test_static_member_that_comes_back_while_an_assignment_is_computed_gets_the_target_of_its_name() -> None:
    stage = Stage()
    stage.joining("m")
    stage.joining("s1", "s")
    stage.work.run()
    stage.beat("m")
    assert len(stage.work.waiting) == 1
    stage.heartbeat(ConsumerHeartbeat("g", "s1", -2, instance_id="s"))
    stage.joining("s2", "s")
    stage.work.run()
    assert {name: count_of(target) for name, target in stage.modern.targets.items()} == {"m": 5000, "s2": 5000}


def test_assignor_that_fails_is_asked_again_by_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch, logged_faults: list[str]
) -> None:
    stage = Stage()
    with monkeypatch.context() as patched:
        patched.setattr(target_assignment, "AssignedMember", None)
        stage.joining("m")
        stage.work.run()
    assert "Work of a group off the loop failed" in logged_faults.pop()
    assert stage.modern.assignment_epoch == 1
    stage.beat("m")
    stage.work.run()
    assert count_of(stage.modern.targets["m"]) == 10_000


def test_assignment_for_which_the_workers_have_no_room_is_computed_after_the_next_heartbeat() -> None:
    stage = Stage()
    stage.joining("m")
    with capture_logs() as lines:
        stage.work.refuse()
    assert [line["log_level"] for line in lines] == ["info"]
    assert stage.modern.assignment_epoch == 1
    stage.beat("m")
    stage.work.run()
    assert count_of(stage.modern.targets["m"]) == 10_000


def test_full_disk_ends_an_assignment_and_the_next_heartbeat_computes_it_again() -> None:
    stage = Stage()
    stage.joining("m")
    stage.disk_error = ErrorCode.KAFKA_STORAGE_ERROR
    stage.work.run()
    assert stage.modern.targets == {}
    stage.disk_error = None
    stage.beat("m")
    stage.work.run()
    assert count_of(stage.beat("m").assignment) == 10_000


def test_heartbeat_whose_records_cannot_be_stored_begins_no_assignment() -> None:
    stage = Stage()
    stage.disk_error = ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        stage.joining("m")
    assert stage.work.waiting == []


def test_group_that_ends_while_an_assignment_is_computed_gets_no_record() -> None:
    stage = Stage()
    stage.joining("m")
    stage.unload()
    stage.story.clear()
    stage.work.run()
    assert stage.story == []


def test_targets_of_an_assignment_that_was_stored_in_part_do_not_give_a_partition_to_two_members() -> None:
    stage = Stage()
    topic_id = stage.image.topics["a"].topic_id
    stage.joining("m")
    stage.joining("n")
    stage.work.run()
    whole: Partitions = {topic_id: frozenset(range(5000))}
    stage.run(Effects(records=[TargetRecord("g", "m", whole), TargetRecord("g", "n", whole), TargetEpochRecord("g", 1)]))
    stage.beat("m")
    stage.work.run()
    targets = stage.modern.targets
    assert [count_of(targets[name]) for name in "mn"] == [5000, 5000]
    assert not targets["m"][topic_id] & targets["n"][topic_id]
