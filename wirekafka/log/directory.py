"""One data directory: its lock, its owner, its clean-shutdown mark, and the checkpoints of its partitions.

Rules of this file: a directory is locked before anything in it is read, and unlocked last. The clean-shutdown mark is removed
before any log changes.

Source: kafka.log.LogManager (lockLogDirs, checkpoints), kafka.server.KafkaServer's meta.properties.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from struct import Struct

import structlog

from wirekafka.config import ConfigError
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    MalformedFileError,
    read_clean_shutdown,
    read_lock,
    read_offsets,
    write_clean_shutdown,
    write_lock,
    write_offsets,
)
from wirekafka.log.disk_errors import READ_ONLY_ERRORS
from wirekafka.log.durability import SyncError
from wirekafka.log.meta_properties import MetaProperties, MetaPropertiesVersion, owned, read_meta_properties
from wirekafka.log.storage import Storage
from wirekafka.log.strays import REMEDY
from wirekafka.names import CLUSTER_METADATA_TOPIC, TopicPartition

log = structlog.get_logger(__name__)

LOCK_FILE = ".lock"
DELETED_FOLDER_SUFFIX = "-delete"
FUTURE_FOLDER_SUFFIX = "-future"
STRAY_FOLDER_SUFFIX = "-stray"
_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")
_LONGEST_NAME = 255
_LOST_ERRORS = {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN, errno.ENOTCONN, errno.EREMOTEIO}
_FILE_LOCK = Struct("hhqqi4x")
"""Linux's struct flock: type, whence, start, length, process id of the holder."""


class DirectoryLockedError(Exception):
    """Another broker holds the data directory; the message names that broker."""


class DataDirectory:
    """One of `log.dirs`.

    Attributes:
        path: the path of the directory.
        meta: the owner of the directory.
        is_clean: the last broker closed all logs in the directory, so no recovery is needed.
        is_on_disk: all data of the last broker is on the disk; otherwise some may be only in the machine's page cache.
        has_lost_power: the machine may have restarted since the last broker started, so unsynced writes may be lost.
        offline_reason: why the directory cannot be used; None for a directory that works.
    """

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self.storage = storage
        self.is_clean = False
        self.is_on_disk = False
        self.has_lost_power = True
        self.offline_reason: str | None = None
        self.meta: MetaProperties
        self._lock_fd: int | None = None
        self._written: dict[str, bytes] = {}
        """The content of each checkpoint."""
        self._taken: dict[str, int] = {}
        """The number of the last offsets that were taken for each checkpoint."""
        self._newest: dict[str, int] = {}
        """The number of the offsets that each checkpoint holds."""
        self._writing = threading.Lock()
        """Held while a checkpoint is written: retention, compaction and moves write checkpoints in different threads."""

    # The lock

    def lock(self, holder: str) -> None:
        """Locks the directory for this process, and creates the directory if it does not exist.

        Takes two locks: flock also excludes other brokers of the same process, and Apache Kafka respects the POSIX lock.

        Args:
            holder: the description of this broker for another broker's error message.

        Raises:
            DirectoryLockedError: another broker has locked the directory.
            OSError: the directory cannot be created or written.
        """
        self.storage.make_folder(self.path)
        path = f"{self.path}/{LOCK_FILE}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            found = os.pread(fd, 4096, 0).decode(errors="replace").partition("\n")[0].strip()
            os.close(fd)
            raise DirectoryLockedError(f"{self.path} is in use by {found or 'another process'}") from None
        self._lock_fd = fd
        self.has_lost_power = not self._names_this_boot(os.pread(fd, 4096, 0))
        self.announce(holder)

    def _names_this_boot(self, data: bytes) -> bool:
        """Whether the lock file of the last broker, which may have been killed, has the boot id of the running machine."""
        try:
            found = read_lock(data)
        except MalformedFileError as error:
            log.warning(
                "The lock file of a directory cannot be read; its logs are checked as after a power loss",
                path=f"{self.path}/{LOCK_FILE}",
                reason=str(error),
            )
            return False
        return found is not None and found == read_boot_id()

    def announce(self, holder: str) -> None:
        """Writes the holder to the lock file, for the error message of another broker."""
        assert self._lock_fd is not None, "the directory is not locked"
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, write_lock(holder, read_boot_id()), 0)

    def unlock(self) -> None:
        """Unlocks the directory; does nothing if it is not locked."""
        if self._lock_fd is not None:
            with suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
                if not self.has_lost_power:
                    os.pwrite(self._lock_fd, write_lock("", read_boot_id()), 0)
            os.close(self._lock_fd)
            self._lock_fd = None

    # The owner

    def load(self, *, node_id: int, cluster_id: str | None, version: MetaPropertiesVersion = MetaPropertiesVersion.V1) -> None:
        """Reads the owner and the clean-shutdown mark; a new directory gets this broker as its owner.

        Args:
            cluster_id: the cluster id from ZooKeeper or from the earlier directories; None if it is not known yet.
            version: 0 for a member of a cluster with ZooKeeper, 1 for any other broker.

        Raises:
            KafkaError: INVALID_CONFIG, INCONSISTENT_CLUSTER_ID, as `owned` says; KAFKA_STORAGE_ERROR, the owner cannot be read.
        """
        stored = read_owner(self.path, self.storage)
        self.meta = owned(stored, path=self.path, version=version, cluster_id=cluster_id, node_id=node_id, new_id=new_id)
        if self.meta != stored:
            self.storage.write_file(f"{self.path}/{META_PROPERTIES}", self.meta.write(), sync=True)
        self.is_clean = self._take_clean_mark()
        if stored is not None and not self.is_clean:
            log.warning(
                "Unclean stop: the last broker on a directory did not close its logs, so they are checked", path=self.path
            )

    def change_version(self, version: MetaPropertiesVersion) -> None:
        """Gives the directory to the same broker as a member of a cluster (version 0), or as a single node (version 1).

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, the owner cannot be read.
            OSError: the file cannot be written; the version is the former one.

        Durability: on disk.
        """
        stored = read_owner(self.path, self.storage)
        assert stored is not None and stored.cluster_id is not None, "the directory was loaded before"
        directory_id = stored.directory_id or (None if version is MetaPropertiesVersion.V0 else new_id())
        self.meta = stored._replace(version=version, directory_id=directory_id)
        self.storage.write_file(f"{self.path}/{META_PROPERTIES}", self.meta.write(), sync=True)

    def _take_clean_mark(self) -> bool:
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        try:
            data = self.storage.read_file(path)
        except FileNotFoundError:
            return False
        self.storage.remove(path)
        self.storage.sync_folder(self.path)
        try:
            boot_id = read_clean_shutdown(data)
        except MalformedFileError as error:
            log.warning("The mark of a clean shutdown cannot be read, so the logs are checked", path=path, reason=str(error))
            return False
        self.is_on_disk = boot_id is None
        return boot_id in (None, read_boot_id())

    def mark_clean(self, *, is_on_disk: bool) -> None:
        """Writes the clean-shutdown mark, after all logs in the directory were closed: the next start needs no recovery.

        Args:
            is_on_disk: all logs are on the disk; otherwise the mark holds only until the machine restarts.

        Durability: on disk.
        """
        boot_id = None if is_on_disk else read_boot_id()
        if is_on_disk or boot_id:
            self.storage.write_file(f"{self.path}/{CLEAN_SHUTDOWN}", write_clean_shutdown(boot_id), sync=True)

    # The folders and checkpoints

    def partitions(self) -> Iterator[tuple[TopicPartition, str]]:
        """Returns the partitions and the paths of their folders, except the metadata log of Apache Kafka's controllers."""
        for name in self.storage.folders(self.path):
            partition = partition_of_folder(name)
            if partition is not None and partition.topic == CLUSTER_METADATA_TOPIC:
                continue
            if partition is not None:
                yield partition, f"{self.path}/{name}"
            elif name.endswith(STRAY_FOLDER_SUFFIX):
                log.warning("A folder is that of a stray partition", path=f"{self.path}/{name}", remedy=REMEDY)
            elif not name.endswith((DELETED_FOLDER_SUFFIX, FUTURE_FOLDER_SUFFIX)) and not name.startswith("."):
                log.warning("A folder in the data directory is not the folder of a partition", path=f"{self.path}/{name}")

    def deleted_folders(self) -> list[str]:
        """Returns the paths of the folders of deleted partitions."""
        names = self.storage.folders(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(DELETED_FOLDER_SUFFIX)]

    def future_folders(self) -> list[tuple[TopicPartition, str]]:
        """Returns the partitions that were moving to this directory, and the paths of their folders."""
        found = []
        for name in self.storage.folders(self.path):
            partition = partition_of_folder(name.rpartition(".")[0]) if name.endswith(FUTURE_FOLDER_SUFFIX) else None
            if partition is not None:
                found.append((partition, f"{self.path}/{name}"))
        return found

    def path_of_deleted(self, name: TopicPartition) -> str:
        """Returns a new unique path for the folder of a deleted partition; the name is not that of a partition's folder.

        Source: LocalLog.logDeleteDirName.
        """
        return self._unique_path(name, DELETED_FOLDER_SUFFIX)

    def path_of_stray(self, name: TopicPartition) -> str:
        """Returns a new unique path for the folder of a stray partition; the name is not that of a partition's folder.

        Source: LocalLog.logStrayDirName.
        """
        return self._unique_path(name, STRAY_FOLDER_SUFFIX)

    def _unique_path(self, name: TopicPartition, folder_suffix: str) -> str:
        unique = f".{uuid.uuid4().hex}{folder_suffix}"
        suffix = f"-{name.partition}{unique}"
        return f"{self.path}/{name.topic[: _LONGEST_NAME - len(suffix)]}{suffix}"

    def read_checkpoint(self, file: str) -> dict[TopicPartition, int]:
        """Returns the offsets of a checkpoint; empty if the checkpoint does not exist or cannot be read."""
        try:
            data = self.storage.read_file(f"{self.path}/{file}")
            offsets = read_offsets(data)
        except FileNotFoundError:
            return {}
        except MalformedFileError as error:
            log.warning("Ignored a checkpoint", path=f"{self.path}/{file}", reason=str(error))
            return {}
        self._written[file] = data
        return offsets

    def checkpoint(self, file: str, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Returns a function that writes a checkpoint, if its content has changed; the function may run in any thread.

        The caller calls this method in the same step in which it takes the offsets, and may run the returned function later: of
        two functions that write the same file, the one with the later offsets wins, in any order of running.

        Raises:
            OSError: raised by the returned function; the old checkpoint stays.

        Durability: on disk, this content or later content.
        """
        data = write_offsets(offsets)
        number = self._taken[file] = self._taken.get(file, 0) + 1

        def write() -> None:
            with self._writing:
                if number < self._newest.get(file, 0):
                    return
                if self._written.get(file) != data:
                    self.storage.write_file(f"{self.path}/{file}", data, sync=True)
                    self._written[file] = data
                self._newest[file] = number

        return write

    def write_checkpoint(self, file: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Writes a checkpoint now, if its content has changed.

        Raises:
            OSError: the old checkpoint stays.

        Durability: on disk.
        """
        self.checkpoint(file, offsets)()


def read_owner(path: str, storage: Storage) -> MetaProperties | None:
    """Returns the owner of a data directory; None if the directory is new.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, the owner cannot be read.
    """
    try:
        return read_meta_properties(storage.read_file(f"{path}/{META_PROPERTIES}"))
    except (FileNotFoundError, NotADirectoryError):
        # If a file has the directory's name, creating the directory says so.
        return None
    except MalformedFileError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}/{META_PROPERTIES}: {error}") from None


def check_paths_differ(paths: Iterable[str]) -> None:
    """Raises unless all paths lead to different directories. The error names the setting; the error of a second lock would not.

    Raises:
        ConfigError: two paths lead to the same directory.
    """
    found: dict[str, str] = {}
    for path in paths:
        real_path = os.path.realpath(path)
        if real_path in found:
            raise ConfigError("log.dirs", f"{found[real_path]},{path}", "directories of which no two are the same")
        found[real_path] = path


def partition_of_folder(name: str) -> TopicPartition | None:
    """Returns the partition of a folder by its name; None if the name is not that of a partition's folder."""
    match = _FOLDER.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match is not None else None


def is_held(path: str) -> bool:
    """Whether a broker, wirekafka or Apache Kafka, holds the data directory now; tests the lock without taking it.

    Only for other processes than the broker's own: in the broker's process, closing the lock file would release the POSIX lock,
    and the test does not see locks of its own process.
    """
    try:
        fd = os.open(f"{path}/{LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = fcntl.fcntl(fd, fcntl.F_GETLK, _FILE_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(_FILE_LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def is_lost(path: str, error: OSError) -> bool:
    """Whether an error means that a directory is lost, and not that the disk is full or a process limit is reached.

    After a failed sync, for any reason, it is unknown what is on the disk, so the directory is lost.

    A write to a file that could only be opened for reading fails with EBADF; `os.access` then tells whether the directory is
    read-only.
    """
    if isinstance(error, SyncError):
        return True
    if error.errno in READ_ONLY_ERRORS:
        return not os.access(path, os.W_OK)
    return error.errno in _LOST_ERRORS


def read_boot_id() -> str | None:
    """Returns the boot id of the machine, which changes at each restart; None if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


def new_id() -> str:
    """Returns a new id of a cluster or a directory: a random UUID in Kafka's text form.

    Source: org.apache.kafka.common.Uuid.
    """
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        if not text.startswith("-"):
            return text
