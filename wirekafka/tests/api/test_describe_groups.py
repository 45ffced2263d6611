from pathlib import Path

import pytest

from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join, join_alone, run

NOT_ASKED = -(2**31)


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_shows_a_stable_group_with_its_members(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        member_id = await join_alone(caller, instance="one")
        (group,) = caller.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=version >= 3), version).groups
        assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
            0,
            "Stable",
            "consumer",
            "range",
        )
        assert group.authorized_operations == (3400 if version >= 3 else NOT_ASKED)
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"\0\0\0\0\0\1\0\7flights", b"mine")
        assert member.group_instance_id == ("one" if version >= 4 else None)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_of_a_group_that_does_not_exist_is_dead(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        (group,) = caller.ask(
            DescribeGroupsRequest(groups=["nobody"], include_authorized_operations=version >= 3), version
        ).groups
        assert (group.group_id, group.group_state, group.members) == ("nobody", "Dead", [])
        if version >= 6:
            assert (group.error_code, group.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group nobody not found.")
            assert group.authorized_operations == NOT_ASKED
        else:
            assert group.error_code == ErrorCode.NONE

    run(body, tmp_path)


def test_describe_groups_in_a_rebalance_shows_no_protocol(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        join(caller, 3)
        commit(caller, group="simple")
        group, simple = caller.ask(DescribeGroupsRequest(groups=["g", "simple"]), 5).groups
        assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
        assert [member.member_metadata for member in group.members] == [b"", b""]
        assert group.authorized_operations == NOT_ASKED
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])

    run(body, tmp_path)


def test_describe_groups_of_a_group_that_is_named_twice_describes_it_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        groups = caller.ask(DescribeGroupsRequest(groups=["g", "nobody", "g", "nobody", "g"]), 5).groups
        assert [(group.group_id, len(group.members)) for group in groups] == [("g", 1), ("nobody", 0)]

    run(body, tmp_path)


def test_describe_groups_of_a_group_of_another_type_says_so(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", rebalance_timeout_ms=20_000)
        request.subscribed_topic_names, request.topic_partitions = ["flights"], []
        assert caller.ask(request, 1).error_code == ErrorCode.NONE
        (group,) = caller.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
        assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        assert group.error_message == "Group g is not a classic group."

    run(body, tmp_path)
