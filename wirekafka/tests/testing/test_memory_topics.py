"""The topics in memory do for coordinators what the real topics do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.validation import Origin
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.testing.data_plane import NOW_MS
from wirekafka.testing.memory_topics import MemoryTopics
from wirekafka.tests.api import data_plane
from wirekafka.tests.api.data_plane import Caller
from wirekafka.wire.batch import BatchHeader, Record, build_batch

Check = Callable[[Any], None]


def with_real_topics(check: Check, path: Path) -> None:
    async def body(caller: Caller) -> None:
        check(caller.broker.topics)

    data_plane.run(body, path, offsets_topic_num_partitions="2")


def with_memory_topics(check: Check, path: Path) -> None:
    check(MemoryTopics(partition_count=2))


all_topics = pytest.mark.parametrize("run_with", [with_real_topics, with_memory_topics])


def append(partition: Any, *values: bytes) -> Any:
    batch = build_batch([Record(key=b"k", value=value, timestamp=NOW_MS) for value in values])
    return partition.append(memoryview(batch), now_ms=NOW_MS, origin=Origin.COORDINATOR)


@all_topics
def test_internal_topic_is_found_once_it_is_created(tmp_path: Path, run_with: Callable[[Check, Path], None]) -> None:
    def check(topics: Any) -> None:
        assert topics.find(GROUP_METADATA_TOPIC) is None
        topic = topics.create_internal(GROUP_METADATA_TOPIC)
        assert topic is topics.find(GROUP_METADATA_TOPIC) is topics.get(GROUP_METADATA_TOPIC) is topics.find_by_id(topic.topic_id)
        assert [(each.topic, each.index, each.topic_id) for each in topic.partitions] == [
            (GROUP_METADATA_TOPIC, index, topic.topic_id) for index in (0, 1)
        ]

    run_with(check, tmp_path)


@all_topics
def test_deleted_topic_is_announced_once_its_partitions_are_closed(
    tmp_path: Path, run_with: Callable[[Check, Path], None]
) -> None:
    def check(topics: Any) -> None:
        topic = topics.create("flights", 1)
        seen: list[Any] = []
        topics.on_delete.append(lambda gone: seen.append((gone, gone.partitions[0].is_gone, topics.find("flights"))))
        topics.delete(topic)
        assert seen == [(topic, True, None)]
        with pytest.raises(KafkaError) as caught:
            topics.get("flights")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_with(check, tmp_path)


@all_topics
def test_appended_batches_and_markers_are_committed_and_read_in_order(
    tmp_path: Path, run_with: Callable[[Check, Path], None]
) -> None:
    def check(topics: Any) -> None:
        partition = topics.create("flights", 1).partitions[0]
        offsets = [(info.base_offset, info.last_offset) for info in (append(partition, b"a", b"b"), append(partition, b"c"))]
        settings: dict[str, Any] = {"coordinator_epoch": 0, "is_commit": True, "now_ms": NOW_MS, "transaction_version": 1}
        marker = partition.write_marker(7, 0, **settings)
        log = partition.log
        assert [*offsets, (marker.base_offset, marker.last_offset)] == [(0, 1), (2, 2), (3, 3)]
        assert (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset) == (0, 4, 4, 4)
        headers = [BatchHeader(batch) for batch in log.batches()]
        assert [(header.base_offset, header.last_offset, header.is_control) for header in headers] == [
            (0, 1, False),
            (2, 2, False),
            (3, 3, True),
        ]
        assert partition.delete_records(3) == log.log_start_offset == 3

    run_with(check, tmp_path)


@all_topics
def test_batch_that_is_too_large_is_refused_and_changes_nothing(tmp_path: Path, run_with: Callable[[Check, Path], None]) -> None:
    def check(topics: Any) -> None:
        partition = topics.create("flights", 1).partitions[0]
        with pytest.raises(KafkaError) as caught:
            append(partition, bytes(2 * partition.log.config.max_message_bytes))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert partition.log.log_end_offset == 0

    run_with(check, tmp_path)
