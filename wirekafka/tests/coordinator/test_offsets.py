import pytest

from wirekafka.coordinator.records import GroupRecord, OffsetRecord
from wirekafka.coordinator.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.test_membership import make_join, world_with_members
from wirekafka.tests.coordinator.world import World


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
    assert world.coordinator.groups["g"].members


def test_offsets_of_topics_that_a_stable_group_reads_do_not_expire() -> None:
    """The members' metadata says `m`, which is no subscription: what they read is not known, so nothing expires."""
    world = world_with_members()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5, commit_timestamp_ms=0)], "client-1", 1))
    world.now_ms += 10**12
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.coordinator.groups["g"].subscribed_topics = frozenset({"t"})
    world.expire()
    assert world.coordinator.offsets.of_group("g")
    world.coordinator.groups["g"].subscribed_topics = frozenset({"other"})
    world.expire()
    assert not world.coordinator.offsets.of_group("g")
    assert "g" in world.coordinator.groups


def test_delete_of_offsets_without_a_group_id_is_refused() -> None:
    with pytest.raises(KafkaError, match="INVALID_GROUP_ID"):
        World().coordinator.offsets.delete("", [("t", 0)])


def test_delete_of_offsets_spares_topics_that_are_read() -> None:
    world = world_with_members()
    world.coordinator.groups["g"].subscribed_topics = frozenset({"t"})
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5), PartitionCommit("u", 0, 6)], "client-1", 1))
    errors, effects = world.coordinator.offsets.delete("g", [("t", 0), ("u", 0), ("u", 1)])
    world.run(effects)
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert list(world.coordinator.offsets.of_group("g")) == ["t"]


def test_group_tombstone_before_its_offsets_leaves_a_simple_group() -> None:
    """A log that was compacted halfway may hold offsets of a group that is gone; they can be fetched, and expire."""
    world = world_with_members()
    commit(world, CommitRequest("g", [PartitionCommit("t", 0, 5)], "client-1", 1))
    world.coordinator.replay(GroupRecord("g", None), 10)
    assert world.coordinator.groups["g"].protocol_type is None
    world.coordinator.replay(OffsetRecord("g", "t", 0, None), 11)
    assert not world.coordinator.offsets.of_group("g")
