import struct
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    TimestampType,
    build_batch,
    build_keyed_batch,
    check_crc,
    encode_record,
    iterate_records,
    read_batch_header,
    read_varint,
    varint,
    whole_batches,
    with_records,
    write_offsets,
    write_timestamp,
)
from wirekafka.wire.compression import Compression, decompress

optional_bytes = st.none() | st.binary(max_size=300)
timestamps = st.integers(-1, 1 << 62)
records_of_any_kind = st.lists(
    st.builds(
        Record,
        key=optional_bytes,
        value=optional_bytes,
        headers=st.lists(st.tuples(st.text(max_size=20).map(str.encode), optional_bytes), max_size=3).map(tuple),
        timestamp=timestamps,
    ),
    min_size=1,
    max_size=80,
)
codecs = st.sampled_from(list(Compression))


def theirs(batch: bytes | bytearray) -> tuple[Any, list[Record]]:
    """Decodes the batch with kafka-python."""
    read = MemoryRecords(bytes(batch)).next_batch()
    assert read.validate_crc()
    records = []
    for record in read:
        headers = tuple((name.encode(), value) for name, value in record.headers)
        records.append(Record(record.key, record.value, headers, record.timestamp, record.offset))
    return read, records


def with_offsets(records: list[Record], base_offset: int) -> list[Record]:
    return [
        Record(record.key, record.value, record.headers, record.timestamp, base_offset + number)
        for number, record in enumerate(records)
    ]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varint_survives(value: int) -> None:
    assert read_varint(varint(value) + b"rest", 0) == (value, len(varint(value)))


@pytest.mark.parametrize(("value", "coded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101")])
def test_varint_is_protobufs(value: int, coded: str) -> None:
    assert varint(value).hex() == coded


def test_varint_of_ten_bytes_is_read_and_of_eleven_is_refused() -> None:
    assert read_varint(b"\x80" * 9 + b"\x00", 0) == (0, 10)
    with pytest.raises(KafkaError) as caught:
        read_varint(b"\x80" * 10 + b"\x00", 0)
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_record_whose_timestamp_passes_64_bits_is_read_as_java_reads_it() -> None:
    batch = build_batch([Record(timestamp=(1 << 63) - 5), Record(timestamp=-(1 << 63) + 5)])
    assert [record.timestamp for record in iterate_records(batch)] == [(1 << 63) - 5, -(1 << 63) + 5]


def test_records_before_an_offset_are_passed_over() -> None:
    batch = build_batch([Record(value=b"%d" % number) for number in range(100)], base_offset=1_000)
    found = list(iterate_records(batch, from_offset=1_090))
    assert [record.offset for record in found] == list(range(1_090, 1_100))
    assert list(iterate_records(batch, from_offset=900)) == list(iterate_records(batch))


def test_varint_without_an_end_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        read_varint(b"\xff" * 20, 0)
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_varint_of_ten_bytes_is_the_longest_that_is_read() -> None:
    assert read_varint(b"\x80" * 9 + b"\x01", 0) == (1 << 62, 10)
    with pytest.raises(KafkaError):
        read_varint(b"\x80" * 10 + b"\x01", 0)


@given(records=records_of_any_kind, codec=codecs, base_offset=st.integers(0, 1 << 60))
def test_built_batch_gives_its_records_back(records: list[Record], codec: Compression, base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    assert list(iterate_records(memoryview(batch))) == with_offsets(records, base_offset)


@given(records=records_of_any_kind, codec=codecs)
def test_built_batch_is_read_by_kafka_python(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, base_offset=5, compression=codec, producer_id=7, producer_epoch=1, base_sequence=9)
    read, found = theirs(batch)
    assert found == with_offsets(records, 5)
    assert (read.producer_id, read.producer_epoch, read.base_sequence, read.records_count) == (7, 1, 9, len(records))
    assert read.max_timestamp == max(record.timestamp for record in records)


@given(records=records_of_any_kind, codec=codecs)
def test_batch_of_kafka_python_is_read(records: list[Record], codec: Compression) -> None:
    for record in records:
        record.timestamp = max(0, record.timestamp)  # kafka-python writes the present time if there is none
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 22)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, [(name.decode(), value) for name, value in record.headers])
    builder.close()
    batch = builder.buffer()
    assert check_crc(batch, 0, BatchHeader(batch))
    assert list(iterate_records(batch)) == with_offsets(records, 0)


def test_header_says_what_was_built() -> None:
    batch = build_batch(
        [Record(value=b"a", timestamp=10), Record(value=b"b", timestamp=30), Record(value=b"c", timestamp=20)],
        base_offset=100,
        compression=Compression.GZIP,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        producer_id=7,
        producer_epoch=2,
        base_sequence=0x7FFFFFFF,
        leader_epoch=4,
        is_transactional=True,
        is_control=True,
    )
    header = read_batch_header(b"before" + batch, 6)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.size_bytes, header.record_count, header.magic) == (len(batch), 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (10, 30)
    assert (header.compression, header.timestamp_type) == (Compression.GZIP, TimestampType.LOG_APPEND_TIME)
    assert (header.producer_id, header.producer_epoch, header.partition_leader_epoch) == (7, 2, 4)
    assert header.last_sequence == 1, "sequence numbers go round"
    assert header.is_transactional
    assert header.is_control
    assert header.has_producer_id
    assert header.delete_horizon_ms is None


def test_header_of_a_plain_batch_says_so() -> None:
    header = BatchHeader(build_batch([Record(value=b"a")]))
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_producer_id
    assert header.last_sequence == -1
    assert header.max_timestamp == -1


def test_header_shorter_than_a_header_is_an_error() -> None:
    with pytest.raises(struct.error):
        read_batch_header(bytes(HEADER_SIZE - 1))


def test_log_append_time_is_every_records_time() -> None:
    batch = build_batch([Record(timestamp=5), Record(timestamp=9)], timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [record.timestamp for record in iterate_records(batch)] == [9, 9]


def test_checksum_covers_everything_behind_it() -> None:
    batch = build_batch([Record(key=b"k", value=b"v")])
    header = BatchHeader(batch)
    assert check_crc(b"xx" + batch, 2, header)
    for pos in range(21, len(batch)):
        spoiled = bytearray(batch)
        spoiled[pos] ^= 0x10
        assert not check_crc(spoiled, 0, header)


def test_offsets_are_written_without_a_new_checksum() -> None:
    batch = build_batch([Record(value=b"a"), Record(value=b"b")])
    header = BatchHeader(batch)
    write_offsets(memoryview(batch), 0, header, 1_000, 3)
    written = BatchHeader(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 3)
    assert (written.base_offset, written.partition_leader_epoch) == (1_000, 3)
    assert check_crc(batch, 0, written)
    assert [record.offset for record in iterate_records(batch)] == [1_000, 1_001]


def test_timestamp_is_written_with_a_new_checksum() -> None:
    batch = build_batch([Record(value=b"a", timestamp=1)], compression=Compression.LZ4)
    header = BatchHeader(batch)
    write_timestamp(memoryview(batch), 0, header, TimestampType.LOG_APPEND_TIME, 99)
    written = BatchHeader(batch)
    assert check_crc(batch, 0, written)
    assert written.crc == header.crc
    assert (written.timestamp_type, written.max_timestamp, written.compression) == (1, 99, Compression.LZ4)
    write_timestamp(batch, 0, written, TimestampType.CREATE_TIME, 1)
    assert batch == build_batch([Record(value=b"a", timestamp=1)], compression=Compression.LZ4)


def test_compacted_batch_keeps_the_offsets_that_are_left() -> None:
    left = [Record(key=b"a", offset=12, timestamp=1), Record(key=b"b", offset=15, timestamp=2)]
    batch = build_batch(left, base_offset=10, keeps_offsets=True, last_offset=19, delete_horizon_ms=50)
    header = BatchHeader(batch)
    assert list(iterate_records(batch)) == left
    assert (header.base_offset, header.last_offset, header.record_count, header.delete_horizon_ms) == (10, 19, 2, 50)
    assert theirs(batch)[1] == left


def test_batch_that_compaction_emptied_has_no_records() -> None:
    batch = build_batch([], base_offset=10, last_offset=14, producer_id=3, producer_epoch=0, base_sequence=7)
    header = BatchHeader(batch)
    assert list(iterate_records(batch)) == []
    assert (header.last_offset, header.record_count, header.last_sequence, header.max_timestamp) == (14, 0, 11, -1)


@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("target", Compression)
def test_batch_with_its_records_in_another_codec_holds_the_same(source: Compression, target: Compression) -> None:
    records = [Record(key=b"k", value=b"value" * 50, timestamp=number) for number in range(20)]
    batch = build_batch(records, compression=source, producer_id=5, producer_epoch=0, base_sequence=0)
    body = decompress(source, batch[HEADER_SIZE:], limit_bytes=1 << 20)
    changed = with_records(memoryview(batch), body, target, None)
    header = BatchHeader(changed)
    assert check_crc(changed, 0, header)
    assert (header.compression, header.producer_id, header.record_count) == (target, 5, 20)
    assert list(iterate_records(changed)) == list(iterate_records(batch))


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 20])
def test_records_that_are_not_as_many_as_the_header_says_are_refused(count: int) -> None:
    batch = build_batch([Record(value=b"a"), Record(value=b"b")])
    struct.pack_into(">i", batch, HEADER_SIZE - 4, count)
    with pytest.raises(KafkaError) as caught:
        list(iterate_records(batch))
    assert caught.value.code == ErrorCode.INVALID_RECORD


@given(st.binary(max_size=60), st.integers(0, 4))
def test_garbage_for_records_is_refused(body: bytes, count: int) -> None:
    batch = build_batch([])[:-4] + struct.pack(">i", count) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    try:
        records = list(iterate_records(batch))
    except KafkaError as error:
        assert error.code == ErrorCode.INVALID_RECORD  # noqa: PT017
    else:
        assert len(records) == count


@pytest.mark.parametrize(
    "body",
    [
        "0000000101ff7f",  # more headers than bytes
        "000000010103",  # a negative count of headers
        "0000007e00",  # a key of 63 bytes, with one byte left
        "00000001010201",  # a header whose name is null
        "000000010100" + "00",  # one byte after the headers
    ],
)
def test_record_that_is_broken_inside_is_refused(body: str) -> None:
    batch = build_batch([Record()])[:HEADER_SIZE] + varint(len(bytes.fromhex(body))) + bytes.fromhex(body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(KafkaError) as caught:
        list(iterate_records(batch))
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_encoded_record_is_the_documented_bytes() -> None:
    record = Record(key=b"k", value=None, headers=((b"h", b"v"),))
    assert encode_record(record, 1, 2).hex(" ") == "16 00 02 04 02 6b 01 02 02 68 02 76"


@given(
    st.lists(st.tuples(st.binary(max_size=3000), st.none() | st.binary(max_size=3000)), min_size=1, max_size=70),
    st.sampled_from([Compression.NONE, Compression.LZ4]),
    st.booleans(),
    st.booleans(),
)
def test_keyed_batch_is_what_the_general_builder_makes(
    pairs: list[tuple[bytes, bytes | None]], compression: Compression, is_transactional: bool, is_control: bool
) -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0} if is_transactional else {}
    keyed = build_keyed_batch(pairs, timestamp=1_700_000_000_000, compression=compression, is_control=is_control, **producer)
    records = [Record(key, value, (), 1_700_000_000_000) for key, value in pairs]
    general = build_batch(records, compression=compression, is_transactional=is_transactional, is_control=is_control, **producer)
    assert keyed == general


@pytest.mark.parametrize("length", [-12, 0, 48, 1 << 30])
def test_whole_batches_end_before_a_length_that_no_whole_batch_has(length: int) -> None:
    first, second = (build_batch([Record(key=b"k", value=value)]) for value in (b"a", b"b"))
    struct.pack_into(">i", second, 8, length)
    assert [bytes(batch) for _, batch in islice(whole_batches(bytes(first + second)), 3)] == [first]
