from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from wirekafka.log.compaction.cleaner import last_records_of
from wirekafka.log.compaction.passes import Compaction, RecordFilter, Totals
from wirekafka.log.log import Log
from wirekafka.log.segment_files import SWAP_SUFFIX
from wirekafka.testing.faulty_storage import Crash, FaultyStorage
from wirekafka.tests.log.logs import NOW_MS, World, all_records, append, check_indexes, close, config_with, read
from wirekafka.wire.batch import Record, TimestampType, build_batch, check_crc, iterate_records, read_batch_header
from wirekafka.wire.compression import Compression

COMPACT = config_with(cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000, index_interval_bytes=100)


class Unhurried:
    def step(self, size_bytes: int = 0) -> None:
        pass


def put(log: Log, *pairs: tuple[str, str | None], timestamp: int = NOW_MS, **fields: Any) -> int:
    """Appends one batch with these keys and values; returns its first offset."""
    records = [
        Record(key=key.encode(), value=None if value is None else value.encode(), timestamp=timestamp) for key, value in pairs
    ]
    return append(log, memoryview(build_batch(records, **fields))).base_offset


@dataclass
class Compacted:
    """The result of a compaction; the log is clean up to `clean_offset`."""

    clean_offset: int
    totals: Totals


def compact(
    log: Log, *, dirty_offset: int = 0, end_offset: int | None = None, now_ms: int = NOW_MS, most_keys: int = 1000
) -> Compacted:
    """Compacts the sealed segments, up to `end_offset` if given, as the cleaner does."""
    end = log.reader.segments.active.base_offset if end_offset is None else end_offset
    work = Compaction(
        folder=log.reader.folder,
        config=log.reader.config,
        segments=[segment for segment in log.reader.segments.items[:-1] if segment.base_offset < end],
        dirty_offset=dirty_offset,
        end_offset=end,
        last_records=last_records_of(log.reader),
        aborted=log.reader.aborted_transactions(0, end),
        truncation_count=0,
        now_ms=now_ms,
        most_keys=most_keys,
        pace=Unhurried(),
    )
    log.reader.segments.finish_swap()
    offsets = work.build_map()
    record_filter = RecordFilter(work, offsets)
    for group in list(work.groups(offsets)):
        new = work.rewrite(group, record_filter, log.reader.services.pool)
        new.rename_files(SWAP_SUFFIX)
        assert log.replace_segments(group, new, 0)
    return Compacted(offsets.end_offset, work.totals)


def content(log: Log) -> list[tuple[int, str, str | None]]:
    """Returns the remaining records: offset, key, value."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for data in log.reader.batches()
        for record in iterate_records(data)
    ]


def test_compaction_keeps_the_last_record_of_each_key(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"), ("c", "1"))
    log.roll()
    put(log, ("b", "2"))
    log.roll()

    compact(log)

    assert content(log) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2")]
    assert (log.reader.log_start_offset, log.reader.log_end_offset) == (0, 5)
    check_indexes(log)


def test_compaction_leaves_the_active_segment_alone(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"))
    put(log, ("a", "3"))

    compact(log)

    assert content(log) == [(0, "a", "1"), (1, "a", "2"), (2, "a", "3")]


def test_compacted_batch_keeps_base_and_last_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"), ("c", "1"))
    put(log, ("a", "2"), ("c", "2"))
    log.roll()

    compact(log)

    header = read_batch_header(read(log, 0))
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 1)
    assert read(log, 0) == read(log, 1) == read(log, 2)


def test_compacted_batch_keeps_what_else_its_header_says(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1" * 100), producer_id=9, producer_epoch=2, base_sequence=0, compression=Compression.ZSTD)
    put(log, ("a", "2"))
    log.roll()

    compact(log)

    assert [(record.offset, record.timestamp) for record in iterate_records(read(log, 0))] == [(1, NOW_MS)]
    header = read_batch_header(read(log, 0))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 0)
    assert (header.last_sequence, header.compression, header.partition_leader_epoch) == (1, Compression.ZSTD, 0)


def test_batch_that_loses_nothing_is_copied_byte_for_byte(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"), compression=Compression.GZIP)
    put(log, ("c", "1"))
    log.roll()
    before = read(log, 0)

    compact(log)

    assert read(log, 0) == before


def test_tombstone_gets_a_horizon_first_and_goes_once_that_has_passed(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    put(log, ("a", None), ("b", "1"))
    put(log, ("z", "1"))
    log.roll()

    compact(log)
    assert content(log) == [(1, "a", None), (2, "b", "1"), (3, "z", "1")]
    header = read_batch_header(read(log, 1))
    assert header.delete_horizon_ms == NOW_MS + 1000
    assert [record.timestamp for record in iterate_records(read(log, 1))] == [NOW_MS, NOW_MS]

    compact(log, now_ms=NOW_MS + 999)
    assert content(log) == [(1, "a", None), (2, "b", "1"), (3, "z", "1")]

    compact(log, now_ms=NOW_MS + 1000)
    assert content(log) == [(2, "b", "1"), (3, "z", "1")]
    assert read_batch_header(read(log, 2)).delete_horizon_ms == NOW_MS + 1000


def test_last_batch_of_a_producer_stays_though_it_is_empty(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), producer_id=9, producer_epoch=0, base_sequence=0)
    put(log, ("b", "1"), producer_id=9, producer_epoch=0, base_sequence=1)
    put(log, ("a", "2"), ("b", "2"))
    log.roll()

    compact(log)

    headers = [read_batch_header(data) for data in log.reader.batches()]
    assert [(header.base_offset, header.record_count, header.base_sequence) for header in headers] == [(1, 0, 1), (2, 2, -1)]
    assert headers[0].max_timestamp == NOW_MS
    again = world.open_log(tmp_path, COMPACT)
    duplicate = Record(key=b"b", value=b"1", timestamp=NOW_MS)
    batch = memoryview(build_batch([duplicate], producer_id=9, producer_epoch=0, base_sequence=1))
    assert append(again, batch).is_duplicate


def test_last_batch_of_a_round_stays_though_it_is_empty(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    put(log, ("a", None), timestamp=NOW_MS)
    log.roll()
    compact(log)

    compact(log, now_ms=NOW_MS + 1000)

    assert content(log) == []
    assert [read_batch_header(data).last_offset for data in log.reader.batches()] == [1]


def test_records_behind_a_full_map_stay(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    put(log, ("b", "1"))
    put(log, ("a", "3"))
    put(log, ("a", "4"))
    log.roll()

    assert compact(log, most_keys=1).clean_offset == 2

    assert content(log) == [(1, "a", "2"), (2, "b", "1"), (3, "a", "3"), (4, "a", "4")]


def test_clean_part_of_the_log_is_compacted_against_the_dirty_part(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    log.roll()
    compact(log)
    put(log, ("a", "2"))
    log.roll()

    compact(log, dirty_offset=2)

    assert content(log) == [(1, "b", "1"), (2, "a", "2")]


def test_neighbours_become_one_segment_within_its_limits(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(cleanup_policy=frozenset({"compact"}), segment_bytes=1000))
    for number in range(40):
        put(log, (f"key {number % 10}", "v" * 50))
    log.roll()
    before = len(log.reader.segments)

    compact(log)
    compact(log, dirty_offset=0)

    assert len(log.reader.segments) < before
    assert all(segment.size <= 1000 for segment in log.reader.segments)
    assert [offset for offset, _, _ in content(log)] == list(range(30, 40))
    check_indexes(log)


def test_timestamps_of_log_append_time_stay(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(cleanup_policy=frozenset({"compact"}), message_timestamp_type="LogAppendTime"))
    put(log, ("a", "1"), ("b", "1"), timestamp=5)
    put(log, ("a", "2"), timestamp=6)
    log.roll()

    compact(log)

    header = read_batch_header(read(log, 0))
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW_MS)


def test_compacted_log_finds_timestamps(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    for number in range(20):
        put(log, (f"{number % 5}", f"{number}"), timestamp=NOW_MS + number)
    log.roll()

    compact(log)

    assert log.reader.offset_for_timestamp(NOW_MS) == (15, NOW_MS + 15, 0)
    assert log.reader.offset_for_timestamp(NOW_MS + 17) == (17, NOW_MS + 17, 0)
    assert log.reader.offset_for_timestamp(None) == (19, NOW_MS + 19, 0)


def test_swap_is_refused_once_a_segment_is_gone(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("b", "1"))
    log.roll()
    old = log.reader.segments.items[:-1]
    log.retention.delete_records(1)

    assert not log.replace_segments(old, old[0], 0)


def test_reader_in_the_midst_of_a_compaction_goes_on(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    for number in range(10):
        put(log, ("a", f"{number}"))
    log.roll()
    region = log.reader.read(3, max_bytes=100, end_offset=10, min_one_batch=True)
    before = region.read() if not isinstance(region, bytes) else region

    compact(log)
    world.pass_delays()

    assert not isinstance(region, bytes)
    assert region.read() == before
    assert read_batch_header(read(log, 4)).base_offset == 9


@pytest.mark.parametrize("is_clean", [False, True])
def test_crash_at_any_call_of_a_compaction_loses_no_key(tmp_path: Path, is_clean: bool) -> None:
    for crash_at in range(1, 200):
        path = tmp_path / str(crash_at)
        storage = FaultyStorage()
        log = World(storage=storage).open_log(path, COMPACT)
        for number in range(6):
            put(log, (f"{number % 2}", f"{number}"))
            log.roll()
        expected = {key: value for _, key, value in content(log)}
        log.flusher.flush()
        storage.crash_at = storage.calls + crash_at
        try:
            compact(log)
            is_over = True
        except Crash:
            is_over = False
        log.reader.close()
        again = World().open_log(path, COMPACT, recovery_point=6)
        assert {key: value for _, key, value in content(again)} == expected
        assert (again.reader.log_start_offset, again.reader.log_end_offset) == (0, 6)
        check_indexes(again)
        assert not [name for name in path.iterdir() if name.suffix in (".cleaned", ".swap", ".deleted")]
        put(again, ("x", "y"))
        if is_clean:
            close(again)
            assert len(all_records(World().open_log(path, COMPACT, is_clean=True))) >= 3
        if is_over:
            return
    raise AssertionError("the compaction does not end")


def test_batch_with_two_records_at_one_offset_is_judged_by_its_keys(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    records = [Record(b"a", b"1", offset=0), Record(b"b", b"1", offset=0), Record(b"c", b"1", offset=2)]
    put(log, ("x", "1"), ("x", "1"), ("x", "1"))
    log.roll()
    log.reader.close()
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(build_batch(records, keeps_offsets=True))
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "2"))
    log.roll()

    compact(log)

    assert content(log) == [(0, "b", "1"), (2, "c", "1"), (3, "a", "2")]


@pytest.mark.parametrize("seed", range(6))
def test_random_updates_leave_what_a_dict_says(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = World().open_log(tmp_path, config_with(cleanup_policy=frozenset({"compact"}), segment_bytes=300_000))
    names = [f"{number}" * chance.choice((1, 4, 40)) for number in range(150)]
    value_bytes = chance.choice((10, 100, 300))
    expected: dict[str, tuple[int, str | None]] = {}
    dirty_offset = 0
    for number in range(40):
        codec = chance.choice((Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD))
        is_alike = chance.random() < 0.5
        pairs: list[tuple[str, str | None]] = []
        for _ in range(chance.choice((1, 5, 70, 600))):
            size = value_bytes if is_alike else chance.randrange(value_bytes)
            pairs.append((chance.choice(names), None if chance.random() < 0.02 else f"{number} ".ljust(size)))
        first = put(log, *pairs, timestamp=NOW_MS + number, compression=codec)
        expected |= {key: (first + place, value) for place, (key, value) in enumerate(pairs)}
        if chance.random() < 0.2:
            log.roll()
            dirty_offset = compact(log, dirty_offset=dirty_offset, most_keys=chance.choice((160, 1000))).clean_offset
    log.roll()
    while dirty_offset < log.reader.log_end_offset:
        dirty_offset = compact(log, dirty_offset=dirty_offset, most_keys=151).clean_offset

    assert content(log) == sorted((offset, key, value) for key, (offset, value) in expected.items())
    assert all(check_crc(data, 0, read_batch_header(data)) for data in log.reader.batches())
    check_indexes(log)


def test_readers_go_on_at_the_first_batch_that_is_left(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    for number in range(30):
        put(log, (f"{number if number % 3 == 1 else 'again'}", "x" * 50), ("other", "y"))
    log.roll()
    put(log, ("last", "1"))
    found = log.reader.segments.find
    for offset in range(62):
        read(log, offset, 10)

    compact(log)
    for offset in [*range(62), *range(61, -1, -1)]:
        place = found(offset)
        if place is not None:
            assert read(log, offset, 10) == place[0].region(place[1].position, place[1].size_bytes).read()
    assert len(content(log)) < 20


@pytest.mark.parametrize("most_keys", [1, 2, 3])
def test_batch_with_more_keys_than_there_is_room_for_is_compacted_in_rounds(tmp_path: Path, most_keys: int) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("d", "1"), ("b", None))
    put(log, ("c", "2"), ("e", "1"))
    log.roll()
    dirty_offset = 0
    while dirty_offset < 8:
        clean_offset = compact(log, dirty_offset=dirty_offset, most_keys=most_keys).clean_offset
        assert clean_offset > dirty_offset
        dirty_offset = clean_offset
    assert content(log) == [(3, "a", "2"), (4, "d", "1"), (5, "b", None), (6, "c", "2"), (7, "e", "1")]


@pytest.mark.parametrize("now_ms", [NOW_MS, (1 << 63) - 2])
def test_tombstones_that_are_kept_for_ever_get_the_last_date_there_is(tmp_path: Path, now_ms: int) -> None:
    log = World().open_log(tmp_path, replace(COMPACT, delete_retention_ms=(1 << 63) - 1))
    put(log, ("a", None), ("b", "1"))
    put(log, ("b", None), ("c", "1"), timestamp=-1)
    log.roll()
    dirty_offset = compact(log, now_ms=now_ms).clean_offset
    compact(log, dirty_offset=dirty_offset, now_ms=now_ms)
    headers = [read_batch_header(data) for data in log.reader.batches()]
    assert [header.delete_horizon_ms for header in headers] == [(1 << 63) - 1] * 2
    times = [record.timestamp for data in log.reader.batches() for record in iterate_records(data)]
    assert times == [NOW_MS, -1, -1]


@pytest.mark.parametrize("timestamp", [-(1 << 63) + NOW_MS + 1, -(1 << 62), -2, (1 << 63) - 1])
def test_timestamps_of_any_size_survive_compaction(tmp_path: Path, timestamp: int) -> None:
    config = replace(COMPACT, message_timestamp_after_max_ms=(1 << 63) - 1)
    log = World().open_log(tmp_path, config)
    put(log, ("a", None), ("b", "1"), ("b", "2"), timestamp=timestamp)
    log.roll()
    dirty_offset = compact(log).clean_offset
    put(log, ("a", None), timestamp=timestamp)
    log.roll()
    compact(log, dirty_offset=dirty_offset)
    assert [record.timestamp for data in log.reader.batches() for record in iterate_records(data)] == [timestamp, timestamp]
