from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.errors import ErrorCode
from wirekafka.names import ZERO_TOPIC_ID, new_topic_id
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, run


def flights_id(caller: Caller) -> bytes:
    flights = caller.broker.topics.find("flights")
    assert flights is not None
    return flights.topic_id


def fetch(caller: Caller, version: int, *indexes: int, group: str = "g") -> list[Any]:
    """Returns the partitions of `flights` in the response; all partitions if the request names none."""
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="flights", partition_indexes=list(indexes))] if indexes else None
        response = caller.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
        assert response.error_code == ErrorCode.NONE
        return [partition for topic in response.topics for partition in topic.partitions]
    asked = OffsetFetchRequestTopics(name="flights", topic_id=flights_id(caller), partition_indexes=list(indexes))
    wanted = OffsetFetchRequestGroup(group_id=group, member_id="any", topics=[asked] if indexes else None)
    (answered,) = caller.ask(OffsetFetchRequest(groups=[wanted], require_stable=True), version).groups
    assert (answered.group_id, answered.error_code) == (group, ErrorCode.NONE)
    for topic in answered.topics:
        expected = (flights_id(caller), "") if version >= 10 else (ZERO_TOPIC_ID, "flights")
        assert (topic.topic_id, topic.name) == expected
    return [partition for topic in answered.topics for partition in topic.partitions]


@pytest.mark.parametrize("version", range(11))
def test_offset_fetch_of_any_version_gives_what_was_committed(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        commit(caller, committed_metadata="here", committed_leader_epoch=3)
        (found,) = fetch(caller, version, 1)
        assert (found.partition_index, found.committed_offset, found.metadata, found.error_code) == (1, 5, "here", 0)
        assert found.committed_leader_epoch == (3 if version >= 5 else -1)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(11))
def test_offset_fetch_without_an_offset_is_minus_one(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else ErrorCode.NONE
        for found in (*fetch(caller, version, 0, group="nobody"), *fetch(caller, version, 99)):
            assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (-1, -1, "")
            assert found.error_code == error

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_without_topics_gives_all_offsets(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        assert fetch(caller, version) == []
        commit(caller, partition=1)
        commit(caller, partition=3, offset=7)
        assert [(found.partition_index, found.committed_offset) for found in fetch(caller, version)] == [(1, 5), (3, 7)]

    run(body, tmp_path)


def test_offset_fetch_of_several_groups_answers_each(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        commit(caller, offset=5)
        commit(caller, offset=6, group="h")
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("h", "g", "nobody")]
        response = caller.ask(OffsetFetchRequest(groups=groups), 8)
        assert [group.group_id for group in response.groups] == ["h", "g", "nobody"]
        assert [[topic.partitions[0].committed_offset for topic in group.topics] for group in response.groups] == [[6], [5], []]

    run(body, tmp_path)


def test_offset_fetch_of_an_unknown_topic_id_is_an_error(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        asked = OffsetFetchRequestTopics(topic_id=new_topic_id(), partition_indexes=[0, 1])
        wanted = OffsetFetchRequestGroup(group_id="g", topics=[asked])
        (answered,) = caller.ask(OffsetFetchRequest(groups=[wanted]), 10).groups
        (topic,) = answered.topics
        assert topic.topic_id == asked.topic_id
        assert [(found.error_code, found.committed_offset) for found in topic.partitions] == [
            (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        ] * 2

    run(body, tmp_path)


def test_offset_fetch_of_all_leaves_out_topics_without_an_id(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        commit(caller)
        # A broker that had the topic has left the offset in the log.
        left = CommitRequest("g", [PartitionCommit("gone", 0, 7, None, "", None)])
        assert caller.broker.groups.commit_offsets(left) == [ErrorCode.NONE]
        wanted = OffsetFetchRequestGroup(group_id="g", topics=None)
        for version, names in ((9, {"flights", "gone"}), (10, {""})):
            (answered,) = caller.ask(OffsetFetchRequest(groups=[wanted]), version).groups
            assert {topic.name for topic in answered.topics} == names
            assert len(answered.topics) == len(names)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(11))
def test_offset_fetch_answers_a_partition_once_however_often_it_is_named(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        commit(caller, committed_metadata="here")
        assert [found.partition_index for found in fetch(caller, version, 1, 1, 0, 1)] == [1, 0]

    run(body, tmp_path)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offset_fetch_answers_a_group_once_however_often_it_is_named(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        commit(caller)
        every = OffsetFetchRequestGroup(group_id="g", topics=None)
        one = OffsetFetchRequestTopics(name="flights", topic_id=flights_id(caller), partition_indexes=[0, 1])
        some = OffsetFetchRequestGroup(group_id="g", topics=[one, one])
        groups = caller.ask(OffsetFetchRequest(groups=[every, every, some]), version).groups
        assert [group.group_id for group in groups] == ["g", "g", "g"]
        answered = [[[each.partition_index for each in topic.partitions] for topic in group.topics] for group in groups]
        assert answered == [[[1]], [[]], [[0], []]]

    run(body, tmp_path)


def test_offsets_of_a_topic_whose_deletion_a_crash_interrupted_are_not_those_of_a_new_topic(tmp_path: Path) -> None:
    async def delete_and_crash(caller: Caller) -> None:
        caller.broker.topics.create("trains", 1)
        commit(caller)
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        # The broker ends before it deletes the offsets.
        caller.broker.topics.on_delete.clear()
        caller.broker.topics.delete(flights)
        commits = [PartitionCommit("trains", 0, 7)]
        caller.broker.groups.commit_offsets(CommitRequest("g", commits))

    async def create_again(caller: Caller) -> None:
        (found,) = fetch(caller, 9, 1)
        assert found.committed_offset == -1
        assert caller.broker.groups.fetch_offsets("g").keys() == {"trains"}

    run(delete_and_crash, tmp_path)
    run(create_again, tmp_path)
    run(create_again, tmp_path)
