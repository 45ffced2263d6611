from pathlib import Path

import pytest

from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import join, join_alone, run


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_of_any_version_tells_whether_to_join_again(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller)

        def beat(group: str = "g", generation: int = 1) -> int:
            request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
            return int(caller.ask(request, version).error_code)

        assert beat() == ErrorCode.NONE
        assert beat(generation=2) == ErrorCode.ILLEGAL_GENERATION
        assert beat(group="") == ErrorCode.INVALID_GROUP_ID
        assert beat(group="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        join(caller, 3)
        assert beat() == ErrorCode.REBALANCE_IN_PROGRESS

    run(body, tmp_path)


def test_heartbeat_under_a_name_that_another_has_taken_over_is_fenced(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller, instance="one")
        join(caller, instance="one")
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member, group_instance_id="one")
        assert caller.ask(request, 3).error_code == ErrorCode.FENCED_INSTANCE_ID

    run(body, tmp_path)
