"""Every kind of file as rows."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from wirekafka.inspection.dump import Row, Selection, dump_file, files_to_dump
from wirekafka.inspection.files import DamageError
from wirekafka.inspection.text import BytesStyle
from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.meta_properties import MetaProperties, MetaPropertiesVersion
from wirekafka.log.transaction_index import ENTRY as TRANSACTION_ENTRY
from wirekafka.names import format_topic_id
from wirekafka.tests.inspection.folders import BATCHES, PARTITION, SEGMENTS, TOPIC_ID, make_data, overwrite, rows_of, segment_file
from wirekafka.tests.log.logs import NOW_MS
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

SEALED, ACTIVE = SEGMENTS
RECORDS = Selection(has_batches=False, has_records=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_data(tmp_path)


def log_of(tmp_path: Path, *batches: bytes | bytearray, topic: str = "other") -> Path:
    path = segment_file(tmp_path / f"{topic}-0", 0, ".log")
    path.parent.mkdir()
    path.write_bytes(b"".join(batches))
    return path


def fields_of(path: Path, selection: Selection | None = None) -> list[dict[str, Any]]:
    return [row.fields for row in rows_of(path, selection)]


def test_dump_of_a_log_shows_every_batch(folder: Path) -> None:
    rows = [row for base_offset in SEGMENTS for row in rows_of(segment_file(folder, base_offset, ".log"))]
    assert {row.type for row in rows} == {"batch"}
    assert [row.fields["base_offset"] for row in rows] == list(range(BATCHES))
    assert all(row.fields["is_valid"] for row in rows)
    assert {row.fields["compression"] for row in rows} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert rows[1].fields | {"crc": ""} == {
        "position": rows[0].fields["size_bytes"],
        "size_bytes": rows[2].fields["position"] - rows[1].fields["position"],
        "base_offset": 1,
        "last_offset": 1,
        "record_count": 1,
        "magic": 2,
        "compression": "gzip",
        "timestamp_type": "create_time",
        "max_timestamp": NOW_MS + 1,
        "leader_epoch": 0,
        "producer_id": None,
        "producer_epoch": None,
        "base_sequence": None,
        "is_transactional": False,
        "is_control": False,
        "delete_horizon_ms": None,
        "crc": "",
        "is_valid": True,
    }


def test_dump_between_two_offsets_shows_what_lies_there(folder: Path) -> None:
    selection = Selection(has_records=True, from_offset=5, until_offset=8)
    rows = rows_of(segment_file(folder, SEALED, ".log"), selection)
    assert [(row.type, row.fields.get("offset", row.fields.get("base_offset"))) for row in rows] == [
        ("batch", 5),
        ("record", 5),
        ("batch", 6),
        ("record", 6),
        ("batch", 7),
        ("record", 7),
    ]


@pytest.mark.parametrize(
    ("style", "key", "value"), [("text", "schlüssel", "\\xff\\x00a"), ("hex", "736368", "ff0061"), ("base64", "c2No", "/wBh")]
)
def test_dump_of_records_shows_bytes_in_the_style_asked_for(tmp_path: Path, style: str, key: str, value: str) -> None:
    raw = "schlüssel".encode() if style == "text" else b"sch"
    record = Record(raw, b"\xff\0a", ((b"h", None), (b"h", b"sch")), NOW_MS)
    path = log_of(tmp_path, build_batch([record, Record(None, None, timestamp=NOW_MS)], compression=Compression.ZSTD))
    selection = Selection(has_batches=False, has_records=True, bytes_style=BytesStyle(style))
    first, second = fields_of(path, selection)
    assert (first["key"], first["value"]) == (key, value.replace("\\x00", "\0"))
    assert first["headers"][0][1] is None
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


def test_dump_of_records_gives_each_its_sequence_number(tmp_path: Path) -> None:
    records = [Record(value=b"", offset=offset, timestamp=NOW_MS) for offset in (3, 5)]
    batch = build_batch(records, base_offset=3, keeps_offsets=True, producer_id=1, producer_epoch=0, base_sequence=0x7FFF_FFFF)
    assert [fields["sequence"] for fields in fields_of(log_of(tmp_path, batch), RECORDS)] == [0x7FFF_FFFF, 1]


def test_dump_of_a_control_batch_shows_what_it_says(tmp_path: Path) -> None:
    marker = Record(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 9), timestamp=NOW_MS)
    path = log_of(tmp_path, build_batch([marker], producer_id=1, producer_epoch=0, is_control=True, is_transactional=True))
    batch, record = rows_of(path, Selection(has_records=True))
    assert batch.fields["is_control"]
    assert batch.fields["is_transactional"]
    assert (record.fields["control"], record.fields["coordinator_epoch"]) == ("commit", 9)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_dump_of_message_sets_shows_their_messages_at_their_offsets(tmp_path: Path, magic: int, compression: Compression) -> None:
    records = [Record(b"k", b"v%d" % number, timestamp=NOW_MS + number) for number in range(3)]
    path = log_of(tmp_path, down_convert(build_batch(records, base_offset=40, compression=compression), magic, 0))
    assert {row.fields["magic"] for row in rows_of(path)} == {magic}
    found = [(fields["offset"], fields["value"], fields["timestamp"]) for fields in fields_of(path, RECORDS)]
    assert found == [(40 + number, f"v{number}", NOW_MS + number if magic else None) for number in range(3)]


def test_dump_of_a_wrong_checksum_says_so_and_goes_on(folder: Path) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    overwrite(log, 70, b"\xff")
    valid = [row.fields["is_valid"] for row in rows_of(log)]
    assert valid == [False] + [True] * (BATCHES - ACTIVE - 1)


def test_dump_of_a_torn_log_shows_what_is_before(folder: Path) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    log.write_bytes(log.read_bytes()[:-1])
    rows = dump_file(str(log), Selection(), lambda size: None)
    assert [next(rows).fields["base_offset"] for _ in range(BATCHES - ACTIVE - 1)] == list(range(ACTIVE, BATCHES - 1))
    with pytest.raises(DamageError) as caught:
        next(rows)
    assert caught.value.offset == BATCHES - 1


def test_dump_of_the_indexes_shows_their_entries(folder: Path) -> None:
    log = rows_of(segment_file(folder, SEALED, ".log"))
    last_offsets = {row.fields["position"]: row.fields["last_offset"] for row in log}
    entries = rows_of(segment_file(folder, SEALED, ".index"))
    assert len(entries) == 9
    assert all(last_offsets[row.fields["position"]] == row.fields["offset"] for row in entries)
    times = rows_of(segment_file(folder, SEALED, ".timeindex"))
    assert len(times) == 10
    assert all(row.fields["timestamp"] == NOW_MS + row.fields["offset"] for row in times)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_dump_of_an_index_with_reserved_room_ends_where_it_begins(folder: Path, suffix: str) -> None:
    index = segment_file(folder, ACTIVE, suffix)
    before = rows_of(index)
    index.write_bytes(index.read_bytes() + bytes(120))
    assert rows_of(index) == before
    index.write_bytes(bytes(120))
    assert rows_of(index) == []


def test_dump_of_a_transaction_index_shows_what_was_aborted(folder: Path) -> None:
    index = segment_file(folder, SEALED, ".txnindex")
    index.write_bytes(TRANSACTION_ENTRY.pack(0, 7, 10, 20, 21))
    expected = {"version": 0, "producer_id": 7, "first_offset": 10, "last_offset": 20, "last_stable_offset": 21}
    assert rows_of(index) == [Row("aborted_transaction", expected)]


def test_dump_of_a_snapshot_shows_its_producers(folder: Path) -> None:
    (row,) = rows_of(segment_file(folder, BATCHES, ".snapshot"))
    assert row.type == "producer"
    assert row.fields == {
        "producer_id": 7,
        "producer_epoch": 0,
        "first_sequence": 39,
        "last_sequence": 39,
        "first_offset": 117,
        "last_offset": 117,
        "last_timestamp": NOW_MS + 117,
        "coordinator_epoch": None,
        "transaction_first_offset": None,
    }


def test_dump_of_the_small_files_shows_what_they_say(folder: Path) -> None:
    root = folder.parent
    (root / META_PROPERTIES).write_bytes(MetaProperties(MetaPropertiesVersion.V1, "cluster", 1, "directory").write())
    (root / CLEAN_SHUTDOWN).write_text('{"version":0}')
    assert rows_of(folder / EPOCHS_FILE) == [Row("leader_epoch", {"epoch": 0, "start_offset": 0})]
    assert rows_of(folder / PARTITION_METADATA) == [Row("partition_metadata", {"topic_id": format_topic_id(TOPIC_ID)})]
    expected = {"topic": PARTITION.topic, "partition": PARTITION.partition, "offset": BATCHES}
    assert rows_of(root / RECOVERY_POINTS) == [Row("checkpoint", expected)]
    meta = {"version": 1, "cluster_id": "cluster", "node_id": 1, "directory_id": "directory"}
    assert rows_of(root / META_PROPERTIES) == [Row("meta_properties", meta)]
    assert rows_of(root / CLEAN_SHUTDOWN) == [Row("clean_shutdown", {"content": '{"version":0}'})]


@pytest.mark.parametrize("name", [EPOCHS_FILE, PARTITION_METADATA, f"{BATCHES:020}.snapshot"])
def test_dump_of_a_malformed_file_is_damage(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"nonsense")
    with pytest.raises(DamageError) as caught:
        rows_of(folder / name)
    assert caught.value.path == str(folder / name)


def test_dump_of_a_data_directory_shows_every_file_of_a_kind(folder: Path) -> None:
    (folder / "notes.txt").touch()
    (folder / f"{0:020}.log.deleted").touch()
    expected = {str(path) for path in folder.parent.rglob("*") if path.is_file()} - {
        str(folder / "notes.txt"),
        str(folder / f"{0:020}.log.deleted"),
    }
    assert set(files_to_dump(str(folder.parent))) == expected
    assert len(files_to_dump(str(folder))) == len(expected) - 1
