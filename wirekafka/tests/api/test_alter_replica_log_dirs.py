from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.alter_replica_log_dirs import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from wirekafka.api.describe_log_dirs import DescribeLogDirsRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run


def alter(caller: Caller, version: int, *wishes: tuple[Path | str, str, list[int]]) -> dict[tuple[str, int], int]:
    dirs = [
        AlterReplicaLogDir(path=str(path), topics=[AlterReplicaLogDirTopic(name=name, partitions=partitions)])
        for path, name, partitions in wishes
    ]
    response = caller.ask(AlterReplicaLogDirsRequest(dirs=dirs), version)
    return {(topic.topic_name, each.partition_index): each.error_code for topic in response.results for each in topic.partitions}


def described(caller: Caller) -> dict[str, list[tuple[int, bool, int]]]:
    """Returns, by directory: the partitions, whether they are future replicas, and their lag."""
    results: list[Any] = caller.ask(DescribeLogDirsRequest(topics=None), 4).results
    return {
        result.log_dir: [
            (each.partition_index, each.is_future_key, each.offset_lag) for topic in result.topics for each in topic.partitions
        ]
        for result in results
    }


@pytest.mark.parametrize("version", range(3))
def test_alter_replica_log_dirs_moves_a_partition(tmp_path: Path, version: int) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("t", 1)
        partition = topic.partitions[0]
        for _ in range(3):
            partition.append(memoryview(batch(b"value")), now_ms=NOW_MS)
        assert alter(caller, version, (second, "t", [0])) == {("t", 0): 0}
        assert described(caller) == {str(first): [(0, False, 0)], str(second): [(0, True, 3)]}
        while caller.broker.logs.mover.moves:  # noqa: ASYNC110 - there is no event when a thread has copied
            await trio.sleep(0.001)
        assert described(caller) == {str(first): [], str(second): [(0, False, 0)]}
        assert partition.log.folder.path == str(second / "t-0")

    run(body, first, log_dirs=f"{first},{second}")


def test_alter_replica_log_dirs_says_what_it_cannot_do(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        assert alter(caller, 2, ("/nowhere", "t", [0]), (first, "t", [0, 1, 2]), (second, "u", [0])) == {
            ("t", 0): 0,
            ("t", 1): 0,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert alter(caller, 2, ("/nowhere", "t", [0])) == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}
        caller.broker.logs.catalog.fail_directory(caller.broker.logs.directories[1], OSError(5, "Input/output error"))
        assert alter(caller, 2, (second, "t", [0]), (first, "t", [1])) == {
            ("t", 0): ErrorCode.KAFKA_STORAGE_ERROR,
            ("t", 1): ErrorCode.KAFKA_STORAGE_ERROR,
        }

    run(body, first, log_dirs=f"{first},{second}")
