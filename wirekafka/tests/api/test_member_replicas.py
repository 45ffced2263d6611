"""What a member of a cluster says of partitions that it leads, follows, or has no replica of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from wirekafka.api.describe_log_dirs import DescribeLogDirsRequest
from wirekafka.api.describe_producers import DescribeProducersRequest, TopicRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.api.members import NODE_ID, id_of, join, topic
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

OTHER_ID = 2
LED, FOLLOWED, ABSENT = range(3)


def join_with_replicas(caller: Caller) -> None:
    member = join(caller)
    member.tell(topic("flights", NODE_ID, OTHER_ID, OTHER_ID))
    member.host(caller, id_of("flights"), "flights", LED)
    member.host(caller, id_of("flights"), "flights", FOLLOWED, leader=OTHER_ID)


def test_log_directories_have_the_replicas_of_this_broker_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join_with_replicas(caller)
        response = caller.ask(DescribeLogDirsRequest(topics=None), 4)
        assert response.error_code == ErrorCode.NONE
        [directory] = response.results
        assert [(each.name, [part.partition_index for part in each.partitions]) for each in directory.topics] == [
            ("flights", [LED, FOLLOWED])
        ]

    run(body, tmp_path)


def test_producers_are_described_by_each_replica(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join_with_replicas(caller)
        asked = TopicRequest(name="flights", partition_indexes=[LED, FOLLOWED, ABSENT])
        response: Any = caller.ask(DescribeProducersRequest(topics=[asked]), 0)
        codes = {each.partition_index: each.error_code for each in response.topics[0].partitions}
        assert codes == {LED: 0, FOLLOWED: 0, ABSENT: ErrorCode.NOT_LEADER_OR_FOLLOWER}

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("replica_id", "codes"),
    [
        (-1, [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER]),
        (-2, [0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER]),
    ],
)
def test_offsets_of_a_follower_are_told_to_tools_only(tmp_path: Path, replica_id: int, codes: list[int]) -> None:
    async def body(caller: Caller) -> None:
        join_with_replicas(caller)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (LED, FOLLOWED, ABSENT)]
        request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="flights", partitions=asked)])
        response: Any = caller.ask(request, 9)
        assert [each.error_code for each in response.topics[0].partitions] == codes

    run(body, tmp_path)


def test_replica_that_is_not_here_yet_is_not_available_for_a_move(tmp_path: Path) -> None:
    """kafka-reassign-partitions tries again after this error only."""

    async def body(caller: Caller) -> None:
        join_with_replicas(caller)
        [path] = (each.path for each in caller.broker.logs.directories)
        moved = AlterReplicaLogDirTopic(name="flights", partitions=[LED, ABSENT])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[moved])])
        response: Any = caller.ask(request, 2)
        codes = {each.partition_index: each.error_code for each in response.results[0].partitions}
        assert codes == {LED: 0, ABSENT: ErrorCode.REPLICA_NOT_AVAILABLE}

    run(body, tmp_path)


def test_wrong_path_is_told_for_a_replica_that_is_not_here_yet(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join_with_replicas(caller)
        moved = AlterReplicaLogDirTopic(name="flights", partitions=[ABSENT])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/nowhere", topics=[moved])])
        response: Any = caller.ask(request, 2)
        assert response.results[0].partitions[0].error_code == ErrorCode.LOG_DIR_NOT_FOUND

    run(body, tmp_path)
