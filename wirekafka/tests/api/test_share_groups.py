from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api import alter_share_group_offsets as altering
from wirekafka.api import delete_share_group_offsets as deleting
from wirekafka.api import describe_share_group_offsets as describing
from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.sharing import ACCEPT, Member, acquired, append, run, topic_id


def offsets(caller: Caller, *, topics: Any = None, group: str = "g", version: int = 1) -> dict[str, list[tuple[int, int, int]]]:
    asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
    (found,) = caller.ask(describing.DescribeShareGroupOffsetsRequest(groups=[asked]), version).groups
    return {
        topic.topic_name: [(each.partition_index, each.start_offset, each.lag) for each in topic.partitions]
        for topic in found.topics
    }


def alter(caller: Caller, topic: str = "flights", partition: int = 0, offset: int = 0, group: str = "g") -> Any:
    partitions = [altering.AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)]
    topics = [altering.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    return caller.ask(altering.AlterShareGroupOffsetsRequest(group_id=group, topics=topics), 0)


def delete(caller: Caller, topic: str = "flights", group: str = "g") -> Any:
    topics = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
    return caller.ask(deleting.DeleteShareGroupOffsetsRequest(group_id=group, topics=topics), 0)


def delete_group(caller: Caller, group: str = "g") -> int:
    (result,) = caller.ask(DeleteGroupsRequest(groups_names=[group]), 2).results
    return result.error_code


def test_heartbeat_answers_the_first_with_an_assignment(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller, joins=False)
        response = member.heartbeat(subscribed_topic_names=["flights"])
        assert (response.error_code, response.member_id, response.heartbeat_interval_ms) == (0, "m", 5000)
        (topic,) = response.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (topic_id(caller), [0, 1])
        assert member.heartbeat().assignment is None
        member.member_epoch = -1
        assert member.heartbeat().member_epoch == -1

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, None),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST, None),
        ({"member_id": "  "}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": 4}, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
    ],
)
def test_heartbeat_that_cannot_be_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: ErrorCode, message: str | None
) -> None:
    async def body(caller: Caller) -> None:
        sound: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["flights"]}
        with pytest.raises(KafkaError) as raised:
            caller.ask(ShareGroupHeartbeatRequest(**(sound | fields)), 1)
        assert (raised.value.code, raised.value.message) == (code, message)

    run(body, tmp_path)


def test_describe_tells_of_members_and_of_groups_that_there_are_not(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        Member(caller)
        request = ShareGroupDescribeRequest(group_ids=["g", "h", ""], include_authorized_operations=True)
        found, missing, nameless = caller.ask(request, 1).groups
        assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == ("Stable", 2, 2, "simple")
        (member,) = found.members
        assert (member.member_id, member.client_id, member.client_host) == ("m", "test", "/127.0.0.1")
        assert (member.member_epoch, member.subscribed_topic_names) == (2, ["flights"])
        (topic,) = member.assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("flights", [0, 1])
        assert found.authorized_operations > 0
        assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group h not found.")
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID

    run(body, tmp_path)


def test_share_group_is_listed_with_its_type_and_state(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        Member(caller)
        (group,) = caller.ask(ListGroupsRequest(types_filter=["Share"]), 5).groups
        assert (group.group_id, group.protocol_type, group.group_state, group.group_type) == ("g", "share", "Stable", "share")
        assert caller.ask(ListGroupsRequest(types_filter=["classic"]), 5).groups == []

    run(body, tmp_path)


@pytest.mark.parametrize("version", [0, 1])
def test_offsets_are_described_with_their_lag(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c", b"d")
        member = Member(caller)
        await member.fetch(0)
        member.acknowledge((0, 0, 0, [ACCEPT]), (0, 2, 2, [ACCEPT]))
        lag = 2 if version else -1
        assert offsets(caller, version=version) == {"flights": [(0, 1, lag), (1, -1, -1)]}
        topic = describing.DescribeShareGroupOffsetsRequestTopic
        wanted = [topic(topic_name="flights", partitions=[0, 9]), topic(topic_name="none", partitions=[0])]
        found = {"flights": [(0, 1, lag), (9, -1, -1)], "none": [(0, -1, -1)]}
        assert offsets(caller, topics=wanted, version=version) == found
        assert offsets(caller, group="h") == {}
        assert offsets(caller, topics=[]) == {}

    run(body, tmp_path)


def test_offsets_are_set_once_the_group_is_empty(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c")
        member = Member(caller)
        await member.fetch(0)
        member.acknowledge((0, 0, 2, [ACCEPT]))
        with pytest.raises(KafkaError) as raised:
            alter(caller)
        assert (raised.value.code, raised.value.message) == (ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        member.member_epoch = -1
        member.heartbeat()
        response = alter(caller, offset=1)
        assert [partition.error_code for topic in response.responses for partition in topic.partitions] == [0]
        assert offsets(caller)["flights"][0] == (0, 1, 2)
        assert acquired(await Member(caller, "n").fetch(0)) == {0: [(1, 2, 1)]}

    run(body, tmp_path)


def test_group_comes_to_be_by_its_offsets(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c")
        alter(caller, offset=2)
        alter(caller, partition=1, offset=0)
        assert offsets(caller) == {"flights": [(0, 2, 1), (1, 0, 0)]}
        assert acquired(await Member(caller).fetch(0)) == {0: [(2, 2, 1)]}

    run(body, tmp_path)


@pytest.mark.parametrize(("topic", "partition"), [("flights", 9), ("none", 0), ("flights", -1)])
def test_offset_of_a_partition_that_there_is_not_is_refused_for_itself(tmp_path: Path, topic: str, partition: int) -> None:
    async def body(caller: Caller) -> None:
        (response,) = alter(caller, topic, partition).responses
        (refused,) = response.partitions
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused.error_message == "This server does not host this topic-partition."
        assert caller.ask(ListGroupsRequest(), 5).groups == [], "nor is there a group by now"

    run(body, tmp_path)


def test_offsets_of_a_topic_are_deleted(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        member.acknowledge((0, 0, 0, [ACCEPT]))
        with pytest.raises(KafkaError) as raised:
            delete(caller)
        assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
        member.member_epoch = -1
        member.heartbeat()
        assert delete(caller, "none").responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (response,) = delete(caller).responses
        assert (response.error_code, response.topic_id) == (0, topic_id(caller))
        assert delete(caller).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert offsets(caller) == {}
        assert acquired(await Member(caller, "n").fetch(0)) == {0: [(0, 0, 1)]}

    run(body, tmp_path)


@pytest.mark.parametrize(("group", "code"), [("", ErrorCode.INVALID_GROUP_ID), ("h", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_offsets_of_a_group_that_there_is_not_are_not_deleted(tmp_path: Path, group: str, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        with pytest.raises(KafkaError) as raised:
            delete(caller, group=group)
        assert raised.value.code is code

    run(body, tmp_path)


def test_offsets_of_a_group_without_a_name_are_not_set(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        with pytest.raises(KafkaError) as raised:
            alter(caller, group="")
        assert raised.value.code is ErrorCode.INVALID_GROUP_ID

    run(body, tmp_path)


def test_group_that_is_deleted_begins_anew_when_it_comes_back(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        member.acknowledge((0, 0, 0, [ACCEPT]))
        assert delete_group(caller) == ErrorCode.NON_EMPTY_GROUP
        assert offsets(caller)["flights"][0] == (0, 1, 0)
        member.member_epoch = -1
        member.heartbeat()
        key = ShareKey("g", topic_id(caller), 0)
        state = caller.broker.share_groups.states.get(key)
        assert state is not None
        assert state.state_epoch == 2, "that of the group since which there is state"
        assert delete_group(caller) == 0
        assert caller.broker.share_groups.states.get(key) is None
        assert delete_group(caller) == ErrorCode.GROUP_ID_NOT_FOUND
        assert acquired(await Member(caller, "n").fetch(0)) == {0: [(0, 0, 1)]}

    run(body, tmp_path)


def test_group_and_its_offsets_outlive_the_broker(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        member.acknowledge((0, 0, 0, [ACCEPT]))

    async def after(caller: Caller) -> None:
        (found,) = caller.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert (found.group_state, [member.member_id for member in found.members]) == ("Stable", ["m"])
        assert offsets(caller)["flights"][0] == (0, 1, 1)

    run(before, tmp_path)
    run(after, tmp_path)


def test_topic_that_is_deleted_is_forgotten_by_the_group(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        caller.broker.topics.delete(topic)
        assert offsets(caller) == {}
        caller.broker.topics.create("flights", 1)
        (assigned,) = member.heartbeat().assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic_id(caller), [0])

    run(body, tmp_path, group_share_assignment_interval_ms="0")
