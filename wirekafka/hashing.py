"""Java's hash of strings, by which Kafka spreads keys over partitions, and partitions over fetchers."""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache

MOST_UNITS_IN_LOOP = 64
"""The longest string, in UTF-16 units, that is hashed in a loop; longer strings are halved first. The loop takes 3 ms for a
string of 32,767 characters (2026-11)."""

_UINT32 = 0xFFFFFFFF
_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


@lru_cache(maxsize=1024)
def java_string_hash(text: str) -> int:
    """Returns Java's `String.hashCode`, over UTF-16 code units, as a signed 32-bit number.

    The results are cached, because few ids are frequent: the hash took a twentieth of the time of a transaction (2026-11).
    """
    units = array("H", text.encode(_UTF_16))
    base = 31
    if len(units) > MOST_UNITS_IN_LOOP:
        units, base = _halved(array("Q", units), base)
    number = 0
    for unit in units:
        number = (base * number + unit) & _UINT32
    return number - 0x100000000 if number & 0x80000000 else number


def _halved(digits: array[int], base: int) -> tuple[array[int], int]:
    """Returns the same number, modulo 2^32, with fewer digits in a greater base.

    Neighbouring digits are joined, all of them at once in one large integer, which takes half the time of a loop.
    """
    while len(digits) > MOST_UNITS_IN_LOOP:
        if len(digits) % 2:
            digits.insert(0, 0)
        count = len(digits) // 2
        high = int.from_bytes(digits[::2].tobytes(), sys.byteorder)
        low = int.from_bytes(digits[1::2].tobytes(), sys.byteorder)
        mask = int.from_bytes(array("Q", [_UINT32]).tobytes() * count, sys.byteorder)
        digits = array("Q", (high * base + low & mask).to_bytes(8 * count, sys.byteorder))
        base = base * base & _UINT32
    return digits, base


def spread(number: int, count: int) -> int:
    """Returns one of `count` places for a number of 32 bits with a sign.

    Source: Utils.abs, which is 0 for the least number.
    """
    return (0 if number == -0x80000000 else abs(number)) % count
