from pathlib import Path

import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.groups.classic.group import ClassicGroup
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import answered, join, join_alone, run


@pytest.mark.parametrize("version", range(10))
def test_join_group_of_any_version_makes_a_member(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        member = ""
        if version >= 4:
            required = await answered(join(caller, version))
            assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
            member = required.member_id
        joined = await answered(join(caller, version, member=member))
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.protocol_type == ("consumer" if version >= 7 else None)
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("test-")
        assert [each.member_id for each in joined.members] == [joined.member_id]
        assert joined.members[0].metadata == b"\0\0\0\0\0\1\0\7flights"
        (described,) = caller.broker.groups.describe("g").members  # type: ignore[union-attr]
        assert (described.client_id, described.client_host) == ("test", "/127.0.0.1")

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "no_protocol"), [(6, ""), (7, None)])
def test_join_group_that_is_refused_has_no_protocol(tmp_path: Path, version: int, no_protocol: str | None) -> None:
    async def body(caller: Caller) -> None:
        refused = await answered(join(caller, version, member="nobody"))
        assert (refused.error_code, refused.protocol_name) == (ErrorCode.UNKNOWN_MEMBER_ID, no_protocol)
        assert (refused.generation_id, refused.leader, refused.member_id) == (-1, "", "nobody")

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "timeout_ms"), [(0, 10_000), (1, 20_000)])
def test_join_group_has_a_rebalance_timeout_of_its_own_since_version_1(tmp_path: Path, version: int, timeout_ms: int) -> None:
    async def body(caller: Caller) -> None:
        await answered(join(caller, version))
        group = caller.broker.groups.coordinator.groups["g"]
        assert isinstance(group, ClassicGroup)
        (member,) = group.members.values()
        assert member.rebalance_timeout_ms == timeout_ms

    run(body, tmp_path)


@pytest.mark.parametrize("version", [8, 9])
def test_join_group_of_a_static_leader_that_is_back_needs_no_assignment(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        former = await join_alone(caller, instance="one")
        joined = await answered(join(caller, version, instance="one"))
        assert (joined.error_code, joined.generation_id) == (0, 1)
        assert joined.skip_assignment is (version >= 9)
        assert joined.leader == (joined.member_id if version >= 9 else former)
        assert len(joined.members) == (1 if version >= 9 else 0)

    run(body, tmp_path)


def test_join_group_writes_the_reason_of_who_joins_to_the_log(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        with capture_logs() as lines:
            join(caller, 8, instance="one", reason="something to do " + "x" * 1000)
        (line,) = [line for line in lines if line["event"] == "Preparing a rebalance"]
        assert line["reason"].endswith(": something to do " + "x" * 239)

    run(body, tmp_path)
