from pathlib import Path

import pytest

from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join_alone, run


@pytest.mark.parametrize("version", range(6))
def test_list_groups_names_every_group(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        commit(caller, group="simple")
        response = caller.ask(ListGroupsRequest(), version)
        assert [(group.group_id, group.protocol_type) for group in response.groups] == [("g", "consumer"), ("simple", "")]
        if version >= 4:
            assert [group.group_state for group in response.groups] == ["Stable", "Empty"]
        if version >= 5:
            assert [group.group_type for group in response.groups] == ["classic", "classic"]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ([], [], ["g", "simple"]),
        (["STABLE", "Dead"], [], ["g"]),
        (["empty"], ["Classic"], ["simple"]),
        (["nonsense"], [], []),
        ([], ["consumer"], []),
    ],
)
def test_list_groups_filters_by_state_and_type(tmp_path: Path, states: list[str], types: list[str], expected: list[str]) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        commit(caller, group="simple")
        response = caller.ask(ListGroupsRequest(states_filter=states, types_filter=types), 5)
        assert [group.group_id for group in response.groups] == expected

    run(body, tmp_path)
