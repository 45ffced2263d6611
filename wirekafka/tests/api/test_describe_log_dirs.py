import shutil
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.slices import SLICE_SECONDS, Slices
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, wait_for


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(6))
def test_describe_log_dirs_tells_sizes_and_room(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 2)
        records = batch(b"x" * 1000)
        topic.partitions[1].append(memoryview(records), now_ms=NOW_MS)
        (result,) = caller.ask(DescribeLogDirsRequest(topics=None), version).results
        assert (result.error_code, result.log_dir) == (0, str(tmp_path))
        assert sizes(result) == {("a", 0): 0, ("a", 1): len(records)}
        if version >= 4:
            assert result.total_bytes >= result.usable_bytes > 0
        if version >= 5:
            assert result.is_cordoned is False

    run(body, tmp_path)


def test_describe_log_dirs_of_some_partitions_tells_those_that_are_there(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 3)
        topics = [DescribableLogDirTopic(topic="a", partitions=[2, 9]), DescribableLogDirTopic(topic="b", partitions=[0])]
        (result,) = caller.ask(DescribeLogDirsRequest(topics=topics), 4).results
        assert sizes(result) == {("a", 2): 0}
        (result,) = caller.ask(DescribeLogDirsRequest(topics=[]), 4).results
        assert result.topics == []

    run(body, tmp_path)


def test_describe_log_dirs_tells_each_directory(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 2)
        results = caller.ask(DescribeLogDirsRequest(topics=None), 4).results
        assert [result.log_dir for result in results] == [str(first), str(second)]
        assert [len(sizes(result)) for result in results] == [1, 1]

    run(body, first, log_dirs=f"{first},{second}")


def test_describe_log_dirs_of_a_lost_directory_is_an_error_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        moved = tmp_path / "moved"
        shutil.move(second, moved)
        results = caller.ask(DescribeLogDirsRequest(topics=None), 4).results
        assert [result.error_code for result in results] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        shutil.move(moved, second)

    run(body, first, log_dirs=f"{first},{second}")


@pytest.mark.time_limits
@pytest.mark.parametrize("asks_for_all", [True, False])
def test_topic_that_is_deleted_while_the_directories_are_described_is_left_out(tmp_path: Path, asks_for_all: bool) -> None:
    async def body(caller: Caller) -> None:
        for name in ("a", "b"):
            caller.broker.topics.create(name, 50)
        caller.broker.slices = Slices(caller.broker.clock, seconds=partial(next, count(step=SLICE_SECONDS)))
        topics = None if asks_for_all else [DescribableLogDirTopic(topic=name, partitions=list(range(50))) for name in "ab"]
        pending = caller.ask(DescribeLogDirsRequest(topics=topics), 4)
        assert isinstance(pending, Pending)
        caller.broker.topics.delete(caller.broker.topics.get("b"))
        [result] = (await wait_for(pending)).results
        assert [(topic.name, len(topic.partitions)) for topic in result.topics] == [("a", 50)]

    run(body, tmp_path)
