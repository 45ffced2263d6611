"""Requests and checks shared by the tests of Fetch."""

from __future__ import annotations

from typing import Any

from wirekafka.tests.api.data_plane import NOW_MS, Caller, values_of
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

MIB = 1 << 20


def append(caller: Caller, records: bytearray, index: int = 0, topic: str = "flights") -> None:
    caller.broker.topics.find(topic).partitions[index].append(memoryview(records), now_ms=NOW_MS)  # type: ignore[union-attr]


def request_of(caller: Caller, *asked: FetchPartition, topic: str = "flights", **fields: Any) -> FetchRequest:
    found = caller.broker.topics.find(topic)
    topics = [FetchTopic(topic=topic, topic_id=found.topic_id if found else b"?" * 16, partitions=list(asked))]
    return FetchRequest(**{"max_bytes": MIB, "max_wait_ms": 0, "min_bytes": 1, "topics": topics, **fields})


def at(offset: int, index: int = 0, max_bytes: int = MIB, **fields: Any) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **fields)


def partitions_of(response: Any) -> dict[int, Any]:
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def values(data: Any) -> list[bytes | None]:
    return values_of(data.records)
