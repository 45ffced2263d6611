"""The records of a running broker's topics as a test sees them: all of them, with their producers and transaction markers.

    records = stored_records(broker, "orders")

Rules of this file: it reads the log itself, so it also shows records that a consumer does not get: aborted ones, control records,
and records of open transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wirekafka.inspection.batches import control_of
from wirekafka.wire.batch import MAGIC, MAGIC_OFFSET, BatchHeader, iterate_records
from wirekafka.wire.legacy import stored_records as legacy_records

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as the log has it.

    Attributes:
        partition, offset: its place in the topic.
        timestamp: in milliseconds since 1970; -1 for none.
        key, value: None is null.
        headers: in order; names may repeat.
        producer_id, producer_epoch: of the producer, -1 without one.
        sequence: the number of the record among those of its producer in the partition, -1 without one.
        leader_epoch: of the leader that appended the record.
        is_transactional: it belongs to a transaction.
        is_committed: a consumer with `read_committed` gets it: it belongs to no transaction, or to a committed one.
        control: the type of a control record, such as "commit" or "abort"; None for a client's record.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int
    leader_epoch: int
    is_transactional: bool
    is_committed: bool
    control: str | None


def stored_records(broker: Broker, topic: str, partition: int | None = None) -> list[StoredRecord]:
    """Returns the records of a topic, by partition and offset.

    Args:
        partition: one partition only; all of them if it is None.

    Raises:
        KafkaError: UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR.
    """
    return list(iterate_stored_records(broker, topic, partition))


def iterate_stored_records(broker: Broker, topic: str, partition: int | None = None) -> Iterator[StoredRecord]:
    """Yields the records of a topic, by partition and offset, as they are read. Nothing else may change the log meanwhile.

    Args:
        partition: one partition only; all of them if it is None.

    Raises:
        KafkaError: UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR.
    """
    found = broker.topics.find(topic)
    indexes = [partition] if partition is not None else range(len(found.partitions) if found is not None else 1)
    for index in indexes:
        yield from _of_partition(broker, topic, index)


def _of_partition(broker: Broker, topic: str, index: int) -> Iterator[StoredRecord]:
    log = broker.topics.find_partition(topic, index).log
    start, stable_offset = log.log_start_offset, log.last_stable_offset
    aborted = log.aborted_transactions(start, log.log_end_offset)
    for batch in log.batches():
        for record in _of_batch(batch, index):
            if record.offset < start:
                continue
            is_aborted = record.is_transactional and any(
                each.producer_id == record.producer_id and each.first_offset <= record.offset <= each.last_offset
                for each in aborted
            )
            is_visible = not is_aborted and record.offset < stable_offset
            yield record if is_visible else replace(record, is_committed=False)


def _of_batch(batch: memoryview, index: int) -> Iterator[StoredRecord]:
    header = BatchHeader(batch) if batch[MAGIC_OFFSET] == MAGIC else None
    for record in iterate_records(batch) if header is not None else legacy_records(batch):
        control = control_of(record) if header is not None and header.is_control else None
        yield StoredRecord(
            partition=index,
            offset=record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=tuple((name.decode(errors="replace"), value) for name, value in record.headers),
            producer_id=-1 if header is None else header.producer_id,
            producer_epoch=-1 if header is None else header.producer_epoch,
            sequence=_sequence(header, record.offset),
            leader_epoch=-1 if header is None else header.partition_leader_epoch,
            is_transactional=header is not None and header.is_transactional,
            is_committed=True,
            control=None if control is None else control.name,
        )


def _sequence(header: BatchHeader | None, offset: int) -> int:
    """Returns the sequence number of a record. After the greatest 32-bit number comes 0."""
    if header is None or header.base_sequence < 0:
        return -1
    return (header.base_sequence + offset - header.base_offset) % (1 << 31)
