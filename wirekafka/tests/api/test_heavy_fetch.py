"""Fetch of old versions: many records are converted in threads, in bounded pieces, and the loop is not held."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.log.validation import validate_batch, without_bounds
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, wait_for
from wirekafka.tests.api.longest_step import LIMIT_MS, run_and_measure
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import MOST_CONVERTED_RECORDS, MOST_WRAPPED_RECORDS, stored_records
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.time_limits

PLENTY = 1 << 30
FETCH_MAX_BYTES = 3 << 20


def ask(
    caller: Caller, version: int, offset: int = 0, *, max_bytes: int = PLENTY, partition_count: int = 1, **fields: Any
) -> Any:
    asked = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes) for index in range(partition_count)
    ]
    return caller.ask(FetchRequest(topics=[FetchTopic(topic="flights", partitions=asked)], max_bytes=PLENTY, **fields), version)


def fill(caller: Caller, *batches: bytearray, partition_count: int = 1) -> None:
    for partition in caller.broker.topics.create("flights", partition_count).partitions:
        for each in batches:
            records = memoryview(bytearray(each))
            partition.append(
                validate_batch(records, config=partition.log.config, now_ms=NOW_MS, effort=without_bounds()), now_ms=NOW_MS
            )


def records_of(count: int, codec: Compression, value: Callable[[int], bytes] = lambda number: b"%d" % number) -> bytearray:
    return build_batch([Record(value=value(number), timestamp=NOW_MS) for number in range(count)], compression=codec)


def whole_messages(records: Any) -> bytes:
    """Returns the messages without the one that a size limit has cut."""
    data = bytes(records)
    pos = 0
    while pos + 12 <= len(data) and (end := pos + 12 + struct.unpack_from(">i", data, pos + 8)[0]) <= len(data):
        pos = end
    return data[:pos]


def partition_of(response: Any) -> Any:
    return response.responses[0].partitions[0]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP], ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("version", [0, 2, 3])
def test_fetch_of_many_records_by_an_old_client_is_answered_later_piece_by_piece(
    tmp_path: Path, version: int, codec: Compression
) -> None:
    count = MOST_CONVERTED_RECORDS + 1000

    async def body(caller: Caller) -> None:
        fill(caller, records_of(count, codec))
        found: list[Record] = []
        while len(found) < count:
            pending = ask(caller, version, len(found))
            assert isinstance(pending, Pending)
            data = partition_of(await wait_for(pending))
            got = [each for each in stored_records(whole_messages(data.records)) if each.offset >= len(found)]
            assert 0 < len(got) <= MOST_CONVERTED_RECORDS
            assert data.high_watermark == count
            found += got
        assert [record.value for record in found] == [b"%d" % number for number in range(count)]

    run(body, tmp_path)


def test_fetch_with_a_small_limit_gets_past_every_record_of_a_large_wrapper(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, records_of(20, Compression.GZIP, lambda number: b"%d" % (number % 10) * 150_000))
        for offset in range(20):
            response = ask(caller, 3, offset, max_bytes=1)
            data = partition_of(await wait_for(response) if isinstance(response, Pending) else response)
            assert stored_records(data.records)[-1].offset >= offset

    run(body, tmp_path)


def test_fetch_of_few_records_by_an_old_client_is_answered_at_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, records_of(100, Compression.GZIP), records_of(100, Compression.NONE))
        assert len(stored_records(partition_of(ask(caller, 3)).records)) == 200

    run(body, tmp_path)


def test_fetch_by_an_old_client_that_waits_is_converted_in_the_end(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller)
        pending = ask(caller, 3, max_wait_ms=1000, min_bytes=1)
        assert isinstance(pending, Pending)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        topic.partitions[0].append(memoryview(batch(b"a", b"b")), now_ms=NOW_MS)
        assert [record.value for record in stored_records(partition_of(await wait_for(pending)).records)] == [b"a", b"b"]

    run(body, tmp_path)


def test_fetch_by_an_old_client_that_is_abandoned_is_not_converted(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, records_of(20_000, Compression.NONE))
        ask(caller, 3).abandon()
        assert partition_of(await wait_for(ask(caller, 3))).error_code == 0

    run(body, tmp_path)


@pytest.mark.parametrize(
    "stored",
    [
        records_of(100_000, Compression.NONE, lambda number: b""),
        records_of(100_000, Compression.GZIP, lambda number: b""),
        records_of(1, Compression.GZIP, lambda number: bytes(30 << 20)),
        records_of(MOST_WRAPPED_RECORDS, Compression.SNAPPY),
    ],
    ids=["many", "many in gzip", "large in gzip", "a full wrapper"],
)
@pytest.mark.parametrize("version", [1, 3])
def test_fetch_of_the_worst_batches_by_an_old_client_does_not_hold_the_loop(
    tmp_path: Path, version: int, stored: bytearray
) -> None:
    response, longest_ms = run_and_measure(tmp_path, lambda caller: fill(caller, stored), lambda caller: ask(caller, version))
    assert partition_of(response).error_code == 0
    assert len(partition_of(response).records) > 0
    assert longest_ms < LIMIT_MS


def test_fetch_of_many_partitions_by_an_old_client_does_not_hold_the_loop(tmp_path: Path) -> None:
    stored = records_of(400, Compression.GZIP)
    response, longest_ms = run_and_measure(
        tmp_path, lambda caller: fill(caller, stored, partition_count=50), lambda caller: ask(caller, 3, partition_count=50)
    )
    assert all(len(stored_records(each.records)) == 400 for each in response.responses[0].partitions)
    assert longest_ms < LIMIT_MS


def test_fetch_by_an_old_client_that_names_a_partition_often_converts_as_much_as_fetch_max_bytes(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        fill(caller, records_of(20_000, Compression.NONE))
        asked = [FetchPartition(partition=0, partition_max_bytes=PLENTY)] * 50
        pending = caller.ask(FetchRequest(topics=[FetchTopic(topic="flights", partitions=asked)]), 2)
        assert isinstance(pending, Pending)
        sizes = [len(each.records) for each in (await wait_for(pending)).responses[0].partitions]
        assert 0 < sizes[0] < FETCH_MAX_BYTES < sum(sizes) <= FETCH_MAX_BYTES + sizes[0]
        assert sizes[-1] == 0

    run(body, tmp_path, **{"fetch.max.bytes": str(FETCH_MAX_BYTES)})
