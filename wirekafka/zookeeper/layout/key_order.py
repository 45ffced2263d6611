"""The order in which the collections of a JVM iterate over texts: Kafka writes its JSON in that order.

The order of a hash table follows from the hashes of the keys and the size of the table, so it can be computed.

Source: java.lang.String.hashCode; scala.collection.mutable.HashMap and scala.collection.immutable.HashMap of Scala 2.13;
java.util.Properties of Java 17.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_MASK = 0xFFFF_FFFF


def note_key(key: str) -> None:
    """Computes what the order of a key needs, which then takes less time. For callers that have thousands of keys to order."""
    _java_hash(key)


def mutable_map_order(keys: Iterable[str]) -> list[str]:
    """Returns the keys in the order of a `mutable.Map` of Scala that has grown with them."""
    keys = list(keys)
    size = _table_size(len(keys))

    def position(key: str) -> tuple[int, int]:
        spread = _spread(_java_hash(key))
        return spread & (size - 1), _signed(spread)

    return sorted(keys, key=position)


def immutable_map_order(keys: Iterable[str]) -> list[str]:
    """Returns the keys in the order of an immutable `Map` of Scala: of up to four keys, the order in which they were added."""
    keys = list(keys)
    return keys if len(keys) <= 4 else _trie_order(keys, 0)


def properties_order(keys: Iterable[str]) -> list[str]:
    """Returns the keys in the order of Java's `Properties` that has grown with them.

    Differs from Apache Kafka: from twelve keys on, those with the same place in the table may be in another order, because the
    JVM orders them by the history of the table.
    """
    keys = list(keys)
    size = _table_size(len(keys))
    return sorted(keys, key=lambda key: _spread(_java_hash(key)) & (size - 1))


def _table_size(count: int) -> int:
    """Returns the size of a hash table that began with 16 places and doubles when three quarters are taken."""
    size = 16
    while count * 4 >= size * 3:
        size *= 2
    return size


def _trie_order(keys: list[str], shift: int) -> list[str]:
    """A node of the trie has first the keys that are alone in their slot, and then its sub-nodes, each by slot."""
    if shift >= 32:
        return keys
    slots: dict[int, list[str]] = {}
    for key in keys:
        slots.setdefault(_improve(_java_hash(key)) >> shift & 31, []).append(key)
    ordered = [slots[slot] for slot in sorted(slots)]
    alone = [key for slot in ordered if len(slot) == 1 for key in slot]
    return alone + [key for slot in ordered if len(slot) > 1 for key in _trie_order(slot, shift + 5)]


@lru_cache(maxsize=16_384)
def _java_hash(text: str) -> int:
    """Returns the bits of String.hashCode: UTF-16 units, weighted by powers of 31."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & _MASK
    return value


def _spread(value: int) -> int:
    return value ^ value >> 16


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _improve(value: int) -> int:
    """Source: scala.collection.Hashing.improve."""
    value = (value + ~(value << 9)) & _MASK
    value ^= value >> 14
    value = (value + (value << 4)) & _MASK
    return value ^ value >> 10
