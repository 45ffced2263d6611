from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import NOT_ASKED
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join_alone, run


def beat(caller: Caller, epoch: int = 0, version: int = 1, *, member: str = "m", group: str = "g", **fields: Any) -> Any:
    """Returns the response to a heartbeat; a heartbeat that joins subscribes to `flights`."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 20_000, "subscribed_topic_names": ["flights"], "topic_partitions": []} | fields
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
    return caller.ask(request, version)


def assigned(caller: Caller, response: Any) -> list[int]:
    assert response.error_code == ErrorCode.NONE
    flights = caller.broker.topics.find("flights")
    assert flights is not None
    (topic,) = response.assignment.topic_partitions
    assert topic.topic_id == flights.topic_id
    return list(topic.partitions)


@pytest.mark.parametrize("version", [0, 1])
def test_consumer_that_joins_alone_has_everything(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        joined = beat(caller, version=version, member="" if version == 0 else "m")
        assert assigned(caller, joined) == [0, 1, 2, 3]
        assert joined.heartbeat_interval_ms == 5000
        assert len(joined.member_id) == (22 if version == 0 else 1)
        again = beat(caller, joined.member_epoch, version, member=joined.member_id)
        assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.NONE, joined.member_epoch, None)

    run(body, tmp_path)


def test_consumers_share_by_giving_up_first(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first = beat(caller)
        second = beat(caller, member="n")
        assert second.assignment.topic_partitions == []
        told = beat(caller, first.member_epoch)
        assert assigned(caller, told) == [0, 1]
        assert beat(caller, second.member_epoch, member="n").assignment is None
        topic_id = told.assignment.topic_partitions[0].topic_id
        has = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=some) for some in ([2, 3], [0, 1])]
        assert beat(caller, told.member_epoch, topic_partitions=has).member_epoch == told.member_epoch
        has = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=[0, 1])]
        assert beat(caller, told.member_epoch, topic_partitions=has).member_epoch == second.member_epoch
        assert assigned(caller, beat(caller, second.member_epoch, member="n")) == [2, 3]

    run(body, tmp_path, group_consumer_assignment_interval_ms="0")


def test_consumer_that_subscribes_by_expression_has_what_matches(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fields: dict[str, Any] = {"subscribed_topic_names": None}
        assert assigned(caller, beat(caller, subscribed_topic_regex="fl[a-z]+", **fields)) == [0, 1, 2, 3]
        refused = beat(caller, member="n", subscribed_topic_regex="fl(", **fields)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "missing )" in refused.error_message

    run(body, tmp_path)


BAD: list[tuple[ErrorCode, dict[str, Any]]] = [
    (ErrorCode.INVALID_REQUEST, {"member": ""}),
    (ErrorCode.INVALID_REQUEST, {"group": " "}),
    (ErrorCode.INVALID_REQUEST, {"instance_id": ""}),
    (ErrorCode.INVALID_REQUEST, {"rack_id": ""}),
    (ErrorCode.INVALID_REQUEST, {"rebalance_timeout_ms": -1}),
    (ErrorCode.INVALID_REQUEST, {"topic_partitions": None}),
    (ErrorCode.INVALID_REQUEST, {"subscribed_topic_names": None}),
    (ErrorCode.INVALID_REQUEST, {"epoch": -2}),
    (ErrorCode.INVALID_REQUEST, {"epoch": -3}),
    (ErrorCode.UNSUPPORTED_ASSIGNOR, {"server_assignor": "mine"}),
    (ErrorCode.UNKNOWN_MEMBER_ID, {"member": "other", "epoch": 2}),
    (ErrorCode.UNKNOWN_MEMBER_ID, {"instance_id": "i", "epoch": 2}),
    (ErrorCode.GROUP_ID_NOT_FOUND, {"group": "other", "epoch": 2}),
    (ErrorCode.GROUP_ID_NOT_FOUND, {"group": "other", "epoch": -1}),
    (ErrorCode.FENCED_MEMBER_EPOCH, {"epoch": 9}),
]


@pytest.mark.parametrize(("error", "fields"), BAD, ids=lambda value: value.name if isinstance(value, ErrorCode) else None)
def test_heartbeat_that_is_wrong_is_refused(tmp_path: Path, error: ErrorCode, fields: dict[str, Any]) -> None:
    async def body(caller: Caller) -> None:
        assert beat(caller).error_code == ErrorCode.NONE
        assert beat(caller, **fields).error_code == error

    run(body, tmp_path)


def test_consumer_that_joins_a_full_group_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert beat(caller).error_code == ErrorCode.NONE
        assert beat(caller, member="n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert beat(caller).error_code == ErrorCode.NONE

    run(body, tmp_path, group_consumer_max_size="1")


def test_consumer_groups_switched_off_are_an_unsupported_version(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert beat(caller).error_code == ErrorCode.UNSUPPORTED_VERSION
        (described,) = caller.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 0).groups
        assert described.error_code == ErrorCode.UNSUPPORTED_VERSION

    run(body, tmp_path, group_coordinator_rebalance_protocols="classic")


def test_consumer_commits_and_fetches_with_its_epoch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        epoch = beat(caller).member_epoch

        def fetch(member: str | None, member_epoch: int) -> int:
            asked = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=member_epoch, topics=None)
            return int(caller.ask(OffsetFetchRequest(groups=[asked]), 9).groups[0].error_code)

        for version in (9, 10):
            assert commit(caller, version, member_id="m", generation_id_or_member_epoch=epoch) == ErrorCode.NONE
            stale = commit(caller, version, member_id="m", generation_id_or_member_epoch=epoch + 1)
            assert stale == ErrorCode.STALE_MEMBER_EPOCH
            assert commit(caller, version, member_id="x", generation_id_or_member_epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(caller, 8, member_id="m", generation_id_or_member_epoch=epoch) == ErrorCode.UNSUPPORTED_VERSION
        assert fetch("m", epoch) == fetch(None, -1) == ErrorCode.NONE
        assert fetch("m", epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert fetch("x", epoch) == fetch(None, epoch) == fetch("", -1) == ErrorCode.UNKNOWN_MEMBER_ID

    run(body, tmp_path)


@pytest.mark.parametrize("version", [0, 1])
def test_describe_tells_epochs_and_assignments(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        epoch = beat(caller, instance_id="i", rack_id="r", server_assignor="range").member_epoch
        await join_alone(caller, group="classic")
        request = ConsumerGroupDescribeRequest(group_ids=["g", "classic", "nobody", ""], include_authorized_operations=True)
        found, *others = caller.ask(request, version).groups
        assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", epoch, epoch)
        assert (found.assignor_name, found.authorized_operations) == ("range", 3400)
        (member,) = found.members
        assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", epoch)
        assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["flights"], "")
        assert member.assignment == member.target_assignment
        (topic,) = member.assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("flights", [0, 1, 2, 3])
        assert member.member_type == (1 if version >= 1 else -1)
        expected = [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID]
        assert [group.error_code for group in others] == expected
        assert {group.authorized_operations for group in others} == {NOT_ASKED}
        (found,) = caller.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), version).groups
        assert found.authorized_operations == NOT_ASKED

    run(body, tmp_path)


def test_describe_leaves_out_topics_that_are_no_more(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        beat(caller)
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        caller.broker.topics.delete(flights)
        (found,) = caller.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        (member,) = found.members
        assert member.assignment.topic_partitions == member.target_assignment.topic_partitions == []

    run(body, tmp_path)


def test_describe_tells_what_a_member_has_still_to_give_up(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first = beat(caller)
        beat(caller, member="n")
        assert assigned(caller, beat(caller, first.member_epoch)) == [0, 1]
        (found,) = caller.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        member = next(member for member in found.members if member.member_id == "m")
        assert member.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
        assert member.target_assignment.topic_partitions[0].partitions == [0, 1]

    run(body, tmp_path, group_consumer_assignment_interval_ms="0")


def test_consumer_group_is_listed_and_deleted_like_others(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        epoch = beat(caller).member_epoch
        commit(caller, member_id="m", generation_id_or_member_epoch=epoch)
        (listed,) = caller.ask(ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"]), 5).groups
        assert (listed.group_id, listed.protocol_type, listed.group_state) == ("g", "consumer", "Stable")
        (described,) = caller.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND

        def delete() -> int:
            return int(caller.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)

        assert delete() == ErrorCode.NON_EMPTY_GROUP
        assert beat(caller, -1).error_code == ErrorCode.NONE
        assert delete() == ErrorCode.NONE
        assert caller.ask(ListGroupsRequest(), 5).groups == []

    run(body, tmp_path)


def test_consumer_group_outlives_the_broker(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        assert assigned(caller, beat(caller)) == [0, 1, 2, 3]

    async def after(caller: Caller) -> None:
        assert beat(caller, 2).error_code == ErrorCode.NONE
        assert beat(caller, 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH

    run(before, tmp_path)
    run(after, tmp_path)


def test_groups_are_forgotten_with_the_topic_that_holds_them(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        beat(caller)
        topic = caller.broker.topics.find(GROUP_METADATA_TOPIC)
        assert topic is not None
        caller.broker.topics.delete(topic)
        assert beat(caller, 2).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert beat(caller).error_code == ErrorCode.NONE

    run(body, tmp_path)


def test_group_may_set_its_own_times(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter("g", {"consumer.heartbeat.interval.ms": "7000"})
        assert beat(caller).heartbeat_interval_ms == 7000
        assert beat(caller, group="h").heartbeat_interval_ms == 5000

    run(body, tmp_path)


def test_consumers_hear_of_partitions_that_come(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        beat(caller)
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        caller.broker.topics.add_partitions(flights, 6)
        assert assigned(caller, beat(caller, 2)) == [0, 1, 2, 3, 4, 5]

    run(body, tmp_path, group_consumer_assignment_interval_ms="0")


def test_consumer_of_a_large_group_gets_partitions_that_the_workers_of_the_broker_have_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.groups.modern.heartbeat_step.COMPUTED_AT_ONCE", 1)

    async def body(caller: Caller) -> None:
        joined = beat(caller)
        assert joined.assignment.topic_partitions == []
        group = caller.broker.groups.coordinator.groups["g"]
        with trio.fail_after(5):
            while group.state_name == "Assigning":
                await trio.lowlevel.checkpoint()
        assert assigned(caller, beat(caller, joined.member_epoch)) == [0, 1, 2, 3]

    run(body, tmp_path)
