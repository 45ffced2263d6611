from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirekafka.log.storage import FileHandle, FileRegion, Folder, HandlePool, Storage


class Holder:
    def __init__(self, path: Path) -> None:
        self.handle: FileHandle | None = Folder(str(path), Storage()).open("file", create=True)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_file_is_closed_when_its_last_region_is_gone(tmp_path: Path) -> None:
    file = Folder(str(tmp_path), Storage()).open("file", create=True)
    Storage().write(file.fd, b"0123456789", 0)
    fd = file.fd
    regions = [FileRegion(file, 2, 3), FileRegion(file, 5, 5)]
    del file
    (tmp_path / "file").unlink()

    assert [region.read() for region in regions] == [b"234", b"56789"]
    regions.pop()
    assert is_open(fd)
    regions.pop()
    assert not is_open(fd)


def test_region_of_a_file_that_was_cut_reads_what_is_left(tmp_path: Path) -> None:
    file = Folder(str(tmp_path), Storage()).open("file", create=True)
    Storage().write(file.fd, b"0123456789", 0)
    region = FileRegion(file, 2, 8)

    Storage().truncate(file.fd, 5)

    assert (len(region), region.read()) == (8, b"234")


def test_write_goes_on_where_the_system_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: original(fd, bytes(data)[:3], position))
    file = Folder(str(tmp_path), Storage()).open("file", create=True)

    Storage().write(file.fd, memoryview(b"0123456789"), 1)

    assert (tmp_path / "file").read_bytes() == b"\x000123456789"


def test_write_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    Storage().write_file(f"{tmp_path}/file", b"old", sync=True)
    Storage().write_file(f"{tmp_path}/file", b"n")

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"n")]


def test_pool_lets_the_first_that_opened_go(tmp_path: Path) -> None:
    pool = HandlePool(2)
    holders = [Holder(tmp_path) for _ in range(3)]

    for holder in holders:
        pool.admit(holder)

    assert [holder.handle is not None for holder in holders] == [False, True, True]
    assert len(pool) == 2


def test_pool_forgets_who_lets_go(tmp_path: Path) -> None:
    pool = HandlePool(2)
    holder = Holder(tmp_path)
    pool.admit(holder)

    pool.release(holder)
    pool.release(holder)

    assert holder.handle is None
    assert len(pool) == 0


def test_folder_that_is_moved_takes_its_files_along(tmp_path: Path) -> None:
    folder = Folder(f"{tmp_path}/old", Storage())
    folder.storage.make_folder(folder.path)
    folder.write_file("file", b"data")

    folder.move(f"{tmp_path}/new")

    assert folder.read_file("file") == b"data"
    assert folder.read_file("nothing") is None
    folder.remove("nothing")
    folder.rename("nothing", "anything")
