"""The records of __transaction_state, in Apache Kafka's own format: a transactional id, and the state that it is in.

A key and a value each begin with a version of two bytes. A value of None is a tombstone: the id is forgotten.

Rules of this file: written is version 1 of the value, whose tagged fields transactions v2 needs; read are 0 and 1.

Source: TransactionLogKey.json, TransactionLogValue.json, org.apache.kafka.coordinator.transaction.TransactionLog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from wirekafka.coordinator.transactions.transaction import EMPTY, Transaction, TransactionState
from wirekafka.errors import ProtocolError
from wirekafka.names import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from wirekafka.wire import codec
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, String, nullable, tag

KEY_VERSION = 0
VALUE_VERSION = 1
FIRST_FLEXIBLE_VERSION = 1

_VERSION = struct.Struct(">h")


class TransactionLogKey(Message):
    """Which transactional id it is."""

    transactional_id: String = ""


class PartitionsSchema(Message):
    """Partitions of one topic."""

    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Message):
    """The state of a transactional id."""

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
    """A transactional id is in the state `value` from now on; None: it is forgotten."""

    transactional_id: str
    value: Transaction | None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record."""
    key = _VERSION.pack(KEY_VERSION) + codec.encode(
        TransactionLogKey(transactional_id=record.transactional_id), KEY_VERSION, False
    )
    if record.value is None:
        return key, None
    return key, _VERSION.pack(VALUE_VERSION) + codec.encode(_message(record.value), VALUE_VERSION, True)


def _message(transaction: Transaction) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=_or(transaction.previous_producer_id, NO_PRODUCER_ID),
        next_producer_id=_or(transaction.next_producer_id, NO_PRODUCER_ID),
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is EMPTY else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.update_timestamp_ms,
        transaction_start_timestamp_ms=_or(transaction.start_timestamp_ms, NO_TIMESTAMP),
        client_transaction_version=transaction.client_version,
    )


def _or(value: int | None, absent: int) -> int:
    return absent if value is None else value


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]


def decode(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """What a record of __transaction_state says; None if it is of a kind that is not known.

    Raises:
        ProtocolError: the bytes are not such a record.
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
