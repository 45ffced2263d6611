"""Reads the state of a cluster from KRaft's metadata log: its topics, settings, features and producer ids.

How it works: the newest snapshot in `__cluster_metadata-0` is replayed, then the records of the log from the end of that
snapshot on. Both are files of record batches. Records between BeginTransactionRecord and EndTransactionRecord are applied
together (KIP-868).

Rules of this file: the files are read and never written. A last batch that was not written to its end is ignored, as Apache
Kafka's recovery cuts it. Anything else that cannot be read is an error, because a missing record may be a topic's setting.

Source: org.apache.kafka.image.loader.MetadataLoader, MetadataDelta; org.apache.kafka.raft.internals.KafkaRaftLog (names of
files); org.apache.kafka.snapshot.Snapshots.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.log.positions import BadBatchError, batches_in
from wirekafka.log.segment_files import LOG_SUFFIX
from wirekafka.log.storage import FileHandle, Storage
from wirekafka.metadata.kraft_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecordType,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
)
from wirekafka.names import CLUSTER_METADATA_TOPIC
from wirekafka.wire.batch import BatchHeader, check_crc, iterate_records, whole_header
from wirekafka.wire.types import Message

FOLDER = f"{CLUSTER_METADATA_TOPIC}-0"

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32
"""The number of a group in ConfigResource.Type."""

MOST_TORN_BYTES = 16 << 20
"""A torn tail of more bytes cannot come from one write, because the largest batch of metadata has 8 MiB."""
MAGIC_OFFSET = 16
"""The position of the magic byte in a batch."""

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT = re.compile(rf"(\d{{20}}){re.escape(LOG_SUFFIX)}")


@dataclass(slots=True)
class KraftTopic:
    """A topic of the cluster.

    Attributes:
        replicas: the ids of the brokers that keep each partition, by index.
    """

    name: str
    topic_id: bytes
    replicas: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class KraftImage:
    """The state of the cluster after the last record.

    Attributes:
        topics: by topic id.
        configs: the settings by type and name of their resource.
        feature_levels: the finalized levels by the name of the feature.
        next_producer_id: the first producer id that no broker has taken.
        end_offset: one past the last record that was read.
        others: the number of records of each type that this class does not apply; records that remove something count too.
    """

    topics: dict[bytes, KraftTopic] = field(default_factory=dict)
    configs: defaultdict[tuple[int, str], dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    feature_levels: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    end_offset: int = 0
    others: Counter[int] = field(default_factory=Counter)

    def replay(self, type_: int, record: Message | None) -> None:
        """Applies one record."""
        match record:
            case TopicRecord():
                self.topics[record.topic_id] = KraftTopic(record.name, record.topic_id)
            case PartitionRecord():
                self.topics[record.topic_id].replicas[record.partition_id] = record.replicas
            case PartitionChangeRecord():
                if record.replicas is not None:
                    self.topics[record.topic_id].replicas[record.partition_id] = record.replicas
            case ConfigRecord():
                self._replay_config(record)
            case RemoveTopicRecord():
                removed = self.topics.pop(record.topic_id)
                self.configs.pop((TOPIC_RESOURCE, removed.name), None)
            case FeatureLevelRecord():
                self.feature_levels[record.name] = record.feature_level
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case _:
                self.others[type_] += 1

    def _replay_config(self, record: ConfigRecord) -> None:
        settings = self.configs[record.resource_type, record.resource_name]
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value


def read_kraft_log(folder: str, storage: Storage) -> KraftImage:
    """Returns the state of the cluster whose metadata log is in `folder`.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, if a file cannot be read or records are missing.
    """
    files = storage.files(folder)
    snapshots = sorted(name for name in files if _SNAPSHOT.fullmatch(name))
    segments = sorted(name for name in files if _SEGMENT.fullmatch(name))
    image = KraftImage()
    loader = _Loader(image)
    try:
        if snapshots:
            path = os.path.join(folder, snapshots[-1])
            loader.replay_snapshot(_batches(storage, path, may_be_torn=False))
            image.end_offset = int(snapshots[-1][:20])
        for name in segments:
            path = os.path.join(folder, name)
            loader.replay_log(_batches(storage, path, may_be_torn=name == segments[-1]))
    except (OSError, KafkaError, ProtocolError, KeyError) as error:
        reason = f"it names the unknown topic id {error}" if isinstance(error, KeyError) else str(error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} cannot be read: {reason}") from error
    return image


class _Loader:
    """Replays batches. The records of an open metadata transaction are held back until it ends."""

    def __init__(self, image: KraftImage) -> None:
        self._image = image
        self._transaction: list[tuple[int, Message | None]] | None = None

    def replay_snapshot(self, batches: Iterator[memoryview]) -> None:
        for batch in batches:
            self._replay_batch(batch, 0)

    def replay_log(self, batches: Iterator[memoryview]) -> None:
        for batch in batches:
            header = BatchHeader(batch)
            if header.base_offset > self._image.end_offset:
                reason = f"records from offset {self._image.end_offset} to {header.base_offset} are missing"
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            self._replay_batch(batch, self._image.end_offset)
            self._image.end_offset = max(self._image.end_offset, header.next_offset)

    def _replay_batch(self, batch: memoryview, first_offset: int) -> None:
        if BatchHeader(batch).is_control:
            return
        for record in iterate_records(batch):
            if record.offset >= first_offset and record.value is not None:
                self._replay(*decode_record(record.value))

    def _replay(self, type_: int, record: Message | None) -> None:
        if type_ == RecordType.BEGIN_TRANSACTION:
            self._transaction = []
        elif type_ == RecordType.ABORT_TRANSACTION:
            self._transaction = None
        elif type_ == RecordType.END_TRANSACTION:
            held, self._transaction = self._transaction or [], None
            for each in held:
                self._image.replay(*each)
        elif self._transaction is not None:
            self._transaction.append((type_, record))
        else:
            self._image.replay(type_, record)


def _batches(storage: Storage, path: str, *, may_be_torn: bool) -> Iterator[memoryview]:
    """Yields the batches of a file. If the file may be torn, a last batch that is incomplete is left out.

    Raises:
        BadBatchError: a batch is damaged.
    """
    file = FileHandle(storage.open(path), storage.close)
    size_bytes = os.fstat(file.fd).st_size
    position = 0
    try:
        for batch in batches_in(storage, file, 0, size_bytes):
            header = BatchHeader(batch)
            if not check_crc(batch, 0, header):
                raise BadBatchError(f"the batch at byte {position} has a wrong checksum")
            yield batch
            position += header.size_bytes
    except BadBatchError:
        torn_bytes = size_bytes - position
        if not may_be_torn or torn_bytes > MOST_TORN_BYTES or _has_batch(storage.read(file.fd, torn_bytes, position)):
            raise


def _has_batch(data: bytes) -> bool:
    """Whether a valid batch begins after the first byte. If so, the bytes before it are damaged and not torn."""
    view = memoryview(data)
    magic_at = data.find(2, MAGIC_OFFSET + 1)
    while magic_at != -1:
        at = magic_at - MAGIC_OFFSET
        header = whole_header(view, at)
        if header is not None and check_crc(view, at, header):
            return True
        magic_at = data.find(2, magic_at + 1)
    return False
