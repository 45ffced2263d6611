"""A start with a log whose end is missing, torn or doubled, and files that are closed while a thread reads them."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from wirekafka.errors import KafkaError
from wirekafka.log import soundness
from wirekafka.log.log import Log
from wirekafka.log.positions import BadBatchError
from wirekafka.log.soundness import has_sound_batch, sound_batches
from wirekafka.log.storage import HandlePool, Storage
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.logs import World, all_records, append, batch, close, config_with, fill


def left(path: Path, count: int = 5) -> tuple[Log, Path]:
    """Makes a closed log of this many records in one segment; returns its file."""
    log = World().open_log(path)
    fill(log, count)
    close(log)
    return log, path / log.reader.segments.active.log_name


def shorten(file: Path, size_bytes: int) -> None:
    os.truncate(file, file.stat().st_size - size_bytes)


def last_batch_bytes(log: Log) -> int:
    places = list(log.reader.segments.active.places())
    return places[-1].size_bytes


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("has_lost_power", [True, False])
@pytest.mark.parametrize("cut_of", [lambda log: 10, last_batch_bytes], ids=["within-a-batch", "a-whole-batch"])
def test_start_without_records_before_the_recovery_point_is_refused(
    tmp_path: Path, is_clean: bool, has_lost_power: bool, cut_of: Callable[[Log], int]
) -> None:
    log, file = left(tmp_path)
    shorten(file, cut_of(log))

    with pytest.raises(BadBatchError, match="end with offset 4.*recovery point, 5, was on the disk"):
        World().open_log(tmp_path, is_clean=is_clean, recovery_point=5, has_lost_power=has_lost_power)

    again = World().open_log(tmp_path, is_clean=is_clean, recovery_point=5, truncates_damage=True)
    assert (again.reader.log_end_offset, again.flusher.recovery_point) == (4, 4)


def test_start_of_an_emptied_folder_with_a_recovery_point_is_refused(tmp_path: Path) -> None:
    _, file = left(tmp_path)
    for name in os.listdir(tmp_path):
        os.remove(tmp_path / name)

    with pytest.raises(BadBatchError, match="all data before the recovery point, 5"):
        World().open_log(tmp_path, recovery_point=5)
    assert not file.exists()


def torn_with_batch_inside(path: Path, *, offset_inside: int = 0) -> Log:
    """Makes a log whose last write was torn; the value of its record is a whole batch."""
    inner = batch(b"inner" * 10)
    inner[0:8] = offset_inside.to_bytes(8, "big")
    log = World().open_log(path)
    append(log, b"before")
    append(log, batch(bytes(inner) + bytes(100)))
    log.reader.close()
    shorten(path / log.reader.segments.active.log_name, 50)
    return log


@pytest.mark.parametrize("offset_inside", [0, 1])
def test_torn_write_that_holds_a_whole_batch_in_a_value_is_cut(tmp_path: Path, offset_inside: int) -> None:
    torn_with_batch_inside(tmp_path, offset_inside=offset_inside)

    log = World().open_log(tmp_path)

    assert [record.value for record in all_records(log)] == [b"before"]


def test_look_for_sound_batches_in_reserved_room_reads_no_more_than_it_must(tmp_path: Path) -> None:
    """The reserved space is zeros, each of which looks like the first half of a header; a regular expression searches it."""
    world = World()
    log = world.open_log(tmp_path, config_with(segment_bytes=1 << 20, preallocate=True))
    append(log, b"a")
    log.roll()
    file = tmp_path / log.reader.segments.active.log_name
    assert file.stat().st_size == 1 << 20
    segment = log.reader.segments.active
    calls: list[int] = []

    class Counted(bytes):
        """Counts the bytes that are searched."""

        def rstrip(self, chars: bytes | None = None) -> bytes:  # type: ignore[override]
            found = super().rstrip(chars)
            calls.append(len(found))
            return found

    class CountedStorage(Storage):
        def read(self, fd: int, size: int, position: int) -> bytes:
            return Counted(super().read(fd, size, position))

    segment.folder.storage = CountedStorage()
    assert not has_sound_batch(segment, 0, 1 << 20)
    assert calls == [0]


@pytest.mark.parametrize("chunk", range(150, 420, 7))
def test_recovery_finds_every_batch_wherever_a_chunk_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """A chunk may end in a header, or up to a header's size before the end of a batch."""
    log = World().open_log(tmp_path)
    for size in range(40):
        append(log, batch(b"x" * size, b"y"))
    segment = log.reader.segments.active
    expected = [place for place, _ in sound_batches(segment, segment.size)]
    monkeypatch.setattr(soundness, "_CHUNK", chunk)

    assert [place for place, _ in sound_batches(segment, segment.size)] == expected
    assert [(place.base_offset, place.last_offset) for place in expected] == [(2 * n, 2 * n + 1) for n in range(40)]


def test_recovery_goes_on_reading_when_the_pool_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "_CHUNK", 100)
    world = World(pool=HandlePool(1))
    log = world.open_log(tmp_path / "a")
    other = world.open_log(tmp_path / "b")
    fill(log, 2)
    append(other, b"x")
    segment = log.reader.segments.items[0]
    found = sound_batches(segment, segment.size)
    assert next(found)[0].base_offset == 0
    segment.close()
    opened = [other.reader.segments.active.file() for _ in range(3)]

    assert [place.base_offset for place, _ in found] == [1]
    assert len(world.pool) == 1
    assert opened[0].fd >= 0


def test_start_after_lost_power_removes_a_segment_that_came_back_into_a_compacted_one(tmp_path: Path) -> None:
    """The rename of the compacted segment is on the disk, the removal of the second of its sources is not."""
    log = World().open_log(tmp_path)
    fill(log, 2)
    log.roll()
    fill(log, 2)
    log.roll()
    close(log)
    first, second = (tmp_path / segment.log_name for segment in log.reader.segments.items[:2])
    first.write_bytes(first.read_bytes() + second.read_bytes())
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        os.remove(tmp_path / name)

    with capture_logs() as lines:
        again = World().open_log(tmp_path, recovery_point=4, has_lost_power=True)

    assert [segment.base_offset for segment in again.reader.segments] == [0, 4]
    assert [record.offset for record in all_records(again)] == [0, 1, 2, 3]
    assert "Removed a segment that was compacted" in [line["event"] for line in lines]


def test_start_refuses_segments_that_overlap_in_part(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 2)
    log.roll()
    fill(log, 2)
    close(log)
    first, second = (tmp_path / segment.log_name for segment in log.reader.segments.items)
    first.write_bytes(first.read_bytes() + second.read_bytes()[: second.stat().st_size // 2])
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        os.remove(tmp_path / name)

    with pytest.raises(BadBatchError, match="begins before offset 3"):
        World().open_log(tmp_path, recovery_point=4, has_lost_power=True)


def test_indexes_made_anew_from_headers_take_no_memory_for_each_batch(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 2000, size=1)
    log.roll()
    segment = log.reader.segments.items[0]
    (tmp_path / segment.offset_index.name).write_bytes(b"\xff" * segment.offset_index.size_bytes)
    tracemalloc.start()
    try:
        assert segment.find(1500) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2000 * 100


def test_indexes_of_a_damaged_segment_stay_as_they_were(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(index_interval_bytes=100))
    fill(log, 10)
    segment = log.reader.segments.active
    file = tmp_path / segment.log_name
    data = bytearray(file.read_bytes())
    place = list(segment.places())[5]
    data[place.position + 16] = 9
    file.write_bytes(data)
    before = segment.offset_index.last(), segment.time_index.last(), segment.max_timestamp

    with pytest.raises(BadBatchError):
        segment.mend_indexes()

    assert (segment.offset_index.last(), segment.time_index.last(), segment.max_timestamp) == before


def test_leader_epoch_that_cannot_be_written_down_is_not_taken_for_known(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, b"a", leader_epoch=1)
    storage.is_failing = True
    with pytest.raises(KafkaError):
        append(log, b"b", leader_epoch=2)
    assert log.reader.epochs.latest == 1
    storage.is_failing = False

    append(log, b"b", leader_epoch=2)
    close(log)

    again = World().open_log(tmp_path, is_clean=True, recovery_point=2)
    assert [tuple(entry) for entry in again.reader.epochs.entries] == [(1, 0), (2, 1)]
    shutil.rmtree(tmp_path)
