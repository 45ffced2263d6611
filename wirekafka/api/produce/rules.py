"""The checks of a partition of a Produce request before anything is appended to it.

Source: KafkaApis.handleProduceRequest; ProduceRequest.validateRecords; Partition.appendRecordsToLeader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import INTERNAL_TOPICS
from wirekafka.wire.batch import ATTRIBUTES_OFFSET, HEADER_SIZE, MAGIC, MAGIC_OFFSET, TRANSACTIONAL_MASK, BatchHeader
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.api.produce.messages import ProduceRequest
    from wirekafka.broker import Broker
    from wirekafka.replication.partition import Partition

FIRST_VERSION_WITH_BATCHES = 3
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_TAGS = 9
FIRST_VERSION_WITH_ABORTABLE_ERROR = 11
FIRST_VERSION_WITH_ADDED_PARTITIONS = 12
FIRST_VERSION_WITH_TOPIC_IDS = 13

ACKS_ALL = -1

WRITE = Operation.WRITE
"""The attribute of the enumeration costs the hot path 0.1 us."""

FLAGS_AT = ATTRIBUTES_OFFSET + 1
"""The byte of a batch's attributes with the flag for transactions."""


def denial_of(broker: Broker, call: Call[ProduceRequest], topic: str | bytes) -> KafkaError | None:
    """Returns why the client may not write to the topic; None if it may, or if no topic has the id."""
    if isinstance(topic, bytes):
        found = broker.topics.find_by_id(topic)
        if found is None:
            return None
        topic = found.name
    try:
        call.client.authorize(WRITE, Resource.topic(topic))
    except KafkaError as error:
        return error
    return None


def find_partition(broker: Broker, topic: str | bytes, index: int) -> Partition:
    """Returns the partition that a producer writes to.

    Args:
        topic: the topic's name, or its id as bytes.

    Raises:
        KafkaError: as `Broker.find_partition`; INVALID_TOPIC_EXCEPTION if the topic is internal.
    """
    partition = broker.find_partition(topic, index)
    if partition.topic in INTERNAL_TOPICS:
        raise internal_topic(partition.topic)
    return partition


def internal_topic(topic: str) -> KafkaError:
    """Returns the error for records of a client for an internal topic."""
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot append to internal topic {topic}")


def check_batch(call: Call[ProduceRequest], records: memoryview | None) -> None:
    """Raises unless the records are a batch, if the version requires it, in a codec that the version knows.

    Raises:
        KafkaError: INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE; TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the records belong to a
            transaction and the request has no transactional id.

    Source: ProduceRequest.validateRecords; KIP-98.
    """
    version = call.version
    if records is None or len(records) < HEADER_SIZE:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"Produce {version} needs a record batch for each partition")
    if records[MAGIC_OFFSET] != MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"Produce {version} requires batches of magic 2, not {records[MAGIC_OFFSET]}")
    if version < FIRST_VERSION_WITH_ZSTD and BatchHeader(records).compression is Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Produce {version} does not allow zstd")
    if records[FLAGS_AT] & TRANSACTIONAL_MASK and call.request.transactional_id is None:
        raise without_transactional_id()


def is_transactional(records: memoryview) -> bool:
    """Whether the first batch belongs to a transaction; a message set of an old format does not."""
    return len(records) >= HEADER_SIZE and records[MAGIC_OFFSET] == MAGIC and bool(records[FLAGS_AT] & TRANSACTIONAL_MASK)


def without_transactional_id() -> KafkaError:
    """Returns the refusal of a transactional batch in a request without a transactional id."""
    return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional records without a transactional id")


def too_few_in_sync_replicas(partition: Partition) -> KafkaError:
    """Returns the error for acks=all if `Partition.has_enough_in_sync_replicas` is false.

    Source: Partition.appendRecordsToLeader.
    """
    count, least = len(partition.in_sync_replicas), partition.log.config.min_insync_replicas
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{count} in sync, min.insync.replicas is {least}")


def is_zookeeper_session(call: Call[ProduceRequest]) -> bool:
    """Whether a Produce is the first message of a ZooKeeper client: its zeros read as version 0 with acks=0 and no topics.

    Source: ConnectRequest in zookeeper.jute (protocolVersion, lastZxidSeen, timeOut, sessionId).
    """
    return call.version == 0 and call.correlation_id == 0 and call.client_id == "" and not call.request.topic_data
