from pathlib import Path

import pytest

from wirekafka.api import offset_commit
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.errors import ErrorCode
from wirekafka.names import new_topic_id
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import NOW_MS, Caller, wait_for
from wirekafka.tests.api.group_client import commit, join, join_alone, run


@pytest.mark.parametrize("version", range(11))
def test_offset_commit_of_any_version_is_kept(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        assert commit(caller, version, committed_metadata="here") == ErrorCode.NONE
        kept = caller.broker.groups.fetch_offsets("g")["flights"][1]
        assert (kept.offset, kept.metadata, kept.commit_timestamp_ms, kept.leader_epoch) == (5, "here", NOW_MS, None)

    run(body, tmp_path)


def test_offset_commit_says_when_and_for_how_long_where_its_version_can(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        commit(caller, 1, commit_timestamp=1234)
        commit(caller, 2, partition=2, retention_time_ms=1000)
        commit(caller, 6, partition=3, committed_leader_epoch=7, committed_metadata=None)
        kept = caller.broker.groups.fetch_offsets("g")["flights"]
        assert kept[1].commit_timestamp_ms == 1234
        assert kept[2].expire_timestamp_ms == NOW_MS + 1000
        assert (kept[3].leader_epoch, kept[3].metadata, kept[3].expire_timestamp_ms) == (7, "", None)

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (10, ErrorCode.UNKNOWN_TOPIC_ID)])
def test_offset_commit_for_what_does_not_exist_is_refused_there_only(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in (0, 4, -1)]
        topics = [
            OffsetCommitRequestTopic(name="flights", topic_id=flights.topic_id, partitions=partitions),
            OffsetCommitRequestTopic(name="nowhere", topic_id=new_topic_id(), partitions=partitions[:1]),
        ]
        response = caller.ask(OffsetCommitRequest(group_id="g", topics=topics), version)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [partition.error_code for partition in response.topics[0].partitions] == [0, unknown, unknown]
        assert [partition.error_code for partition in response.topics[1].partitions] == [error]
        assert list(caller.broker.groups.fetch_offsets("g")["flights"]) == [0]

    run(body, tmp_path)


@pytest.mark.parametrize("offset_count", [1, 2, 3, 4])
@pytest.mark.parametrize("at_once", [0, 100])
def test_offset_commit_of_many_offsets_stores_each_once_in_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset_count: int, at_once: int
) -> None:
    monkeypatch.setattr(offset_commit, "COMMITS_AT_ONCE", 2)
    monkeypatch.setattr(offset_commit, "AT_ONCE", at_once)

    async def body(caller: Caller) -> None:
        indexes = [9, *range(offset_count)]
        partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=10 + index) for index in indexes]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="flights", partitions=partitions)])
        answer = caller.ask(request, 8)
        response = await wait_for(answer) if isinstance(answer, Pending) else answer
        codes = [partition.error_code for partition in response.topics[0].partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *[ErrorCode.NONE] * offset_count]
        kept = caller.broker.groups.fetch_offsets("g")["flights"]
        assert {index: each.offset for index, each in kept.items()} == {index: 10 + index for index in range(offset_count)}
        topic = caller.broker.topics.find("__consumer_offsets")
        assert topic is not None
        assert sum(partition.log.log_end_offset for partition in topic.partitions) == offset_count

    run(body, tmp_path)


def test_offset_commit_with_nothing_that_exists_does_not_ask_for_the_group(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert commit(caller, partition=9, generation_id_or_member_epoch=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert caller.broker.topics.find("__consumer_offsets") is None

    run(body, tmp_path)


def test_offset_commit_of_a_group_that_does_not_exist_is_told_by_version(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert commit(caller, 8, generation_id_or_member_epoch=3, member_id="m") == ErrorCode.ILLEGAL_GENERATION
        assert commit(caller, 9, generation_id_or_member_epoch=3, member_id="m") == ErrorCode.GROUP_ID_NOT_FOUND

    run(body, tmp_path)


def test_offset_commit_of_members_goes_by_generation_and_name(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller, instance="one")
        assert commit(caller, generation_id_or_member_epoch=1, member_id=member, group_instance_id="one") == ErrorCode.NONE
        assert commit(caller, generation_id_or_member_epoch=2, member_id=member) == ErrorCode.ILLEGAL_GENERATION
        assert commit(caller, generation_id_or_member_epoch=1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
        fenced = commit(caller, generation_id_or_member_epoch=1, member_id="x", group_instance_id="one")
        assert fenced == ErrorCode.FENCED_INSTANCE_ID
        assert commit(caller) == ErrorCode.UNKNOWN_MEMBER_ID
        join(caller, member=member, instance="one")
        assert commit(caller, generation_id_or_member_epoch=2, member_id=member) == ErrorCode.REBALANCE_IN_PROGRESS

    run(body, tmp_path)


def test_offset_commit_with_too_much_metadata_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert commit(caller, committed_metadata="123456") == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert commit(caller, committed_metadata="12345") == ErrorCode.NONE

    run(body, tmp_path, offset_metadata_max_bytes="5")


def test_offset_commit_to_the_group_without_a_name_is_kept(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert commit(caller, group="") == ErrorCode.NONE
        assert caller.broker.groups.fetch_offsets("")["flights"][1].offset == 5

    run(body, tmp_path)


def test_offset_commit_survives_a_restart_and_its_topic_does_not(tmp_path: Path) -> None:
    async def committed(caller: Caller) -> None:
        commit(caller)

    async def deleted(caller: Caller) -> None:
        assert caller.broker.groups.fetch_offsets("g")["flights"][1].offset == 5
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        caller.broker.topics.delete(flights)
        assert caller.broker.groups.fetch_offsets("g") == {}

    async def gone(caller: Caller) -> None:
        assert caller.broker.groups.fetch_offsets("g") == {}

    for body in (committed, deleted, gone):
        run(body, tmp_path)
