"""The records of __transaction_state, in Apache Kafka's own format: a transactional id and its state.

A key and a value each begin with a version of two bytes. A record without a value is a tombstone: it deletes the id.

Each record holds all partitions of the transaction, as in Apache Kafka. So if a producer adds n partitions one by one, its
records hold n^2 / 2 partitions together. One record of 20,000 partitions takes about 10 ms (2026-11).

Rules of this file: values are written in version 1, because transactions v2 needs its tagged fields. If transaction.version is 0,
values are written in version 0, without tagged fields. Both versions are read.

Source: TransactionLogKey.json, TransactionLogValue.json, org.apache.kafka.coordinator.transaction.TransactionLog.valueToBytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from wirekafka.coordinator.transactions.transaction import EMPTY, Transaction, TransactionState
from wirekafka.errors import ProtocolError
from wirekafka.names import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from wirekafka.wire import codec
from wirekafka.wire.codec import SMALL_VARINTS, Buffer, unsigned_varint
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, String, nullable, tag

KEY_VERSION = 0
VALUE_VERSION = 1
OLD_VALUE_VERSION = 0
FIRST_FLEXIBLE_VERSION = 1

MOST_CACHED_PARTITIONS = 16
CACHED_SETS = 256
"""How many encoded sets of partitions are kept: the records of one transaction, and the next transaction, have the same set."""

_VERSION = struct.Struct(">h")
_KEY_HEAD = struct.Struct(">hh")
_VALUE_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_TIMES_AND_TAGS = struct.Struct(">qqBBBqBBh")
"""`_TIMES`, the number of tagged fields, which is 2, the previous producer id, and the client's transaction version."""
_TAGGED_INT64 = struct.Struct(">BBq")
_TAGGED_INT16 = struct.Struct(">BBh")
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = 0, 1, 2
_NULL = b"\0"
_NO_PARTITIONS = b"\1"
_NO_TAGS = b"\0"


class TransactionLogKey(Message):
    """TransactionLogKey: the transactional id."""

    transactional_id: String = ""


class PartitionsSchema(Message):
    """Partitions of one topic."""

    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Message):
    """TransactionLogValue: the state of a transactional id."""

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, tag(0, since=1)] = NO_PRODUCER_ID
    next_producer_id: Annotated[Int64, tag(1, since=1)] = NO_PRODUCER_ID
    producer_epoch: Int16 = 0
    next_producer_epoch: Annotated[Int16, tag(3, since=1)] = -1
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: Annotated[list[PartitionsSchema] | None, nullable(0)] = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, tag(2, since=1)] = 0


@dataclass(slots=True)
class TransactionRecord:
    """The new state of a transactional id. None deletes the id."""

    transactional_id: str
    value: Transaction | None


def encode(record: TransactionRecord, version: int = VALUE_VERSION) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record.

    Version 1 is encoded by hand, for speed: each transaction writes three records.
    """
    name = record.transactional_id.encode()
    key = _KEY_HEAD.pack(KEY_VERSION, len(name)) + name
    if record.value is None:
        return key, None
    return key, _encode_old_value(record.value) if version == OLD_VALUE_VERSION else _encode_value(record.value)


def _encode_value(transaction: Transaction) -> bytes:
    head = _VALUE_HEAD.pack(
        VALUE_VERSION, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, transaction.state
    )
    partitions = _NULL if transaction.state is EMPTY else _encode_partitions(transaction.partitions)
    return head + partitions + _encode_times_and_tags(transaction)


def _encode_times_and_tags(transaction: Transaction) -> bytes:
    start_ms, previous_id = transaction.start_timestamp_ms, transaction.previous_producer_id
    if start_ms is None:
        start_ms = NO_TIMESTAMP
    if previous_id is not None and transaction.next_producer_id is None and transaction.client_version:
        # Most records of transactions v2 have these two fields.
        return _TIMES_AND_TAGS.pack(
            *(transaction.update_timestamp_ms, start_ms, 2),
            *(_PREVIOUS_PRODUCER_ID, 8, previous_id, _CLIENT_VERSION, 2, transaction.client_version),
        )
    tags = []
    if previous_id is not None:
        tags.append(_TAGGED_INT64.pack(_PREVIOUS_PRODUCER_ID, 8, previous_id))
    if transaction.next_producer_id is not None:
        tags.append(_TAGGED_INT64.pack(_NEXT_PRODUCER_ID, 8, transaction.next_producer_id))
    if transaction.client_version:
        tags.append(_TAGGED_INT16.pack(_CLIENT_VERSION, 2, transaction.client_version))
    return b"".join((_TIMES.pack(transaction.update_timestamp_ms, start_ms), SMALL_VARINTS[len(tags)], *tags))


def _encode_old_value(transaction: Transaction) -> bytes:
    start_ms = transaction.start_timestamp_ms
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None
        if transaction.state is EMPTY
        else [
            PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in _by_topic(transaction.partitions).items()
        ],
        transaction_last_update_timestamp_ms=transaction.update_timestamp_ms,
        transaction_start_timestamp_ms=NO_TIMESTAMP if start_ms is None else start_ms,
    )
    return _VERSION.pack(OLD_VALUE_VERSION) + codec.encode(value, OLD_VALUE_VERSION, flexible=False)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return {topic: sorted(topics[topic]) for topic in sorted(topics)}


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    if not partitions:
        return _NO_PARTITIONS
    return _encode_small_set(partitions) if len(partitions) <= MOST_CACHED_PARTITIONS else _encode_topics(partitions)


@lru_cache(CACHED_SETS)
def _encode_small_set(partitions: frozenset[TopicPartition]) -> bytes:
    return _encode_topics(partitions)


def _encode_topics(partitions: frozenset[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    pieces = [unsigned_varint(len(topics) + 1)]
    for topic, indexes in topics.items():
        name = topic.encode()
        pieces += (unsigned_varint(len(name) + 1), name, unsigned_varint(len(indexes) + 1))
        pieces += (struct.pack(f">{len(indexes)}i", *indexes), _NO_TAGS)
    return b"".join(pieces)


def decode(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """Returns the content of a record of __transaction_state; None if the record has an unknown version.

    Raises:
        ProtocolError: The bytes are not a record of __transaction_state.
    """
    if key is None:
        raise ProtocolError("a record of __transaction_state has no key")
    if _version(key) != KEY_VERSION:
        return None
    transactional_id = codec.decode(TransactionLogKey, KEY_VERSION, False, key[2:]).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    version = _version(value)
    if not 0 <= version <= VALUE_VERSION:
        return None
    read = codec.decode(TransactionLogValue, version, version >= FIRST_FLEXIBLE_VERSION, value[2:])
    return TransactionRecord(transactional_id, _transaction(transactional_id, read))


def _transaction(transactional_id: str, read: Any) -> Transaction:
    try:
        state = TransactionState(read.transaction_status)
    except ValueError:
        raise ProtocolError(f"there is no state {read.transaction_status} of a transaction") from None
    return Transaction(
        transactional_id=transactional_id,
        producer_id=read.producer_id,
        producer_epoch=read.producer_epoch,
        state=state,
        timeout_ms=read.transaction_timeout_ms,
        update_timestamp_ms=read.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, index) for topic in read.transaction_partitions or () for index in topic.partition_ids
        ),
        start_timestamp_ms=_unless(read.transaction_start_timestamp_ms, NO_TIMESTAMP),
        previous_producer_id=_unless(read.previous_producer_id, NO_PRODUCER_ID),
        next_producer_id=_unless(read.next_producer_id, NO_PRODUCER_ID),
        client_version=read.client_transaction_version,
    )


def _unless(value: int, absent: int) -> int | None:
    return None if value == absent else value


def _version(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise ProtocolError("a record of __transaction_state has no version")
    version: int = _VERSION.unpack_from(data)[0]
    return version
