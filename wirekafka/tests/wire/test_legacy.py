import gzip
import struct
from itertools import islice
from typing import Any
from zlib import crc32

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.batch import BatchHeader, Record, TimestampType, build_batch, check_crc, iterate_records
from wirekafka.wire.compression import Compression, compress, with_old_lz4_checksum
from wirekafka.wire.legacy import down_convert, entries_in, stored_records, up_convert

PLENTY = 1 << 30
OLD_CODECS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]

optional_bytes = st.none() | st.binary(max_size=300)
old_records = st.lists(
    st.builds(Record, key=optional_bytes, value=optional_bytes, timestamp=st.integers(0, 1 << 62)), min_size=1, max_size=30
)
magics = st.sampled_from([0, 1])
codecs = st.sampled_from(OLD_CODECS)


def message(
    magic: int, value: bytes | None, *, key: bytes | None = None, attributes: int = 0, timestamp: int = -1, offset: int = 0
) -> bytes:
    """Builds one message by the documentation of the format."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic == 1 else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def wrapper(magic: int, codec: Compression, inner: bytes, **fields: Any) -> bytes:
    return message(magic, compress(codec, inner), **{"attributes": codec, **fields})


def records_of(batch: bytearray) -> list[Record]:
    assert check_crc(batch, 0, BatchHeader(batch))
    return list(iterate_records(batch))


def refusal(message_set: bytes, limit_bytes: int = PLENTY) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        up_convert(message_set, limit_bytes=limit_bytes)
    return caught.value.code


def read_by_kafka_python(message_set: bytes) -> list[Record]:
    found = []
    batches = MemoryRecords(message_set)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            found.append(Record(record.key, record.value, (), timestamp, record.offset))
    return found


def expected_of(records: list[Record], magic: int, base_offset: int = 0) -> list[Record]:
    """Returns the records as the format stores them: without headers, and in format 0 without timestamps."""
    return [
        Record(record.key, record.value, (), record.timestamp if magic else -1, base_offset + number)
        for number, record in enumerate(records)
    ]


@given(records=old_records, magic=magics, codec=codecs)
def test_message_set_of_kafka_python_becomes_a_batch(records: list[Record], magic: int, codec: Compression) -> None:
    if magic == 0 and codec == Compression.LZ4:
        codec = Compression.SNAPPY  # kafka-python needs another library for that checksum
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 22)
    for record in records:
        builder.append(record.timestamp, record.key, record.value)
    builder.close()
    batch = up_convert(memoryview(builder.buffer()), limit_bytes=PLENTY)
    assert records_of(batch) == expected_of(records, magic)
    assert BatchHeader(batch).compression == codec


@given(records=old_records, magic=magics, codec=codecs, base_offset=st.integers(0, 1 << 40))
def test_batch_becomes_a_message_set_that_kafka_python_reads(
    records: list[Record], magic: int, codec: Compression, base_offset: int
) -> None:
    if magic == 0 and codec == Compression.LZ4:
        codec = Compression.GZIP
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    assert read_by_kafka_python(down_convert(batch, magic, base_offset)) == expected_of(records, magic, base_offset)


@given(records=old_records, magic=magics, codec=codecs)
def test_records_survive_the_way_down_and_up(records: list[Record], magic: int, codec: Compression) -> None:
    down = down_convert(build_batch(records, compression=codec), magic, 0)
    assert records_of(up_convert(down, limit_bytes=PLENTY)) == expected_of(records, magic)


def test_uncompressed_messages_become_one_batch() -> None:
    batch = up_convert(message(1, b"a", key=b"k", timestamp=5) + message(1, None, timestamp=7, offset=99), limit_bytes=PLENTY)
    assert records_of(batch) == [Record(b"k", b"a", (), 5, 0), Record(None, None, (), 7, 1)]
    header = BatchHeader(batch)
    assert (header.base_timestamp, header.max_timestamp, header.timestamp_type) == (5, 7, TimestampType.CREATE_TIME)


@pytest.mark.parametrize("offsets", [(0, 1), (0, 0), (7, 3)], ids=str)
def test_inner_offsets_of_a_producer_do_not_matter(offsets: tuple[int, int]) -> None:
    """Some clients wrote wrong relative offsets, which Kafka has always accepted."""
    inner = message(1, b"a", offset=offsets[0]) + message(1, b"b", offset=offsets[1])
    records = records_of(up_convert(wrapper(1, Compression.GZIP, inner), limit_bytes=PLENTY))
    assert [(record.value, record.offset) for record in records] == [(b"a", 0), (b"b", 1)]


def test_wrapper_of_log_append_time_gives_its_time_to_all() -> None:
    inner = message(1, b"a", timestamp=1) + message(1, b"b", timestamp=2)
    batch = up_convert(wrapper(1, Compression.GZIP, inner, attributes=1 | 8, timestamp=50), limit_bytes=PLENTY)
    assert [record.timestamp for record in records_of(batch)] == [50, 50]
    assert BatchHeader(batch).timestamp_type == TimestampType.LOG_APPEND_TIME


def test_lz4_wrapper_of_format_0_is_read_with_either_checksum() -> None:
    packed = lz4.frame.compress(message(0, b"a"), block_linked=False)
    for frame in (packed, with_old_lz4_checksum(packed)):
        batch = up_convert(message(0, frame, attributes=3), limit_bytes=PLENTY)
        assert [record.value for record in records_of(batch)] == [b"a"]


def test_lz4_wrapper_of_format_1_needs_the_right_checksum() -> None:
    packed = with_old_lz4_checksum(lz4.frame.compress(message(1, b"a"), block_linked=False))
    assert refusal(message(1, packed, attributes=3)) == ErrorCode.INVALID_RECORD


def test_lz4_wrapper_of_format_0_is_written_with_the_old_checksum() -> None:
    down = down_convert(build_batch([Record(value=b"a")], compression=Compression.LZ4), 0, 0)
    frame = down[26:]
    assert frame[:4] == b"\x04\x22\x4d\x18"
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame)


@pytest.mark.parametrize("magic", [0, 1])
def test_wrong_checksum_is_corrupt(magic: int) -> None:
    spoiled = bytearray(message(magic, b"value"))
    spoiled[-1] ^= 1
    assert refusal(bytes(spoiled)) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(wrapper(magic, Compression.GZIP, bytes(spoiled))) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_message_set_cut_anywhere_is_refused(magic: int, codec: Compression) -> None:
    whole = down_convert(build_batch([Record(key=b"k", value=b"v")], compression=codec), magic, 0)
    for cut in range(len(whole)):
        assert refusal(whole[:cut]) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(b"", id="no messages"),
        pytest.param(message(1, b"a")[:-1], id="a torn message"),
        pytest.param(message(0, b"a"), id="another format"),
        pytest.param(wrapper(1, Compression.GZIP, message(1, b"a")), id="compressed again"),
    ],
)
def test_wrapper_without_proper_messages_is_refused(inner: bytes) -> None:
    assert refusal(wrapper(1, Compression.GZIP, inner)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "message_set",
    [
        pytest.param(message(1, None, attributes=1), id="null"),
        pytest.param(message(1, b"no gzip", attributes=1), id="no gzip"),
        pytest.param(wrapper(1, Compression.ZSTD, message(1, b"a")), id="zstd"),
        pytest.param(wrapper(1, Compression.GZIP, message(1, b"a")) * 2, id="two of them"),
        pytest.param(message(1, b"a") + wrapper(1, Compression.GZIP, message(1, b"a")), id="with company"),
    ],
)
def test_wrapper_that_is_none_is_refused(message_set: bytes) -> None:
    assert refusal(message_set) == ErrorCode.INVALID_RECORD


def test_unknown_codec_is_unsupported() -> None:
    assert refusal(message(1, b"a", attributes=7)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_wrapper_that_expands_above_the_limit_is_too_large() -> None:
    bomb = wrapper(1, Compression.GZIP, message(1, bytes(1 << 20)))
    assert refusal(bomb, limit_bytes=1 << 20) == ErrorCode.MESSAGE_TOO_LARGE


def test_bytes_behind_a_value_are_refused() -> None:
    body = message(1, b"a")[16:] + b"more"
    assert refusal(struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_has_the_offset_of_its_last_message(magic: int) -> None:
    batch = build_batch(
        [Record(value=b"a", timestamp=7), Record(value=b"b", timestamp=3)], base_offset=40, compression=Compression.GZIP
    )
    down = down_convert(batch, magic, 40)
    assert struct.unpack_from(">q", down) == (41,)
    packed = down[26:] if magic == 0 else down[34:]
    inner = gzip.decompress(packed)
    assert struct.unpack_from(">q", inner) == ((40,) if magic == 0 else (0,)), "KIP-31: relative since format 1"
    if magic == 1:
        assert struct.unpack_from(">bbq", down, 16) == (1, 1, 7), "a wrapper has the greatest timestamp of its messages"


def test_log_append_time_goes_down_with_the_message() -> None:
    batch = build_batch([Record(value=b"a", timestamp=7)], timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert struct.unpack_from(">bbq", down_convert(batch, 1, 0), 16) == (1, 8, 7)
    assert struct.unpack_from(">bb", down_convert(batch, 0, 0), 16) == (0, 0)


def test_headers_are_lost_on_the_way_down() -> None:
    batch = build_batch([Record(value=b"a", headers=((b"h", b"v"),), timestamp=1)])
    assert read_by_kafka_python(down_convert(batch, 1, 0)) == [Record(None, b"a", (), 1, 0)]


def test_offsets_that_compaction_left_out_stay_out() -> None:
    left = [Record(key=b"a", offset=12, timestamp=1), Record(key=b"b", offset=15, timestamp=2)]
    for codec in (Compression.NONE, Compression.GZIP):
        batch = build_batch(left, base_offset=10, keeps_offsets=True, last_offset=19, compression=codec)
        assert read_by_kafka_python(down_convert(batch, 1, 0)) == left


def test_control_batches_are_left_out() -> None:
    batch = build_batch([Record(value=b"a", timestamp=1)])
    control = build_batch([Record(key=b"\0\0\0\1", value=b"")], base_offset=1, is_control=True)
    assert read_by_kafka_python(down_convert(batch + control, 1, 0)) == [Record(None, b"a", (), 1, 0)]
    assert down_convert(control, 1, 0) == b""


def test_uncompressed_records_before_the_asked_offset_are_left_out() -> None:
    batch = build_batch([Record(value=b"a"), Record(value=b"b")], base_offset=5)
    assert [record.offset for record in read_by_kafka_python(down_convert(batch, 1, 6))] == [6]
    wrapped = build_batch([Record(value=b"a"), Record(value=b"b")], base_offset=5, compression=Compression.GZIP)
    assert [record.offset for record in read_by_kafka_python(down_convert(wrapped, 1, 6))] == [5, 6]


def test_torn_batch_at_the_end_is_left_out() -> None:
    whole = build_batch([Record(value=b"a", timestamp=1)])
    for size in (1, 60, 61, len(whole) - 1):
        torn = build_batch([Record(value=b"b")], base_offset=1)[:size]
        assert down_convert(whole + torn, 1, 0) == down_convert(whole, 1, 0)


def test_zstd_is_unsupported_when_it_comes_first_and_an_end_when_it_does_not() -> None:
    batch = build_batch([Record(value=b"a")])
    zstd = build_batch([Record(value=b"b")], base_offset=1, compression=Compression.ZSTD)
    assert down_convert(batch + zstd, 1, 0) == down_convert(batch, 1, 0)
    with pytest.raises(KafkaError) as caught:
        down_convert(zstd + batch, 1, 0)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@given(records=old_records, codec=codecs, magic=magics, first_offset=st.integers(0, 1 << 40))
def test_stored_messages_keep_their_offsets(records: list[Record], codec: Compression, magic: int, first_offset: int) -> None:
    batch = build_batch(records, base_offset=first_offset, compression=codec)
    found = stored_records(down_convert(batch, magic, 0))
    assert [record.offset for record in found] == list(range(first_offset, first_offset + len(records)))
    assert [(record.key, record.value) for record in found] == [(record.key, record.value) for record in records]


def test_stored_wrapper_of_format_1_counts_from_its_last_message() -> None:
    # After compaction the inner offsets have gaps, and the wrapper still has the offset of the last one (KIP-31).
    inner = message(1, b"a", timestamp=1, offset=2) + message(1, b"b", timestamp=2, offset=5)
    found = stored_records(wrapper(1, Compression.GZIP, inner, timestamp=2, offset=105))
    assert [(record.offset, record.value) for record in found] == [(102, b"a"), (105, b"b")]


def test_stored_wrapper_without_messages_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        stored_records(wrapper(1, Compression.GZIP, b""))
    assert caught.value.code == ErrorCode.INVALID_RECORD


def entries(data: bytes) -> list[tuple[int, int]]:
    return list(islice(entries_in(memoryview(data)), 5))


def test_entries_are_stepped_over_whatever_their_formats_are() -> None:
    batch = bytes(build_batch([Record(key=b"k", value=b"v")]))
    old = bytes(down_convert(memoryview(batch), 1, 0))
    assert entries(old + batch + old) == [(1, len(old)), (2, len(batch)), (1, len(old))]


@pytest.mark.parametrize("missing_bytes", [1, 11, 12, 13])
def test_entry_that_is_incomplete_is_refused(missing_bytes: int) -> None:
    batch = bytes(build_batch([Record(key=b"k", value=bytes(20))]))
    with pytest.raises(KafkaError) as caught:
        entries(batch + batch[:-missing_bytes])
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_no_entries_are_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        entries(b"")
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("length", "magic"), [(-12, 1), (0, 1), (13, 0), (48, 2), (100, 3)])
def test_entry_with_an_impossible_length_or_magic_number_is_corrupt(length: int, magic: int) -> None:
    with pytest.raises(KafkaError) as caught:
        entries(bytes(8) + struct.pack(">ii", length, 0) + bytes([magic]) + bytes(100))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
