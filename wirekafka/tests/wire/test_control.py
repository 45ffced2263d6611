from __future__ import annotations

from struct import pack

import pytest

from wirekafka.wire.batch import BatchHeader, Record, build_batch, iterate_records
from wirekafka.wire.control import END_MARKER_BYTES, EndMarker, build_end_marker, read_end_marker

TIME = 1_700_000_000_000


@pytest.mark.parametrize("marker", [EndMarker(True, 7), EndMarker(False, 0)])
def test_end_marker_comes_round(marker: EndMarker) -> None:
    batch = build_end_marker(marker, producer_id=9, producer_epoch=3, timestamp=TIME)

    assert read_end_marker(batch) == marker


def test_end_marker_is_kafkas() -> None:
    batch = build_end_marker(EndMarker(False, 258), producer_id=9, producer_epoch=3, timestamp=TIME)

    header = BatchHeader(batch)
    assert header.size_bytes == len(batch) == END_MARKER_BYTES
    assert (header.is_control, header.is_transactional, header.record_count, header.base_sequence) == (True, True, 1, -1)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (9, 3, TIME)
    [record] = iterate_records(batch)
    assert (record.key, record.value) == (bytes.fromhex("00000000"), bytes.fromhex("000000000102"))


def test_end_marker_of_a_commit_has_type_one() -> None:
    [record] = iterate_records(build_end_marker(EndMarker(True, 0), producer_id=9, producer_epoch=3, timestamp=TIME))

    assert record.key == bytes.fromhex("00000001")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, pack(">hi", 0, 1)),
        (b"\0", pack(">hi", 0, 1)),
        (pack(">hh", 0, 2), pack(">hi", 0, 1)),
        (pack(">hh", 0, 1), None),
        (pack(">hh", 0, 1), b"\0\0\0"),
    ],
)
def test_control_record_of_another_kind_ends_no_transaction(key: bytes | None, value: bytes | None) -> None:
    batch = build_batch([Record(key, value, timestamp=TIME)], producer_id=9, producer_epoch=3, is_control=True)

    assert read_end_marker(batch) is None


def test_control_batch_that_compaction_emptied_ends_no_transaction() -> None:
    assert read_end_marker(build_batch([], producer_id=9, producer_epoch=3, is_control=True)) is None


def test_control_record_of_a_later_version_is_understood_as_far_as_it_is_known() -> None:
    records = [Record(pack(">hhb", 1, 0, 5), pack(">hiq", 1, 4, 99), timestamp=TIME)]
    batch = build_batch(records, producer_id=9, producer_epoch=3, is_control=True)

    assert read_end_marker(batch) == EndMarker(False, 4)
