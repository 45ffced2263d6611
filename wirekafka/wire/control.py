"""The control record that ends a transaction, and the control batch that holds it.

A control batch holds one record. The record takes one offset, and consumers do not return it. Its key is a version and a type.
Its value is a version and the epoch of the transaction coordinator that wrote it.

Rules of this file: pure. A control record of another type is read as None, because a log may hold types of later Kafka versions.

Source: KIP-98; org.apache.kafka.common.record.{ControlRecordType, EndTransactionMarker}, MemoryRecords.withEndTransactionMarker.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from wirekafka.errors import KafkaError
from wirekafka.wire.batch import Record, build_keyed_batch, iterate_records
from wirekafka.wire.compression import Buffer

CONTROL_KEY = Struct(">hh")
"""The key: a version and a type."""
END_MARKER_VALUE = Struct(">hi")
"""The value: a version and the coordinator epoch."""
ABORT = 0
COMMIT = 1
CACHED_MARKERS = 64
_VERSION = 0


class EndMarker(NamedTuple):
    """The outcome of a transaction, as written to one partition."""

    is_commit: bool
    coordinator_epoch: int


def build_end_marker(marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """Returns the control batch that ends the transaction of a producer."""
    return build_keyed_batch(
        [_record_of(marker)], timestamp=timestamp, producer_id=producer_id, producer_epoch=producer_epoch, is_control=True
    )


@lru_cache(CACHED_MARKERS)
def _record_of(marker: EndMarker) -> tuple[bytes, bytes]:
    """Returns the key and the value of the marker's record."""
    key = CONTROL_KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    return key, END_MARKER_VALUE.pack(_VERSION, marker.coordinator_epoch)


END_MARKER_BYTES = len(build_end_marker(EndMarker(True, 0), producer_id=0, producer_epoch=0, timestamp=0))
"""The size of every end marker in bytes."""


def read_end_marker(batch: Buffer) -> EndMarker | None:
    """Returns the end marker in a control batch; None if its record has another type, or if compaction has removed it."""
    try:
        return end_marker_of(iterate_records(batch))
    except KafkaError:
        return None


def end_marker_of(records: Iterable[Record]) -> EndMarker | None:
    """Returns the end marker among the records of a control batch; None if they have none."""
    for record in records:
        if record.key is None or len(record.key) < CONTROL_KEY.size:
            return None
        _, number = CONTROL_KEY.unpack_from(record.key)
        if number not in (ABORT, COMMIT) or record.value is None or len(record.value) < END_MARKER_VALUE.size:
            return None
        return EndMarker(number == COMMIT, END_MARKER_VALUE.unpack_from(record.value)[1])
    return None
