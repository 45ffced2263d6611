"""The control record that ends a transaction: what it says, and the batch that it travels in.

A control batch holds one record, which takes one offset and which consumers do not show. Its key is a version and a type, its
value a version and the epoch of the transaction coordinator that wrote it.

Rules of this file: pure. A control record of another kind is None, for a log may hold what a later Kafka wrote.

Source: KIP-98; org.apache.kafka.common.record.{ControlRecordType, EndTransactionMarker}, MemoryRecords.withEndTransactionMarker.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from wirekafka.errors import KafkaError
from wirekafka.wire.batch import Record, build_keyed_batch, iterate_records
from wirekafka.wire.compression import Buffer

CONTROL_KEY = Struct(">hh")
"""Version and type."""
END_MARKER_VALUE = Struct(">hi")
"""Version and coordinator epoch."""
ABORT = 0
COMMIT = 1
_VERSION = 0


class EndMarker(NamedTuple):
    """What ends a transaction in one partition."""

    is_commit: bool
    coordinator_epoch: int


def build_end_marker(marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """The control batch that ends the transaction of a producer."""
    key = CONTROL_KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = END_MARKER_VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_keyed_batch(
        [(key, value)], timestamp=timestamp, producer_id=producer_id, producer_epoch=producer_epoch, is_control=True
    )


END_MARKER_BYTES = len(build_end_marker(EndMarker(True, 0), producer_id=0, producer_epoch=0, timestamp=0))
"""They all have one size."""


def read_end_marker(batch: Buffer) -> EndMarker | None:
    """What a control batch says of a transaction; None if it is about something else, or compaction has emptied it."""
    try:
        return end_marker_of(iterate_records(batch))
    except KafkaError:
        return None


def end_marker_of(records: Iterable[Record]) -> EndMarker | None:
    """What the records of a control batch say of a transaction; None if that is nothing."""
    for record in records:
        if record.key is None or len(record.key) < CONTROL_KEY.size:
            return None
        _, number = CONTROL_KEY.unpack_from(record.key)
        if number not in (ABORT, COMMIT) or record.value is None or len(record.value) < END_MARKER_VALUE.size:
            return None
        return EndMarker(number == COMMIT, END_MARKER_VALUE.unpack_from(record.value)[1])
    return None
