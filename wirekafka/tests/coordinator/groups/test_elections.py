"""Groups that move between the brokers of a cluster: two runtimes over the same logs, as after a failover."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.cluster import CoordinatorCluster
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from wirekafka.coordinator.groups.consumer.runtime import ConsumerGroupRuntime
from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
from wirekafka.coordinator.groups.requests import CommitRequest, HeartbeatRequest, JoinRequest, PartitionCommit, SyncRequest
from wirekafka.coordinator.groups.runtime import GROUPS_IN_SLICE, GroupRuntime
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.coordinator.state_topic import ShardState
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.group_configs import GroupConfigs
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.memory_store import MemoryStore
from wirekafka.testing.memory_topics import MemoryTopics
from wirekafka.tests.coordinator.held_work import HeldWork
from wirekafka.tests.coordinator.manual_clock import ManualClock

PARTITIONS = 3


class Member:
    """The groups of one broker of a cluster."""

    def __init__(self, topics: MemoryTopics) -> None:
        self.topics = topics
        self.clock = ManualClock(1_000_000)
        config = BrokerConfig({"group.initial.rebalance.delay.ms": "0"})
        clock = cast(Clock, self.clock)
        gate = ReplyGate(Purgatory(clock))
        self.runtime = GroupRuntime(config, clock, cast(HostedTopics, topics), gate, HeldWork().submit)
        cluster = SimpleNamespace(partition_count=lambda topic: PARTITIONS)
        self.runtime.join_cluster(cast(CoordinatorCluster, cluster))
        self.knows_topics = True
        hosted, features = cast(HostedTopics, topics), SimpleNamespace(require=lambda name: None)
        view = SimpleNamespace(
            features=features,
            group_configs=GroupConfigs(config, MemoryStore()),
            on_change=topics.on_change,
            on_delete=topics.on_delete,
        )
        self.live_topics = LiveTopics(hosted, None, self.clock.now_ms, lambda: self.knows_topics)
        self.consumer_groups = ConsumerGroupRuntime(config, clock, self.runtime, cast(HostedTopics, view), self.live_topics)

    def partition(self, group_id: str) -> Partition:
        assert self.topics.topic is not None
        return cast(Partition, self.topics.topic.partitions[self.runtime.partition_of(group_id)])

    def lead(self, group_id: str, epoch: int, *, ms: int = 1_000) -> None:
        partition = self.partition(group_id)
        partition.leader_epoch = epoch
        self.runtime.load_partition(partition)
        self.clock.pass_time(ms)

    def resign(self, group_id: str, epoch: int | None, *, ms: int = 1_000) -> None:
        self.runtime.unload_partition(self.runtime.partition_of(group_id), epoch)
        self.clock.pass_time(ms)

    def commit(self, group_id: str, offset: int) -> ErrorCode:
        try:
            [error] = self.runtime.commit_offsets(CommitRequest(group_id, [PartitionCommit("t", 0, offset)]))
        except KafkaError as refused:
            return refused.code
        return error

    def offset(self, group_id: str) -> int | ErrorCode | None:
        try:
            committed = self.runtime.fetch_offsets(group_id)
        except KafkaError as refused:
            return refused.code
        return committed["t"][0].offset if committed else None

    def beat(self, member_id: str, epoch: int, **settings: Any) -> ConsumerHeartbeatResult | ErrorCode:
        """Sends a heartbeat of a consumer group's member."""
        request = ConsumerHeartbeat("g", member_id, epoch, "client", "/host", **settings)
        try:
            return self.consumer_groups.heartbeat(request)
        except KafkaError as refused:
            return refused.code

    def join(self, group_id: str, member_id: str = "") -> Pending[Any]:
        request = JoinRequest(group_id, member_id, "client", "/host", 10_000, 20_000, "consumer", [("range", b"m")], None)
        request.is_member_id_required = False
        return self.runtime.join(request)


def two_members() -> tuple[Member, Member]:
    topics = MemoryTopics(PARTITIONS)
    topics.create("t", 1)
    topics.create_internal(GROUP_METADATA_TOPIC)
    return Member(topics), Member(topics)


def result(pending: Pending[Any]) -> Any:
    found: list[Any] = []
    pending.then(found.append)
    return found[0] if found else None


def test_group_moves_with_its_offsets_to_the_new_leader() -> None:
    first, second = two_members()
    first.lead("g", 1)
    assert first.commit("g", 5) is ErrorCode.NONE
    assert (second.commit("g", 6), second.offset("g")) == (ErrorCode.NOT_COORDINATOR,) * 2
    first.resign("g", 2)
    second.lead("g", 2)
    assert (first.commit("g", 7), first.offset("g")) == (ErrorCode.NOT_COORDINATOR,) * 2
    assert second.offset("g") == 5
    assert second.commit("g", 8) is ErrorCode.NONE
    second.resign("g", 3)
    first.lead("g", 3)
    assert first.offset("g") == 8


def test_group_moves_with_its_members_and_their_sessions() -> None:
    first, second = two_members()
    first.lead("g", 1)
    joining = first.join("g")
    first.clock.pass_time(0)
    joined = result(joining)
    first.runtime.sync(SyncRequest("g", joined.member_id, joined.generation_id))
    first.resign("g", 2)
    second.lead("g", 2)
    beat = HeartbeatRequest("g", joined.member_id, joined.generation_id)
    assert first.runtime.heartbeat(beat) is ErrorCode.NOT_COORDINATOR
    assert second.runtime.heartbeat(beat) is ErrorCode.NONE
    second.clock.pass_time(10_000)
    assert second.runtime.heartbeat(beat) is ErrorCode.UNKNOWN_MEMBER_ID


def test_parked_requests_get_not_coordinator_when_the_leader_changes() -> None:
    first, _ = two_members()
    first.lead("g", 1)
    joining = first.join("g")
    first.clock.pass_time(0)
    assert result(joining).error is ErrorCode.NONE
    told: list[Any] = []
    first.join("g").then(told.append)
    assert told == []
    first.resign("g", 2)
    assert [each.error for each in told] == [ErrorCode.NOT_COORDINATOR]
    assert not first.runtime.coordinator.groups


def test_request_that_cannot_be_ended_does_not_keep_the_other_groups_in_memory(logged_faults: list[str]) -> None:
    first, _ = two_members()
    names = [name for name in map(str, range(30)) if first.runtime.partition_of(name) == first.runtime.partition_of("g")]
    first.lead("g", 1)
    for name in names:
        joining = first.join(name)
        first.clock.pass_time(0)
        assert result(joining).error is ErrorCode.NONE
        first.join(name).then(lambda answer: 1 // 0)
    first.resign("g", 2)
    assert logged_faults
    logged_faults.clear()
    assert not first.runtime.coordinator.groups


def test_heartbeat_is_accepted_while_the_group_is_loaded() -> None:
    first, second = two_members()
    first.lead("g", 1)
    for number in range(1_000):
        first.commit(f"{number}", 1)
    first.commit("g", 1)
    second.lead("g", 2, ms=0)
    assert second.commit("g", 2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert second.runtime.heartbeat(HeartbeatRequest("g", "m", 1)) is ErrorCode.NONE
    second.clock.pass_time(1_000)
    assert second.commit("g", 2) is ErrorCode.NONE


def test_marker_is_refused_while_its_partition_is_loaded_so_that_the_load_misses_none() -> None:
    first, second = two_members()
    first.lead("g", 1)
    for number in range(1_000):
        first.commit(f"{number}", 1)
    second.lead("g", 2, ms=0)
    index, refused = second.runtime.partition_of("g"), 0
    while second.commit("g", 2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        with pytest.raises(KafkaError) as caught:
            second.runtime.complete_transaction(index, 7, 0, coordinator_epoch=0, is_commit=True, transaction_version=1)
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        refused += 1
        second.clock.pass_time(1)
    assert refused > 1


def test_member_that_syncs_while_its_group_is_loaded_joins_again() -> None:
    first, second = two_members()
    first.lead("g", 1)
    for number in range(1_000):
        first.commit(f"{number}", 1)
    second.lead("g", 2, ms=0)
    assert second.commit("g", 2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert result(second.runtime.sync(SyncRequest("g", "m", 1))).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_election_and_resignation_of_an_older_epoch_are_ignored() -> None:
    first, _ = two_members()
    first.lead("g", 5)
    first.commit("g", 1)
    first.resign("g", 4)
    assert first.offset("g") == 1
    first.resign("g", 6)
    first.lead("g", 5)
    assert first.offset("g") is ErrorCode.NOT_COORDINATOR


def test_deleted_partition_is_unloaded_without_an_epoch() -> None:
    first, _ = two_members()
    first.lead("g", 5)
    first.commit("g", 1)
    first.resign("g", None)
    assert first.offset("g") is ErrorCode.NOT_COORDINATOR


def test_groups_of_a_lost_partition_are_removed_in_slices() -> None:
    first, _ = two_members()
    names = [name for name in map(str, range(5 * PARTITIONS * GROUPS_IN_SLICE)) if first.runtime.partition_of(name) == 0]
    first.lead(names[0], 1)
    for name in names:
        assert first.commit(name, 1) is ErrorCode.NONE
    counts = [len(first.runtime.coordinator.groups)]
    first.resign(names[0], 2, ms=0)
    while first.runtime.coordinator.groups:
        counts.append(len(first.runtime.coordinator.groups))
        assert first.offset(names[-1]) is ErrorCode.NOT_COORDINATOR
        first.clock.pass_time(1)
    assert {before - after for before, after in zip(counts, counts[1:], strict=False)} == {GROUPS_IN_SLICE}


def test_member_of_a_group_that_is_being_removed_does_not_time_out() -> None:
    first, _ = two_members()
    first.lead("g", 1)
    joining = first.join("g")
    first.clock.pass_time(0)
    assert result(joining) is not None
    first.runtime.state._shards[first.runtime.partition_of("g")].state = ShardState.RESIGNED
    first.clock.pass_time(20_000)
    group = first.runtime.coordinator.groups["g"]
    assert not group.is_empty


def test_offsets_of_a_topic_that_the_broker_does_not_know_yet_are_kept_by_a_load() -> None:
    first, second = two_members()
    first.lead("g", 1)
    first.commit("g", 5)
    del second.topics.topics["t"]
    first.resign("g", 2)
    second.lead("g", 2)
    assert second.offset("g") == 5


def test_topic_that_is_deleted_and_created_again_is_forgotten_in_slices_before_it_is_loaded() -> None:
    first, second = two_members()
    names = [str(number) for number in range(20 * GROUPS_IN_SLICE)]
    for index in range(PARTITIONS):
        for member, epoch in ((first, 7), (second, 8)):
            partition = cast(Partition, member.topics.topic and member.topics.topic.partitions[index])
            partition.leader_epoch = epoch
            member.runtime.load_partition(partition)
            member.clock.pass_time(1_000)
    for name in names:
        assert first.commit(name, 1) is ErrorCode.NONE
    first.runtime.state.forget_topic()
    assert first.commit(names[0], 2) is ErrorCode.NOT_COORDINATOR
    partition = first.partition(names[0])
    first.runtime.state.elect(partition, 0)
    assert first.commit(names[0], 2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    left: list[int] = []
    while first.runtime.coordinator.groups and len(left) < 100:
        left.append(len(first.runtime.coordinator.groups))
        first.clock.pass_time(1)
    assert all(former - later <= 2 * GROUPS_IN_SLICE for former, later in pairwise(left))
    assert len(left) > 10
    first.clock.pass_time(1_000)
    assert first.commit(names[0], 2) is ErrorCode.NONE
    assert {group.partition for group in first.runtime.coordinator.groups.values()} == {partition.index}


JOIN: dict[str, Any] = {"rebalance_timeout_ms": 20_000, "owned": {}}


def joined_consumer(member: Member, **subscription: Any) -> ConsumerHeartbeatResult:
    """Makes a member of a consumer group, with all partitions of what it subscribes to."""
    found = member.beat("m", 0, **JOIN, **subscription)
    assert isinstance(found, ConsumerHeartbeatResult)
    return found


def test_consumer_group_moves_with_its_members_their_epochs_and_their_sessions() -> None:
    first, second = two_members()
    first.lead("g", 1)
    joined = joined_consumer(first, subscribed_topic_names=["t"])
    assert joined.assignment == {first.topics.get("t").topic_id: frozenset({0})}
    assert second.beat("m", joined.member_epoch) is ErrorCode.NOT_COORDINATOR
    first.resign("g", 2)
    assert first.beat("m", joined.member_epoch) is ErrorCode.NOT_COORDINATOR
    assert not first.runtime.coordinator.groups
    second.lead("g", 2)
    kept = second.beat("m", joined.member_epoch)
    assert isinstance(kept, ConsumerHeartbeatResult)
    assert (kept.member_epoch, kept.assignment) == (joined.member_epoch, None)
    second.clock.pass_time(46_000)
    assert second.beat("m", joined.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.runtime.coordinator.groups == {}, "the former coordinator has no timers of the group"


def test_consumer_group_waits_for_the_topics_of_the_cluster() -> None:
    first, second = two_members()
    first.lead("g", 1)
    joined = joined_consumer(first, subscribed_topic_names=["t"])
    first.resign("g", 2)
    second.knows_topics = False
    second.lead("g", 2)
    assert second.beat("m", joined.member_epoch) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    second.knows_topics = True
    assert isinstance(second.beat("m", joined.member_epoch), ConsumerHeartbeatResult)


def test_regular_expressions_are_resolved_again_by_a_coordinator_with_a_lower_version_of_the_topics() -> None:
    first, second = two_members()
    first.live_topics.outgrow(9_000_000)
    first.lead("g", 1)
    joined = joined_consumer(first, subscribed_topic_regex="[tu]")
    first.resign("g", 2)
    second.topics.create("u", 1)
    assert second.live_topics.version < 9_000_000
    second.lead("g", 2)
    second.clock.pass_time(11_000)
    found = second.beat("m", joined.member_epoch)
    assert isinstance(found, ConsumerHeartbeatResult)
    assert found.assignment is not None
    assert len(found.assignment) == 2
