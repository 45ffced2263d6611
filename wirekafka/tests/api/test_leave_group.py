from pathlib import Path

import pytest
from structlog.testing import capture_logs

from wirekafka.api.leave_group import LeaveGroupRequest, MemberIdentity
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import join_alone, run


@pytest.mark.parametrize("version", range(3))
def test_leave_group_of_one_member_answers_for_it(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller)
        request = LeaveGroupRequest(group_id="g", member_id=member)
        assert caller.ask(request, version).error_code == ErrorCode.NONE
        assert caller.ask(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert caller.ask(LeaveGroupRequest(group_id="", member_id=member), version).error_code == ErrorCode.INVALID_GROUP_ID

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(3, 6))
def test_leave_group_of_several_members_answers_for_each(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller, instance="one")
        leaving = [MemberIdentity(member_id="", group_instance_id="one"), MemberIdentity(member_id="x", reason="why not")]
        response = caller.ask(LeaveGroupRequest(group_id="g", members=leaving), version)
        assert response.error_code == ErrorCode.NONE
        assert [(each.member_id, each.group_instance_id, each.error_code) for each in response.members] == [
            ("", "one", ErrorCode.NONE),
            ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ]
        refused = caller.ask(LeaveGroupRequest(group_id="", members=leaving), version)
        assert (refused.error_code, refused.members) == (ErrorCode.INVALID_GROUP_ID, [])

    run(body, tmp_path)


def test_leave_group_writes_the_reason_of_who_leaves_to_the_log(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller)
        leaving = [MemberIdentity(member_id=member, reason="no more to do " + "x" * 1000)]
        with capture_logs() as lines:
            caller.ask(LeaveGroupRequest(group_id="g", members=leaving), 5)
        (line,) = [line for line in lines if line["event"] == "Member leaves"]
        assert line["reason"] == "no more to do " + "x" * 241

    run(body, tmp_path)
