"""A data directory that fails takes its own partitions offline and no others."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.describe_log_dirs import DescribeLogDirsRequest
from wirekafka.api.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.broker import Broker
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.transactions.requests import InitRequest
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.manager import LogManager
from wirekafka.names import TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.server.running import open_broker
from wirekafka.testing.faulty_storage import LostDirectoryStorage
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.log.logs import NOW_MS
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

OFFLINE, FINE = 1, 0
"""The partitions of a topic: with two directories, the first directory has the first partition."""


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> LostDirectoryStorage:
    """The file system of every broker in the test."""
    storage = LostDirectoryStorage()
    original = LogManager.open

    async def open_with_storage(*arguments: Any, **settings: Any) -> LogManager:
        return await original(*arguments, **{**settings, "storage": storage})

    monkeypatch.setattr(LogManager, "open", open_with_storage)
    return storage


def produce_request(partition: int) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(batch(b"value")))
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


def produce(caller: Caller, partition: int) -> int:
    return int(caller.ask(produce_request(partition), 9).responses[0].partition_responses[0].error_code)


def fetch(caller: Caller, partition: int, *, offset: int = 0, max_wait_ms: int = 0) -> Any:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[asked])]
    return caller.ask(FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics), 11)


def list_offsets(caller: Caller, partition: int, version: int = 5) -> int:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1, max_num_offsets=1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    return int(caller.ask(request, version).topics[0].partitions[0].error_code)


def leaders(caller: Caller) -> list[tuple[int, int, list[int]]]:
    response = caller.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 8)
    return [(each.error_code, each.leader_id, each.offline_replicas) for each in response.topics[0].partitions]


def check_one_is_offline(caller: Caller) -> None:
    assert leaders(caller) == [(0, 1, []), (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1])]
    (topic,) = caller.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0).topics
    assert [each.leader_id for each in topic.partitions] == [1, -1]
    assert topic.partitions[OFFLINE].offline_replicas == [1]
    assert produce(caller, OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR
    assert fetch(caller, OFFLINE).responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert list_offsets(caller, OFFLINE) == list_offsets(caller, OFFLINE, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(caller, FINE) == list_offsets(caller, FINE) == 0
    assert len(fetch(caller, FINE).responses[0].partitions[0].records) > 0
    results = caller.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert [result.error_code for result in results] == [0, ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_directory_that_fails_takes_its_partitions_offline(
    tmp_path: Path, storage: LostDirectoryStorage, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        assert produce(caller, FINE) == produce(caller, OFFLINE) == 0
        assert [leader for _, leader, _ in leaders(caller)] == [1, 1]
        waiting = fetch(caller, OFFLINE, offset=1, max_wait_ms=10**6)
        storage.lost, storage.error_number = str(second), number

        assert produce(caller, OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR

        answer = await wait_for(waiting)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        check_one_is_offline(caller)
        # The broker does not use the directory again, and places no new partitions in it.
        storage.lost = None
        check_one_is_offline(caller)
        topic = caller.broker.topics.create("new", 2)
        assert {os.path.dirname(each.log.folder.path) for each in topic.partitions} == {str(first)}

    run(body, first, log_dirs=f"{first},{second}")
    assert capsys.readouterr().out.count("A data directory has failed") == 1

    async def again(caller: Caller) -> None:
        assert [leader for _, leader, _ in leaders(caller)] == [1, 1]
        assert produce(caller, OFFLINE) == 0

    run(again, first, log_dirs=f"{first},{second}")


def test_directory_that_is_lost_at_the_start_takes_its_partitions_offline(tmp_path: Path, storage: LostDirectoryStorage) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def before(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        caller.broker.topics.create("deleted", 2)
        assert produce(caller, OFFLINE) == 0

    async def body(caller: Caller) -> None:
        check_one_is_offline(caller)
        deleted = caller.broker.topics.find("deleted")
        assert deleted is not None
        caller.broker.topics.delete(deleted)
        assert not (first / "t-1").exists()

    async def after(caller: Caller) -> None:
        assert [leader for _, leader, _ in leaders(caller)] == [1, 1]
        assert len(fetch(caller, OFFLINE).responses[0].partitions[0].records) > 0
        assert caller.broker.topics.find("deleted") is None
        assert not (second / "deleted-1").exists()

    run(before, first, log_dirs=f"{first},{second}")
    storage.lost = str(second)
    run(body, first, log_dirs=f"{first},{second}")
    storage.lost = None
    run(after, first, log_dirs=f"{first},{second}")


def test_first_directory_must_work_at_the_start(tmp_path: Path, storage: LostDirectoryStorage) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        raise AssertionError("it cannot know the topics")

    storage.lost = str(first)
    with pytest.raises(ExceptionGroup) as caught:
        run(body, first, log_dirs=f"{first},{second}")
    assert caught.group_contains(OSError)


def test_new_partition_goes_to_the_next_directory_if_one_fails(tmp_path: Path, storage: LostDirectoryStorage) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        storage.lost = str(second)
        topic = caller.broker.topics.create("b", 1)
        assert os.path.dirname(topic.partitions[0].log.folder.path) == str(first)

    run(body, first, log_dirs=f"{first},{second}")


def test_full_disk_takes_no_directory_offline(tmp_path: Path, storage: LostDirectoryStorage) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        storage.lost, storage.error_number = str(second), errno.ENOSPC
        assert produce(caller, OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR
        assert [leader for _, leader, _ in leaders(caller)] == [1, 1]
        storage.lost = None
        assert produce(caller, OFFLINE) == 0

    run(body, first, log_dirs=f"{first},{second}")


def test_groups_of_an_offline_partition_have_no_coordinator(tmp_path: Path, storage: LostDirectoryStorage) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def before(caller: Caller) -> None:
        caller.broker.topics.create_internal("__consumer_offsets")

    async def body(caller: Caller) -> None:
        found = {}
        for number in range(20):
            (answer,) = caller.ask(FindCoordinatorRequest(coordinator_keys=[f"group {number}"]), 4).coordinators
            is_there = not caller.broker.groups.partition_of(f"group {number}") % 2
            found[is_there] = answer.error_code
        assert found == {True: 0, False: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    run(before, first, log_dirs=f"{first},{second}")
    storage.lost = str(second)
    run(body, first, log_dirs=f"{first},{second}")


def test_broker_stops_once_all_directories_have_failed(
    tmp_path: Path, storage: LostDirectoryStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BrokerConfig({"log.dirs": f"{tmp_path}/1,{tmp_path}/2", "listeners": "PLAINTEXT://127.0.0.1:0"})

    async def main() -> None:
        async with open_broker(config) as running:
            topic = running.broker.topics.create("t", 2)
            storage.lost = str(tmp_path)
            for partition in topic.partitions:
                with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
                    partition.append(memoryview(batch(b"value")), now_ms=NOW_MS)
            await trio.sleep_forever()

    with pytest.raises(KafkaError, match="all data directories have failed"):
        trio.run(main)
    assert "All data directories have failed: the broker stops" in capsys.readouterr().out


# A real file system that becomes read-only


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Mounts a small file system; the test needs the right to mount one."""
    path = tmp_path / "mounted"
    path.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", path], capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"cannot mount a file system: {mount.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def make_read_only(path: Path) -> None:
    """Remounts the file system; the kernel refuses while a file is open for writing, so the test closes all files first."""
    subprocess.run(["mount", "-o", "remount,ro", path], check=True)


def let_go(broker: Broker, path: Path) -> None:
    for directory in broker.logs.directories:
        if directory.path == str(path):
            directory.unlock()
    for topic in broker.topics:
        for partition in topic.partitions:
            for segment in partition.log.segments:
                segment.close()


def test_directory_remounted_read_only_takes_its_partitions_offline(tmp_path: Path, mounted: Path) -> None:
    first = tmp_path / "1"

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        assert produce(caller, OFFLINE) == 0
        let_go(caller.broker, mounted)
        make_read_only(mounted)
        assert produce(caller, OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR
        check_one_is_offline(caller)

    async def while_read_only(caller: Caller) -> None:
        check_one_is_offline(caller)

    async def after(caller: Caller) -> None:
        assert len(fetch(caller, OFFLINE).responses[0].partitions[0].records) > 0
        assert produce(caller, OFFLINE) == 0

    run(body, first, log_dirs=f"{first},{mounted}")
    run(while_read_only, first, log_dirs=f"{first},{mounted}")
    subprocess.run(["mount", "-o", "remount,rw", mounted], check=True)
    run(after, first, log_dirs=f"{first},{mounted}")


def test_directory_that_fails_between_an_append_and_its_commit_is_told_to_all_that_wait(
    tmp_path: Path, storage: LostDirectoryStorage
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        broker = caller.broker
        partitions = broker.topics.create("t", 2).partitions
        broker.topics.create_internal(TRANSACTION_STATE_TOPIC)
        producer = broker.transactions.init_producer_id(InitRequest("x", 60_000))
        for partition in partitions:
            partition.set_replicas((partition.leader, 99), (partition.leader, 99))
        names = [partition.topic_partition for partition in partitions]
        broker.transactions.add_partitions("x", producer, names, client_version=2)
        broker.transactions.end("x", producer, is_commit=True, client_version=2)
        waiting = [caller.ask(produce_request(index), 9) for index in (FINE, OFFLINE)]
        fetching = fetch(caller, OFFLINE, max_wait_ms=60_000)
        storage.lost = str(second)
        assert produce(caller, OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR
        offline = (await wait_for(waiting[OFFLINE])).responses[0].partition_responses[0]
        assert (offline.error_code, offline.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, 1)
        fetched = (await wait_for(fetching)).responses[0].partitions[0]
        assert fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not waiting[FINE].is_done
        partitions[FINE].advance_high_watermark(2)
        assert (await wait_for(waiting[FINE])).responses[0].partition_responses[0].error_code == 0
        await trio.sleep(2)
        known, missing = broker.transactions.describe("x")
        assert (known.state.title, missing) == ("PrepareCommit", [names[OFFLINE]])

    run(body, first, log_dirs=f"{first},{second}", transaction_state_log_num_partitions="1")


def test_directory_that_fails_before_a_commit_costs_the_coordinator_its_partition(
    tmp_path: Path, storage: LostDirectoryStorage
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"

    async def body(caller: Caller) -> None:
        broker = caller.broker
        broker.topics.create_internal(TRANSACTION_STATE_TOPIC)
        lost, kept = OFFLINE, FINE
        ids = {broker.transactions.partition_of(each): each for each in "abcdefgh"}
        for index in (lost, kept):
            partition = state_partition(broker, index)
            partition.set_replicas((partition.leader, 99), (partition.leader, 99))
        waiting = {index: caller.ask(init_request(ids[index]), 4) for index in (lost, kept)}
        storage.lost = str(second)
        refused = caller.ask(init_request(ids[lost]), 4)
        answer = await wait_for(waiting[lost])
        assert answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert (await wait_for(refused) if isinstance(refused, Pending) else refused).error_code != 0
        assert not broker.transactions.is_available(ids[lost])
        assert not waiting[kept].is_done
        partition = state_partition(broker, kept)
        partition.advance_high_watermark(partition.log.log_end_offset)
        assert (await wait_for(waiting[kept])).error_code == 0
        assert [*broker.transactions._coordinator.transactions] == [ids[kept]]

    run(body, first, log_dirs=f"{first},{second}", transaction_state_log_num_partitions="2")


def state_partition(broker: Broker, index: int) -> Partition:
    topic = broker.topics.find(TRANSACTION_STATE_TOPIC)
    assert topic is not None
    return topic.partitions[index]


def init_request(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
