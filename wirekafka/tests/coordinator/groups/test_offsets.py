from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.effects import Effects, JoinExpired, WritingProducer
from wirekafka.coordinator.groups.classic.group import ClassicGroup
from wirekafka.coordinator.groups.offsets import EXAMINED_AT_ONCE
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.groups.classic.test_membership import make_join, world_with_members
from wirekafka.tests.coordinator.groups.world import World


def commit(world: World, request: CommitRequest) -> list[ErrorCode]:
    errors, effects = world.coordinator.offsets.commit(request, world.now_ms)
    world.run(effects)
    return errors


def test_commit_of_too_much_metadata_is_refused_for_its_partition_only() -> None:
    world = World()
    commits = [PartitionCommit("t", 0, 5, metadata="x" * 4097), PartitionCommit("t", 1, 6, metadata="ü" * 4096)]
    assert commit(world, CommitRequest("g", commits)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert list(world.coordinator.offsets.of_group("g")["t"]) == [1]


def test_commit_of_more_metadata_than_a_record_holds_is_refused_whatever_the_setting() -> None:
    world = World(GroupSettings(offset_metadata_max_bytes=100_000))
    commits = [PartitionCommit("t", 0, 5, metadata="ü" * 16_384), PartitionCommit("t", 1, 5, metadata="x" * 32_767)]
    assert commit(world, CommitRequest("g", commits)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


def test_commit_of_a_generation_of_no_group_depends_on_what_the_client_knows() -> None:
    world = World()
    request = CommitRequest("g", [PartitionCommit("t", 0, 5)], "m", 3)
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        commit(world, request)
    request.knows_consumer_protocol = True
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        commit(world, request)


def test_commit_of_a_fenced_static_member_is_refused() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    world.join(make_join(group_instance_id="one"))
    world.pass_time(0)
    with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
        commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)], "old", 1, "one"))


def test_commit_that_is_kept_for_ever_has_an_expiry_that_fits() -> None:
    world = World()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)], retention_time_ms=0x7FFFFFFFFFFFFFFF))
    assert world.coordinator.offsets.of_group("g")["t"][0].expire_timestamp_ms == 0x7FFFFFFFFFFFFFFF
    world.expire()
    world.reload()
    assert world.coordinator.offsets.of_group("g")["t"][0].offset == 5


def test_commit_of_a_member_renews_its_session() -> None:
    world = world_with_members()
    world.pass_time(9000)
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)], "client-1", 1))
    world.pass_time(9999)
    assert world.existing_group("g").members


def test_offsets_of_topics_that_a_stable_group_reads_do_not_expire() -> None:
    """The members' metadata `m` is not a subscription: the topics that they read are unknown, so no offset expires."""
    world = world_with_members()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5, commit_timestamp_ms=0)], "client-1", 1))
    world.now_ms += 10**12
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.existing_group("g").subscribed_topics = frozenset({"t"})
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.existing_group("g").subscribed_topics = frozenset({"other"})
    world.expire()
    assert not world.coordinator.offsets.of_group("g")
    assert "g" in world.coordinator.groups


def test_delete_of_offsets_without_a_group_id_is_refused() -> None:
    with pytest.raises(KafkaError, match="INVALID_GROUP_ID"):
        World().coordinator.offsets.delete("", [("t", 0)])


def test_delete_of_offsets_spares_topics_that_are_read() -> None:
    world = world_with_members()
    world.existing_group("g").subscribed_topics = frozenset({"t"})
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5), PartitionCommit("u", 0, 6)], "client-1", 1))
    errors, effects = world.coordinator.offsets.delete("g", [("t", 0), ("u", 0), ("u", 1)])
    world.run(effects)
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert list(world.coordinator.offsets.of_group("g")) == ["t"]


def test_group_tombstone_before_its_offsets_leaves_a_simple_group() -> None:
    """A partly compacted log may hold offsets of a deleted group; the offsets can be fetched, and expire."""
    world = world_with_members()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)], "client-1", 1))
    world.coordinator.replay(GroupRecord("g", None), 10)
    assert world.existing_group("g").protocol_type is None
    world.coordinator.replay(OffsetRecord("g", "t", 0, None), 11)
    assert not world.coordinator.offsets.of_group("g")


def commit_in_transaction(world: World, partition: int, producer_id: int = 9, group: str = "g") -> None:
    request = CommitRequest(group, [PartitionCommit("t", partition, 5)])
    _, effects = world.coordinator.offsets.commit_in_transaction(request, WritingProducer(producer_id, 0), world.now_ms)
    world.run(effects)


def tombstones_of(steps: Iterable[tuple[int, Effects]]) -> list[CoordinatorRecord]:
    return [record for _, effects in steps for record in effects.records]


def test_nothing_is_left_of_offsets_that_are_deleted() -> None:
    world = World()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5), PartitionCommit("u", 1, 5)]))
    commit_in_transaction(world, 0)
    commit_in_transaction(world, 1)
    for topic, partition in (("t", 0), ("u", 1), ("t", 1)):
        _, effects = world.coordinator.offsets.delete("g", [(topic, partition)])
        world.run(effects)
    assert not world.coordinator.offsets.pending
    assert not world.coordinator.offsets._by_group


def test_group_with_offsets_of_an_open_transaction_does_not_expire_with_its_others() -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))
    commit_in_transaction(world, 1)
    assert tombstones_of(world.coordinator.expire(world.now_ms + 1000)) == [OffsetRecord("g", "t", 0, None)]
    world.end_transaction(9, is_commit=False)
    gone: list[CoordinatorRecord] = [OffsetRecord("g", "t", 0, None), GroupRecord("g", None)]
    assert tombstones_of(world.coordinator.expire(world.now_ms + 1000)) == gone


def test_offset_that_is_committed_and_pending_gets_one_tombstone_when_its_topic_goes() -> None:
    world = World()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))
    commit_in_transaction(world, 0)
    commit_in_transaction(world, 1)
    gone: list[CoordinatorRecord] = [OffsetRecord("g", "t", partition, None) for partition in (0, 1)]
    assert tombstones_of(world.coordinator.forget_topic("t")) == gone
    [effects] = world.coordinator.delete_group("g")
    assert effects.records == [*gone, GroupRecord("g", None)]


def test_transactional_commit_of_a_stale_member_epoch_is_told_in_terms_that_producers_know() -> None:
    class Stale(ClassicGroup):
        def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    world = World()
    world.coordinator.groups["g"] = Stale("g")
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        commit_in_transaction(world, 0)
    with pytest.raises(KafkaError, match="STALE_MEMBER_EPOCH"):
        commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))


def test_deleted_topic_looks_only_at_groups_with_offsets_in_it() -> None:
    world = World()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)]))
    for number in range(50):
        commit(world, CommitRequest(f"other-{number}", [PartitionCommit("u", 0, 5)]))
    assert world.coordinator.offsets.groups_of_topic("t") == ["g"]
    assert tombstones_of(world.coordinator.forget_topic("t")) == [OffsetRecord("g", "t", 0, None)]
    for _, effects in world.coordinator.forget_topic("t"):
        world.run(effects)
    assert world.coordinator.offsets.groups_of_topic("t") == []


def test_offset_committed_after_its_topic_was_deleted_stays() -> None:
    world = World()
    commit(world, CommitRequest("old", [PartitionCommit("t", 0, 5)]))
    commit(world, CommitRequest("again", [PartitionCommit("t", 0, 5)]))
    pieces = world.coordinator.forget_topic("t")
    commit(world, CommitRequest("new", [PartitionCommit("t", 0, 1)]))
    commit(world, CommitRequest("again", [PartitionCommit("t", 0, 2)]))
    assert tombstones_of(pieces) == [OffsetRecord("old", "t", 0, None)]


@pytest.mark.parametrize(("groups", "offsets"), [(3 * EXAMINED_AT_ONCE, 1), (1, 3 * EXAMINED_AT_ONCE)])
def test_expiry_of_many_offsets_comes_in_pieces_of_bounded_size(groups: int, offsets: int) -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    for number in range(groups):
        commit(world, CommitRequest(f"g{number}", [PartitionCommit("t", index, 5) for index in range(offsets)]))
    idle = [effects for _, effects in world.coordinator.expire(world.now_ms)]
    assert len(idle) >= 3
    assert not any(effects.records for effects in idle)
    for _, effects in world.coordinator.expire(world.now_ms + 1000):
        assert len(effects.records) <= 2 * EXAMINED_AT_ONCE
        world.run(effects)
    assert not world.coordinator.groups
    assert not world.coordinator.offsets.count()


def test_offset_committed_between_two_pieces_of_an_expiry_keeps_its_group() -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    commit(world, CommitRequest("g", [PartitionCommit("t", index, 5) for index in range(2 * EXAMINED_AT_ONCE)]))
    world.now_ms += 1000
    for _, effects in world.coordinator.expire(world.now_ms):
        world.run(effects)
        commit(world, CommitRequest("g", [PartitionCommit("t", 2 * EXAMINED_AT_ONCE - 1, 7)]))
    assert list(world.coordinator.offsets.of_group("g")["t"]) == [2 * EXAMINED_AT_ONCE - 1]
    assert "g" in world.coordinator.groups


def test_group_that_cannot_be_expired_costs_no_other_group(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(GroupSettings(offsets_retention_ms=1000))
    for group_id in ("a", "b", "c"):
        commit(world, CommitRequest(group_id, [PartitionCommit("t", 0, 5)]))
    monkeypatch.setattr(ClassicGroup, "offset_age_starts_ms", lambda self, offset: 0 if self.group_id != "b" else 1 // 0)
    with capture_logs() as lines:
        world.now_ms += 1000
        world.expire()
    assert list(world.coordinator.groups) == ["b"]
    assert [line["group"] for line in lines] == ["b"]


def test_timer_of_a_group_that_raises_costs_that_timer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setitem(world.coordinator._on_timer, JoinExpired, lambda event, now_ms, effects: 1 // 0)
    with capture_logs() as lines:
        _, effects = world.coordinator.on_timer(JoinExpired("g"), world.now_ms)
    assert effects == Effects()
    assert [line["group"] for line in lines] == ["g"]
