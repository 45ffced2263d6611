"""Fetch responses with one partition, which are encoded without message objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.fetch.one_partition import encode_one
from wirekafka.errors import ErrorCode
from wirekafka.log.storage import FileRegion
from wirekafka.metadata.topics import Topics
from wirekafka.tests.api.data_plane import Caller, batch, run
from wirekafka.tests.api.fetching import append, at, partitions_of, request_of, values
from wirekafka.wire.codec import encode
from wirekafka.wire.messages.fetch import EpochEndOffset, FetchableTopicResponse, FetchResponse, PartitionData

FIRST_FLEXIBLE_VERSION = 12
TOPIC_ID = bytes(range(16))


def data_of(records: bytes = b"records", **fields: Any) -> PartitionData:
    offsets = {"high_watermark": 1 << 40, "last_stable_offset": 77, "log_start_offset": 0}
    return PartitionData(**{"partition_index": 3, "aborted_transactions": None, "records": records, **offsets, **fields})


@pytest.mark.parametrize("version", range(7, 19))
@pytest.mark.parametrize("size", [0, 1, 126, 127, 1022, 1023, 1024, 70_000])
def test_encoded_response_is_the_one_of_the_generated_writer(version: int, size: int) -> None:
    for session_id, index in ((0, 0), (0x7FFFFFFF, 9_999)):
        data = data_of(b"r" * size, partition_index=index)
        topic = FetchableTopicResponse(topic="flights", topic_id=TOPIC_ID, partitions=[data])
        expected = encode(FetchResponse(session_id=session_id, responses=[topic]), version, version >= FIRST_FLEXIBLE_VERSION)
        pieces = encode_one(version, session_id, "flights", TOPIC_ID, data)
        assert pieces is not None
        assert all(pieces), "the driver sends no empty piece"
        assert b"".join(pieces) == expected


def test_encoded_response_has_the_region_of_the_file_as_a_piece() -> None:
    region = FileRegion(None, 0, 10)  # type: ignore[arg-type]
    pieces = encode_one(17, 1, "flights", TOPIC_ID, data_of(region))  # type: ignore[arg-type]
    assert pieces is not None
    assert pieces[1] is region


def test_encoded_responses_of_topics_of_the_same_name_have_their_own_ids() -> None:
    for topic_id in (TOPIC_ID, b"?" * 16):
        pieces = encode_one(13, 1, "flights", topic_id, data_of())
        assert pieces is not None
        assert topic_id in pieces[0]


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (17, {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}),
        (17, {"aborted_transactions": []}),
        (17, {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=5)}),
        (6, {}),
    ],
    ids=["error", "read_committed", "diverging", "old version"],
)
def test_response_that_is_not_ordinary_is_left_to_the_writer(version: int, fields: dict[str, Any]) -> None:
    assert encode_one(version, 1, "flights", TOPIC_ID, data_of(**fields)) is None


def change_log_start(caller: Caller, topics: Topics[Any]) -> None:
    topics.get("flights").partitions[0].delete_records(1)


def change_high_watermark(caller: Caller, topics: Topics[Any]) -> None:
    append(caller, batch(b"c"))


def create_anew(caller: Caller, topics: Topics[Any]) -> None:
    topics.delete(topics.get("flights"))
    topics.create("flights", 1)
    append(caller, batch(b"d"))


@pytest.mark.parametrize("change", [change_log_start, change_high_watermark, create_anew])
@pytest.mark.parametrize("version", [11, 12, 13, 17])
def test_fetch_of_one_partition_tells_what_has_changed_since_the_last_one(tmp_path: Path, version: int, change: Any) -> None:
    async def body(caller: Caller) -> None:
        topics: Topics[Any] = caller.broker.topics
        topics.create("flights", 1)
        append(caller, batch(b"a"))
        append(caller, batch(b"b"))
        for _ in range(2):
            response = caller.ask(request_of(caller, at(1), session_epoch=-1), version)
            assert values(partitions_of(response)[0]) == [b"b"]
        change(caller, topics)
        offset = 0 if change is create_anew else 1
        response = caller.ask(request_of(caller, at(offset), session_epoch=-1), version)
        data, log = partitions_of(response)[0], topics.get("flights").partitions[0].log
        assert (data.high_watermark, data.log_start_offset) == (log.high_watermark, log.log_start_offset)
        assert values(data)[-1] == {change_high_watermark: b"c", create_anew: b"d"}.get(change, b"b")
        if version >= 13:
            assert response.responses[0].topic_id == topics.get("flights").topic_id
        fenced = at(offset, current_leader_epoch=9)
        response = caller.ask(request_of(caller, fenced, session_epoch=-1), version)
        assert partitions_of(response)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(body, tmp_path)
