from pathlib import Path

import pytest

from wirekafka.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import answered, join, join_alone, run


@pytest.mark.parametrize("version", range(6))
def test_sync_group_gives_exactly_the_leaders_bytes(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        joined = await answered(join(caller, 3))
        assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"\0\xff" * 50)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        )
        synced = await answered(caller.ask(request, version))
        assert (synced.error_code, synced.assignment) == (0, b"\0\xff" * 50)
        assert (synced.protocol_type, synced.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))

    run(body, tmp_path)


@pytest.mark.parametrize(("protocol_type", "protocol_name"), [(None, "range"), ("consumer", None), ("consumer", "sticky")])
def test_sync_group_of_version_5_names_the_groups_protocol(
    tmp_path: Path, protocol_type: str | None, protocol_name: str | None
) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller)
        request = SyncGroupRequest(
            group_id="g", generation_id=1, member_id=member, protocol_type=protocol_type, protocol_name=protocol_name
        )
        assert (await answered(caller.ask(request, 5))).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await answered(caller.ask(request, 4))).error_code == ErrorCode.NONE

    run(body, tmp_path)
