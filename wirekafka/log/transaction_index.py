"""The index of a segment's aborted transactions, which tells readers of committed records what to leave out.

Rules of this file: pure, but for the bytes, which are Apache Kafka's. Entries stand in the order of their last offsets.

Source: KIP-98; org.apache.kafka.storage.internals.log.{TransactionIndex, AbortedTxn}.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

ENTRY = Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
VERSION = 0


class AbortedTransaction(NamedTuple):
    """One transaction that was aborted.

    Attributes:
        first_offset: of its first record in the partition.
        last_offset: of the marker that ended it.
        last_stable_offset: of the partition, when the marker was written.
    """

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
