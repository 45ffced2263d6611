"""The checker's own reader of Kafka's files, on bytes that are written here and on those that the broker writes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from wirekafka.simulation.checker.files import Batch, Record, UnsoundError, read_batches, read_data_directory, read_replica
from wirekafka.wire.batch import Record as SentRecord
from wirekafka.wire.batch import build_batch
from wirekafka.wire.compression import Compression

RECORD_A = bytes([14, 0, 0, 0, 1, 2, ord("a"), 0])
"""Length 7, no attributes, deltas 0, no key (-1), the value `a`, no headers."""
RECORD_KEYED = bytes([18, 0, 2, 2, 2, ord("k"), 4, ord("b"), ord("c"), 0])
"""Length 9, no attributes, timestamp delta 1, offset delta 1, the key `k`, the value `bc`, no headers."""


def batch_bytes(
    base_offset: int, *records: bytes, epoch: int = 3, attributes: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    """Returns a batch, by Kafka's description of the format."""
    payload = b"".join(records)
    if attributes & 7:
        payload = gzip.compress(payload)
    rest = struct.pack(">hiqqqhii", attributes, len(records) - 1, 0, 0, *producer, len(records)) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(rest), epoch, 2, crc32c(rest)) + rest


def test_batch_is_read_from_its_bytes() -> None:
    data = batch_bytes(5, RECORD_A, RECORD_KEYED, producer=(9, 1, 4))

    records = (Record(5, None, b"a"), Record(6, b"k", b"bc"))
    assert list(read_batches(data)) == [Batch(5, 6, 3, 9, 1, 4, False, False, None, records)]


def test_batch_with_gzip_is_read() -> None:
    (found,) = read_batches(batch_bytes(5, RECORD_A, attributes=1))

    assert found.records == (Record(5, None, b"a"),)


@pytest.mark.parametrize(("kind", "is_commit"), [(0, False), (1, True), (2, None)])
def test_control_batch_says_what_it_does_to_the_transaction(kind: int, is_commit: bool | None) -> None:
    record = bytes([32, 0, 0, 0, 8, 0, 0, 0, kind, 12, 0, 0, 0, 0, 0, 1, 0])

    (found,) = read_batches(batch_bytes(0, record, attributes=0x30, producer=(9, 1, -1)))

    assert (found.is_control, found.is_transactional, found.is_commit) == (True, True, is_commit)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_batches_of_the_broker_are_read(compression: Compression) -> None:
    sent = [SentRecord(key=b"k" * 200, value=bytes([number]) * number * 100, timestamp=1000 + number) for number in range(5)]
    data = build_batch(sent, base_offset=7, compression=compression, producer_id=2, producer_epoch=3, base_sequence=11)

    (found,) = read_batches(bytes(data))

    assert (found.base_offset, found.last_offset) == (7, 11)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (2, 3, 11)
    assert [record.value for record in found.records] == [record.value for record in sent]


def change(position: int, value: int) -> bytes:
    data = bytearray(batch_bytes(0, RECORD_A))
    data[position] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (batch_bytes(0, RECORD_A)[:60], "less than a header"),
        (batch_bytes(0, RECORD_A)[:-1], "the file has 68 more"),
        (change(16, 1), "message format 1"),
        (change(65, 9), "wrong checksum"),
        (bytes(100), "the batch at position 0 has 12 bytes"),
        (batch_bytes(0, RECORD_A, attributes=4), "compression 4"),
        (batch_bytes(0, RECORD_A + b"\0"), "after its last record"),
        (batch_bytes(0, RECORD_A, b""), "longer than its batch"),
        (batch_bytes(0, b"\x7e"), "longer than its batch"),
    ],
    # gzip writes the time into its header, so an id of these bytes would differ between the processes of one run.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_batch_that_is_not_sound_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnsoundError, match=reason):
        list(read_batches(data))


def test_replica_with_a_torn_end_has_the_batches_before_it() -> None:
    files = {"00000000000000000000.log": batch_bytes(0, RECORD_A) + batch_bytes(1, RECORD_A)[:-3]}

    found = read_replica(files, 1, ("t", 0), high_watermark=1, log_start_offset=0)

    assert (found.log_end_offset, len(found.batches)) == (1, 1)
    assert found.unsound is not None


def test_replica_whose_offsets_do_not_ascend_is_unsound() -> None:
    files = {"00000000000000000000.log": batch_bytes(0, RECORD_A), "00000000000000000001.log": batch_bytes(0, RECORD_A)}

    found = read_replica(files, 1, ("t", 0), high_watermark=0, log_start_offset=0)

    assert found.unsound == "00000000000000000001.log: the batch at offset 0 is not after the one before it"


def test_data_directory_is_read_with_its_checkpoints(tmp_path: Path) -> None:
    for name in ("a-b-1", "a-b-2", "a-b-3.1234-delete", "x-4.abc-stray", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-b-1" / "00000000000000000004.log").write_bytes(batch_bytes(4, RECORD_A))
    (tmp_path / "a-b-1" / "00000000000000000005.log").write_bytes(batch_bytes(5, RECORD_A))
    (tmp_path / "a-b-1" / "leader-epoch-checkpoint").write_text("0\n2\n1 2\n3 4\n")
    (tmp_path / "a-b-1" / "00000000000000000005.log.deleted").write_bytes(b"")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\na-b 1 5\n")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\na-b 2 9\n")

    first, second = read_data_directory(tmp_path, 3)

    assert (first.broker_id, first.key, first.log_start_offset, first.log_end_offset) == (3, ("a-b", 1), 4, 6)
    assert (first.high_watermark, first.epochs, first.unsound) == (5, ((1, 2), (3, 4)), None)
    assert (second.key, second.log_start_offset, second.log_end_offset, second.high_watermark) == (("a-b", 2), 9, 9, 0)


def test_checkpoint_with_a_wrong_count_is_refused(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\na-b 1 5\n")

    with pytest.raises(ValueError, match="with 2 lines has 1"):
        read_data_directory(tmp_path, 3)
