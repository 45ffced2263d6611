from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from wirekafka.log.index import Index, OffsetIndex, TimeIndex
from wirekafka.log.storage import Folder, Storage


def offset_index(path: Path, *entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex(Folder(str(path), Storage()), "0.index")
    for key, value in entries:
        index.append(key, value)
    return index


def time_index(path: Path, *entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex(Folder(str(path), Storage()), "0.timeindex")
    for key, value in entries:
        index.append_greater(key, value)
    return index


ENTRIES = [(number * 10, number * 1000) for number in range(1, 200)]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_floor_is_the_last_entry_not_greater(tmp_path: Path, is_sealed: bool) -> None:
    index = offset_index(tmp_path, *ENTRIES)
    if is_sealed:
        index.save()
        index.unload()

    assert index.floor(9) is None
    assert index.floor(10) == (10, 1000)
    for key in range(10, 1990, 7):
        assert index.floor(key) == (key // 10 * 10, key // 10 * 1000)
    assert index.floor(10**9) == index.last() == (1990, 199_000)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_empty_index_has_no_floor(tmp_path: Path, is_sealed: bool) -> None:
    index = offset_index(tmp_path)
    if is_sealed:
        index.save()
        index.unload()

    assert index.floor(5) is None
    assert index.last() is None
    assert index.size_bytes == 0


def test_sealed_index_keeps_nothing_in_memory(tmp_path: Path) -> None:
    index = offset_index(tmp_path, *ENTRIES)

    index.save()
    index.unload()

    assert index.keys is None
    assert index.values is None
    assert index.count == 199


def test_file_is_kafkas_big_endian_entries(tmp_path: Path) -> None:
    offset_index(tmp_path, (1, 2)).save()
    time_index(tmp_path, (1_700_000_000_000, 3)).save()

    assert (tmp_path / "0.index").read_bytes().hex() == "0000000100000002"
    assert (tmp_path / "0.timeindex").read_bytes().hex() == "0000018bcfe5680000000003"


def test_load_takes_up_where_the_file_ends(tmp_path: Path) -> None:
    offset_index(tmp_path, (1, 2), (3, 4)).save()
    index = OffsetIndex(Folder(str(tmp_path), Storage()), "0.index", size_bytes=16)

    index.load()
    index.append(5, 6)

    assert (index.count, index.floor(4), index.last()) == (3, (3, 4), (5, 6))


def test_time_index_takes_no_timestamp_twice(tmp_path: Path) -> None:
    index = time_index(tmp_path, (10, 1), (10, 5), (9, 6), (11, 7))

    assert list(zip(index.keys or (), index.values or (), strict=True)) == [(10, 1), (11, 7)]


def test_truncate_drops_entries_from_the_offset_on(tmp_path: Path) -> None:
    offsets = offset_index(tmp_path, (5, 100), (9, 200), (12, 300))
    offsets.truncate(9)
    times = time_index(tmp_path, (10, 5), (20, 9), (30, 12))
    times.truncate(10)

    assert (offsets.count, offsets.last()) == (1, (5, 100))
    assert (times.count, times.last()) == (2, (20, 9))


@pytest.mark.parametrize(("make", "layout", "scale"), [(OffsetIndex, ">ii", 1000), (TimeIndex, ">qi", 10**12)])
def test_index_is_written_as_kafka_reads_it(tmp_path: Path, make: type[Index], layout: str, scale: int) -> None:
    entries = [(scale * number + 258, 3 * number + 1) for number in range(300)]
    index = make(Folder(str(tmp_path), Storage()), "index")
    for entry in entries:
        index.append(*entry)

    index.save()

    data = (tmp_path / "index").read_bytes()
    assert data == b"".join(pack(layout, *entry) for entry in entries)
    again = make(Folder(str(tmp_path), Storage()), "index", size_bytes=len(data))
    again.load()
    assert again.keys is not None
    assert again.values is not None
    assert list(zip(again.keys, again.values, strict=True)) == entries
