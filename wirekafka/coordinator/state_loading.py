"""Reads the log of an internal topic for a load: selects the records to replay, and their order.

How it works: in a compacted topic only the last record of each key counts, whether the cleaner has run or not. These
records are collected first and then replayed in order, which halves the time for a log of many commits. Records of a committed
transaction count from the position of its marker, unless the key has a later record. Records of an aborted transaction never
count. Records of an open transaction are replayed as part of it, and the producer's transaction continues.

Rule of this file: the content of records is not decoded.

Source: CoordinatorLoaderImpl, OffsetMetadataManager.replayEndTransactionMarker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from wirekafka.wire.batch import BatchHeader, Record, iterate_records

if TYPE_CHECKING:
    from wirekafka.log.readable_log import ReadableLog

COMMIT_MARKER = b"\0\0\0\1"
"""The key of a control record that commits: version 0, type 1 (ControlRecordType)."""


class Entry(NamedTuple):
    """A record to replay.

    Attributes:
        producer_id: the producer to whose open transaction the record belongs; None for a record without a transaction.
    """

    key: bytes | None
    value: bytes | None
    offset: int
    producer_id: int | None = None


Entries = dict[Hashable, Entry]
"""Records in the order of the log, by the key under which a later record replaces them."""


class StateReader:
    """The records of one partition that were read so far.

    Args:
        is_keyed: only the last record of each key counts; otherwise all records do.
    """

    def __init__(self, *, is_keyed: bool) -> None:
        self._is_keyed = is_keyed
        self._latest: Entries = {}
        self._open_transactions: dict[int, Entries] = {}

    def read(self, partition_log: ReadableLog, slice_size: int) -> Iterator[None]:
        """Reads a log from its start to its end; yields after so many records.

        Raises:
            KafkaError: a batch cannot be read.
        """
        count = 0
        for batch in partition_log.batches(partition_log.log_start_offset):
            header = BatchHeader(batch)
            for record in iterate_records(batch):
                self._add(header, record)
                count += 1
                if count % slice_size == 0:
                    yield

    def entries(self) -> Iterator[Entry]:
        """Yields the records that count, and then the records of open transactions."""
        yield from self._latest.values()
        for entries in self._open_transactions.values():
            yield from entries.values()

    def _add(self, header: BatchHeader, record: Record) -> None:
        if header.is_control:
            self._end_transaction(header.producer_id, record.key == COMMIT_MARKER)
            return
        name: Hashable = record.key if self._is_keyed else record.offset
        if header.is_transactional:
            entries = self._open_transactions.setdefault(header.producer_id, {})
            entries[name] = Entry(record.key, record.value, record.offset, header.producer_id)
            return
        self._latest.pop(name, None)
        self._latest[name] = Entry(record.key, record.value, record.offset)
        if record.value is None:
            for entries in self._open_transactions.values():
                entries.pop(name, None)

    def _end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for name, entry in self._open_transactions.pop(producer_id, {}).items():
            known = self._latest.get(name)
            if is_commit and (known is None or known.offset < entry.offset):
                self._latest.pop(name, None)
                self._latest[name] = entry._replace(producer_id=None)
