"""find_partition, which finds the partition of every request."""

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.api.data_plane import Caller, run

UNKNOWN_ID = b"\1" * 16


async def check_refused(caller: Caller, topic: str | bytes, index: int, epoch: int | None, expected: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        caller.broker.find_partition(topic, index, epoch)
    assert refusal.value.code is expected


def test_find_partition_of_a_partition_that_exists_returns_it_by_name_and_by_id(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 2)
        for epoch in (None, -1, 0):
            assert caller.broker.find_partition("flights", 1, epoch) is topic.partitions[1]
            assert caller.broker.find_partition(topic.topic_id, 1, epoch) is topic.partitions[1]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("topic", "index", "expected"),
    [
        ("flights", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("weather", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (UNKNOWN_ID, 0, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_find_partition_of_a_partition_that_does_not_exist_names_what_is_unknown(
    tmp_path: Path, topic: str | bytes, index: int, expected: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        await check_refused(caller, topic, index, None, expected)

    run(body, tmp_path)


def test_find_partition_with_another_leader_epoch_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        partition.leader_epoch = 5
        await check_refused(caller, "flights", 0, 4, ErrorCode.FENCED_LEADER_EPOCH)
        await check_refused(caller, "flights", 0, 6, ErrorCode.UNKNOWN_LEADER_EPOCH)

    run(body, tmp_path)


def test_find_partition_that_another_broker_leads_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1).partitions[0].leader = caller.broker.node_id + 1
        await check_refused(caller, "flights", 0, None, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    run(body, tmp_path)


def test_find_partition_that_is_offline_is_refused_whatever_the_epoch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1).partitions[0].log.offline_reason = "the disk failed"
        await check_refused(caller, "flights", 0, 7, ErrorCode.KAFKA_STORAGE_ERROR)

    run(body, tmp_path)
