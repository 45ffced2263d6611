"""Writes a metadata log in KRaft's format, for tests of the takeover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wirekafka.metadata.kraft_log import FOLDER
from wirekafka.metadata.kraft_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecordType,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import unsigned_varint

NODE_ID = 1


def topic(name: str, topic_id: bytes, partitions: int = 1, replicas: Sequence[int] = (NODE_ID,), **settings: str) -> list[bytes]:
    """Returns the records that create a topic."""
    values = [encode_record(RecordType.TOPIC, TopicRecord(name=name, topic_id=topic_id))]
    for index in range(partitions):
        partition = PartitionRecord(partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=list(replicas))
        values.append(encode_record(RecordType.PARTITION, partition))
    return values + [setting(2, name, key.replace("_", "."), value) for key, value in settings.items()]


def setting(resource_type: int, resource: str, name: str, value: str | None) -> bytes:
    record = ConfigRecord(resource_type=resource_type, resource_name=resource, name=name, value=value)
    return encode_record(RecordType.CONFIG, record)


def removal(topic_id: bytes) -> bytes:
    return encode_record(RecordType.REMOVE_TOPIC, RemoveTopicRecord(topic_id=topic_id))


def feature(name: str, level: int) -> bytes:
    return encode_record(RecordType.FEATURE_LEVEL, FeatureLevelRecord(name=name, feature_level=level))


def producer_ids(next_id: int) -> bytes:
    return encode_record(RecordType.PRODUCER_IDS, ProducerIdsRecord(broker_id=NODE_ID, next_producer_id=next_id))


def reassignment(topic_id: bytes, partition: int, replicas: Sequence[int]) -> bytes:
    change = PartitionChangeRecord(partition_id=partition, topic_id=topic_id, replicas=list(replicas))
    return encode_record(RecordType.PARTITION_CHANGE, change)


def other(type_: RecordType) -> bytes:
    """Returns a record of a type that is counted and not decoded, or a record that begins or ends a transaction."""
    return bytes([1]) + unsigned_varint(type_) + b"\0\0"


def batch_of(values: Sequence[bytes], base_offset: int = 0) -> bytes:
    return bytes(build_batch([Record(value=value) for value in values], base_offset=base_offset))


def write_log(data: Path, values: Sequence[bytes], *, first_offset: int = 0) -> Path:
    """Writes a segment of the metadata log with one record a batch."""
    folder = data / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{first_offset:020}.log"
    path.write_bytes(b"".join(batch_of([value], first_offset + number) for number, value in enumerate(values)))
    return path


def write_snapshot(data: Path, values: Sequence[bytes], *, end_offset: int) -> Path:
    folder = data / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{end_offset:020}-0000000001.checkpoint"
    path.write_bytes(batch_of(values))
    return path
