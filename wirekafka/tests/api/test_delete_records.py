from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run


def ask(caller: Caller, offset: int, version: int = 2, *, topic: str = "flights", index: int = 0) -> Any:
    asked = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)])
    return caller.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), version).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
def test_delete_records_moves_the_start_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        partition.append(memoryview(batch(b"a", b"b", b"c")), now_ms=NOW_MS)
        assert [(ask(caller, offset, version).low_watermark) for offset in (1, 0, -1)] == [1, 1, 3]
        assert partition.log.log_start_offset == 3

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("topic", "index", "offset", "code"),
    [
        ("flights", 0, 4, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("flights", 0, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("flights", 1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("compacted", 0, 0, ErrorCode.POLICY_VIOLATION),
        ("both", 0, 0, ErrorCode.NONE),
    ],
)
def test_delete_records_that_may_not_go_are_refused(tmp_path: Path, topic: str, index: int, offset: int, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        topics = caller.broker.topics
        topics.create("flights", 1).partitions[0].append(memoryview(batch(b"a", b"b", b"c")), now_ms=NOW_MS)
        topics.create("compacted", 1, {"cleanup.policy": "compact"})
        topics.create("both", 1, {"cleanup.policy": "compact,delete"})
        answer = ask(caller, offset, topic=topic, index=index)
        assert (answer.error_code, answer.low_watermark) == (code, -1 if code else 0)

    run(body, tmp_path)


def test_delete_records_of_an_internal_topic_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        if caller.broker.topics.find("__consumer_offsets") is None:
            caller.broker.topics.create_internal("__consumer_offsets")
        assert ask(caller, 0, topic="__consumer_offsets").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(body, tmp_path, offsets_topic_num_partitions="1")
