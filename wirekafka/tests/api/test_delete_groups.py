from pathlib import Path

import pytest

from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join_alone, run


@pytest.mark.parametrize("version", range(3))
def test_delete_groups_answers_each_group_once(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        commit(caller, group="simple")
        results = caller.ask(DeleteGroupsRequest(groups_names=["g", "simple", "nobody", "simple"]), version).results
        assert [(result.group_id, result.error_code) for result in results] == [
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("simple", ErrorCode.NONE),
            ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        assert [group.group_id for group in caller.broker.groups.list_groups()] == ["g"]

    run(body, tmp_path)
