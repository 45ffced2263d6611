"""Copies of the data directory of a running broker, in milliseconds whatever its size.

How it works: an active segment of more than `MOST_COPIED_BYTES` is sealed first. Sealed segments never change, so the copy has
hard links to them; the active segments and the small files are copied. The copy looks as if its broker had shut down cleanly, so
that a broker opens it without recovery.

Rules of this file: it runs on the broker's loop without a pause, so the copy shows one moment.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.catalog import OFFSETS_OF
from wirekafka.log.checkpoint import CLEAN_SHUTDOWN, CLEANER_OFFSETS, write_clean_shutdown, write_offsets
from wirekafka.log.directory import LOCK_FILE, read_boot_id
from wirekafka.log.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX, SEGMENT_SUFFIXES, file_name
from wirekafka.log.storage import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from wirekafka.log.log import Log
    from wirekafka.log.manager import LogManager

MOST_COPIED_BYTES = 1 << 20
"""A larger active segment is sealed and linked."""

_TRANSIENT_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX)


def copy_data(logs: LogManager, target: str) -> None:
    """Copies the one data directory of a running broker to a new directory.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, a log is offline or cannot be written.
        OSError: the copy cannot be made; the new directory is removed.
    """
    [directory] = logs.directories
    if directory.offline_reason is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, directory.offline_reason)
    homes = logs.catalog.in_directory(directory)
    for each in homes.values():
        each.write_for_copy(MOST_COPIED_BYTES)
    os.mkdir(target)
    try:
        _copy_files(directory.path, target, _plain_files(directory.path))
        for name, each in homes.items():
            _copy_log(each, f"{target}/{name}")
        for file in (*OFFSETS_OF, CLEANER_OFFSETS):
            _write(f"{target}/{file}", write_offsets(logs.catalog.offsets_of(directory, file)))
        _write(f"{target}/{CLEAN_SHUTDOWN}", write_clean_shutdown(read_boot_id()))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def copy_closed(source: str, target: str) -> None:
    """Copies a directory that `copy_data` has made and no broker has opened.

    Raises:
        OSError: the copy cannot be made; the new directory is removed.
    """
    os.mkdir(target)
    try:
        _copy_files(source, target, _plain_files(source))
        for entry in os.scandir(source):
            if entry.is_dir():
                os.mkdir(f"{target}/{entry.name}")
                names = os.listdir(entry.path)
                active = max(name for name in names if name.endswith(SEGMENT_SUFFIXES[0]))[:20]
                sealed = {name for name in names if name.endswith(SEGMENT_SUFFIXES) and name[:20] != active}
                _link_files(entry.path, f"{target}/{entry.name}", sealed)
                _copy_files(entry.path, f"{target}/{entry.name}", set(names) - sealed)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _copy_log(found: Log, target: str) -> None:
    folder, segments = found.reader.folder.path, found.reader.segments.items
    names = {name for name in os.listdir(folder) if not name.endswith(_TRANSIENT_SUFFIXES)}
    sealed = {file_name(each.base_offset, suffix) for each in segments[:-1] for suffix in SEGMENT_SUFFIXES} & names
    os.mkdir(target)
    _link_files(folder, target, sealed)
    _copy_files(folder, target, names - sealed)


def _plain_files(path: str) -> list[str]:
    """Returns the names of the files that belong to the whole directory, except for those of its present broker.

    Threads write checkpoints under temporary names; the copy gets checkpoints of its own.
    """
    names = (entry.name for entry in os.scandir(path) if entry.is_file())
    return [name for name in names if name != LOCK_FILE and not name.endswith(TEMPORARY_SUFFIX)]


def _link_files(source: str, target: str, names: Iterable[str]) -> None:
    for name in names:
        try:
            os.link(f"{source}/{name}", f"{target}/{name}")
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copyfile(f"{source}/{name}", f"{target}/{name}")


def _copy_files(source: str, target: str, names: Iterable[str]) -> None:
    for name in names:
        shutil.copyfile(f"{source}/{name}", f"{target}/{name}")


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
