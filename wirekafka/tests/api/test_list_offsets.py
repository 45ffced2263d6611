from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic


def ask(caller: Caller, timestamp: int, version: int = 9, *, topic: str = "flights", index: int = 0, **fields: Any) -> Any:
    asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp, **fields)
    topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
    return caller.ask(ListOffsetsRequest(replica_id=-1, topics=topics), version).topics[0].partitions[0]


def fill(caller: Caller, *batches: bytearray) -> None:
    partition = caller.broker.topics.create("flights", 1).partitions[0]
    for records in batches:
        partition.append(memoryview(records), now_ms=NOW_MS)


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_finds_ends_and_times_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, batch(b"a", b"b", timestamp=NOW_MS - 1000), batch(b"c", timestamp=NOW_MS))
        caller.broker.topics.find("flights").partitions[0].delete_records(1)  # type: ignore[union-attr]
        epoch = 0 if version >= 4 else -1
        found = [ask(caller, timestamp, version) for timestamp in (-2, -1, NOW_MS - 999, NOW_MS - 998, NOW_MS + 1)]
        assert [(each.offset, each.timestamp, each.leader_epoch) for each in found] == [
            (1, -1, epoch),
            (3, -1, epoch),
            (1, NOW_MS - 999, epoch),
            (2, NOW_MS, epoch),
            (-1, -1, -1),
        ]

    run(body, tmp_path)


def test_list_offsets_max_timestamp_finds_the_latest_record_wherever_it_is(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, batch(b"a"), batch(b"b", b"c", timestamp=NOW_MS + 500), batch(b"d", timestamp=NOW_MS - 500))
        found = ask(caller, -3)
        assert (found.offset, found.timestamp) == (2, NOW_MS + 501)

    run(body, tmp_path)


@pytest.mark.parametrize("timestamp", [-3, 0, NOW_MS])
def test_list_offsets_of_an_empty_partition_finds_no_record(tmp_path: Path, timestamp: int) -> None:
    async def body(caller: Caller) -> None:
        fill(caller)
        found = ask(caller, timestamp)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)

    run(body, tmp_path)


def test_list_offsets_without_tiered_storage_is_all_local(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, batch(b"a"))
        found = [ask(caller, timestamp, 11) for timestamp in (-4, -5, -6)]
        assert [(each.error_code, each.offset, each.leader_epoch) for each in found] == [(0, 0, 0), (0, -1, -1), (0, -1, -1)]

    run(body, tmp_path)


@pytest.mark.parametrize(("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-(1 << 60), 12)])
def test_list_offsets_of_a_timestamp_that_the_version_lacks_is_unsupported(
    tmp_path: Path, timestamp: int, first_version: int
) -> None:
    async def body(caller: Caller) -> None:
        fill(caller)
        codes = [ask(caller, timestamp, version).error_code for version in range(12)]
        assert codes == [ErrorCode.UNSUPPORTED_VERSION if version < first_version else 0 for version in range(12)]

    run(body, tmp_path)


@pytest.mark.parametrize(("topic", "index"), [("nowhere", 0), ("flights", 1), ("flights", -1)])
def test_list_offsets_of_what_does_not_exist_is_an_error(tmp_path: Path, topic: str, index: int) -> None:
    async def body(caller: Caller) -> None:
        fill(caller)
        for version in (0, 9):
            assert ask(caller, -1, version, topic=topic, index=index).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, tmp_path)


def test_list_offsets_with_another_leader_epoch_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller)
        assert ask(caller, -1, current_leader_epoch=0).error_code == 0
        assert ask(caller, -1, current_leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(body, tmp_path)


def test_list_offsets_of_a_partition_named_twice_is_invalid_for_that_one(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
        topics = [ListOffsetsTopic(name="flights", partitions=asked)]
        answers = caller.ask(ListOffsetsRequest(topics=topics), 9).topics[0].partitions
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]

    run(body, tmp_path)


def test_list_offsets_version_0_gives_where_segments_begin(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, batch(b"a"))
        log = caller.broker.topics.find("flights").partitions[0].writable_log  # type: ignore[union-attr]
        for _ in range(2):
            log.roll()
            caller.broker.topics.find("flights").partitions[0].append(memoryview(batch(b"b")), now_ms=NOW_MS)  # type: ignore[union-attr]
        caller.now_ms = 1 << 60

        def offsets(timestamp: int, most: int) -> Any:
            return ask(caller, timestamp, 0, max_num_offsets=most).old_style_offsets

        assert offsets(-1, 1) == [3]
        assert offsets(-1, 10) == [3, 2, 1, 0]
        assert offsets(-2, 10) == [0]
        assert offsets((1 << 60) - 1, 2) == [2, 1]
        assert offsets(0, 10) == []
        assert offsets(-1, 0) == []

    run(body, tmp_path)


@pytest.mark.parametrize(("timestamp", "version"), [(-1, 0), (-1, 9), (-3, 9), (NOW_MS + 1, 9)])
def test_list_offsets_of_what_is_not_committed_finds_the_high_watermark_at_most(
    tmp_path: Path, timestamp: int, version: int
) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        partition.set_replicas((partition.leader, 99), (partition.leader, 99))
        for records in (batch(b"a"), batch(b"b", timestamp=NOW_MS + 1)):
            partition.append(memoryview(records), now_ms=NOW_MS)
        partition.advance_high_watermark(1)
        found = ask(caller, timestamp, version, **cast("dict[str, Any]", {} if version else {"max_num_offsets": 1}))
        assert (found.offset if version else found.old_style_offsets) == ({-1: 1}.get(timestamp, -1) if version else [1])

    run(body, tmp_path)
