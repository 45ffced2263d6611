from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import MIB, append, at, partitions_of, request_of, values
from wirekafka.wire.compression import Compression
from wirekafka.wire.messages.fetch import FetchRequest, ReplicaState


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_gives_batches_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a", b"b"))
        append(caller, batch(b"c"))
        data = partitions_of(caller.ask(request_of(caller, at(0)), version))[0]
        assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 3, 3)
        assert data.log_start_offset == (0 if version >= 5 else -1)
        assert data.aborted_transactions is None
        assert values(data) == [b"a", b"b", b"c"]

    run(body, tmp_path)


def test_fetch_from_the_middle_of_a_batch_gives_the_whole_batch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a", b"b"))
        append(caller, batch(b"c"))
        assert values(partitions_of(caller.ask(request_of(caller, at(1)), 12))[0]) == [b"a", b"b", b"c"]

    run(body, tmp_path)


def test_fetch_read_committed_gives_no_aborted_transactions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a"))
        data = partitions_of(caller.ask(request_of(caller, at(0), isolation_level=1), 12))[0]
        assert data.aborted_transactions == []
        assert values(data) == [b"a"]

    run(body, tmp_path)


def old_messages(records: bytes) -> list[tuple[int, int, bytes]]:
    found = []
    while len(records) >= 12:
        offset, size = struct.unpack_from(">qi", records)
        if size > len(records) - 12:
            break
        magic = records[16]
        start = 18 + (8 if magic else 0)
        key_size, value_size = struct.unpack_from(">ii", records, start)
        assert key_size == -1
        found.append((offset, magic, bytes(records[start + 8 : start + 8 + value_size])))
        records = records[12 + size :]
    return found


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_fetch_gives_message_sets_in_every_old_version(tmp_path: Path, version: int, magic: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a", b"b"))
        append(caller, batch(b"c"))
        data = partitions_of(caller.ask(request_of(caller, at(1)), version))[0]
        assert (data.error_code, data.high_watermark) == (0, 3)
        assert old_messages(data.records) == [(1, magic, b"b"), (2, magic, b"c")]

    run(body, tmp_path)


def test_fetch_of_an_old_version_cuts_the_message_that_is_too_large(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a" * 1000))
        data = partitions_of(caller.ask(request_of(caller, at(0, max_bytes=100)), 2))[0]
        assert len(data.records) == 100
        assert old_messages(data.records) == []
        whole = partitions_of(caller.ask(request_of(caller, at(0, max_bytes=100)), 3))[0]
        assert [value for _, _, value in old_messages(whole.records)] == [b"a" * 1000]

    run(body, tmp_path)


def test_fetch_of_zstd_by_a_client_of_message_sets_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a", compression=Compression.ZSTD))
        assert partitions_of(caller.ask(request_of(caller, at(0)), 3))[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)])
def test_fetch_of_a_topic_in_zstd_needs_version_10(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"compression.type": "zstd"})
        append(caller, batch(b"a"))
        assert partitions_of(caller.ask(request_of(caller, at(0)), version))[0].error_code == code

    run(body, tmp_path)


@pytest.mark.parametrize("offset", [-1, 2, 1 << 40])
def test_fetch_out_of_range_is_an_error_without_waiting(tmp_path: Path, offset: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        append(caller, batch(b"a"))
        append(caller, batch(b"b"), index=1)
        asked = request_of(caller, at(offset), at(0, 1), min_bytes=MIB, max_wait_ms=1000)
        found = partitions_of(caller.ask(asked, 12))
        assert (found[0].error_code, found[0].high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert values(found[1]) == [b"b"]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("version", "topic", "index", "code"),
    [
        (12, "nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, "flights", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, "nowhere", 0, ErrorCode.UNKNOWN_TOPIC_ID),
        (13, "flights", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_fetch_of_what_does_not_exist_is_an_error(
    tmp_path: Path, version: int, topic: str, index: int, code: ErrorCode, session_epoch: int
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        asked = request_of(caller, at(0, index), topic=topic, session_epoch=session_epoch, max_wait_ms=1000)
        response = caller.ask(asked, version)
        assert partitions_of(response)[index].error_code == code
        if session_epoch == 0:
            again = FetchRequest(session_id=response.session_id, session_epoch=1, max_wait_ms=1000, min_bytes=1)
            assert partitions_of(caller.ask(again, version))[index].error_code == code

    run(body, tmp_path)


def test_fetch_with_another_leader_epoch_is_refused_and_names_the_leader(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        topic.partitions[0].leader_epoch = 3
        assert partitions_of(caller.ask(request_of(caller, at(0, current_leader_epoch=3)), 16))[0].error_code == 0
        ahead = partitions_of(caller.ask(request_of(caller, at(0, current_leader_epoch=4)), 16))[0]
        assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        response = caller.ask(request_of(caller, at(0, current_leader_epoch=2)), 16)
        fenced = partitions_of(response)[0]
        assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (fenced.current_leader.leader_id, fenced.current_leader.leader_epoch) == (caller.broker.node_id, 3)
        assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [
            (caller.broker.node_id, "127.0.0.1", 9092)
        ]
        assert partitions_of(caller.ask(request_of(caller, at(0, current_leader_epoch=2)), 12))[0].current_leader is None

    run(body, tmp_path)


def test_fetch_that_waits_gets_all_partitions_of_the_produce_that_ends_its_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        flights = caller.broker.topics.create("flights", 2)
        waiting = caller.ask(request_of(caller, at(0, 0), at(0, 1), max_wait_ms=1000), 12)
        data = [PartitionProduceData(index=index, records=bytes(batch(b"a"))) for index in range(2)]
        topic = TopicProduceData(name="flights", topic_id=flights.topic_id, partition_data=data)
        caller.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 12)
        found = partitions_of(await wait_for(waiting))
        assert {index: values(data) for index, data in found.items()} == {0: [b"a"], 1: [b"a"]}

    run(body, tmp_path)


def test_fetch_behind_the_end_of_its_last_epoch_diverges(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        append(caller, batch(b"a"))
        partition.leader_epoch = 2
        append(caller, batch(b"b"))
        append(caller, batch(b"c"))
        asked = request_of(caller, at(2, last_fetched_epoch=1), max_wait_ms=1000, min_bytes=MIB)
        data = partitions_of(caller.ask(asked, 12))[0]
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 1)
        assert data.records == b""
        assert values(partitions_of(caller.ask(request_of(caller, at(2, last_fetched_epoch=2)), 12))[0]) == [b"c"]
        unknown = partitions_of(caller.ask(request_of(caller, at(2, last_fetched_epoch=9)), 12))[0]
        assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "fields"), [(12, {"replica_id": 2}), (15, {"replica_state": ReplicaState(replica_id=2)})])
def test_fetch_by_a_replica_is_refused(tmp_path: Path, version: int, fields: dict[str, Any]) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        data = partitions_of(caller.ask(request_of(caller, at(0), **fields), version))[0]
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(body, tmp_path)


# Limits


def test_fetch_gives_the_first_batch_whatever_the_limits_and_no_second(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        append(caller, batch(b"a" * 1000), index=1)
        append(caller, batch(b"b" * 1000), index=1)
        append(caller, batch(b"c" * 1000), index=2)
        asked = request_of(caller, at(0, 0, 10), at(0, 1, 10), at(0, 2, 10), max_bytes=10)
        found = partitions_of(caller.ask(asked, 12))
        assert {index: values(data) for index, data in found.items()} == {0: [], 1: [b"a" * 1000], 2: []}
        assert found[2].high_watermark == 1

    run(body, tmp_path)


def test_fetch_gives_no_part_of_a_batch_alone(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        append(caller, batch(b"a" * 1000), index=0)
        append(caller, batch(b"b" * 1000), index=1)
        found = partitions_of(caller.ask(request_of(caller, at(0, 0), at(0, 1, 500)), 12))
        assert found[1].records == b""

    run(body, tmp_path)


@pytest.mark.parametrize(("max_bytes", "settings"), [(2500, {}), (MIB, {"fetch_max_bytes": "2500"})])
def test_fetch_keeps_within_max_bytes_and_fetch_max_bytes(tmp_path: Path, max_bytes: int, settings: dict[str, str]) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        for index in range(3):
            append(caller, batch(b"a" * 1000), index=index)
        asked = request_of(caller, *(at(0, index) for index in range(3)), max_bytes=max_bytes)
        assert [len(values(data)) for data in partitions_of(caller.ask(asked, 12)).values()] == [1, 1, 0]

    run(body, tmp_path, **settings)


def test_fetch_out_of_range_is_told_even_where_the_limit_is_used_up(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        append(caller, batch(b"a" * 1000))
        found = partitions_of(caller.ask(request_of(caller, at(0), at(5, 1), max_bytes=10), 12))
        assert found[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(body, tmp_path)


# Waiting


def test_fetch_waits_for_an_append(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        pending = caller.ask(request_of(caller, at(0), at(0, 1), max_wait_ms=1000), 12)
        assert isinstance(pending, Pending)
        append(caller, batch(b"a"), index=1)
        assert pending.is_done
        found = partitions_of(await wait_for(pending))
        assert {index: values(data) for index, data in found.items()} == {0: [], 1: [b"a"]}
        assert not caller.broker.topics.find("flights").partitions[0].watchers  # type: ignore[union-attr]

    run(body, tmp_path)


def test_fetch_that_has_waited_long_enough_gives_what_there_is(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a"))
        start = trio.current_time()
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=700, min_bytes=MIB), 12)
        append(caller, batch(b"b"))
        assert not pending.is_done
        assert values(partitions_of(await wait_for(pending))[0]) == [b"a", b"b"]
        assert trio.current_time() - start == pytest.approx(0.7)

    run(body, tmp_path)


def test_fetch_that_asks_for_no_bytes_or_no_wait_is_answered_at_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        assert values(partitions_of(caller.ask(request_of(caller, at(0), min_bytes=0, max_wait_ms=1000), 12))[0]) == []
        assert values(partitions_of(caller.ask(request_of(caller, at(0), min_bytes=1, max_wait_ms=0), 12))[0]) == []

    run(body, tmp_path)


def test_fetch_that_waits_when_its_topic_is_deleted_is_told(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 1)
        by_name = caller.ask(request_of(caller, at(0), max_wait_ms=1000), 12)
        by_id = caller.ask(request_of(caller, at(0), max_wait_ms=1000), 13)
        caller.broker.topics.delete(topic)
        assert partitions_of(await wait_for(by_name))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partitions_of(await wait_for(by_id))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(body, tmp_path)


def test_fetch_by_name_leaves_topic_ids_alone(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        response = caller.ask(request_of(caller, at(0)), 12)
        assert [(topic.topic, topic.topic_id) for topic in response.responses] == [("flights", ZERO_TOPIC_ID)]

    run(body, tmp_path)
