"""The small text files beside the data: partition offsets, the owners of folders, the lock file, the clean-shutdown mark.

Rules of this file: it converts contents only, in the formats of Apache Kafka; the owner of a file writes it through `Storage`.

Source: org.apache.kafka.server.common.CheckpointFile; OffsetCheckpointFile, PartitionMetadataFile, CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from wirekafka.names import TopicPartition, format_topic_id, parse_topic_id

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = "0"
_NO_BROKER_EPOCH = -1


class MalformedFileError(Exception):
    """The content does not match the format of the file."""


def write_lines(lines: Iterable[str]) -> bytes:
    """Returns the content of a checkpoint: the version, the number of lines, and the lines."""
    content = list(lines)
    return "\n".join([_VERSION, str(len(content)), *content, ""]).encode()


def read_lines(data: bytes) -> list[str]:
    """Returns the lines of a checkpoint; an empty file, which Apache Kafka creates before the first write, has none.

    Raises:
        MalformedFileError: the version is unknown, or the number of lines does not match the count.
    """
    if not data:
        return []
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise MalformedFileError("it is not text") from None
    if not lines or lines[0].strip() != _VERSION:
        raise MalformedFileError(f"it does not begin with version {_VERSION}")
    if len(lines) < 2 or not lines[1].strip().isdecimal():
        raise MalformedFileError("it has no line count")
    content = [line for line in lines[2:] if line.strip()]
    if len(content) != int(lines[1]):
        raise MalformedFileError(f"its line count is {lines[1]}, but it has {len(content)} lines")
    return content


def write_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Returns the content of a checkpoint with one offset for each partition."""
    return write_lines(f"{name.topic} {name.partition} {offset}" for name, offset in offsets.items())


def read_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Returns the offset of each partition in a checkpoint.

    Raises:
        MalformedFileError: the content is not a checkpoint of offsets.
    """
    offsets = {}
    for line in read_lines(data):
        words = line.split()
        if len(words) != 3 or not all(word.isdecimal() for word in words[1:]):
            raise MalformedFileError(f"{line!r} is not a topic, a partition and an offset")
        offsets[TopicPartition(words[0], int(words[1]))] = int(words[2])
    return offsets


def write_partition_metadata(topic_id: bytes) -> bytes:
    """Returns the content of `partition.metadata`, which names the topic of a partition's folder (KIP-516)."""
    return f"version: 0\ntopic_id: {format_topic_id(topic_id)}\n".encode()


def read_partition_metadata(data: bytes) -> bytes:
    """Returns the topic id in a `partition.metadata` file.

    Raises:
        MalformedFileError: the file has no topic id, or an unknown version.
    """
    fields = read_fields(data, ":")
    try:
        if int(fields["version"]) != 0:
            raise MalformedFileError(f"version {fields['version']} is not known")
        return parse_topic_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise MalformedFileError(f"it has no topic id: {error}") from None


def write_clean_shutdown(boot_id: str | None) -> bytes:
    """Returns the content of the clean-shutdown mark: the logs were closed and need no recovery (KIP-966, without a broker
    epoch).

    Args:
        boot_id: the boot id of the machine, if some data is only in its page cache; None if all data is on disk.
    """
    content = {"version": 0, "brokerEpoch": _NO_BROKER_EPOCH} | ({"bootId": boot_id} if boot_id else {})
    return json.dumps(content, separators=(",", ":")).encode()


def read_clean_shutdown(data: bytes) -> str | None:
    """Returns the boot id in the mark. Apache Kafka's mark has none, and its file was empty before 4.0.

    Raises:
        MalformedFileError: the mark has an unknown format version, or cannot be parsed.
    """
    try:
        content = json.loads(data or b"{}")
    except ValueError:
        raise MalformedFileError("it is not JSON") from None
    if not isinstance(content, dict):
        raise MalformedFileError("it is not a JSON object")
    if content.get("version", 0) != 0:
        raise MalformedFileError(
            f"it has format version {content['version']}, which a newer release has written; this one reads 0"
        )
    boot_id = content.get("bootId")
    return boot_id if isinstance(boot_id, str) else None


def write_lock(holder: str, boot_id: str | None) -> bytes:
    """Returns the content of a lock file: a line for people, the format version, and the boot id.

    Args:
        holder: the broker that holds the directory, for another broker's error message; empty once the broker has closed.
        boot_id: the boot id of the machine during the broker's writes; None if it is unknown.
    """
    return f"{holder}\nversion: {_VERSION}\n".encode() + (f"boot_id: {boot_id}\n".encode() if boot_id else b"")


def read_lock(data: bytes) -> str | None:
    """Returns the boot id in a lock file; None if the file is empty or Apache Kafka has written it.

    Raises:
        MalformedFileError: the file has an unknown format version.
    """
    fields = read_fields(data.partition(b"\n")[2], ":")
    if fields.get("version", _VERSION) != _VERSION:
        raise MalformedFileError(
            f"it has format version {fields['version']}, which a newer release has written; this one reads {_VERSION}"
        )
    return fields.get("boot_id")


def read_fields(data: bytes, separator: str) -> dict[str, str]:
    """Returns the fields of a file of names and values, without its comments."""
    fields = {}
    for line in data.decode(errors="replace").splitlines():
        name, found, value = line.partition(separator)
        if found and not line.startswith("#"):
            fields[name.strip()] = value.strip()
    return fields
