"""How the log of an internal topic becomes state again: which of its records are to be replayed, and in which order.

Theory of operation: of each key in a compacted topic the last record alone counts, however far the cleaner has come. These
records are gathered first and replayed in their order, which reads a log of many commits in half the time. Records that a
transaction wrote count from its commit marker on, unless a later record of the key says otherwise; those of an aborted
transaction never do; those of an open one are replayed as part of it, and the producer's transaction goes on.

Rule of this file: what a record says is not looked at.

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
    """A record that counts.

    Attributes:
        producer_id: of the open transaction that it is part of; None if it counts at once.
    """

    key: bytes | None
    value: bytes | None
    offset: int
    producer_id: int | None = None


Entries = dict[Hashable, Entry]
"""Records in the order of the log, by what makes a later one replace them."""


class StateReader:
    """The records of one partition, as far as they were read.

    Args:
        is_keyed: the last record of each key counts; else all do.
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
        """What counts, and then what may come to count."""
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
