"""The store of a single broker's metadata: a journal on disk, which implements `wirekafka.metadata.store.MetadataStore`.

How it works: the journal has JSON lines and is a file in the first data directory. Each line is the whole new state of one topic,
of the settings of one broker or group, or of the features. A change appends one line. The file is rewritten when most of its
lines are out of date.

A node that becomes a member of a cluster with ZooKeeper renames its journal, because ZooKeeper has its topics from then on.

Rules of this file:
    A last line without its end was never acknowledged, and is truncated at the next start. Any other line that cannot be read
    prevents the start, because skipping it could lose topics.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.store import StoredTopic
from wirekafka.names import format_topic_id, parse_topic_id

log = structlog.get_logger(__name__)

FILE_NAME = "wirekafka.metadata"
"""The name of a plain file: Apache Kafka takes every folder in a data directory for a partition, and ignores files."""

MIGRATED_NAME = f"{FILE_NAME}.migrated"
"""The name of the journal after its content has moved to ZooKeeper."""

FORMAT_VERSION = 1
"""The format of the journal, which is in its first line. A journal without such a line is older than the line, and has format
1."""

_SPARE_LINES = 1000
"""The number of lines that may be out of date before the file is rewritten, whatever their share."""


class Journal:
    """The journal and its content; the attributes and methods are those of `MetadataStore`."""

    def __init__(self, folder: str, storage: Storage) -> None:
        self.topics: dict[str, StoredTopic] = {}
        self.deleted: dict[bytes, str] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.feature_levels: dict[str, int] = {}
        self.features_epoch = 0
        self._path = os.path.join(folder, FILE_NAME)
        self._storage = storage
        self._fd = -1
        self._size_bytes = 0
        self._line_count = 0
        self.is_sync_put_off = False
        self._is_sync_due = False

    @classmethod
    def open(cls, folder: str, storage: Storage) -> Journal:
        """Reads the journal, or creates an empty one.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if a line cannot be read; INVALID_CONFIG if the content has moved to ZooKeeper.
            OSError: the file cannot be read or created.
        """
        store = cls(folder, storage)
        try:
            data = storage.read_file(store._path)
        except FileNotFoundError:
            _check_is_not_migrated(folder)
            store._rewrite()
            return store
        whole, _, torn = data.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
            store._read(line, number)
        if torn:
            log.warning("Truncated an unfinished change of the topic journal", path=store._path, size_bytes=len(torn))
            store._rewrite()
        else:
            store._fd = storage.open(store._path)
            store._size_bytes = len(data)
        return store

    @classmethod
    def write(
        cls,
        folder: str,
        storage: Storage,
        *,
        topics: Mapping[str, StoredTopic],
        broker_configs: Mapping[str, Mapping[str, str]],
        group_configs: Mapping[str, Mapping[str, str]],
        feature_levels: Mapping[str, int],
    ) -> None:
        """Writes a whole journal: this content, or after a crash the file as it was.

        Durability: on disk when it returns.

        Raises:
            OSError: the file cannot be written.
        """
        store = cls(folder, storage)
        store.topics = dict(topics)
        store.broker_configs = {broker: dict(configs) for broker, configs in broker_configs.items()}
        store.group_configs = {group_id: dict(configs) for group_id, configs in group_configs.items()}
        store.feature_levels = dict(feature_levels)
        store._rewrite()
        store.close()

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            self._storage.close(self._fd)
            self._fd = -1

    def put_topic(self, name: str, topic_id: bytes, partition_count: int, overrides: Mapping[str, str]) -> None:
        """Stores the state of a topic; its leader epoch stays.

        Durability: on disk when it returns.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; nothing has changed then.
        """
        former = self.topics.get(name)
        leader_epoch = former.leader_epoch if former is not None and former.topic_id == topic_id else 0
        stored = StoredTopic(topic_id, partition_count, dict(overrides), leader_epoch)
        self._append(_topic_line(name, stored))
        self.topics[name] = stored
        self._rewrite_if_due()

    def delete_topic(self, name: str) -> None:
        """Removes the topic, and stores its id as deleted.

        Durability, Raises: as `put_topic`.
        """
        topic_id = self.topics[name].topic_id
        self._append({"deleted": format_topic_id(topic_id), "topic": name})
        del self.topics[name]
        self.deleted[topic_id] = name
        self._rewrite_if_due()

    def put_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Stores the dynamic settings of a broker; "" stands for all brokers.

        Durability, Raises: as `put_topic`.
        """
        self._append({"broker": broker, "configs": dict(configs)})
        self.broker_configs[broker] = dict(configs)
        self._rewrite_if_due()

    def put_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Stores the settings of a group.

        Durability, Raises: as `put_topic`.
        """
        self._append({"group": group_id, "configs": dict(configs)})
        self._set_group_configs(group_id, configs)
        self._rewrite_if_due()

    def put_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Stores the levels of all features.

        Durability, Raises: as `put_topic`.
        """
        self._append({"features": dict(levels), "epoch": epoch})
        self.feature_levels, self.features_epoch = dict(levels), epoch
        self._rewrite_if_due()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Syncs all changes that are made inside the block to the disk at its end, in one wait.

        Durability: the changes are on disk when the block ends, and not before.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR at the end of the block; the changes are in effect, but a crash of the machine may
                lose them.
        """
        self.is_sync_put_off = True
        try:
            yield
        finally:
            self.is_sync_put_off = False
        if not self._is_sync_due:
            return
        self._is_sync_due = False
        try:
            self._storage.sync(self._fd)
        except OSError as error:
            raise self._failure(error) from error

    def forget_deleted_topic(self, topic_id: bytes) -> None:
        """Removes the id of a deleted topic whose folders no longer have a partition's name on disk.

        The next rewrite removes the line from the journal. A start that reads the line finds no folder and removes the id again.
        """
        self.deleted.pop(topic_id, None)

    def forget_deleted(self) -> None:
        """Removes the ids of all deleted topics, whose folders no longer exist.

        Durability, Raises: as `put_topic`.
        """
        if not self.deleted:
            return
        forgotten, self.deleted = self.deleted, {}
        try:
            self._rewrite()
        except OSError as error:
            self.deleted = forgotten
            raise self._failure(error) from error

    def _read(self, line: bytes, number: int) -> None:
        try:
            self._replay(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"line {number} of {self._path} cannot be read: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        self._line_count += 1

    def _replay(self, change: dict[str, Any]) -> None:
        if "format" in change:
            self._check_format(change["format"])
        elif "deleted" in change:
            self.topics.pop(change["topic"], None)
            self.deleted[parse_topic_id(change["deleted"])] = change["topic"]
        elif "topic" in change:
            configs = {str(name): str(value) for name, value in change["configs"].items()}
            topic_id, leader_epoch = parse_topic_id(change["id"]), int(change.get("epoch", 0))
            self.topics[change["topic"]] = StoredTopic(topic_id, int(change["partitions"]), configs, leader_epoch)
        elif "group" in change:
            configs = {str(name): str(value) for name, value in change["configs"].items()}
            self._set_group_configs(change["group"], configs)
        elif "features" in change:
            self.feature_levels = {str(name): int(level) for name, level in change["features"].items()}
            self.features_epoch = int(change["epoch"])
        elif "broker" not in change:
            kind = ", ".join(sorted(change))
            raise ValueError(f"it holds a change of an unknown kind ({kind}); a newer version of wirekafka may have written it")
        else:
            self.broker_configs[change["broker"]] = {str(name): str(value) for name, value in change["configs"].items()}

    def _check_format(self, version: int) -> None:
        """Raises unless this version of wirekafka can read a journal of that format.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if version > FORMAT_VERSION:
            message = (
                f"{self._path} has format {version}, written by a newer version of wirekafka; this version reads format "
                f"{FORMAT_VERSION}. Start the newer version again, or restore the data directory from a backup"
            )
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        if configs:
            self.group_configs[group_id] = dict(configs)
        else:
            self.group_configs.pop(group_id, None)

    def _append(self, change: dict[str, Any]) -> None:
        line = _encode(change)
        try:
            self._storage.write(self._fd, line, self._size_bytes)
            if self.is_sync_put_off:
                self._is_sync_due = True
            else:
                self._storage.sync(self._fd)
        except OSError as error:
            with suppress(OSError):
                self._storage.truncate(self._fd, self._size_bytes)
            raise self._failure(error) from error
        self._size_bytes += len(line)
        self._line_count += 1

    def _failure(self, error: OSError) -> KafkaError:
        log.error("Cannot write the topic journal; check the disk", path=self._path, error=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the list of topics cannot be written: {error}")

    def _rewrite_if_due(self) -> None:
        live_count = len(self.topics) + len(self.deleted) + len(self.broker_configs) + len(self.group_configs)
        if self._line_count > 2 * live_count + _SPARE_LINES:
            with suppress(OSError):
                self._rewrite()

    def _rewrite(self) -> None:
        lines = [_encode(change) for change in self._state()]
        data = b"".join(lines)
        self._storage.write_file(self._path, data, sync=True)
        fd = self._storage.open(self._path)
        self.close()
        self._fd = fd
        self._size_bytes = len(data)
        self._line_count = len(lines)

    def _state(self) -> Iterator[dict[str, Any]]:
        yield {"format": FORMAT_VERSION}
        for topic_id, name in self.deleted.items():
            yield {"deleted": format_topic_id(topic_id), "topic": name}
        for broker, configs in self.broker_configs.items():
            if configs:
                yield {"broker": broker, "configs": configs}
        for group_id, configs in self.group_configs.items():
            yield {"group": group_id, "configs": configs}
        if self.feature_levels:
            yield {"features": self.feature_levels, "epoch": self.features_epoch}
        for name, stored in self.topics.items():
            yield _topic_line(name, stored)


def has_journal(folder: str) -> bool:
    """Whether a directory has the journal of a node without ZooKeeper."""
    return os.path.exists(os.path.join(folder, FILE_NAME))


def has_migrated_journal(folder: str) -> bool:
    """Whether a directory has the journal of a node whose topics have moved to ZooKeeper."""
    return os.path.exists(os.path.join(folder, MIGRATED_NAME))


def rename_migrated(folder: str, storage: Storage) -> None:
    """Gives a journal the name of one whose content has moved to ZooKeeper.

    Durability: on disk when it returns.
    """
    storage.rename(os.path.join(folder, FILE_NAME), os.path.join(folder, MIGRATED_NAME))
    storage.sync_folder(folder)


def restore_migrated(folder: str, storage: Storage) -> None:
    """Undoes `rename_migrated`.

    Durability: on disk when it returns.
    """
    storage.rename(os.path.join(folder, MIGRATED_NAME), os.path.join(folder, FILE_NAME))
    storage.sync_folder(folder)


def remove_migrated(folder: str, storage: Storage) -> None:
    """Removes the journal of the last move to ZooKeeper, if there is one.

    Durability: on disk when it returns.
    """
    storage.remove(os.path.join(folder, MIGRATED_NAME))
    storage.sync_folder(folder)


def _check_is_not_migrated(folder: str) -> None:
    if has_migrated_journal(folder):
        message = (
            f"The topics of {folder} have moved to a cluster with ZooKeeper: start the broker with zookeeper.connect. The last "
            "broker of a cluster becomes a single node by `wirekafka cluster leave`"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _topic_line(name: str, stored: StoredTopic) -> dict[str, Any]:
    line: dict[str, Any] = {
        "topic": name,
        "id": format_topic_id(stored.topic_id),
        "partitions": stored.partition_count,
        "configs": stored.overrides,
    }
    return line | {"epoch": stored.leader_epoch} if stored.leader_epoch else line


def _encode(change: dict[str, Any]) -> bytes:
    return json.dumps(change, separators=(",", ":")).encode("ascii") + b"\n"
