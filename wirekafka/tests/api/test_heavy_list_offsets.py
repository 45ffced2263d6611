"""ListOffsets by time over batches of many records: they are searched in threads, and the loop is not held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.log.timestamps import LIGHT_RECORDS
from wirekafka.log.validation import validate_batch, without_bounds
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import NOW_MS, Caller, run, wait_for
from wirekafka.tests.api.longest_step import LIMIT_MS, run_and_measure
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = pytest.mark.time_limits

COUNT = 40_000


def ask(caller: Caller, *asked: tuple[int, int]) -> Any:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index, timestamp in asked]
    return caller.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="flights", partitions=partitions)]), 9)


def heavy_batch(codec: Compression, count: int = COUNT) -> bytearray:
    return build_batch([Record(timestamp=NOW_MS + number) for number in range(count)], compression=codec)


def fill(caller: Caller, batch: bytearray, partition_count: int = 1) -> None:
    for partition in caller.broker.topics.create("flights", partition_count).partitions:
        records = memoryview(bytearray(batch))
        partition.append(
            validate_batch(records, config=partition.log.config, now_ms=NOW_MS, effort=without_bounds()), now_ms=NOW_MS
        )


def found_in(response: Any) -> list[tuple[int, int, int]]:
    return [(each.error_code, each.offset, each.timestamp) for each in response.topics[0].partitions]


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name.lower())
def test_list_offsets_by_time_in_a_batch_of_many_records_is_answered_later(tmp_path: Path, codec: Compression) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, heavy_batch(codec))
        for timestamp, offset in ((NOW_MS + COUNT - 10, COUNT - 10), (-3, COUNT - 1)):
            pending = ask(caller, (0, timestamp))
            assert isinstance(pending, Pending)
            assert found_in(await wait_for(pending)) == [(0, offset, NOW_MS + offset)]

    run(body, tmp_path)


def test_list_offsets_by_time_in_a_batch_of_few_records_is_answered_at_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, heavy_batch(Compression.GZIP, LIGHT_RECORDS))
        assert found_in(ask(caller, (0, NOW_MS + LIGHT_RECORDS - 1))) == [(0, LIGHT_RECORDS - 1, NOW_MS + LIGHT_RECORDS - 1)]

    run(body, tmp_path)


def test_list_offsets_by_time_of_a_partition_that_is_deleted_meanwhile_is_answered(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, heavy_batch(Compression.NONE), 2)
        pending = ask(caller, (0, NOW_MS + 5), (1, NOW_MS + 5))
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        caller.broker.topics.delete(topic)
        assert {code for code, _, _ in found_in(await wait_for(pending))} <= {0, ErrorCode.KAFKA_STORAGE_ERROR}

    run(body, tmp_path)


def test_list_offsets_by_time_that_is_abandoned_is_not_finished(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, heavy_batch(Compression.NONE))
        ask(caller, (0, NOW_MS + 5)).abandon()
        assert found_in(await wait_for(ask(caller, (0, NOW_MS + 5)))) == [(0, 5, NOW_MS + 5)]

    run(body, tmp_path)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_list_offsets_by_time_in_a_batch_of_many_records_does_not_hold_the_loop(tmp_path: Path, codec: Compression) -> None:
    batch = heavy_batch(codec)
    response, longest_ms = run_and_measure(
        tmp_path, lambda caller: fill(caller, batch), lambda caller: ask(caller, (0, NOW_MS + COUNT - 1))
    )
    assert found_in(response) == [(0, COUNT - 1, NOW_MS + COUNT - 1)]
    assert longest_ms < LIMIT_MS


def test_list_offsets_by_time_of_many_partitions_does_not_hold_the_loop(tmp_path: Path) -> None:
    batch = heavy_batch(Compression.LZ4, LIGHT_RECORDS)
    last = NOW_MS + LIGHT_RECORDS - 1
    response, longest_ms = run_and_measure(
        tmp_path, lambda caller: fill(caller, batch, 60), lambda caller: ask(caller, *((index, last) for index in range(60)))
    )
    assert found_in(response) == [(0, LIGHT_RECORDS - 1, last)] * 60
    assert longest_ms < LIMIT_MS


def test_list_offsets_of_the_max_timestamp_after_delete_records_does_not_hold_the_loop(tmp_path: Path) -> None:
    count = 60_000

    def fill_with_small_batches(caller: Caller) -> None:
        (partition,) = caller.broker.topics.create("flights", 1).partitions
        for number in range(count):
            partition.append(memoryview(build_batch([Record(timestamp=NOW_MS - (number > 0))])), now_ms=NOW_MS)
        partition.delete_records(1)

    response, longest_ms = run_and_measure(tmp_path, fill_with_small_batches, lambda caller: ask(caller, (0, -3)))
    assert found_in(response) == [(0, 1, NOW_MS - 1)]
    assert longest_ms < LIMIT_MS
