from __future__ import annotations

from pathlib import Path
from typing import Any

from wirekafka.api.describe_producers import DescribeProducersRequest, TopicRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch
from wirekafka.tests.api.fetching import append
from wirekafka.tests.api.transacting import V1, Transactor, run


def describe(caller: Caller, *indexes: int, topic: str = "flights") -> list[Any]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=list(indexes))])
    return list(caller.ask(request, 0).topics[0].partitions)


def states(partition: Any) -> list[tuple[int, ...]]:
    return [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in partition.active_producers
    ]


def test_partition_without_producers_has_none(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a"))
        [found] = describe(caller, 0)
        assert (found.error_code, found.error_message, states(found)) == (0, None, [])

    run(body, tmp_path)


def test_producers_are_told_with_their_open_transactions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        append(caller, batch(b"a", b"b", producer_id=900, producer_epoch=3, base_sequence=5))
        producer = Transactor(caller, version=V1)
        producer.add(0)
        producer.send(b"c", b"d")
        found, other = describe(caller, 0, 1)
        assert states(found) == [
            (900, 3, 6, NOW_MS + 1, -1, -1),
            (producer.producer_id, producer.epoch, 1, NOW_MS + 1, -1, 2),
        ]
        assert states(other) == []
        producer.end()
        assert states(describe(caller, 0)[0])[1] == (producer.producer_id, producer.epoch, 1, NOW_MS, 0, -1)

    run(body, tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert [each.error_code for each in describe(caller, 0, 1, -1)] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert describe(caller, 0, topic="gone")[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        [found] = describe(caller, 0, topic="no/topic")
        assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert found.error_message

    run(body, tmp_path)


def test_partition_that_is_offline_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1).partitions[0].log.take_offline("lost")
        assert describe(caller, 0)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(body, tmp_path)
