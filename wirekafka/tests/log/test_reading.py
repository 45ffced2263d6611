"""Reading a log: batches by their offsets, and offsets by the timestamps of records."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log import timestamps
from wirekafka.log.log import Log
from wirekafka.log.storage import FileRegion, Storage
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    close,
    config_with,
    fill,
    read,
    records_of,
)
from wirekafka.wire.batch import read_batch_header
from wirekafka.wire.compression import Compression

SMALL = config_with(segment_bytes=2000, index_interval_bytes=300)


# Reading


def test_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c"))
    append(log, batch(b"d"))

    assert [record.offset for record in records_of(read(log, 1))] == [0, 1, 2, 3]
    assert [record.offset for record in records_of(read(log, 3))] == [3]


def test_read_at_the_end_is_empty(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")

    assert read(log, 1) == b""


@pytest.mark.parametrize("offset", [-1, 1, 5])
def test_read_out_of_range_is_refused(tmp_path: Path, offset: int) -> None:
    log = World().open_log(tmp_path)
    fill(log, 4)
    log.retention.delete_records(2)

    with pytest.raises(KafkaError) as caught:
        read(log, offset)

    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_is_a_region_that_outlives_its_segment(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    fill(log, 30)
    region = log.reader.read(0, max_bytes=1000, end_offset=30, min_one_batch=True)
    assert isinstance(region, FileRegion)
    before = region.read()

    log.retention.delete_records(30)
    world.pass_delays()

    assert not (tmp_path / "00000000000000000000.log").exists()
    assert region.read() == before
    assert len(region) == len(before) == 1000


def test_read_is_cut_at_max_bytes_anywhere(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 3)

    assert len(read(log, 0, 250)) == 250


def test_read_first_batch_is_whole_even_if_it_is_larger_than_max_bytes(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, bytes(1000))
    append(log, b"b")

    whole = read(log, 0, 10)

    assert [record.offset for record in records_of(whole)] == [0]
    assert read(log, 0, 10, min_one_batch=False) == b""
    assert read(log, 0, 0, min_one_batch=False) == b""


@pytest.mark.parametrize(("end_offset", "expected"), [(0, []), (1, []), (2, []), (3, [0, 1, 2]), (4, [0, 1, 2, 3])])
def test_read_gives_no_batch_that_reaches_the_end_offset(tmp_path: Path, end_offset: int, expected: list[int]) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c"))
    append(log, batch(b"d"))
    append(log, batch(b"e"))

    assert [record.offset for record in records_of(read(log, 0, end_offset=end_offset))] == expected


def test_read_end_offset_in_a_later_segment_bounds_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 40)
    second = log.reader.segments.items[1].base_offset

    records = records_of(read(log, 0, end_offset=second + 1))

    assert records[-1].offset == second - 1


def test_read_after_the_end_of_what_was_read_looks_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = World().open_log(tmp_path, config_with(index_interval_bytes=300))
    fill(log, 10)
    read(log, 0)
    append(log, b"new")
    monkeypatch.setattr(type(log.reader.segments), "find", None)

    assert [record.offset for record in records_of(read(log, 10))] == [10]


def test_read_of_a_reader_that_waits_at_the_end_looks_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    read(log, 10)
    append(log, b"new")
    monkeypatch.setattr(type(log.reader.segments), "find", None)

    assert [record.offset for record in records_of(read(log, 10))] == [10]


def test_read_of_a_reader_that_waited_across_a_roll_finds_the_new_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    read(log, 10)
    log.roll()
    append(log, b"new")

    assert [record.offset for record in records_of(read(log, 10))] == [10]


def test_read_from_any_offset_reads_few_bytes_to_find_it(tmp_path: Path) -> None:
    class Counting(World):
        bytes_read = 0

    world = Counting()
    log = world.open_log(tmp_path)
    fill(log, 2000)
    log.roll()
    original = type(world.storage).read

    def counted(self: Storage, fd: int, size: int, position: int) -> bytes:
        world.bytes_read += size
        return original(fd=fd, size=size, position=position, self=self)

    type(world.storage).read = counted  # type: ignore[method-assign]
    try:
        for offset in range(0, 2000, 37):
            world.bytes_read = 0
            log.reader.read(offset, max_bytes=1 << 20, end_offset=2000, min_one_batch=True)
            assert world.bytes_read < 9000
    finally:
        type(world.storage).read = original  # type: ignore[method-assign]


class CountingStorage(Storage):
    """Counts the bytes read."""

    reads = 0

    def read(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().read(fd, size, position)


def walk(log: Log, max_bytes: int, offset: int = 0) -> list[int]:
    """Returns the offsets of a consumer that always fetches from one past its last record, up to the end."""
    found = []
    while offset < log.reader.log_end_offset:
        records = records_of(read(log, offset, max_bytes))
        found += [record.offset for record in records if record.offset >= offset]
        assert found[-1] >= offset, "records are passed over, or given again"
        offset = found[-1] + 1
    return found


@pytest.mark.parametrize(("max_bytes", "reads"), [(0, 17), (100, 17), (250, 16), (330, 16)])
def test_read_of_batch_after_batch_looks_up_the_first_only(tmp_path: Path, max_bytes: int, reads: int) -> None:
    storage = CountingStorage()
    log = World(storage).open_log(tmp_path, config_with(index_interval_bytes=300))
    fill(log, 20)
    assert walk(log, max_bytes, 3) == list(range(3, 20))
    assert storage.reads == reads, "one each, and none for what is all there is"


def test_read_of_batches_of_which_many_fit_remembers_none(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 20)
    read(log, 0, 500)
    assert not log.reader.segments._hints


def test_read_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 40)

    for max_bytes in (1, 100, 200, 300, 1000):
        assert walk(log, max_bytes) == list(range(40))


def test_read_after_a_batch_that_is_larger_than_what_is_stable_finds_the_next(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 3)

    assert [record.offset for record in records_of(read(log, 0, 10, end_offset=1))] == [0]
    assert read(log, 1, 10, end_offset=1) == b""
    assert [record.offset for record in records_of(read(log, 1, 10, end_offset=2))] == [1]


def test_read_behind_what_was_cut_off_finds_what_came_instead(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    three = batch(b"a", b"b", b"c")
    [one] = [found for found in (batch(bytes(size)) for size in range(40)) if len(found) == len(three)]
    for _ in range(10):
        append(log, memoryview(bytearray(one)))
    assert walk(log, 10) == list(range(10))
    log.truncate_to(4)
    append(log, memoryview(bytearray(three)))
    append(log, memoryview(bytearray(three)))

    assert [record.offset for record in records_of(read(log, 5, 10))] == [4, 5, 6]
    assert [record.offset for record in records_of(read(log, 8, 10))] == [7, 8, 9]


def test_positions_that_are_remembered_are_few_and_the_last(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 200)
    walk(log, 10)
    walk(log, 10, 190)

    assert list(log.reader.segments._hints) == list(range(137, 201))


def test_batches_are_whole_and_begin_where_asked(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 30)

    found = [read_batch_header(data).base_offset for data in log.reader.batches(17)]

    assert found == list(range(17, 30))


# Timestamps


def test_offset_for_timestamp_is_right_to_the_record(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c", timestamps=[10, 30, 20]))
    append(log, batch(b"d", b"e", timestamps=[25, 40]), leader_epoch=2)

    assert log.reader.offset_for_timestamp(0) == (0, 10, 0)
    assert log.reader.offset_for_timestamp(11) == (1, 30, 0)
    assert log.reader.offset_for_timestamp(30) == (1, 30, 0)
    assert log.reader.offset_for_timestamp(31) == (4, 40, 2)
    assert log.reader.offset_for_timestamp(41) is None


def test_offset_for_timestamp_looks_into_compressed_batches(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", timestamps=[10, 20], compression=Compression.GZIP))

    assert log.reader.offset_for_timestamp(15) == (1, 20, 0)


def test_offset_for_timestamp_skips_what_is_before_the_log_start(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c", timestamps=[30, 20, 10]))
    append(log, batch(b"d", timestamp=35))
    log.retention.delete_records(1)

    assert log.reader.offset_for_timestamp(25) == (3, 35, 0)
    assert log.reader.offset_for_timestamp(15) == (1, 20, 0)


def test_offset_for_timestamp_agrees_with_a_scan_over_many_segments(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    times = [(number * 37) % 101 + number for number in range(120)]
    for time in times:
        append(log, batch(bytes(100), timestamp=time))

    for target in range(0, 230, 3):
        expected = next((offset for offset, time in enumerate(times) if time >= target), None)
        found = log.reader.offset_for_timestamp(target)
        assert (found.offset if found else None) == expected


def test_offset_of_max_timestamp_is_the_first_record_that_has_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 20)
    append(log, batch(b"a", b"b", b"c", timestamps=[NOW_MS + 99, NOW_MS + 500, NOW_MS + 500]))
    fill(log, 20)
    append(log, batch(b"d", timestamp=NOW_MS + 500))

    assert log.reader.offset_for_timestamp(None) == (21, NOW_MS + 500, 0)


def test_offset_of_max_timestamp_before_the_log_start_is_not_found(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c", timestamps=[90, 20, 10]))
    append(log, batch(b"d", timestamp=15))
    log.retention.delete_records(1)

    assert log.reader.offset_for_timestamp(None) == (1, 20, 0)


def test_offset_of_max_timestamp_without_timestamps_is_none(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", timestamp=-1))

    assert log.reader.offset_for_timestamp(None) is None


def test_offset_of_max_timestamp_behind_a_batch_that_lost_its_latest_record_is_found(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c", timestamps=[90, 20, 10]))
    append(log, batch(b"d", timestamp=50))
    append(log, batch(b"e", timestamp=40))
    log.retention.delete_records(1)

    assert log.reader.offset_for_timestamp(None) == (3, 50, 0)


def test_offset_of_max_timestamp_in_a_later_segment_than_the_log_start_is_found(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, batch(b"a", b"b", timestamps=[900, 20]))
    for timestamp in range(100, 140):
        append(log, batch(bytes(100), timestamp=timestamp))
    assert len(log.reader.segments) > 2
    log.retention.delete_records(1)

    assert log.reader.offset_for_timestamp(None) == (41, 139, 0)


@given(
    times=st.lists(st.lists(st.integers(-1, 6), min_size=1, max_size=4), min_size=1, max_size=30),
    start=st.floats(0, 0.99),
    pause_after=st.integers(1, 5),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_offset_for_timestamp_agrees_with_a_scan_from_any_log_start(
    monkeypatch: pytest.MonkeyPatch, times: list[list[int]], start: float, pause_after: int
) -> None:
    monkeypatch.setattr(timestamps, "PAUSE_AFTER", pause_after)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        log = World().open_log(Path(path), SMALL)
        for batch_times in times:
            append(log, batch(*[bytes(40)] * len(batch_times), timestamps=batch_times))
        log.retention.delete_records(int(start * log.reader.log_end_offset))
        readable = [
            (record.offset, record.timestamp) for record in all_records(log) if record.offset >= log.reader.log_start_offset
        ]
        for target in range(8):
            found = log.reader.offset_for_timestamp(target)
            assert (found[:2] if found else None) == next((each for each in readable if each[1] >= target), None)
        latest = max((each for each in readable if each[1] >= 0), key=lambda each: each[1], default=None)
        found = log.reader.offset_for_timestamp(None)
        assert (found[:2] if found else None) == latest
        close(log)


@pytest.mark.parametrize("timestamp", [NOW_MS + 1, None])
def test_search_for_a_timestamp_over_many_batches_pauses(tmp_path: Path, timestamp: int | None) -> None:
    log = World().open_log(tmp_path)
    count = 3 * timestamps.PAUSE_AFTER
    append(log, batch(b"removed", timestamp=NOW_MS + (timestamp is None) * 5))
    for _ in range(count):
        append(log, batch(b"", timestamp=NOW_MS))
    if timestamp is None:
        log.retention.delete_records(1)
    append(log, batch(b"latest", timestamp=NOW_MS + 2))

    steps = list(log.reader.search_timestamp(timestamp))

    assert steps.count(None) >= 2
    assert [scan.run() for scan in steps if scan is not None] == [(count + 1, NOW_MS + 2, 0)]


def test_search_for_a_timestamp_leaves_a_segment_that_is_deleted_in_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamps, "PAUSE_AFTER", 1)
    log = World().open_log(tmp_path, SMALL)
    append(log, batch(b"latest", timestamp=NOW_MS))
    for _ in range(30):
        append(log, batch(bytes(100), timestamp=NOW_MS - 1))
    log.retention.delete_records(1)
    search = log.reader.search_timestamp(None)
    assert next(search) is None

    log.retention.delete_records(log.reader.log_end_offset)
    log.retention.delete_old_segments(NOW_MS)

    found = next(found for scan in search if scan is not None and (found := scan.run()) is not None)
    assert found.offset >= log.reader.segments.active.base_offset
