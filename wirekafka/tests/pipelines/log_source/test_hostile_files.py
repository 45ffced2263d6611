"""Files that an attacker, a broken disk or another program has written: an error that names them, in little memory and time."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wirekafka.inspection.batches import BatchTooLargeError
from wirekafka.inspection.files import DamageError
from wirekafka.pipelines.log_source.columns import MOST_HEADERS, Limits
from wirekafka.pipelines.log_source.plan import Selection, plan
from wirekafka.pipelines.log_source.reading import Reading, read_split
from wirekafka.pipelines.log_source.record_bytes import LEAST_RUN, MOST_RUN, Content, record_pieces
from wirekafka.tests.inspection.folders import batch_at, make_data, sealed_again, segment_file, write_log
from wirekafka.tests.pipelines.log_source.rows import offsets_of, rows_of
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    Record,
    build_batch,
    encode_record,
)
from wirekafka.wire.compression import Compression, compress
from wirekafka.wire.legacy import down_convert

MIB = 1 << 20


def compressed_batch(body: bytes, count: int, compression: Compression = Compression.ZSTD) -> bytearray:
    """Returns a batch with the right checksum whose header counts `count` records, and whose compressed records are `body`."""
    data = batch_at(0)[:HEADER_SIZE] + body
    struct.pack_into(">i", data, LENGTH_OFFSET, len(data) - LOG_OVERHEAD)
    struct.pack_into(">hi", data, ATTRIBUTES_OFFSET, compression, count - 1)
    struct.pack_into(">i", data, HEADER_SIZE - 4, count)
    return sealed_again(data)


def zstd_bomb(size_mib: int) -> bytes:
    """Returns a small stream of so many MiB of zeros."""
    engine = zstandard.ZstdCompressor().compressobj()
    return b"".join([engine.compress(bytes(MIB)) for _ in range(size_mib)]) + engine.flush()


@contextmanager
def bounded_memory(most_bytes: int) -> Iterator[None]:
    """Raises if Python and numpy had more memory meanwhile."""
    pa.array(np.zeros(1))  # the first array imports pandas, which takes 30 MB
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def batches_of(root: Path, reading: Reading) -> Iterator[int]:
    """Yields the number of rows of each Arrow batch."""
    for split in plan(str(root), Selection(), most_batch_bytes=reading.most_batch_bytes):
        for columns in read_split(split, reading):
            columns.validate(full=True)
            yield columns.num_rows


def test_a_batch_that_expands_beyond_the_limit_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = write_log(tmp_path, compressed_batch(zstd_bomb(256), 1))
    reason = f"{path}, at byte 0, offset 0: the uncompressed records take more bytes; at most 8388608 are read"

    with bounded_memory(20 * MIB), pytest.raises(BatchTooLargeError, match=reason):
        list(batches_of(tmp_path, Reading(most_batch_bytes=8 * MIB)))


def test_a_compressed_batch_of_many_records_is_read_in_pieces(tmp_path: Path) -> None:
    count = 200_000
    record = encode_record(Record(None, b""), 0, 0)
    write_log(tmp_path, compressed_batch(compress(Compression.ZSTD, record * count), count))

    with bounded_memory(20 * MIB):
        sizes = list(batches_of(tmp_path, Reading(limits=Limits(most_records=10_000))))

    assert sizes == [10_000] * 20


def test_records_beyond_the_bytes_of_an_arrow_batch_are_in_the_next_one(tmp_path: Path) -> None:
    write_log(tmp_path, build_batch([Record(None, bytes(100_000)) for _ in range(40)]))

    assert list(batches_of(tmp_path, Reading(limits=Limits(most_bytes=MIB)))) == [11, 11, 11, 7]


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_a_wrapper_of_an_old_format_that_expands_beyond_the_limit_is_refused(tmp_path: Path, compression: Compression) -> None:
    messages = down_convert(build_batch([Record(None, bytes(2 * MIB))], compression=compression), 1, 0)
    write_log(tmp_path, messages)

    assert list(batches_of(tmp_path, Reading())) == [1]
    with pytest.raises(BatchTooLargeError, match="at byte 0, offset 0: the uncompressed records take more bytes"):
        list(batches_of(tmp_path, Reading(most_batch_bytes=8 * MIB)))


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("claimed", [0x7FFFFFFF, 200 << 20])
def test_a_header_that_claims_too_many_bytes_is_refused_before_they_are_read(
    tmp_path: Path, is_sealed: bool, claimed: int
) -> None:
    lying = batch_at(2)
    struct.pack_into(">i", lying, LENGTH_OFFSET, claimed)
    path = write_log(tmp_path, batch_at(0), lying)
    os.truncate(path, 3 << 30)
    if is_sealed:
        segment_file(path.parent, 4, ".log").write_bytes(bytes(batch_at(4)))

    reason = f"at byte {len(batch_at(0))}, offset 2: the header claims {claimed + LOG_OVERHEAD} bytes; at most 134217728 are read"
    with bounded_memory(20 * MIB), pytest.raises(BatchTooLargeError, match=reason):
        list(batches_of(tmp_path, Reading()))


def test_an_index_of_a_gigabyte_is_read_only_at_its_beginning(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    for suffix in (".index", ".timeindex"):
        os.truncate(segment_file(folder, 103, suffix), 1 << 30)

    with bounded_memory(150 * MIB):
        rows = rows_of(tmp_path, starting_timestamp=0)

    assert offsets_of(rows) == list(range(120))


def test_an_index_of_transactions_that_is_too_large_is_refused(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    index = segment_file(folder, 0, ".txnindex")
    index.touch()
    os.truncate(index, 1 << 30)

    with pytest.raises(DamageError, match=f"{index}: it has more than 268435456 bytes"):
        rows_of(tmp_path, is_committed=True)


class CountedBytes(bytes):
    """Bytes that count how many of them are copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            self.copied += len(range(*at.indices(len(self))))
        return super().__getitem__(at)


def test_sizes_that_change_after_every_few_records_take_linear_time() -> None:
    records = [encode_record(Record(None, bytes(number % (LEAST_RUN + 2) == 0)), 0, 0) for number in range(100_000)]
    body = CountedBytes(b"".join(records))

    found = [len(starts) for _, starts in record_pieces(Content(body, 0, len(body)), len(records), 1 << 20, 1 << 30)]

    assert found == [len(records)]
    assert body.copied <= len(records) / LEAST_RUN * (MOST_RUN + 1)


def test_a_record_with_too_many_headers_is_refused_before_they_are_read(tmp_path: Path) -> None:
    sound = build_batch([Record(headers=((b"", None),) * MOST_HEADERS)])
    path = write_log(tmp_path, sound, build_batch([Record(headers=((b"", None),) * 1_000_000)], base_offset=1))
    reason = f"{path}, at byte {len(sound)}, offset 1: a record has 1000000 headers; at most {MOST_HEADERS} are read"

    with pytest.raises(DamageError, match=reason):
        rows_of(tmp_path)
    assert len(rows_of(tmp_path, ending_offset=1)[0]["headers"]) == MOST_HEADERS


def test_last_batches_with_wrong_checksums_are_left_out_from_the_first_on(tmp_path: Path) -> None:
    wrong = [batch_at(offset) for offset in range(2, 300, 2)]
    for each in wrong:
        each[-1] ^= 1
    write_log(tmp_path, batch_at(0), *wrong)

    assert offsets_of(rows_of(tmp_path)) == [0, 1]


SOUND = b"".join(bytes(batch_at(3 * number, 3, compression=Compression(number % 5))) for number in range(10))
INDEX_BYTES = st.just(b"") | st.binary(max_size=64)
CHANGES = st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(CHANGES, st.booleans(), st.integers(0, len(SOUND)), INDEX_BYTES, INDEX_BYTES, INDEX_BYTES, st.booleans())
def test_files_with_any_wrong_bytes_are_damage_or_are_read(
    tmp_path: Path,
    changes: list[tuple[int, int]],
    is_sealed: bool,
    size: int,
    index: bytes,
    time_index: bytes,
    transactions: bytes,
    is_committed: bool,
) -> None:
    data = bytearray(SOUND)
    for at, byte in changes:
        data[at] = byte
    if is_sealed:
        data[: len(batch_at(0, 3))] = sealed_again(data[: len(batch_at(0, 3))])
    path = write_log(tmp_path, data[: size or len(data)])
    for suffix, content in ((".index", index), (".timeindex", time_index), (".txnindex", transactions)):
        segment_file(path.parent, 0, suffix).write_bytes(content)
    selection = Selection(is_committed=is_committed, starting_timestamp=0)

    with suppress(DamageError):
        for split in plan(str(tmp_path), selection):
            for columns in read_split(split, Reading(0, None, is_committed)):
                columns.validate(full=True)
