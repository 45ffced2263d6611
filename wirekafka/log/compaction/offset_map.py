"""The last offset of each key, within bounded memory: what the first pass of a compaction finds out for the second.

Theory of operation: a dict. To ask it for each record costs more than all else that the second pass does, for a dict that is
larger than the processor's caches is four or five cache misses a question. But its values are the offsets of all records
that stay: a window of one byte for each offset, filled from them, says of a whole batch at once which of its records these
are, without looking at a key.

Rules of this file: pure. Keys are what `record_slices` makes of them. A tombstone's offset is written down as its complement,
which is negative.

Source: org.apache.kafka.storage.internals.log.SkimpyOffsetMap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from wirekafka.log.compaction.record_slices import Key

ENTRY_BYTES = 200
"""What a key takes: the key or its digest, an offset, their place in a dict (2026-11: 130 to 190, 220 while that grows)."""
WINDOW_OFFSETS = 1 << 22
_VALUES_A_STEP = 2000

DROPPED, STAYS, STAYS_AS_TOMBSTONE = 0, 1, 2
"""The marks of records."""


class OffsetMap:
    """The last offset of each key.

    Attributes:
        first_offset, end_offset: what the map knows is complete between them.
        has_odd_batches: a batch had as many records as offsets, and yet not one record for each offset.
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
        """Notes where the latest records are.

        Args:
            keys: of neighbouring records.
            offsets: of these records.
            tombstones: the numbers, among these records, of those without a value.
            has_nulls: some of the keys are None, and these are passed over.

        Returns:
            How many of the records are noted: all, or those before the first one whose key has no room.
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
        """The offset of the key's latest record; -1, before all, if the map has none."""
        offset = self._offsets.get(key, -1)
        return offset if offset >= -1 else ~offset

    def marks(self, keys: Sequence[Key | None], offsets: Sequence[int], tombstones: Sequence[int]) -> bytes:
        """Which of these neighbouring records stay, a byte for each.

        A record without a key does not, and one that the map is not complete for does.
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
    """Of each offset, within a window that moves along with the second pass, whether its record stays.

    Args:
        step: called every so many keys while the window is filled.
    """

    def __init__(self, offsets: OffsetMap, step: Callable[[], None]) -> None:
        self._offsets = offsets
        self._step = step
        self._first_offset = self._end_offset = 0
        self._marks = bytearray()

    def marks(self, first_offset: int, end_offset: int) -> bytes | None:
        """A byte for each offset of a batch; None if they cannot be known without its keys."""
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
