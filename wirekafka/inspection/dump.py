"""The content of any file of a data directory, as rows of named fields.

Rules of this file: the values of fields are types of JSON. The wire's -1 for "none" is None here. A damaged file gives the
rows up to the damage. A batch with a wrong checksum is a row with `is_valid` false.

Source: kafka.tools.DumpLogSegments. The fields are the same, under whole names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wirekafka.errors import KafkaError
from wirekafka.inspection.batches import StoredBatch, control_of, scan
from wirekafka.inspection.files import (
    Advance,
    DamageError,
    DataFile,
    Kind,
    base_offset_of,
    files_in,
    holds_partition,
    kind_of,
    partition_folders,
    read_whole,
)
from wirekafka.inspection.record_decoders import Fields, meanings_in
from wirekafka.inspection.text import BytesStyle, show_bytes
from wirekafka.log.checkpoint import (
    MalformedFileError,
    read_offsets,
    read_partition_metadata,
)
from wirekafka.log.directory import partition_of_folder
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.index import OffsetIndex, TimeIndex
from wirekafka.log.meta_properties import read_meta_properties
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import Producers
from wirekafka.log.transaction_index import ENTRY as TRANSACTION_ENTRY
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.names import NO_SEQUENCE, NO_TIMESTAMP, format_topic_id
from wirekafka.wire.batch import MOST_SEQUENCE, Record


class Row(NamedTuple):
    """One row.

    Attributes:
        type: `batch`, `record`, `offset_index_entry`, ...
        fields: by name; times in ms since 1970 under names that end in `timestamp` or `_ms`.
    """

    type: str
    fields: Fields


@dataclass(slots=True)
class Selection:
    """The selection of what is shown of a log, and its form.

    Attributes:
        has_batches, has_records: whether batches, and records, are rows.
        from_offset, until_offset: show only batches and records with offsets from the first up to the second, excluded.
        bytes_style: how keys, values and headers are shown.
        has_meanings: whether records of `__consumer_offsets`, `__transaction_state` and `__share_group_state` are decoded.
    """

    has_batches: bool = True
    has_records: bool = False
    from_offset: int = 0
    until_offset: int | None = None
    bytes_style: BytesStyle = BytesStyle.TEXT
    has_meanings: bool = True


def files_to_dump(path: str) -> list[str]:
    """Returns the path itself if it is a file; else the files of the partition, or of the data directory and its partitions."""
    if not os.path.isdir(path):
        return [path]
    files = [os.path.join(path, name) for name in files_in(path)]
    if not holds_partition(path):
        files += [os.path.join(folder, name) for folder in partition_folders(path) for name in files_in(folder)]
    return files


def dump_file(path: str, selection: Selection, advance: Advance) -> Iterator[Row]:
    """Yields the rows of a file.

    Raises:
        DamageError: the file is damaged; the rows before the damage have been yielded.
        OSError: the file cannot be read.
    """
    kind = kind_of(path)
    assert kind is not None, "a file of a kind"
    if kind == Kind.LOG:
        yield from _Log(path, selection).rows(advance)
        return
    try:
        yield from _DUMPS[kind](path)
    except (MalformedFileError, CorruptSnapshotError) as error:
        raise DamageError(path, str(error)) from None


def _or_none(value: int, absent: int = -1) -> int | None:
    return None if value == absent else value


class _Log:
    """The batches of a segment, and their records."""

    def __init__(self, path: str, selection: Selection) -> None:
        self._path = path
        self._selection = selection
        partition = partition_of_folder(os.path.basename(os.path.dirname(os.path.abspath(path))))
        self._meaning = None
        if selection.has_meanings and partition is not None:
            self._meaning = meanings_in(partition.topic, selection.bytes_style)

    def rows(self, advance: Advance) -> Iterator[Row]:
        selection = self._selection
        file = DataFile(self._path)
        for batch in scan(file, base_offset_of(self._path), advance=advance, from_offset=selection.from_offset):
            if selection.until_offset is not None and batch.place.base_offset >= selection.until_offset:
                break
            if selection.has_batches:
                yield Row("batch", _batch_fields(batch))
            if selection.has_records:
                yield from self._records(batch)

    def _records(self, batch: StoredBatch) -> Iterator[Row]:
        selection = self._selection
        try:
            for record in batch.records() if _has_records(batch) else ():
                is_before_end = selection.until_offset is None or record.offset < selection.until_offset
                if is_before_end and record.offset >= selection.from_offset:
                    yield Row("record", self._record_fields(batch, record))
        except KafkaError as error:
            reason = error.message or error.code.name
            raise DamageError(self._path, reason, position=batch.place.position, offset=batch.place.base_offset) from None

    def _record_fields(self, batch: StoredBatch, record: Record) -> Fields:
        style = self._selection.bytes_style
        header = batch.header
        sequence = None
        if header is not None and header.base_sequence != NO_SEQUENCE:
            sequence = (header.base_sequence + record.offset - header.base_offset) & MOST_SEQUENCE
        fields: Fields = {
            "position": batch.place.position,
            "offset": record.offset,
            "timestamp": _or_none(record.timestamp, NO_TIMESTAMP),
            "sequence": sequence,
        }
        control = control_of(record) if header is not None and header.is_control else None
        if control is not None:
            return fields | {"control": control.name, "coordinator_epoch": control.coordinator_epoch}
        meaning = None if self._meaning is None else self._meaning(record)
        if meaning is not None:
            return fields | meaning
        return fields | {
            "key": show_bytes(record.key, style),
            "value": show_bytes(record.value, style),
            "headers": [[show_bytes(name, style), show_bytes(value, style)] for name, value in record.headers],
        }


def _has_records(batch: StoredBatch) -> bool:
    return batch.header is None or batch.header.record_count != 0


def _batch_fields(batch: StoredBatch) -> Fields:
    place, header = batch.place, batch.header
    try:
        compression = batch.compression.name.lower()
    except KafkaError:
        compression = "unknown"
    fields: Fields = {
        "position": place.position,
        "size_bytes": place.size_bytes,
        "base_offset": place.base_offset,
        "last_offset": place.last_offset,
        "record_count": None if header is None else header.record_count,
        "magic": batch.magic,
        "compression": compression,
        "timestamp_type": "log_append_time" if batch.is_append_time else "create_time",
        "max_timestamp": _or_none(place.max_timestamp, NO_TIMESTAMP),
        "leader_epoch": _or_none(place.leader_epoch),
    }
    if header is not None:
        fields |= {
            "producer_id": _or_none(header.producer_id),
            "producer_epoch": _or_none(header.producer_epoch),
            "base_sequence": _or_none(header.base_sequence),
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
            "delete_horizon_ms": header.delete_horizon_ms,
        }
    return fields | {"crc": f"{batch.stored_crc:08x}", "is_valid": batch.has_right_crc()}


# Apache Kafka reserves space in the indexes of an active segment, so they end in zeros.


def _offset_index(path: str) -> Iterator[Row]:
    base_offset = base_offset_of(path)
    for _, (relative_offset, position) in DataFile(path).entries(OffsetIndex.entry):
        if relative_offset == position == 0:
            return
        yield Row("offset_index_entry", {"offset": base_offset + relative_offset, "position": position})


def _time_index(path: str) -> Iterator[Row]:
    base_offset = base_offset_of(path)
    for _, (timestamp, relative_offset) in DataFile(path).entries(TimeIndex.entry):
        if timestamp == relative_offset == 0:
            return
        yield Row("time_index_entry", {"timestamp": timestamp, "offset": base_offset + relative_offset})


def _transaction_index(path: str) -> Iterator[Row]:
    for _, fields in DataFile(path).entries(TRANSACTION_ENTRY):
        yield Row("aborted_transaction", AbortedTransaction(*fields)._asdict())


def _producers(path: str) -> Iterator[Row]:
    offset = base_offset_of(path)
    producers = Producers(offset)
    producers.read_snapshot(read_whole(path), offset)
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        yield Row(
            "producer",
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "first_sequence": last.first_sequence if last else None,
                "last_sequence": last.last_sequence if last else None,
                "first_offset": last.first_offset if last else None,
                "last_offset": last.last_offset if last else None,
                "last_timestamp": _or_none(producer.last_timestamp, NO_TIMESTAMP),
                "coordinator_epoch": _or_none(producer.coordinator_epoch),
                "transaction_first_offset": producer.transaction_first_offset,
            },
        )


def _leader_epochs(path: str) -> Iterator[Row]:
    for entry in LeaderEpochs.read(read_whole(path)).entries:
        yield Row("leader_epoch", entry._asdict())


def _offsets(path: str) -> Iterator[Row]:
    for partition, offset in read_offsets(read_whole(path)).items():
        yield Row("checkpoint", {"topic": partition.topic, "partition": partition.partition, "offset": offset})


def _partition_metadata(path: str) -> Iterator[Row]:
    yield Row("partition_metadata", {"topic_id": format_topic_id(read_partition_metadata(read_whole(path)))})


def _meta_properties(path: str) -> Iterator[Row]:
    properties = read_meta_properties(read_whole(path))
    yield Row("meta_properties", properties._asdict() | {"version": int(properties.version)})


def _clean_shutdown(path: str) -> Iterator[Row]:
    yield Row("clean_shutdown", {"content": read_whole(path).decode(errors="backslashreplace")})


_DUMPS: dict[Kind, Callable[[str], Iterator[Row]]] = {
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.TRANSACTION_INDEX: _transaction_index,
    Kind.PRODUCERS: _producers,
    Kind.LEADER_EPOCHS: _leader_epochs,
    Kind.OFFSETS: _offsets,
    Kind.PARTITION_METADATA: _partition_metadata,
    Kind.META_PROPERTIES: _meta_properties,
    Kind.CLEAN_SHUTDOWN: _clean_shutdown,
}
