"""Groups as another broker leaves them in the log: what is half done there is brought to its end here."""

from __future__ import annotations

from wirekafka.coordinator.consumer.member import ConsumerMember
from wirekafka.coordinator.consumer.records import CurrentRecord, GroupEpochRecord, MemberRecord, TargetEpochRecord
from wirekafka.coordinator.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.consumer.settings import GroupTimes
from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.records import CoordinatorRecord
from wirekafka.tests.coordinator.consumer.world import ConsumerWorld


def taken_over(*records: CoordinatorRecord) -> ConsumerWorld:
    """A broker that finds these records in the log, with a topic `a`."""
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
