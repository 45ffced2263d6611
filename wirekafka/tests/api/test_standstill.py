"""After a pause of its process, a broker does not expire the state of clients, because their requests could not be read."""

from pathlib import Path

import pytest
import trio
import trio.testing

from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api import group_client, sharing
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import join_alone
from wirekafka.tests.api.sharing import ACCEPT, Member, append, errors
from wirekafka.tests.api.test_consumer_groups import beat

NOTICES_MS = pytest.mark.parametrize("notices_ms", [1, 900])
"""The delay until the request of a client is read."""


async def stand_still(notices_ms: int) -> None:
    """A pause of ten minutes in which no task of the broker runs."""
    mock_clock = trio.lowlevel.current_clock()
    assert isinstance(mock_clock, trio.testing.MockClock)
    mock_clock.jump(600)
    await trio.sleep(notices_ms / 1000)


@NOTICES_MS
def test_member_of_a_classic_group_is_still_one(tmp_path: Path, notices_ms: int) -> None:
    async def body(caller: Caller) -> None:
        member = await join_alone(caller)
        await stand_still(notices_ms)
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert caller.ask(request, 4).error_code == ErrorCode.NONE
        await trio.sleep(9)
        assert caller.ask(request, 4).error_code == ErrorCode.NONE

    group_client.run(body, tmp_path)


@NOTICES_MS
def test_member_of_a_consumer_group_is_still_one(tmp_path: Path, notices_ms: int) -> None:
    async def body(caller: Caller) -> None:
        joined = beat(caller)
        await stand_still(notices_ms)
        assert beat(caller, joined.member_epoch).error_code == ErrorCode.NONE

    group_client.run(body, tmp_path)


@NOTICES_MS
def test_member_of_a_share_group_still_has_its_records(tmp_path: Path, notices_ms: int) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        await stand_still(notices_ms)
        assert member.heartbeat().error_code == ErrorCode.NONE
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    sharing.run(body, tmp_path)
