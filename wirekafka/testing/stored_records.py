"""The records of a running broker's topics as a test sees them: all of them, with their producers and transaction markers.

    records = stored_records(broker, "orders")

`CommittedRecords` reads a topic that grows, a slice at a time.

Rules of this file: it reads the log itself, so it also shows records that a consumer does not get: aborted ones, control records,
and records of open transactions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.inspection.batches import control_of
from wirekafka.log.positions import read_place
from wirekafka.wire.batch import MAGIC, MAGIC_OFFSET, BatchHeader, iterate_records
from wirekafka.wire.legacy import stored_records as legacy_records

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.log.readable_log import ReadableLog
    from wirekafka.log.transaction_index import AbortedTransaction

SLICE_RECORDS = 500
SLICE_BYTES = 1 << 20
"""The most records and bytes that are read before other tasks of the loop run."""


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

    @property
    def size_bytes(self) -> int:
        """The bytes of the key, the value and the headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


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
    start = log.log_start_offset
    return _of_batches(log.batches(), index, start, log.last_stable_offset, log.aborted_transactions(start, log.log_end_offset))


def _of_batches(
    batches: Iterable[memoryview], index: int, start: int, stable_offset: int, aborted: Sequence[AbortedTransaction]
) -> Iterator[StoredRecord]:
    """Yields the records of batches from an offset on.

    Args:
        aborted: the aborted transactions of these batches.
    """
    for batch in batches:
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


# A topic that grows


@dataclass(slots=True)
class _Part:
    """What was read of a partition.

    Attributes:
        log: the log that is read; `truncation_count` and `log_start_offset` are its own when the reading began.
        unread: yields the next records, and None whenever there are no more for now.
        kept: the committed records, as far as they are kept.
        kept_bytes: of these.
        committed_count, aborted_count: the records of clients that were read.
    """

    log: ReadableLog
    truncation_count: int
    log_start_offset: int
    unread: Iterator[StoredRecord | None]
    kept: list[StoredRecord] = field(default_factory=list)
    kept_bytes: int = 0
    committed_count: int = 0
    aborted_count: int = 0

    def is_of(self, log: ReadableLog) -> bool:
        """Whether a log still has what was read, compaction aside."""
        was = self.log, self.truncation_count, self.log_start_offset
        return was == (log, log.truncation_count, log.log_start_offset)


class CommittedRecords:
    """The records of a topic that a `read_committed` consumer gets, read on as the topic grows.

    A partition is read again from its start if another log replaces its log, or if the log loses records at its end or its start.

    Attributes:
        topic: its name; it need not be there yet.

    Args:
        partition: one partition only; all of them if it is None.
        most_records, most_bytes: no more are kept than the first record beyond one of these.
    """

    def __init__(
        self, topic: str, partition: int | None = None, most_records: float = math.inf, most_bytes: float = math.inf
    ) -> None:
        self.topic = topic
        self._partition = partition
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._parts: dict[int, _Part] = {}

    @property
    def count(self) -> int:
        """The number of records that were read, kept or not."""
        return sum(each.committed_count for each in self._parts.values())

    @property
    def hidden_count(self) -> int:
        """The number of records that were aborted, and of those from the last stable offset on."""
        parts = self._parts.values()
        return sum(each.aborted_count + each.log.log_end_offset - each.log.last_stable_offset for each in parts)

    @property
    def is_full(self) -> bool:
        """Whether no more records are kept."""
        parts = self._parts.values()
        return (
            sum(len(each.kept) for each in parts) > self._most_records
            or sum(each.kept_bytes for each in parts) > self._most_bytes
        )

    def kept(self) -> list[StoredRecord]:
        """Returns the records, by partition and offset."""
        return [record for _, part in sorted(self._parts.items()) for record in part.kept]

    def read_slice(self, broker: Broker) -> bool:
        """Reads on up to the last stable offsets, at most a slice; returns whether there may be more.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        count = size_bytes = 0
        self._follow_logs(broker)
        for _, part in sorted(self._parts.items()):
            for record in iter(part.unread.__next__, None):
                self._note(part, record)
                count, size_bytes = count + 1, size_bytes + record.size_bytes
                if count >= SLICE_RECORDS or size_bytes >= SLICE_BYTES:
                    return True
        return False

    def _follow_logs(self, broker: Broker) -> None:
        """Begins again with each partition whose log is not the one that was read."""
        found = broker.topics.find(self.topic)
        all_indexes = range(len(found.partitions) if found is not None else 0)
        try:
            indexes = all_indexes if self._partition is None else [self._partition]
            logs = {index: broker.topics.find_partition(self.topic, index).log for index in indexes}
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            logs = {}
        self._parts = {
            index: part if (part := self._parts.get(index)) is not None and part.is_of(log) else _begin(log, index)
            for index, log in logs.items()
        }

    def _note(self, part: _Part, record: StoredRecord) -> None:
        if record.control is not None:
            return
        if not record.is_committed:
            part.aborted_count += 1
            return
        part.committed_count += 1
        if not self.is_full:
            part.kept.append(record)
            part.kept_bytes += record.size_bytes


def _begin(log: ReadableLog, index: int) -> _Part:
    return _Part(log, log.truncation_count, log.log_start_offset, _up_to_stable_offset(log, index))


def _up_to_stable_offset(log: ReadableLog, index: int) -> Iterator[StoredRecord | None]:
    """Yields the records of a partition, and None whenever those up to the last stable offset were read.

    The log may change between two records: batches are read from the log together, and records from memory.
    """
    start = log.log_start_offset
    while True:
        end = log.last_stable_offset
        while start < end and (batches := _next_batches(log, start, end)):
            yield from _of_batches(batches, index, start, end, log.aborted_transactions(start, end))
            start = _last_offset(batches[-1]) + 1
        yield None


def _next_batches(log: ReadableLog, start: int, end: int) -> list[memoryview]:
    """Returns the batches from one offset up to another, until they have `SLICE_BYTES`."""
    batches: list[memoryview] = []
    size_bytes = 0
    for batch in log.batches(start):
        if size_bytes >= SLICE_BYTES or _last_offset(batch) >= end:
            break
        batches.append(batch)
        size_bytes += len(batch)
    return batches


def _last_offset(batch: memoryview) -> int:
    place = read_place(batch, 0, 0)
    assert place is not None, "the batch was read"
    return place.last_offset
