"""The two indexes of a segment: from an offset to a position, and from a timestamp to an offset.

How it works: an index is sparse. It has one entry for at least `index.interval.bytes` of log, so it takes half a percent
of the log's size. The indexes of the active segment are two arrays in memory, which are searched by bisection. The arrays are
written as one file when the segment is rolled or closed; after a crash, recovery rebuilds them from the log. The indexes of a
sealed segment stay in their files and use neither memory nor a descriptor. A lookup opens the file and bisects in it, with about
twenty reads of one entry; a consumer that reads sequentially needs one lookup.

Rules of this file:
    The files have Apache Kafka's format: big-endian entries, offsets relative to the segment's base, no padding.
    Invariant: keys and values are strictly ascending.

Source: org.apache.kafka.storage.internals.log.{AbstractIndex, OffsetIndex, TimeIndex}.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from wirekafka.log.storage import FileHandle, Folder


class ShortIndexError(OSError):
    """The file of an index is shorter than the index expects."""


class Index:
    """Entries of an ascending key and an ascending 32-bit value.

    Attributes:
        keys, values: the entries in memory; None while the entries are only in the file.
        count: the number of entries.
    """

    __slots__ = ("count", "folder", "keys", "name", "values")

    entry = struct.Struct("")
    key_type = ""

    def __init__(self, folder: Folder, name: str, *, size_bytes: int | None = None) -> None:
        """Creates an empty index, or an index over an existing file of the given size."""
        self.folder = folder
        self.name = name
        self.keys: array[int] | None = None
        self.values: array[int] | None = None
        self.count = 0
        if size_bytes is None:
            self.clear()
        else:
            self.count = size_bytes // self.entry.size

    @property
    def size_bytes(self) -> int:
        """The size of the entries in the file."""
        return self.count * self.entry.size

    def clear(self) -> None:
        """Drops all entries; new entries stay in memory until `unload`."""
        self.keys = array(self.key_type)
        self.values = array("i")
        self.count = 0

    def load(self) -> None:
        """Reads the entries of the file into memory, so that more can be added."""
        if self.keys is not None:
            return
        data = self.folder.read_file(self.name) or b""
        size = min(self.count, len(data) // self.entry.size) * self.entry.size
        self.clear()
        if size:
            self.keys, self.values = _read_columns(data[:size], self.key_type)
            self.count = len(self.keys)

    def save(self) -> None:
        """Writes the entries to the file.

        A partial write is harmless: after a crash, recovery rebuilds the indexes unless they were on the disk before.

        Durability: in the page cache.
        """
        if self.keys is not None and self.values is not None:
            self.folder.rewrite_file(self.name, _write_columns(self.keys, self.values))

    def unload(self) -> None:
        """Drops the entries from memory; the file holds them."""
        self.keys = self.values = None

    def append(self, key: int, value: int) -> None:
        """Adds an entry after the last one."""
        assert self.keys is not None and self.values is not None, "a sealed index does not grow"
        self.keys.append(key)
        self.values.append(value)
        self.count += 1

    def last(self) -> tuple[int, int] | None:
        """Returns the last entry; None if the index is empty."""
        if not self.count:
            return None
        if self.keys is not None and self.values is not None:
            return self.keys[-1], self.values[-1]
        return self._read(self.folder.open(self.name), self.count - 1)

    def floor(self, key: int) -> tuple[int, int] | None:
        """Returns the last entry whose key is not greater than `key`; None if there is none."""
        if self.keys is not None and self.values is not None:
            slot = bisect_right(self.keys, key) - 1
            return (self.keys[slot], self.values[slot]) if slot >= 0 else None
        if not self.count:
            return None
        file = self.folder.open(self.name)
        slot = bisect_right(range(self.count), key, key=lambda n: self._read(file, n)[0]) - 1
        return self._read(file, slot) if slot >= 0 else None

    def _read(self, file: FileHandle, slot: int) -> tuple[int, int]:
        data = self.folder.storage.read(file.fd, self.entry.size, slot * self.entry.size)
        if len(data) < self.entry.size:
            raise ShortIndexError(f"{self.folder.path_of(self.name)} is shorter than it was")
        key, value = self.entry.unpack(data)
        return key, value

    def _keep(self, count: int) -> None:
        assert self.keys is not None and self.values is not None
        del self.keys[count:]
        del self.values[count:]
        self.count = count


def _write_columns(keys: array[int], values: array[int]) -> bytes:
    """Returns the content of a file: keys and values in turn, big-endian.

    The function converts whole columns, because all entries of a segment are written at once on the loop: 65,000 entries take
    5 ms, and packing each entry takes 65 ms (2026-11).
    """
    width = keys.itemsize // values.itemsize
    key_words, value_words = _swapped(keys), _swapped(values)
    words = array("i", bytes(len(keys) * (keys.itemsize + values.itemsize)))
    parts = array("i", key_words.tobytes())
    for number in range(width):
        words[number :: width + 1] = parts[number::width]
    words[width :: width + 1] = value_words
    return words.tobytes()


def _read_columns(data: bytes, key_type: str) -> tuple[array[int], array[int]]:
    """Returns the keys and the values in the content of a file."""
    words = array("i", data)
    width = array(key_type).itemsize // words.itemsize
    parts = array("i", bytes(len(words) // (width + 1) * width * words.itemsize))
    for number in range(width):
        parts[number::width] = words[number :: width + 1]
    return _swapped(array(key_type, parts.tobytes())), _swapped(words[width :: width + 1])


def _swapped(column: array[int]) -> array[int]:
    """Converts numbers between this machine's byte order and big-endian."""
    column = column[:]
    if sys.byteorder == "little":
        column.byteswap()
    return column


class OffsetIndex(Index):
    """From the last offset of a batch, relative to the segment's base, to the batch's position in the file."""

    __slots__ = ()

    entry = struct.Struct(">ii")
    key_type = "i"

    def last_offset_from(self, position: int) -> int | None:
        """Returns the last offset, relative to the segment's base, of a batch at `position` or soon after it; None if unknown.

        Source: OffsetIndex.fetchUpperBoundOffset.
        """
        if self.keys is not None and self.values is not None:
            slot = bisect_left(self.values, position)
            return self.keys[slot] if slot < len(self.keys) else None
        if not self.count:
            return None
        file = self.folder.open(self.name)
        slot = bisect_left(range(self.count), position, key=lambda n: self._read(file, n)[1])
        return self._read(file, slot)[0] if slot < self.count else None

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries whose offset is `relative_offset` or greater."""
        self.load()
        assert self.keys is not None
        self._keep(bisect_left(self.keys, relative_offset))


class TimeIndex(Index):
    """From the greatest timestamp so far to the last offset, relative to the segment's base, of the batch with that timestamp."""

    __slots__ = ()

    entry = struct.Struct(">qi")
    key_type = "q"

    def append_greater(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry, unless the last one has the same timestamp.

        Source: TimeIndex.maybeAppend.
        """
        last = self.last()
        if last is None or timestamp > last[0]:
            self.append(timestamp, relative_offset)

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries whose offset is `relative_offset` or greater."""
        self.load()
        assert self.values is not None
        self._keep(bisect_left(self.values, relative_offset))
