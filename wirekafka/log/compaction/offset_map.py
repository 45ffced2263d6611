"""The last offset of each key, within bounded memory: the first pass of a compaction builds it, and the second pass reads it.

How it works: the map is a dict. A lookup for each record would cost more than all other work of the second pass, because
a lookup in a dict that is larger than the processor's caches takes four or five cache misses. But the values of the dict are the
offsets of all records that stay. A window with one byte for each offset is filled from the values; the window then gives the
records that stay for a whole batch at once, and the second pass reads no key.

Rules of this file: pure. The keys have the form that `record_slices` gives them. The map stores the offset of a tombstone as its
complement, which is negative.

Source: org.apache.kafka.storage.internals.log.SkimpyOffsetMap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from wirekafka.log.compaction.record_slices import Key

ENTRY_BYTES = 200
"""The memory of one key: the key or its digest, an offset, and a slot of the dict.

Measured in 2026-11: 130 to 190 bytes, and 220 while the dict grows.
"""
WINDOW_OFFSETS = 1 << 22
_VALUES_A_STEP = 2000

DROPPED, STAYS, STAYS_AS_TOMBSTONE = 0, 1, 2
"""The marks of records: dropped, kept, and kept with a null value."""


class OffsetMap:
    """The last offset of each key.

    Attributes:
        first_offset, end_offset: the map has the keys of all records from `first_offset` on and before `end_offset`.
        has_odd_batches: a batch had as many records as offsets, but not one record for each offset.
    """

    def __init__(self, most_keys: int, first_offset: int = 0) -> None:
        assert most_keys > 0, "a map without room makes no progress"
        self._offsets: dict[Key | None, int] = {}
        self._most_keys = most_keys
        self.first_offset = self.end_offset = first_offset
        self.has_odd_batches = False

    def __len__(self) -> int:
        return len(self._offsets)

    def put(
        self,
        keys: Sequence[Key | None],
        offsets: Sequence[int],
        tombstones: Sequence[int] = (),
        *,
        has_nulls: bool = False,
    ) -> int:
        """Notes the offsets of neighbouring records as the last ones of their keys.

        Args:
            keys: the keys of the records.
            offsets: the offsets of the records.
            tombstones: the positions, in `keys`, of the records with a null value.
            has_nulls: some of the keys are None; the map ignores their records.

        Returns:
            The number of records that are noted: all, or those before the first record whose key has no room.
        """
        if tombstones:
            offsets = list(offsets)
            for number in tombstones:
                offsets[number] = ~offsets[number]
        known = self._offsets
        if has_nulls or len(known) + len(keys) > self._most_keys:
            return self._put_each(keys, offsets)
        known.update(zip(keys, offsets, strict=True))
        return len(keys)

    def _put_each(self, keys: Sequence[Key | None], offsets: Sequence[int]) -> int:
        known = self._offsets
        for number, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
            if key is None:
                continue
            if len(known) >= self._most_keys and key not in known:
                return number
            known[key] = offset
        return len(keys)

    def get(self, key: Key | None) -> int:
        """Returns the offset of the last record of a key; -1, which is before every offset, if the map has no such key."""
        offset = self._offsets.get(key, -1)
        return offset if offset >= -1 else ~offset

    def marks(self, keys: Sequence[Key | None], offsets: Sequence[int], tombstones: Sequence[int]) -> bytes:
        """Returns the marks of neighbouring records, one byte for each record.

        Batches from `end_offset` on stay whole, because the map does not have their keys. Elsewhere a record without a key is
        dropped.
        """
        if offsets and offsets[0] >= self.end_offset:
            stays = bytearray((STAYS,)) * len(keys)
        elif offsets and offsets[-1] < self.first_offset:
            known = self._offsets
            stays = bytearray([key not in known and key is not None for key in keys])
        else:
            stays = bytearray(key is not None and offset >= self.get(key) for key, offset in zip(keys, offsets, strict=True))
        for number in tombstones:
            stays[number] *= STAYS_AS_TOMBSTONE
        return bytes(stays)


class Window:
    """The marks of the records in a range of offsets; the range moves forward with the second pass.

    Args:
        step: called after every few thousand keys while the window is filled.
    """

    def __init__(self, offsets: OffsetMap, step: Callable[[], None]) -> None:
        self._offsets = offsets
        self._step = step
        self._first_offset = self._end_offset = 0
        self._marks = bytearray()

    def marks(self, first_offset: int, end_offset: int) -> bytes | None:
        """Returns one mark for each offset of a batch; None if the marks cannot be known without the keys of the batch."""
        offsets = self._offsets
        is_known = offsets.first_offset <= first_offset and end_offset <= offsets.end_offset and not offsets.has_odd_batches
        if not is_known or end_offset - first_offset > WINDOW_OFFSETS:
            return None
        if not self._first_offset <= first_offset <= end_offset <= self._end_offset:
            self._move(first_offset)
        return bytes(self._marks[first_offset - self._first_offset : end_offset - self._first_offset])

    def _move(self, first_offset: int) -> None:
        self._first_offset = first_offset
        self._end_offset = end_offset = first_offset + WINDOW_OFFSETS
        self._marks = marks = bytearray(min(end_offset, self._offsets.end_offset) - first_offset)
        self._end_offset = end_offset = first_offset + len(marks)
        values = iter(self._offsets._offsets.values())
        while some := list(islice(values, _VALUES_A_STEP)):
            for offset in some:
                if first_offset <= offset < end_offset:
                    marks[offset - first_offset] = STAYS
                elif first_offset <= ~offset < end_offset:
                    marks[~offset - first_offset] = STAYS_AS_TOMBSTONE
            self._step()
