"""Each faulty disk behaves as the real one, as long as no fault is due."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wirekafka.log.storage import Storage
from wirekafka.testing.faulty_storage import FaultyStorage, LostDirectoryStorage
from wirekafka.testing.remembering_storage import RememberingStorage

MakeStorage = Callable[[Path], Storage]

every_storage = pytest.mark.parametrize(
    "make",
    [lambda _: Storage(), lambda _: FaultyStorage(), lambda _: LostDirectoryStorage(), RememberingStorage],
    ids=["real", "faulty", "lost directory", "remembering"],
)


@every_storage
def test_storage_write_is_read_back(tmp_path: Path, make: MakeStorage) -> None:
    storage = make(tmp_path)
    fd = storage.open(f"{tmp_path}/file", create=True)
    storage.write(fd, b"0123456789", 0)
    storage.write(fd, b"abc", 4)
    storage.sync(fd)
    assert storage.read(fd, 100, 2) == b"23abc789"
    storage.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123abc789"


@every_storage
def test_storage_truncate_cuts_the_end(tmp_path: Path, make: MakeStorage) -> None:
    storage = make(tmp_path)
    fd = storage.open(f"{tmp_path}/file", create=True)
    storage.write(fd, b"0123456789", 0)
    storage.truncate(fd, 4)
    assert storage.read(fd, 100, 0) == b"0123"
    storage.close(fd)


@every_storage
def test_storage_names_follow_renames_and_removals(tmp_path: Path, make: MakeStorage) -> None:
    storage = make(tmp_path)
    storage.make_folder(f"{tmp_path}/folder")
    for name in ("a", "b"):
        storage.close(storage.open(f"{tmp_path}/folder/{name}", create=True))
    storage.rename(f"{tmp_path}/folder/a", f"{tmp_path}/folder/c")
    storage.remove(f"{tmp_path}/folder/b")
    storage.sync_folder(f"{tmp_path}/folder")
    assert list(storage.files(f"{tmp_path}/folder")) == ["c"]
    assert [Path(folder).name for folder in storage.folders(str(tmp_path))] == ["folder"]


@every_storage
def test_storage_open_of_a_missing_file_raises(tmp_path: Path, make: MakeStorage) -> None:
    with pytest.raises(FileNotFoundError):
        make(tmp_path).open(f"{tmp_path}/missing")
