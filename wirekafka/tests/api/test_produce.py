from __future__ import annotations

import struct
from binascii import crc32
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, values_of
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


def produce(caller: Caller, records: Any, *, version: int = 11, topic: str = "flights", index: int = 0, acks: int = 1) -> Any:
    found = caller.broker.topics.find(topic)
    data = TopicProduceData(
        name=topic,
        topic_id=found.topic_id if found is not None else b"?" * 16,
        partition_data=[PartitionProduceData(index=index, records=records)],
    )
    response = caller.ask(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data]), version)
    return None if response is None else response.responses[0].partition_responses[0]


def stored(caller: Caller, topic: str = "flights") -> list[bytes | None]:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[asked])])
    return values_of(caller.ask(request, 12).responses[0].partitions[0].records)


def message(value: bytes, magic: int, timestamp: int = NOW_MS) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_batches_appends_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        first = produce(caller, batch(b"a", b"b"), version=version)
        second = produce(caller, batch(b"c"), version=version, acks=-1)
        assert (first.error_code, first.base_offset, first.log_append_time_ms) == (0, 0, -1)
        assert (second.error_code, second.base_offset) == (0, 2)
        assert second.log_start_offset == (0 if version >= 5 else -1)
        assert stored(caller) == [b"a", b"b", b"c"]

    run(body, tmp_path)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
def test_produce_of_message_sets_converts_up_in_every_old_version(tmp_path: Path, version: int, magic: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        answer = produce(caller, message(b"a", magic) + message(b"b", magic), version=version)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert stored(caller) == [b"a", b"b"]

    run(body, tmp_path)


def test_produce_of_nothing_in_an_old_version_appends_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        answer = produce(caller, b"", version=2)
        assert (answer.error_code, answer.base_offset) == (0, -1)

    run(body, tmp_path)


def test_produce_with_log_append_time_says_when(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"message.timestamp.type": "LogAppendTime"})
        assert produce(caller, batch(b"a", timestamp=1)).log_append_time_ms == NOW_MS

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (message(b"a" * 60, 1), 3, ErrorCode.INVALID_RECORD),
        (b"", 3, ErrorCode.INVALID_RECORD),
        (None, 3, ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), 9, ErrorCode.INVALID_RECORD),
        (batch(b"a", compression=Compression.ZSTD), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(b"a")[:-1] + b"?", 9, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a" * 2_000_000), 9, ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", timestamp=NOW_MS + 7_200_000), 9, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_produce_of_records_that_may_not_be_stored_is_refused(
    tmp_path: Path, records: Any, version: int, code: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        answer = produce(caller, records, version=version)
        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert stored(caller) == []
        assert produce(caller, batch(b"next"), version=version).base_offset == 0

    run(body, tmp_path)


def test_produce_of_zstd_in_version_7_is_stored_as_it_is(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert produce(caller, batch(b"a", compression=Compression.ZSTD), version=7).error_code == 0

    run(body, tmp_path)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_produce_with_other_acks_is_refused(tmp_path: Path, acks: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        answer = produce(caller, batch(b"a"), acks=acks)
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1, -1)
        assert stored(caller) == []

    run(body, tmp_path)


def test_produce_with_too_few_replicas_in_sync_is_refused_for_acks_all_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1, {"min.insync.replicas": "2"})
        topic.partitions[0].replicas = (1, 2)
        assert produce(caller, batch(b"a"), acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert produce(caller, batch(b"b"), acks=1).error_code == 0
        assert stored(caller) == [b"b"]

    run(body, tmp_path)


def test_produce_asks_for_no_more_replicas_than_there_are(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"min.insync.replicas": "2"})
        assert produce(caller, batch(b"a"), acks=-1).error_code == 0

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("version", "topic", "index", "code"),
    [
        (12, "nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, "flights", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, "flights", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, "nowhere", 0, ErrorCode.UNKNOWN_TOPIC_ID),
        (13, "flights", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, "__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (13, "__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_produce_to_a_partition_that_takes_none_is_refused(
    tmp_path: Path, version: int, topic: str, index: int, code: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        if caller.broker.topics.find("__consumer_offsets") is None:
            caller.broker.topics.create_internal("__consumer_offsets")
        assert produce(caller, batch(b"a"), version=version, topic=topic, index=index).error_code == code

    run(body, tmp_path, offsets_topic_num_partitions="1")


def test_produce_to_many_partitions_answers_each_for_itself(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        data = [
            PartitionProduceData(index=0, records=batch(b"a")),
            PartitionProduceData(index=7, records=batch(b"b")),
            PartitionProduceData(index=1, records=batch(b"c")),
        ]
        request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="flights", partition_data=data)])
        answers = caller.ask(request, 9).responses[0].partition_responses
        assert [(answer.index, answer.error_code) for answer in answers] == [(0, 0), (7, 3), (1, 0)]

    run(body, tmp_path)


def test_produce_with_acks_0_gets_no_answer_and_an_error_closes(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert produce(caller, batch(b"a"), acks=0) is None
        assert stored(caller) == [b"a"]
        with pytest.raises(ProtocolError, match="flights-3: UNKNOWN_TOPIC_OR_PARTITION"):
            produce(caller, batch(b"a"), acks=0, index=3)

    run(body, tmp_path)


def test_produce_without_keys_to_a_compacted_topic_names_each_record(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"cleanup.policy": "compact"})
        records = build_batch([Record(value=b"a"), Record(key=b"k"), Record(value=b"b")])
        answer = produce(caller, records, version=8)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in answer.record_errors] == [0, 2]
        assert "no key" in answer.error_message

    run(body, tmp_path)


def test_produce_of_a_batch_again_answers_its_first_offset_and_a_gap_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)

        def numbered(sequence: int, value: bytes) -> bytearray:
            return batch(value, producer_id=5, producer_epoch=0, base_sequence=sequence)

        assert produce(caller, numbered(0, b"a")).base_offset == 0
        assert produce(caller, numbered(1, b"b")).base_offset == 1
        again = produce(caller, numbered(0, b"a"))
        assert (again.error_code, again.base_offset) == (0, 0)
        assert produce(caller, numbered(4, b"e")).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert stored(caller) == [b"a", b"b"]

    run(body, tmp_path)
