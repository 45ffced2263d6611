"""Groups that another broker has left in the log: unfinished steps are completed here."""

from __future__ import annotations

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState, ResolvedRegex
from wirekafka.coordinator.groups.consumer.records import (
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
)
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.consumer.settings import GroupTimes
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupMetadataValue, GroupRecord
from wirekafka.coordinator.groups.types import CLASSIC
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld
from wirekafka.tests.coordinator.groups.world import START_MS
from wirekafka.wire.batch import Record, build_batch


def taken_over(*records: CoordinatorRecord) -> ConsumerWorld:
    """Opens a broker with these records in its log and a topic `a`."""
    world = ConsumerWorld(times=GroupTimes(assignment_interval_ms=0))
    world.image.put("a", 2)
    world.run(Effects(records=list(records), is_replayed=False))
    world.reload()
    return world


def test_expression_whose_topics_were_never_written_down_is_looked_up_for_its_member() -> None:
    by_name = ConsumerMember("m", 2, 1, subscribed_topic_names=frozenset("a"))
    by_expression = ConsumerMember("n", 2, 1, subscribed_topic_regex="a.*")
    world = ConsumerWorld()
    world.image.put("a", 2)
    metadata_hash = world.image.hashes.of_topics(["a"])
    world = taken_over(
        MemberRecord("g", "m", by_name),
        MemberRecord("g", "n", by_expression),
        GroupEpochRecord("g", 2, metadata_hash),
        TargetEpochRecord("g", 2),
        CurrentRecord("g", "m", by_name),
        CurrentRecord("g", "n", by_expression),
    )
    world.heartbeat(ConsumerHeartbeat("g", "m", 2))
    given = world.heartbeat(ConsumerHeartbeat("g", "n", 2)).assignment
    assert given is not None
    assert world.partitions(given) == "a-1"


def test_expression_that_only_another_engine_knows_keeps_nobody_out() -> None:
    reader = ConsumerMember("m", 2, 1, subscribed_topic_regex="(?=a)")
    world = taken_over(
        MemberRecord("g", "m", reader),
        RegexRecord("g", "(?=a)", ResolvedRegex(frozenset("a"), 1, START_MS)),
        GroupEpochRecord("g", 2, 0),
        TargetEpochRecord("g", 2),
        CurrentRecord("g", "m", reader),
    )
    joining = ConsumerHeartbeat("g", "n", 0, rebalance_timeout_ms=1000, subscribed_topic_regex="(?=a)", owned={})
    given = world.heartbeat(joining).assignment
    assert given is not None
    assert world.partitions(given) == "a-1"


def test_metadata_of_topics_as_kafka_once_wrote_it_is_taken_out_of_the_log() -> None:
    world = taken_over(MemberRecord("g", "m", ConsumerMember("m", 2)), GroupEpochRecord("g", 2, 0))
    key, _ = PartitionMetadataRecord("g").encode()
    world.log.append(build_batch([Record(key, b"\0\0\1\0", (), START_MS)]))
    world.reload()
    world.story.clear()
    world.heartbeat(ConsumerHeartbeat("g", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["a"], owned={}))
    assert "append: partition metadata of g is gone" in world.story
    world.image.put("a", 3)
    world.story.clear()
    world.heartbeat(ConsumerHeartbeat("g", "m", 3))
    assert "append: partition metadata of g is gone" not in world.story


def test_records_of_a_group_of_another_type_are_skipped() -> None:
    members = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="c", members=[])
    world = taken_over(GroupRecord("g", members), GroupEpochRecord("g", 2, 0), MemberRecord("h", "m", None))
    assert world.coordinator.groups["g"].group_type == CLASSIC
    assert "h" not in world.coordinator.groups


def test_member_that_was_giving_up_partitions_has_to_after_a_restart_too() -> None:
    slow = ConsumerMember("m", 2, 1, MemberState.UNREVOKED_PARTITIONS, rebalance_timeout_ms=7000)
    world = taken_over(
        MemberRecord("g", "m", slow), GroupEpochRecord("g", 3, 0), TargetEpochRecord("g", 3), CurrentRecord("g", "m", slow)
    )
    world.pass_time(7000)
    group = world.consumer_group("g")
    assert group is not None
    assert group.is_empty


def test_assignment_from_the_future_does_not_hold_up_the_next_one_without_an_interval() -> None:
    reader = ConsumerMember("m", 2, 1, subscribed_topic_names=frozenset("a"))
    world = taken_over(
        MemberRecord("g", "m", reader),
        GroupEpochRecord("g", 2, 0),
        TargetEpochRecord("g", 2, timestamp_ms=1 << 50),
        CurrentRecord("g", "m", reader),
    )
    given = world.heartbeat(ConsumerHeartbeat("g", "m", 2)).assignment
    assert given is not None
    assert world.partitions(given) == "a-0 a-1"
