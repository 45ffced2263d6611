"""One data directory: who holds it, whose it is, and what it knows of its partitions beside their folders.

Rules of this file: a directory is locked before anything in it is read, and unlocked last. The mark of a clean shutdown is
taken away before the first log may change.

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
    MetaProperties,
    read_clean_shutdown,
    read_lock,
    read_meta_properties,
    read_offsets,
    write_clean_shutdown,
    write_lock,
    write_offsets,
)
from wirekafka.log.disk_errors import READ_ONLY_ERRORS
from wirekafka.log.durability import SyncError
from wirekafka.log.storage import Storage
from wirekafka.names import CLUSTER_METADATA_TOPIC, TopicPartition

log = structlog.get_logger(__name__)

LOCK_FILE = ".lock"
DELETED_FOLDER_SUFFIX = "-delete"
FUTURE_FOLDER_SUFFIX = "-future"
_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")
_LONGEST_NAME = 255
_LOST_ERRORS = {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN, errno.ENOTCONN, errno.EREMOTEIO}
_FILE_LOCK = Struct("hhqqi4x")
"""Linux's struct flock: type, whence, start, length, who holds it."""


class DirectoryLockedError(Exception):
    """Another broker holds the data directory; the message says which one."""


class DataDirectory:
    """One of `log.dirs`.

    Attributes:
        path: where it is.
        meta: whose it is.
        is_clean: the last broker closed all logs in it; no recovery is needed.
        is_on_disk: what it wrote is on the disk, too; without this it may be in the page cache of this run of the machine alone.
        has_lost_power: the machine may have ended since the last broker began; what was not synced may be gone.
        offline_reason: why nothing in it can be used; None for a directory that works.
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
        """What each checkpoint says."""
        self._taken: dict[str, int] = {}
        """How often the offsets for each checkpoint were taken."""
        self._newest: dict[str, int] = {}
        """Which of them it says."""
        self._writing = threading.Lock()
        """Held while a checkpoint is written: retention, compaction and moves each have a thread of their own for it."""

    # Who holds it

    def lock(self, holder: str) -> None:
        """Takes the directory for this process; it is made if there is none.

        Two locks: one that also keeps brokers of one process apart, and one that Apache Kafka respects.

        Args:
            holder: what another broker is told.

        Raises:
            DirectoryLockedError: another broker has it.
            OSError: it cannot be made or written.
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
        """Whether the lock file of the last broker, which may have been killed, names this run of the machine."""
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
        """Says who holds the directory, for the next broker that wants it."""
        assert self._lock_fd is not None, "the directory is not locked"
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, write_lock(holder, read_boot_id()), 0)

    def unlock(self) -> None:
        """Lets others take the directory; does nothing if it is not locked."""
        if self._lock_fd is not None:
            with suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
                if not self.has_lost_power:
                    os.pwrite(self._lock_fd, write_lock("", read_boot_id()), 0)
            os.close(self._lock_fd)
            self._lock_fd = None

    # Whose it is

    def load(self, *, node_id: int, cluster_id: str | None) -> None:
        """Reads whose directory this is, and how it was left; a new one becomes this broker's.

        Args:
            cluster_id: of the directories before this one, None for the first.

        Raises:
            KafkaError: INVALID_CONFIG, it belongs to another broker; INCONSISTENT_CLUSTER_ID, or to another cluster;
                KAFKA_STORAGE_ERROR, it does not say.
        """
        path = f"{self.path}/{META_PROPERTIES}"
        data: bytes | None = None
        try:
            data = self.storage.read_file(path)
            self.meta = read_meta_properties(data, new_directory_id=new_id())
        except FileNotFoundError:
            self.meta = MetaProperties(cluster_id or new_id(), node_id, new_id())
        except MalformedFileError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from None
        if self.meta.node_id != node_id:
            owner = self.meta.node_id
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"node.id is {node_id}, and {self.path} belongs to broker {owner}: set node.id={owner}, or use another directory",
            )
        if cluster_id not in (None, self.meta.cluster_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"{self.path} belongs to cluster {self.meta.cluster_id}, the directories before it to {cluster_id}",
            )
        if data is None or b"directory.id" not in data:
            self.storage.write_file(path, self.meta.write(), sync=True)
        self.is_clean = self._take_clean_mark()
        if data is not None and not self.is_clean:
            log.warning(
                "Unclean stop: the last broker on a directory did not close its logs, so they are checked", path=self.path
            )

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
        """All logs in it are closed: the next start needs no recovery.

        Args:
            is_on_disk: whether all of them are on the disk; if not, the mark holds until the machine starts again.

        Durability: on disk.
        """
        boot_id = None if is_on_disk else read_boot_id()
        if is_on_disk or boot_id:
            self.storage.write_file(f"{self.path}/{CLEAN_SHUTDOWN}", write_clean_shutdown(boot_id), sync=True)

    # What it holds

    def partitions(self) -> Iterator[tuple[TopicPartition, str]]:
        """The folders of partitions, and their paths; that of Apache Kafka's controllers is none of ours."""
        for name in self.storage.folders(self.path):
            partition = partition_of_folder(name)
            if partition is not None and partition.topic == CLUSTER_METADATA_TOPIC:
                continue
            if partition is not None:
                yield partition, f"{self.path}/{name}"
            elif not name.endswith((DELETED_FOLDER_SUFFIX, FUTURE_FOLDER_SUFFIX)) and not name.startswith("."):
                log.warning("A folder in the data directory is not a partition's", path=f"{self.path}/{name}")

    def deleted_folders(self) -> list[str]:
        """The paths of folders whose partitions were deleted and whose files are still there."""
        names = self.storage.folders(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(DELETED_FOLDER_SUFFIX)]

    def future_folders(self) -> list[tuple[TopicPartition, str]]:
        """The partitions that were on their way to here, and the paths of their folders."""
        found = []
        for name in self.storage.folders(self.path):
            partition = partition_of_folder(name.rpartition(".")[0]) if name.endswith(FUTURE_FOLDER_SUFFIX) else None
            if partition is not None:
                found.append((partition, f"{self.path}/{name}"))
        return found

    def path_of_deleted(self, name: TopicPartition) -> str:
        """A path for the folder of a partition that is deleted: not a partition's, and never used before.

        Source: LocalLog.logDeleteDirName.
        """
        unique = f".{uuid.uuid4().hex}{DELETED_FOLDER_SUFFIX}"
        suffix = f"-{name.partition}{unique}"
        return f"{self.path}/{name.topic[: _LONGEST_NAME - len(suffix)]}{suffix}"

    def read_checkpoint(self, file: str) -> dict[TopicPartition, int]:
        """The offsets of one of the checkpoints; empty if there is none, or it cannot be read."""
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
        """What writes one of the checkpoints, if it says anything new; it may run in any thread.

        Whoever takes the offsets calls this at once, and runs what it returns when it likes: of two that write the same file,
        the one with the later offsets wins, whichever comes last.

        Raises:
            OSError: by what is returned; the old checkpoint stays.

        Durability: on disk, this one or a later one.
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
        """Writes one of the checkpoints now, if it says anything new.

        Raises:
            OSError: the old one stays.

        Durability: on disk.
        """
        self.checkpoint(file, offsets)()


def check_paths_differ(paths: Iterable[str]) -> None:
    """Raises unless all paths lead to different directories: the error of a second lock would not name the setting.

    Raises:
        ConfigError: two of them lead to the same directory.
    """
    found: dict[str, str] = {}
    for path in paths:
        real_path = os.path.realpath(path)
        if real_path in found:
            raise ConfigError("log.dirs", f"{found[real_path]},{path}", "directories of which no two are the same")
        found[real_path] = path


def partition_of_folder(name: str) -> TopicPartition | None:
    """The partition that a folder of that name holds; None if it holds none."""
    match = _FOLDER.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match is not None else None


def is_held(path: str) -> bool:
    """Whether a broker, this one or Apache Kafka, holds the data directory now; asks for the lock without taking it.

    For other processes than the broker's own: closing the lock's file there would give up the POSIX lock, and it is not
    told of its own.
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
    """Whether an error means that a directory cannot be used any more, and not that it is full or the process short of something.

    After a sync that failed, whatever the reason, nobody can say what is on the disk.

    A file that could be opened for reading alone is written to with EBADF; whether the directory is read-only, it says itself.
    """
    if isinstance(error, SyncError):
        return True
    if error.errno in READ_ONLY_ERRORS:
        return not os.access(path, os.W_OK)
    return error.errno in _LOST_ERRORS


def read_boot_id() -> str | None:
    """Which run of the machine this is; None where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


def new_id() -> str:
    """A new id of a cluster or a directory: a random UUID in Kafka's print.

    Source: org.apache.kafka.common.Uuid.
    """
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        if not text.startswith("-"):
            return text
