"""The index of a segment's aborted transactions, which read_committed consumers use to skip aborted records.

How it works: when a marker aborts a transaction, an entry is written to the index of the marker's segment. The file exists
only if there are entries, and reads use the file: a read bisects to the first transaction that ends after the start of the read,
and stops at an entry after which all records of the read were stable. Entries that could not be written, and entries from
recovery and compaction, wait in memory for `save`.

Rules of this file: the files have Apache Kafka's format. Entries are in the order of their last offsets, and so of their last
stable offsets.

Source: KIP-98; org.apache.kafka.storage.internals.log.{TransactionIndex, AbortedTxn}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from wirekafka.log.storage import FileHandle, Folder

SUFFIX = ".txnindex"
ENTRY = Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
VERSION = 0
_ENTRIES_A_READ = 256


class BadTransactionIndexError(OSError):
    """The file has invalid entries, or is shorter than expected."""


class AbortedTransaction(NamedTuple):
    """One aborted transaction.

    Attributes:
        first_offset: the offset of its first record in the partition.
        last_offset: the offset of its marker.
        last_stable_offset: the last stable offset of the partition when the marker was written.
    """

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in one segment.

    Attributes:
        name: the name of the file.
    """

    __slots__ = ("_base_offset", "_is_rewritten", "_saved_count", "_unsaved", "folder", "name")

    def __init__(self, folder: Folder, base_offset: int, *, size_bytes: int = 0) -> None:
        """Creates the index over a file of the given size; reads no file."""
        self.folder = folder
        self.name = f"{base_offset:020d}{SUFFIX}"
        self._base_offset = base_offset
        self._saved_count = size_bytes // ENTRY.size
        self._unsaved: list[AbortedTransaction] | None = None
        self._is_rewritten = False

    def __iter__(self) -> Iterator[AbortedTransaction]:
        yield from self._from(0)

    @property
    def count(self) -> int:
        """The number of entries."""
        return self._saved_count + len(self._unsaved or ())

    @property
    def size_bytes(self) -> int:
        """The size of its entries."""
        return self.count * ENTRY.size

    # Changing

    def add(self, entry: AbortedTransaction) -> None:
        """Adds an entry after the last one; `save` writes it."""
        if self._unsaved is None:
            self._unsaved = []
        self._unsaved.append(entry)

    def clear(self) -> None:
        """Drops all entries; `save` replaces the file with the entries that are added afterwards."""
        self._saved_count = 0
        self._unsaved = None
        self._is_rewritten = True

    def save(self) -> None:
        """Writes the unsaved entries to the file.

        Raises:
            OSError: the next `save` tries again.

        Durability: in the page cache.
        """
        if self._unsaved is None and not self._is_rewritten:
            return
        data = b"".join(ENTRY.pack(*entry) for entry in self._unsaved or ())
        if self._saved_count:
            file = self.folder.open(self.name, create=True)
            self.folder.ledger.note_written(self.name)
            self.folder.storage.write(file.fd, data, self._saved_count * ENTRY.size)
        elif data:
            self.folder.rewrite_file(self.name, data)
        else:
            self.folder.remove(self.name)
        self._saved_count = self.count
        self._unsaved = None
        self._is_rewritten = False

    def truncate(self, offset: int) -> None:
        """Drops the transactions whose markers are at `offset` or later.

        Raises:
            OSError: the file cannot be read, and is unchanged; or it cannot be written, and the next `save` tries again.
        """
        if self.count:
            kept = [entry for entry in self if entry.last_offset < offset]
            self.clear()
            self._unsaved = kept or None
            self.save()

    # Reading

    def overlapping(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Returns the aborted transactions that may overlap [from_offset, to_offset).

        Returns:
            The transactions, and whether no later segment can have more of them.

        Raises:
            OSError: the file cannot be read.

        Source: TransactionIndex.collectAbortedTxns.
        """
        found = []
        for entry in self._from(self._first_ending_at(from_offset)):
            if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                found.append(entry)
            if entry.last_stable_offset >= to_offset:
                return found, True
        return found, False

    def _first_ending_at(self, offset: int) -> int:
        """Returns the number of the first entry in the file whose last offset is `offset` or greater."""
        count = self._saved_count
        if count <= _ENTRIES_A_READ:
            return 0
        file = self.folder.open(self.name)
        return bisect_left(range(count), offset, key=lambda slot: self._read(file, slot, 1)[0].last_offset)

    def _from(self, slot: int) -> Iterator[AbortedTransaction]:
        if slot < self._saved_count:
            file = self.folder.open(self.name)
            while slot < self._saved_count:
                entries = self._read(file, slot, min(_ENTRIES_A_READ, self._saved_count - slot))
                yield from entries
                slot += len(entries)
        yield from self._unsaved or ()

    def _read(self, file: FileHandle, slot: int, count: int) -> list[AbortedTransaction]:
        data = self.folder.storage.read(file.fd, count * ENTRY.size, slot * ENTRY.size)
        if len(data) < count * ENTRY.size:
            raise BadTransactionIndexError(f"{self.folder.path_of(self.name)} is shorter than it was")
        return [AbortedTransaction(*fields) for fields in ENTRY.iter_unpack(data)]

    def check(self, size_bytes: int, next_base_offset: int | None) -> None:
        """Raises unless the file can be valid.

        Args:
            size_bytes: the size of the file.
            next_base_offset: the base offset of the next segment; None if there is none.

        Raises:
            BadTransactionIndexError: the size or an entry of the file is invalid.

        Source: TransactionIndex.sanityCheck.
        """
        path = self.folder.path_of(self.name)
        if size_bytes % ENTRY.size:
            raise BadTransactionIndexError(f"{path} has {size_bytes} bytes, which is not a multiple of the size of an entry")
        last_offset, stable_offset = self._base_offset - 1, -1
        for entry in self:
            is_in_order = entry.last_offset > last_offset and entry.last_stable_offset >= stable_offset
            if entry.version != VERSION or not is_in_order or not 0 <= entry.first_offset <= entry.last_offset:
                raise BadTransactionIndexError(f"{path} has the invalid entry {entry}")
            last_offset, stable_offset = entry.last_offset, entry.last_stable_offset
        if next_base_offset is not None and last_offset >= next_base_offset:
            raise BadTransactionIndexError(f"{path} goes up to {last_offset}, but the segment ends before {next_base_offset}")
