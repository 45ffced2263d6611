"""A Produce shortcut answers as the handler does: each request goes through both, to two equal topics."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.registry import Client, find_api
from wirekafka.broker import Broker
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.server import dispatch
from wirekafka.server.dispatch import Dispatcher
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.batch import ATTRIBUTES_OFFSET, CRC_OFFSET, MAGIC_OFFSET, Record, build_batch
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.compression import Compression

PRODUCE = 0
VERSIONS = range(7, 14)
SHORT, ORDINARY = "flights-short", "flights-longs"


class BothWays:
    """Two clients: one whose requests may use a shortcut, and one that connects again for each request and so uses none.

    Attributes:
        handled: the number of requests that reached the handler.
    """

    def __init__(self, broker: Broker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.dispatcher = Dispatcher(broker)
        self.client = client()
        self.handled = 0
        self._correlation_id = 100
        self.frame_of = self._frame
        self._short(batch(b"the first goes the ordinary way"), 0, 1)
        route = self.dispatcher._routes[PRODUCE << 16 | version]
        handler = route.handler

        def count(broker: Broker, call: Any) -> Any:
            self.handled += 1
            return handler(broker, call)

        route.handler = count
        self._ordinary(batch(b"the first goes the ordinary way"), 0, 1)
        self.handled = 0

    def _topic_id(self, topic: str) -> bytes:
        found = self.broker.topics.find(topic)
        return b"?" * 16 if found is None else found.topic_id

    def _frame(self, topic: str, records: Any, index: int, acks: int) -> bytes:
        self._correlation_id += 1
        data = PartitionProduceData(index=index, records=records)
        topics = [TopicProduceData(name=topic, topic_id=self._topic_id(topic), partition_data=[data])]
        is_flexible = self.version >= 9
        body = encode(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics), self.version, is_flexible)
        return request(PRODUCE, self.version, self._correlation_id, b"\0" * is_flexible + body)

    def _ask(self, by: Any, framed: bytes) -> Any:
        answer = self.dispatcher.handle(memoryview(bytearray(framed))[4:], by, NOW_MS)
        if answer is None:
            return None
        assert isinstance(answer, bytes)
        size, correlation_id = struct.unpack_from(">ii", answer)
        assert size == len(answer) - 4
        assert correlation_id == struct.unpack_from(">i", framed, 8)[0]
        return answer

    def _short(self, records: Any, index: int, acks: int) -> Any:
        return self._ask(self.client, self.frame_of(SHORT, records, index, acks))

    def _ordinary(self, records: Any, index: int, acks: int) -> Any:
        return self._ask(client(), self.frame_of(ORDINARY, records, index, acks))

    def ask(self, records: Any, *, index: int = 0, acks: int = 1) -> Any:
        """Returns the answer for the partition; raises unless both ways give the same answer."""
        short, ordinary = self._short(records, index, acks), self._ordinary(records, index, acks)
        if ordinary is None:
            assert short is None
            return None
        as_ordinary = short[8:].replace(SHORT.encode(), ORDINARY.encode())
        as_ordinary = as_ordinary.replace(self._topic_id(SHORT), self._topic_id(ORDINARY))
        told = ordinary[8:].replace(SHORT.encode(), ORDINARY.encode())
        assert as_ordinary == told
        response = decode(find_api(PRODUCE).response, self.version, self.version >= 9, told[self.version >= 9 :])  # type: ignore[union-attr]
        return response.responses[0].partition_responses[0]

    def check_logs_are_alike(self) -> None:
        """Raises unless both topics hold the same bytes."""
        partitions = [self.broker.topics.find(name).partitions for name in (SHORT, ORDINARY)]  # type: ignore[union-attr]
        for short, ordinary in zip(*partitions, strict=True):
            assert [bytes(found) for found in short.log.batches()] == [bytes(found) for found in ordinary.log.batches()]


def both_ways(
    path: Path, version: int, body: Callable[[BothWays], None], overrides: dict[str, str] | None = None, **settings: str
) -> None:
    async def main(caller: Caller) -> None:
        for name in (SHORT, ORDINARY):
            caller.broker.topics.create(name, 2, overrides or {})
        ways = BothWays(caller.broker, version)
        body(ways)
        if caller.broker.topics.find(SHORT) is not None:
            ways.check_logs_are_alike()

    run(main, path, **settings)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [[b""], [b"a"], [b"x" * 40], [b"x" * 300, b"y"], [b"x" * 20_000]])
def test_batches_of_any_size_take_the_short_way(tmp_path: Path, version: int, values: list[bytes]) -> None:
    def body(ways: BothWays) -> None:
        first = ways.ask(batch(*values))
        second = ways.ask(batch(*values, producer_id=-1))
        assert (first.error_code, first.base_offset, first.log_append_time_ms, first.log_start_offset) == (0, 1, -1, 0)
        assert second.base_offset == 1 + len(values)
        assert ways.handled == 2, "those of the ordinary client"

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [7, 12, 13])
def test_each_partition_and_each_acks_has_a_shortcut_of_its_own(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        for index, acks, handled in [(1, 1, 2), (1, 1, 3), (0, 1, 4), (0, -1, 6), (0, -1, 7), (1, 1, 8)]:
            assert ways.ask(batch(b"a"), index=index, acks=acks).error_code == 0
            assert ways.handled == handled
        assert ways.ask(batch(b"a"), index=1).base_offset == 3

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [7, 13])
def test_append_time_is_told(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        assert ways.ask(batch(b"a", timestamp=1)).log_append_time_ms == NOW_MS
        assert ways.handled == 1

    both_ways(tmp_path, version, body, {"message.timestamp.type": "LogAppendTime"})


def with_byte(records: bytearray, at: int, byte: int) -> bytearray:
    records[at] = byte
    return records


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("records", "code"),
    [
        (with_byte(batch(b"a"), CRC_OFFSET, 1), ErrorCode.CORRUPT_MESSAGE),
        (with_byte(batch(b"a"), MAGIC_OFFSET, 1), ErrorCode.INVALID_RECORD),
        (with_byte(batch(b"a"), ATTRIBUTES_OFFSET + 1, 0x10), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (with_byte(batch(b"a"), 0, 1), ErrorCode.INVALID_RECORD),
        (batch(b"a") + b"?", ErrorCode.INVALID_RECORD),
        (batch(b"a")[:60], ErrorCode.INVALID_RECORD),
        (batch(b"x" * 3000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", timestamp=NOW_MS + 7_200_000), ErrorCode.INVALID_TIMESTAMP),
        (batch(b"a", producer_id=7, producer_epoch=0, base_sequence=3), ErrorCode.NONE),
        (b"", ErrorCode.INVALID_RECORD),
        (None, ErrorCode.INVALID_RECORD),
    ],
)
def test_what_is_wrong_with_a_batch_is_told(tmp_path: Path, version: int, records: Any, code: ErrorCode) -> None:
    def body(ways: BothWays) -> None:
        answer = ways.ask(records)
        assert ErrorCode(answer.error_code) == code
        assert ways.ask(batch(b"behind it")).base_offset == (1 if code else 2)

    both_ways(tmp_path, version, body, {"max.message.bytes": "2000"}, log_message_timestamp_after_max_ms="3600000")


@pytest.mark.parametrize("version", [7, 9, 13])
def test_sequences_of_a_producer_are_checked(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        def numbered(sequence: int) -> bytearray:
            return batch(b"a", producer_id=7, producer_epoch=0, base_sequence=sequence)

        assert ways.ask(numbered(0)).base_offset == 1
        assert ways.ask(numbered(1)).base_offset == 2
        assert ways.ask(numbered(0)).base_offset == 1, "sent again"
        assert ways.ask(numbered(5)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert ways.handled == 4

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [7, 12])
def test_compressed_batches_take_the_short_way(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        records = [Record(value=b"x" * 100, timestamp=NOW_MS)] * 20
        assert ways.ask(build_batch(records, compression=Compression.ZSTD)).base_offset == 1
        assert ways.handled == 1

    both_ways(tmp_path, version, body)


def test_codec_that_a_version_does_not_know_is_refused_each_time(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        assert ways.ask(batch(b"a")).base_offset == 1
        assert ways.ask(batch(b"a", compression=Compression.ZSTD)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    both_ways(tmp_path, 6, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_partition_that_is_gone_is_told(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        assert ways.ask(batch(b"a"), index=1).error_code == 0
        for name in (SHORT, ORDINARY):
            topic = ways.broker.topics.find(name)
            assert topic is not None
            ways.broker.topics.delete(topic)
        code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert ways.ask(batch(b"a")).error_code == code
        for name in (SHORT, ORDINARY):
            ways.broker.topics.create(name, 1, {})
        assert ways.ask(batch(b"a")).base_offset == 0
        assert ways.ask(batch(b"a"), index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [7, 13])
def test_partition_without_enough_replicas_is_told(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        assert ways.ask(batch(b"a"), acks=-1).error_code == 0
        for name in (SHORT, ORDINARY):
            ways.broker.topics.find(name).partitions[0].in_sync_replicas = ()  # type: ignore[union-attr]
        assert ways.ask(batch(b"a"), acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        kept = shortcut_heads(ways.client)
        ways._short(batch(b"a"), 0, -1)
        assert shortcut_heads(ways.client) == kept, "it may go again"
        ways._ordinary(batch(b"a"), 0, -1)
        assert ways.ask(batch(b"a"), acks=1).error_code == 0

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_behind_the_body_and_torn_frames_go_the_ordinary_way(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        whole = ways._frame(SHORT, batch(b"a"), 0, 1)
        answer = ways._ask(ways.client, whole + b"more")
        assert answer is not None
        assert ways.handled == 1
        for missing in (1, 3, 4, 20, len(batch(b"a")) + 3):
            with pytest.raises(ProtocolError, match=f"a broken Produce {version} request"):
                ways._ask(ways.client, whole[:-missing])
        assert ways._ask(ways.client, ways._frame(SHORT, batch(b"a"), 0, 1)) is not None
        ways._ask(client(), ways._frame(ORDINARY, batch(b"a"), 0, 1))
        ways._ask(client(), ways._frame(ORDINARY, batch(b"a"), 0, 1))

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [9, 13])
def test_tagged_field_behind_the_batch_goes_the_ordinary_way(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        def tagged(topic: str, records: Any, index: int, acks: int) -> bytes:
            framed = bytearray(ways._frame(topic, records, index, acks)[:-1] + b"\x01\x63\x01?")
            struct.pack_into(">i", framed, 0, len(framed) - 4)
            return bytes(framed)

        ways.frame_of = tagged
        assert ways.ask(batch(b"a")).base_offset == 1
        assert ways.ask(batch(b"a")).base_offset == 2
        assert ways.handled == 4

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("acks", [0, 2])
def test_acks_that_get_no_answer_or_a_refusal_have_no_shortcut(tmp_path: Path, acks: int) -> None:
    def body(ways: BothWays) -> None:
        for handled in (2, 4):
            answer = ways.ask(batch(b"a"), acks=acks)
            assert answer is None if acks == 0 else answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
            assert ways.handled == handled

    both_ways(tmp_path, 12, body)


def test_internal_topic_is_refused_each_time(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        ways.broker.topics.create("__consumer_offsets", 1, {})
        for _ in range(2):
            answer = ways._ask(ways.client, ways._frame("__consumer_offsets", batch(b"a"), 0, 1))
            response = decode(find_api(PRODUCE).response, 12, True, answer[9:])  # type: ignore[union-attr]
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    both_ways(tmp_path, 12, body)


def shortcut_heads(by: Client) -> list[bytes]:
    return [head for by_size in (by.shortcuts or {}).values() for by_head in by_size.values() for head in by_head]


def test_shortcuts_of_all_connections_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SHORTCUT_LIMIT", 3)

    def body(ways: BothWays) -> None:
        first, second, names = client(), client(), ["one", "two", "three", "four", "five"]
        for name in names:
            ways.broker.topics.create(name, 1, {})
        for name in [*names, "four"]:
            ways._ask(first, ways._frame(name, batch(b"a"), 0, 1))
        kept = [name for name in names if any(name.encode() in head for head in shortcut_heads(first))]
        assert kept == ["three", "four", "five"]
        ways.version = 11
        for name in names[:2]:
            ways._ask(second, ways._frame(name, batch(b"a"), 0, 1))
        assert (len(shortcut_heads(first)), len(shortcut_heads(second))) == (1, 2)

    both_ways(tmp_path, 12, body)


def test_shortcut_of_one_connection_is_not_used_by_another(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        first, second = client(), client()
        ways._ask(first, ways._frame(SHORT, batch(b"a"), 0, 1))
        ways._ask(client(), ways._frame(ORDINARY, batch(b"a"), 0, 1))
        assert shortcut_heads(first)
        assert not shortcut_heads(second)

    both_ways(tmp_path, 12, body)


def test_connection_that_ends_forgets_its_shortcuts(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        by = client()
        ways.broker.topics.create("weather", 1, {})
        ways._ask(by, ways._frame("weather", batch(b"a"), 0, 1))
        before = len(ways.dispatcher._remembered)
        by.closed()
        assert by.shortcuts is None
        assert len(ways.dispatcher._remembered) == before - 1

    both_ways(tmp_path, 12, body)


def test_topics_with_names_of_different_lengths_take_the_short_way_in_turn(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        by, names = client(), ["a", "bcd", "efghij"]
        for name in names:
            ways.broker.topics.create(name, 1, {})
        for _ in range(3):
            for name in names:
                ways._ask(by, ways._frame(name, batch(b"a"), 0, 1))
        assert ways.handled == len(names)

    both_ways(tmp_path, 12, body)


def test_sizes_of_heads_of_a_connection_are_bounded(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        by, names = client(), ["a" * size for size in range(1, 20)]
        for name in names:
            ways.broker.topics.create(name, 1, {})
            ways._ask(by, ways._frame(name, batch(b"a"), 0, 1))
        assert by.shortcuts is not None
        [by_size] = by.shortcuts.values()
        assert len(by_size) == dispatch.HEAD_SIZES_LIMIT
        by.closed()
        assert all(each is not by for each, _, _ in ways.dispatcher._remembered)

    # The names differ in length only, so no two of them collide.
    both_ways(tmp_path, 9, body)


def test_client_that_loses_its_permission_is_refused_by_the_shortcut_too(tmp_path: Path) -> None:
    class Revocable:
        may_do = True

        def is_authorized(self, principal: str, operation: object, resource: object) -> bool:
            return self.may_do

    def body(ways: BothWays) -> None:
        authorizer = Revocable()
        by = Client("127.0.0.1", 50_000, "PLAINTEXT", "127.0.0.1", 9092, authorizer=authorizer)
        ways.broker.topics.create("weather", 1, {})
        ways._ask(by, ways._frame("weather", batch(b"a"), 0, 1))
        assert shortcut_heads(by)
        authorizer.may_do = False
        answer = ways._ask(by, ways._frame("weather", batch(b"a"), 0, 1))
        response = decode(find_api(PRODUCE).response, 12, True, answer[9:])  # type: ignore[union-attr]
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    both_ways(tmp_path, 12, body)


def test_what_a_stranger_makes_up_is_not_kept(tmp_path: Path) -> None:
    def body(ways: BothWays) -> None:
        by = client()
        ways._ask(by, ways._frame("no-such-topic", batch(b"a"), 0, 1))
        framed = ways._frame(SHORT, batch(b"a"), 0, 1)
        long_id = b"x" * dispatch.SHORTCUT_HEAD_BYTES
        # After size, key, version and correlation id comes the client id, "test".
        lengthened = framed[:12] + struct.pack(">h", len(long_id)) + long_id + framed[18:]
        assert ways._ask(by, struct.pack(">i", len(lengthened) - 4) + lengthened[4:]) is not None
        assert not shortcut_heads(by)
        ways._ask(client(), ways._frame(ORDINARY, batch(b"a"), 0, 1))

    both_ways(tmp_path, 12, body)
