from pathlib import Path

import pytest

from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.errors import ErrorCode
from wirekafka.pending import finish
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import answered, commit, join_alone, run


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
        assert [group.group_id for group in finish(caller.broker.groups.list_groups())] == ["g"]

    run(body, tmp_path)


def test_group_whose_tombstones_exceed_a_batch_is_deleted_for_good(tmp_path: Path) -> None:
    group = "g" * 30_000

    async def delete(caller: Caller) -> None:
        caller.broker.topics.create("many", 50)
        for start in range(0, 50, 10):
            partitions = [OffsetCommitRequestPartition(partition_index=start + each, committed_offset=5) for each in range(10)]
            topic = OffsetCommitRequestTopic(name="many", partitions=partitions)
            committed = caller.ask(OffsetCommitRequest(group_id=group, topics=[topic]), 8)
            assert {partition.error_code for partition in committed.topics[0].partitions} == {ErrorCode.NONE}
        response = await answered(caller.ask(DeleteGroupsRequest(groups_names=[group]), 2))
        assert [result.error_code for result in response.results] == [ErrorCode.NONE]

    async def check(caller: Caller) -> None:
        assert finish(caller.broker.groups.list_groups()) == []
        assert caller.broker.groups.fetch_offsets(group) == {}

    run(delete, tmp_path)
    run(check, tmp_path)
