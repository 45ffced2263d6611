"""Produce of batches that need much CPU: they are validated in a thread, and the loop is not held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.log.validation import MOST_RECORDS, ON_LOOP
from wirekafka.pending import Pending
from wirekafka.replication.replica_manager import HostedTopic
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, wait_for
from wirekafka.tests.api.longest_step import LIMIT_MS, run_and_measure
from wirekafka.wire.batch import Record, build_batch, seal_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

pytestmark = pytest.mark.time_limits


def request_of(*records: Any, acks: int = 1, topic: str = "flights") -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=each) for index, each in enumerate(records)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def heavy_batch(value: bytes = b"v", count: int = ON_LOOP.record_count + 1) -> bytearray:
    return build_batch([Record(key=b"k", value=value, timestamp=NOW_MS)] * count)


def bomb(count: int, codec: Compression = Compression.ZSTD) -> bytearray:
    """Builds a few kB that decode to `count` records, each of them with offset delta 0."""
    record = b"\x0e\0\0\0\2k\1\0"
    return seal_batch(record * count, record_count=count, base_timestamp=NOW_MS, max_timestamp=NOW_MS, compression=codec)


def topic_of(caller: Caller) -> HostedTopic:
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    return topic


def answers_of(response: Any) -> list[tuple[int, int]]:
    return [(each.error_code, each.base_offset) for each in response.responses[0].partition_responses]


def test_produce_of_a_heavy_batch_is_answered_later_and_appended(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        pending = caller.ask(request_of(batch(b"a"), heavy_batch(), batch(b"b")), 11)
        assert isinstance(pending, Pending)
        assert pending.holds_connection
        assert answers_of(await wait_for(pending)) == [(0, 0), (0, 0), (0, 0)]
        ends = [partition.log.log_end_offset for partition in topic_of(caller).partitions]
        assert ends == [1, ON_LOOP.record_count + 1, 1]

    run(body, tmp_path)


def test_produce_of_a_heavy_batch_without_acks_is_not_answered(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert await wait_for(raw(caller, request_of(heavy_batch(), acks=0))) is None
        assert topic_of(caller).partitions[0].log.log_end_offset == ON_LOOP.record_count + 1

    run(body, tmp_path)


def test_produce_of_a_wrong_heavy_batch_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2, {"cleanup.policy": "compact"})
        without_keys = build_batch([Record(value=b"v", timestamp=NOW_MS)] * (ON_LOOP.record_count + 1))
        response = await wait_for(caller.ask(request_of(without_keys, heavy_batch()), 11))
        assert answers_of(response) == [(ErrorCode.INVALID_RECORD, -1), (0, 0)]
        assert len(response.responses[0].partition_responses[0].record_errors) == 10_000

    run(body, tmp_path)


def test_produce_of_a_wrong_heavy_batch_without_acks_ends_the_connection(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"cleanup.policy": "compact"})
        without_keys = build_batch([Record(value=b"v", timestamp=NOW_MS)] * (ON_LOOP.record_count + 1))
        data = [PartitionProduceData(index=0, records=without_keys)]
        request = ProduceRequest(acks=0, topic_data=[TopicProduceData(name="flights", partition_data=data)])
        assert isinstance(await wait_for(raw(caller, request)), ProtocolError)

    run(body, tmp_path)


def raw(caller: Caller, request: ProduceRequest) -> Any:
    """Returns the handler's own reply, without the codec."""
    from wirekafka.api.produce.handler import produce
    from wirekafka.api.registry import Call

    return produce(caller.broker, Call(request, 11, "test", caller.client, caller.now_ms))


def test_produce_of_a_heavy_batch_whose_topic_is_deleted_meanwhile_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        pending = caller.ask(request_of(heavy_batch()), 11)
        caller.broker.topics.delete(topic_of(caller))
        assert answers_of(await wait_for(pending)) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]

    run(body, tmp_path)


def test_produce_of_a_heavy_batch_whose_topic_changes_meanwhile_keeps_to_the_new_settings(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        pending = caller.ask(request_of(heavy_batch(value=bytes(20))), 11)
        [partition] = topic.partitions
        from dataclasses import replace

        partition.writable_log.update_config(replace(partition.log.config, max_message_bytes=1_000))
        assert answers_of(await wait_for(pending)) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]

    run(body, tmp_path)


def test_produce_of_a_heavy_batch_that_is_abandoned_appends_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        pending = caller.ask(request_of(heavy_batch()), 11)
        pending.abandon()
        assert answers_of(await wait_for(caller.ask(request_of(heavy_batch()), 11))) == [(0, 0)]

    run(body, tmp_path)


def keyed(count: int, value: bytes = b"", codec: Compression = Compression.NONE) -> bytearray:
    return build_batch([Record(key=b"k", value=value, timestamp=NOW_MS)] * count, compression=codec)


def message_set(codec: Compression, magic: int) -> bytes:
    batches = build_batch([Record(value=b"", timestamp=NOW_MS)] * 10_000, compression=codec)
    return down_convert(batches, magic, 0)


MANY = MOST_RECORDS // 8

WORST = {
    "zstd bomb": lambda: bomb(MANY),
    "gzip bomb": lambda: bomb(MANY, Compression.GZIP),
    "lz4 bomb": lambda: bomb(MANY, Compression.LZ4),
    "snappy bomb": lambda: bomb(MANY, Compression.SNAPPY),
    "64 MB of zeros": lambda: keyed(1, bytes(63 << 20), Compression.ZSTD),
    "as many records as 1 MB holds": lambda: keyed(100_000),
    "random gzip": lambda: keyed(1, bytes(range(256)) * (1 << 12), Compression.GZIP),
}


@pytest.mark.parametrize("settings", [{"cleanup.policy": "compact"}, {"compression.type": "gzip"}])
@pytest.mark.parametrize("name", WORST)
def test_produce_of_the_worst_batches_does_not_hold_the_loop(tmp_path: Path, name: str, settings: dict[str, str]) -> None:
    worst = WORST[name]()
    assert len(worst) <= 1 << 20
    response, longest_ms = run_and_measure(
        tmp_path,
        lambda caller: caller.broker.topics.create("flights", 1, settings) and None,
        lambda caller: caller.ask(request_of(worst), 11),
    )
    [(code, _)] = answers_of(response)
    assert code in (0, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    assert longest_ms < LIMIT_MS


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_produce_of_large_message_sets_does_not_hold_the_loop(tmp_path: Path, codec: Compression, magic: int) -> None:
    messages = message_set(codec, magic)
    response, longest_ms = run_and_measure(
        tmp_path,
        lambda caller: caller.broker.topics.create("flights", 1) and None,
        lambda caller: caller.ask(request_of(messages), 2),
    )
    assert answers_of(response) == [(0, 0)]
    assert longest_ms < LIMIT_MS


def test_produce_to_many_partitions_does_not_hold_the_loop(tmp_path: Path) -> None:
    light = keyed(1, bytes(ON_LOOP.content_bytes - 100), Compression.GZIP)
    request = request_of(*[bytearray(light) for _ in range(40)])
    response, longest_ms = run_and_measure(
        tmp_path,
        lambda caller: caller.broker.topics.create("flights", 40) and None,
        lambda caller: caller.ask(request, 11),
    )
    assert answers_of(response) == [(0, 0)] * 40
    assert longest_ms < LIMIT_MS
