"""Checks the indexes of a segment against its batches.

How it works: the entries of an index and the batches have the same order, so both are read once, in parallel, and nothing is
kept. An entry may lead to the first of several batches that were appended together, and carry the last offset of the last
one. Followers and the cleaner of Apache Kafka write such entries. A reader that uses such an entry misses no record.

Rule of this file: an index is damaged if it would lead a reader to a wrong position. An index that could have more entries is
sound.

Source: org.apache.kafka.storage.internals.log.{LogSegment, OffsetIndex, TimeIndex, TransactionIndex};
kafka.tools.DumpLogSegments (an index that a crash left ends in zeros).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NoReturn

from wirekafka.inspection.batches import StoredBatch
from wirekafka.inspection.files import DamageError, DataFile
from wirekafka.log.index import OffsetIndex, TimeIndex
from wirekafka.log.transaction_index import ENTRY as TRANSACTION_ENTRY
from wirekafka.log.transaction_index import VERSION, AbortedTransaction
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.control import read_end_marker


class MissingFile:
    """Stands in for an optional index that does not exist; it has no entries."""

    def __init__(self, path: str) -> None:
        self.path = path

    def entries(self, layout: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """See `DataFile.entries`."""
        return iter(())


class IndexCheck:
    """Checks one index, batch by batch.

    Args:
        is_active: the segment is the active one, so the index may end in zeros, and may be ahead of the batches that were read.
    """

    entry: Struct

    def __init__(self, file: DataFile | MissingFile, base_offset: int, *, is_active: bool) -> None:
        self.entry_count = 0
        self._path = file.path
        self._entries = file.entries(self.entry)
        self._base_offset = base_offset
        self._is_active = is_active
        self._at = 0

    def see(self, batch: StoredBatch) -> None:
        """Checks the entries that belong to the next batch.

        Raises:
            DamageError: an entry contradicts the batch.
        """
        raise NotImplementedError

    def finish(self, end_position: int, end_offset: int) -> None:
        """Checks the end of the index, after the last batch.

        Raises:
            DamageError: entries are left over, or an entry is missing.
        """
        raise NotImplementedError

    def _next_fields(self) -> tuple[int, ...] | None:
        """Returns the fields of the next entry; None after the last entry, and where the reserved zeros begin."""
        found = next(self._entries, None)
        if found is None:
            return None
        self._at, fields = found
        if self._is_active and not any(fields):
            return None
        self.entry_count += 1
        return fields

    def _refuse(self, reason: str, offset: int | None) -> NoReturn:
        raise DamageError(self._path, reason, position=self._at, offset=offset)


class OffsetIndexCheck(IndexCheck):
    """Checks an offset index: each entry leads to a batch, and carries the batch's last offset."""

    entry = OffsetIndex.entry

    def __init__(self, file: DataFile, base_offset: int, *, is_active: bool) -> None:
        super().__init__(file, base_offset, is_active=is_active)
        self._last = (-1, -1)
        self._awaited: int | None = None
        self._entry = self._advance()

    def _advance(self) -> tuple[int, int] | None:
        fields = self._next_fields()
        if fields is None:
            return None
        relative_offset, position = fields
        offset = self._base_offset + relative_offset
        if offset <= self._last[0] or position <= self._last[1]:
            reason = f"its entries do not ascend: offset {offset} at byte {position} follows {self._last[0]} at {self._last[1]}"
            self._refuse(reason, offset)
        self._last = (offset, position)
        return self._last

    def see(self, batch: StoredBatch) -> None:
        """See `IndexCheck`."""
        place = batch.place
        while self._entry is not None and self._entry[1] <= place.position:
            offset, position = self._entry
            if position < place.position:
                self._refuse(f"it leads to byte {position} of the log, where no batch begins", offset)
            if self._awaited is not None:
                self._refuse(f"no batch ends with offset {self._awaited}, which the previous entry has", self._awaited)
            if offset < place.last_offset:
                self._refuse(f"it leads to byte {position} of the log, whose batch ends with {place.last_offset}", offset)
            self._awaited = offset
            self._entry = self._advance()
        if self._awaited is not None and place.last_offset >= self._awaited:
            if place.last_offset != self._awaited:
                self._refuse(f"no batch ends with offset {self._awaited}", self._awaited)
            self._awaited = None

    def finish(self, end_position: int, end_offset: int) -> None:
        """See `IndexCheck`."""
        if self._awaited is not None and not self._is_active:
            self._refuse(f"no batch ends with offset {self._awaited}", self._awaited)
        if self._entry is not None and not self._is_active:
            offset, position = self._entry
            self._refuse(f"it leads to byte {position}, but the log has {end_position} bytes", offset)


class TimeIndexCheck(IndexCheck):
    """Checks a time index: an entry's timestamp is the greatest of all records up to the entry's offset.

    In a sealed segment the last entry has the greatest timestamp of all. A batch that compaction has emptied keeps its timestamp.
    Apache Kafka enters that timestamp, and wirekafka does not, because no record has it. Both are accepted.
    """

    entry = TimeIndex.entry

    def __init__(self, file: DataFile, base_offset: int, *, is_active: bool) -> None:
        super().__init__(file, base_offset, is_active=is_active)
        self._last = (NO_TIMESTAMP, base_offset - 1)
        self._max_timestamp = NO_TIMESTAMP
        self._max_with_empty = NO_TIMESTAMP
        self._entry = self._advance()

    def _advance(self) -> tuple[int, int] | None:
        fields = self._next_fields()
        if fields is None:
            return None
        timestamp, relative_offset = fields
        offset = self._base_offset + relative_offset
        if timestamp <= self._last[0] or offset <= self._last[1]:
            reason = f"its entries do not ascend: {timestamp} at offset {offset} follows {self._last[0]} at {self._last[1]}"
            self._refuse(reason, offset)
        self._last = (timestamp, offset)
        return self._last

    def see(self, batch: StoredBatch) -> None:
        """See `IndexCheck`."""
        self._max_with_empty = max(self._max_with_empty, batch.place.max_timestamp)
        if batch.header is None or batch.header.record_count:
            self._max_timestamp = max(self._max_timestamp, batch.place.max_timestamp)
        while self._entry is not None and self._entry[1] <= batch.place.last_offset:
            timestamp, offset = self._entry
            if timestamp not in (self._max_timestamp, self._max_with_empty):
                self._refuse(f"it has timestamp {timestamp}, but the greatest up to this offset is {self._max_timestamp}", offset)
            self._entry = self._advance()

    def finish(self, end_position: int, end_offset: int) -> None:
        """See `IndexCheck`."""
        if self._is_active:
            return
        if self._entry is not None:
            self._refuse(f"it has an entry for offset {self._entry[1]}, but the log ends before {end_offset}", self._entry[1])
        if self._max_timestamp > self._last[0]:
            self._refuse(f"its last timestamp is {self._last[0]}, but the greatest of the log is {self._max_timestamp}", None)


class TransactionIndexCheck(IndexCheck):
    """Checks a transaction index: an entry ends at an abort marker of its producer, unless compaction has removed the marker.

    In a sealed segment, an aborted transaction that has records in the segment has an entry. Without the entry, read_committed
    consumers would get aborted records.
    """

    entry = TRANSACTION_ENTRY

    def __init__(self, file: DataFile | MissingFile, base_offset: int, *, is_active: bool) -> None:
        super().__init__(file, base_offset, is_active=is_active)
        self._last_offset = base_offset - 1
        self._open: set[int] = set()
        self._entry = self._advance()

    def _advance(self) -> AbortedTransaction | None:
        fields = self._next_fields()
        if fields is None:
            return None
        entry = AbortedTransaction(*fields)
        if entry.version != VERSION:
            self._refuse(f"version {entry.version} is not known", None)
        if entry.last_offset <= self._last_offset:
            self._refuse(f"its entries do not ascend: {entry.last_offset} follows {self._last_offset}", entry.last_offset)
        if entry.first_offset > entry.last_offset:
            self._refuse(f"offset {entry.first_offset} is after last offset {entry.last_offset}", entry.last_offset)
        self._last_offset = entry.last_offset
        return entry

    def see(self, batch: StoredBatch) -> None:
        """See `IndexCheck`."""
        header, place = batch.header, batch.place
        marker = read_end_marker(batch.data) if header is not None and header.is_control else None
        is_told = False
        while self._entry is not None and self._entry.last_offset <= place.last_offset:
            producer_id, last_offset = self._entry.producer_id, self._entry.last_offset
            # Compaction may have removed the marker. The offset is then in a gap between two batches.
            if last_offset >= place.base_offset:
                is_told = True
                if header is None or header.producer_id != producer_id or marker is None or marker.is_commit:
                    self._refuse(f"producer {producer_id} has no abort marker at offset {last_offset}", last_offset)
            self._entry = self._advance()
        if header is None or not header.is_transactional:
            return
        if marker is None:
            self._open |= {header.producer_id} if header.record_count and not header.is_control else set()
            return
        if header.producer_id in self._open and not (marker.is_commit or is_told or self._is_active):
            reason = f"it lacks the transaction of producer {header.producer_id} that was aborted at offset {place.last_offset}"
            self._refuse(reason, place.last_offset)
        self._open.discard(header.producer_id)

    def finish(self, end_position: int, end_offset: int) -> None:
        """See `IndexCheck`."""
        if self._entry is not None and not self._is_active:
            last_offset = self._entry.last_offset
            self._refuse(f"it has an entry for offset {last_offset}, but the log ends before {end_offset}", last_offset)
