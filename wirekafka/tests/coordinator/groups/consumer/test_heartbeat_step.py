"""Results of single heartbeats that transcripts do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer import regexes
from wirekafka.coordinator.groups.consumer.member import ConsumerMember
from wirekafka.coordinator.groups.consumer.records import MemberRecord
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.groups.consumer.timers import MemberExpired
from wirekafka.coordinator.groups.modern.heartbeat_step import RECORDS_AT_ONCE
from wirekafka.coordinator.groups.modern.topics import MetadataHashes
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld


class Stage(ConsumerWorld):
    """A topic `a` of four partitions, and `b` of two."""

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        super().__init__(consumer_settings=settings, times=GroupTimes(assignment_interval_ms=0))
        self.image.put("a", 4)
        self.image.put("b", 2)

    def joins(self, member_id: str, *topics: str, regex: str | None = None, assignor: str | None = None) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(
            *("g", member_id, 0, "c", "/::1"),
            rebalance_timeout_ms=20_000,
            subscribed_topic_names=list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            owned={},
        )

    def steps_of(self, request: ConsumerHeartbeat) -> Effects:
        _, effects = self.machine.heartbeats.heartbeat(request, self.now_ms)
        return effects

    def assignor(self) -> str:
        return self.machine.groups.describe("g").assignor


def test_expressions_are_looked_up_again_after_a_long_time_though_no_topic_has_come() -> None:
    stage = Stage(ConsumerSettings(regex_refresh_interval_ms=20_000))
    epoch = stage.heartbeat(stage.joins("m", regex="a|b")).member_epoch
    for ms, is_looked_up in [(20_000, False), (1, True), (20_000, False), (1, True)]:
        stage.pass_time(ms)
        stage.story.clear()
        stage.heartbeat(ConsumerHeartbeat("g", "m", epoch, "c", "/::1"))
        assert ("append: regex a|b matches a b" in stage.story) is is_looked_up


def test_topics_of_an_expression_count_no_longer_than_somebody_has_it() -> None:
    stage = Stage()
    for regex, topics in [("a", ["a"]), ("b", ["b"]), ("a|b", ["a", "b"]), ("", [])]:
        stage.heartbeat(stage.joins("m", regex=regex))
        group = stage.consumer_group("g")
        assert group is not None
        assert group.metadata_hash == stage.image.hashes.of_topics(topics)


def test_member_that_changes_its_mind_about_the_assignor_is_counted_once() -> None:
    stage = Stage()
    for member_id in "mno":
        stage.heartbeat(stage.joins(member_id, "a", assignor="range"))
    for member_id in "pq":
        stage.heartbeat(stage.joins(member_id, "a", assignor="uniform"))
    stage.heartbeat(stage.joins("m", "a", "b", assignor="uniform"))
    assert stage.assignor() == "uniform"
    # By ranges the first of five members has a partition of `a` and all of `b`, and the last has nothing.
    group = stage.consumer_group("g")
    assert group is not None
    assert sorted(sum(map(len, target.values())) for target in group.targets.values()) == [1, 1, 1, 1, 2]


def test_member_that_calls_from_elsewhere_is_written_down_anew() -> None:
    stage = Stage()
    epoch = stage.heartbeat(stage.joins("m", "a")).member_epoch
    assert stage.steps_of(ConsumerHeartbeat("g", "m", epoch, "c", "/::1")).records == []
    for client_id, client_host in [("c", "/::2"), ("d", "/::1")]:
        effects = stage.steps_of(ConsumerHeartbeat("g", "m", epoch, client_id, client_host))
        assert len(effects.records) == 1
        assert stage.run(effects) is None
        (member,) = stage.machine.groups.describe("g").members
        assert (member.client_id, member.client_host) == (client_id, client_host)


def test_nothing_is_due_any_more_once_the_log_is_gone() -> None:
    stage = Stage()
    epoch = stage.heartbeat(stage.joins("m", "a")).member_epoch
    stage.heartbeat(stage.joins("n", "a"))
    topic = stage.image.find("a")
    assert topic is not None
    stage.heartbeat(ConsumerHeartbeat("g", "m", epoch, "c", "/::1", owned={topic.topic_id: [0, 1, 2, 3]}))
    assert len(stage.timers) == 3
    stage.unload()
    assert stage.timers == {}


def test_records_are_one_batch_unless_they_are_too_many() -> None:
    stage = Stage()
    assert stage.steps_of(stage.joins("m", "a")).is_atomic
    stage.image.put("a", 2 * RECORDS_AT_ONCE)
    reader = ConsumerMember("", subscribed_topic_names=frozenset("a"))
    stage.run(
        Effects(
            records=[
                MemberRecord("g", f"m{number}", replace(reader, member_id=f"m{number}")) for number in range(RECORDS_AT_ONCE)
            ]
        )
    )
    effects = stage.steps_of(stage.joins("m", "a"))
    assert len(effects.records) > RECORDS_AT_ONCE
    assert not effects.is_atomic


def test_members_of_one_subscription_expire_without_a_look_at_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConsumerWorld(times=GroupTimes(assignment_interval_ms=1_000_000))
    names = [f"t{number}" for number in range(10)]
    for name in names:
        world.image.put(name, 1)
    for number in range(5):
        world.heartbeat(
            ConsumerHeartbeat("g", f"m{number}", 0, rebalance_timeout_ms=1, subscribed_topic_names=list(names), owned={})
        )
    world.pass_time(0)
    monkeypatch.setattr(MetadataHashes, "of_topics", lambda *_: pytest.fail("the topics are hashed again"))
    for number in range(4):
        _, effects = world.coordinator.on_timer(MemberExpired("g", f"m{number}"), world.now_ms)
        world.run(effects)
    group = world.consumer_group("g")
    assert group is not None
    assert list(group.members) == ["m4"]


def test_member_two_epochs_behind_is_fenced_though_it_owns_nothing_that_it_may_not() -> None:
    stage = Stage()
    epochs = [stage.heartbeat(stage.joins("m", "a")).member_epoch]
    for partition_count in (5, 6):
        stage.image.put("a", partition_count)
        epochs.append(stage.heartbeat(ConsumerHeartbeat("g", "m", epochs[-1])).member_epoch)
    assert epochs == [2, 3, 4]
    topic = stage.image.find("a")
    assert topic is not None
    owned = {topic.topic_id: [0, 1]}
    assert stage.heartbeat(ConsumerHeartbeat("g", "m", 3, owned=owned)).member_epoch == 4
    with pytest.raises(KafkaError) as raised:
        stage.heartbeat(ConsumerHeartbeat("g", "m", 2, owned=owned))
    assert raised.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_heartbeat_looks_up_a_part_of_many_expressions_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regexes, "WORK_AT_ONCE", 10)
    stage = Stage()
    for number in range(6):
        stage.heartbeat(stage.joins(f"m{number}", regex=f"a|{number:03}"))
    group = stage.consumer_group("g")
    assert group is not None
    stage.image.put("a2", 1)
    stage.now_ms += regexes.MIN_REFRESH_INTERVAL_MS + 1
    looked_up = []
    for _ in range(4):
        stage.heartbeat(ConsumerHeartbeat("g", "m0", group.members["m0"].member_epoch))
        looked_up.append(sum(resolved.version == stage.image.version for resolved in group.resolved.values()))
    assert looked_up == [2, 4, 6, 6]
