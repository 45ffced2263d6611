import struct
import tracemalloc
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from wirekafka.config.broker import BrokerConfig
from wirekafka.config.log import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.validation import (
    CONTENT_LIMIT_BYTES,
    MOST_CONTENT_LIMIT_BYTES,
    MOST_RECORDS,
    ON_LOOP,
    Batch,
    HeavyBatchError,
    Origin,
    assign_offsets,
    content_limit,
    validate_batch,
    without_bounds,
)
from wirekafka.wire.batch import (
    BatchHeader,
    Record,
    TimestampType,
    build_batch,
    check_crc,
    iterate_records,
    seal_batch,
    varint,
)
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DEFAULTS = BrokerConfig.load(None, {})
PLAIN = LogConfig.of(DEFAULTS)
OLD_CODECS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]
every_codec = pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name.lower())


def config_of(**overrides: object) -> LogConfig:
    return LogConfig.of(DEFAULTS, {name.replace("_", "."): str(value) for name, value in overrides.items()})


COMPACTED = config_of(cleanup_policy="compact")


def records_of(count: int, size: int = 10) -> list[Record]:
    return [Record(key=b"key", value=bytes(size), timestamp=NOW_MS + number) for number in range(count)]


def append(batch: bytes | bytearray, config: LogConfig = PLAIN, origin: Origin = Origin.CLIENT, base_offset: int = 100) -> Batch:
    found = validate_batch(memoryview(bytearray(batch)), config=config, now_ms=NOW_MS, origin=origin, effort=without_bounds())
    assign_offsets(found, base_offset=base_offset, leader_epoch=3, now_ms=NOW_MS)
    return found


def refusal(batch: bytes | bytearray, config: LogConfig = PLAIN, origin: Origin = Origin.CLIENT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        append(batch, config, origin)
    assert caught.value.message
    return caught.value.code


def changed(batch: bytearray, layout: str, pos: int, value: int) -> bytearray:
    """Returns the batch with one changed field of its header and the matching CRC."""
    struct.pack_into(layout, batch, pos, value)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def stored(assigned: Batch) -> bytes:
    return bytes(assigned.data)


# Accepted batches


@every_codec
@given(count=st.integers(1, 200), base_offset=st.integers(0, 1 << 60))
def test_batch_gets_its_place_and_nothing_else_changes(codec: Compression, count: int, base_offset: int) -> None:
    batch = build_batch(records_of(count), compression=codec)
    assigned = append(batch, base_offset=base_offset)
    written = stored(assigned)
    assert written[21:] == batch[21:], "what the checksum covers is the producer's"
    header = BatchHeader(written)
    assert check_crc(written, 0, header)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, 3)
    for found in (header, assigned.header):
        assert (found.base_offset, found.last_offset) == (base_offset, base_offset + count - 1)
        assert found.max_timestamp == NOW_MS + count - 1
    assert len(written) == len(batch)


def test_offsets_are_written_into_the_buffer_of_the_connection() -> None:
    frame = bytearray(b"head" + build_batch(records_of(3)) + b"tail")
    records = memoryview(frame)[4:-4]
    assigned = validate_batch(records, config=PLAIN, now_ms=NOW_MS)
    assign_offsets(assigned, base_offset=7, leader_epoch=0, now_ms=NOW_MS)
    assert BatchHeader(frame, 4).base_offset == 7
    assert isinstance(assigned.data, memoryview)
    assert assigned.data.obj is frame


def test_coordinator_may_write_what_clients_must_not() -> None:
    control = build_batch([Record(key=b"\0\0\0\1", value=b"")], is_control=True, is_transactional=True, producer_id=1)
    assert append(control, COMPACTED, Origin.COORDINATOR).header.last_offset == 100


def test_idempotent_batch_keeps_its_producer() -> None:
    assigned = append(build_batch(records_of(2), producer_id=9, producer_epoch=1, base_sequence=4))
    header = assigned.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 1, 4, 5)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_message_set_of_an_old_client_is_stored_as_one_batch(magic: int, codec: Compression) -> None:
    records = records_of(5)
    old = down_convert(build_batch(records, compression=codec), magic, 0)
    written = stored(append(old))
    header = BatchHeader(written)
    assert (header.magic, header.record_count, header.compression, header.base_offset) == (2, 5, codec, 100)
    assert header.max_timestamp == (NOW_MS + 4 if magic == 1 else -1)
    assert [record.value for record in iterate_records(written)] == [record.value for record in records]


def test_message_set_of_kafka_python_is_stored() -> None:
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for record in records_of(3):
        builder.append(record.timestamp, record.key, record.value)
    builder.close()
    written = stored(append(builder.buffer()))
    assert [(record.offset, record.timestamp) for record in iterate_records(written)] == [
        (100 + number, NOW_MS + number) for number in range(3)
    ]


# Refused batches


@every_codec
def test_wrong_checksum_is_corrupt(codec: Compression) -> None:
    batch = build_batch(records_of(3), compression=codec)
    batch[-1] ^= 1
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


@every_codec
@pytest.mark.parametrize("count", [0, -1, 2, 4, MOST_RECORDS])
def test_wrong_count_is_refused(codec: Compression, count: int) -> None:
    batch = changed(build_batch(records_of(3), compression=codec), ">i", 57, count)
    assert refusal(batch) == ErrorCode.INVALID_RECORD
    assert refusal(changed(batch, ">i", 23, count - 1)) == ErrorCode.INVALID_RECORD, "with a last offset that belongs to it"


@every_codec
@pytest.mark.parametrize("config", [PLAIN, COMPACTED], ids=["plain", "compacted"])
def test_torn_records_are_refused(codec: Compression, config: LogConfig) -> None:
    whole = build_batch(records_of(3), compression=codec)
    torn = changed(whole[:-2], ">i", 8, len(whole) - 14)
    assert refusal(torn, config) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
@pytest.mark.parametrize("config", [PLAIN, COMPACTED], ids=["plain", "compacted"])
def test_broken_compressed_block_is_refused(codec: Compression, config: LogConfig) -> None:
    batch = build_batch(records_of(50, 100), compression=codec)
    batch[61:] = bytes(b ^ 0xA5 for b in batch[61:])
    assert refusal(changed(batch, ">h", 21, codec), config) == ErrorCode.INVALID_RECORD


def test_unknown_codec_is_unsupported() -> None:
    assert refusal(changed(build_batch(records_of(1)), ">h", 21, 5)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("size", [0, 1, 11, 16, 17, 60, 61, 70])
def test_batch_that_is_not_whole_is_refused(size: int) -> None:
    assert refusal(build_batch(records_of(3))[:size]) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-1, 0, 13, 48])
def test_length_that_no_batch_has_is_corrupt(length: int) -> None:
    batch = build_batch(records_of(3))
    struct.pack_into(">i", batch, 8, length)
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_length_behind_the_end_is_refused() -> None:
    batch = build_batch(records_of(3))
    struct.pack_into(">i", batch, 8, 0x7FFFFFFF)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_format_is_corrupt(magic: int) -> None:
    batch = build_batch(records_of(3))
    batch[16] = magic
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_second_batch_is_refused() -> None:
    batch = build_batch(records_of(1))
    assert refusal(batch + batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("tail", [b"\0", bytes(100), build_batch(records_of(1))[:-1]], ids=["a byte", "zeros", "a torn batch"])
def test_bytes_behind_a_batch_are_refused(tail: bytes) -> None:
    assert refusal(build_batch(records_of(1)) + tail) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_formats_in_one_message_set_must_not_differ() -> None:
    batch = build_batch(records_of(1))
    assert refusal(down_convert(batch, 0, 0) + down_convert(batch, 1, 0)) == ErrorCode.INVALID_RECORD
    assert refusal(down_convert(batch, 1, 0) + batch) == ErrorCode.INVALID_RECORD


def test_no_records_at_all_are_refused() -> None:
    assert refusal(b"") == ErrorCode.INVALID_RECORD
    assert refusal(build_batch([])) == ErrorCode.INVALID_RECORD


def test_base_offset_of_a_client_is_zero() -> None:
    assert refusal(build_batch(records_of(1), base_offset=1)) == ErrorCode.INVALID_RECORD


def test_control_batch_of_a_client_is_refused() -> None:
    assert refusal(build_batch(records_of(1), is_control=True)) == ErrorCode.INVALID_RECORD


def test_producer_without_a_sequence_is_refused() -> None:
    assert refusal(build_batch(records_of(1), producer_id=1, producer_epoch=0)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batch_above_max_message_bytes_is_too_large(magic: int) -> None:
    batch: bytes | bytearray = build_batch(records_of(1, 1_000))
    if magic < 2:
        batch = down_convert(batch, magic, 0)
    assert refusal(batch, config_of(max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    append(batch, config_of(max_message_bytes=len(batch) + 100))


def test_message_set_that_is_too_large_as_one_batch_is_refused() -> None:
    old = down_convert(build_batch(records_of(10, 100)), 1, 0)
    assert refusal(old, config_of(max_message_bytes=500)) == ErrorCode.MESSAGE_TOO_LARGE


# Keys and timestamps


@pytest.mark.parametrize(("codec", "magic"), [*((codec, 2) for codec in Compression), *((codec, 1) for codec in OLD_CODECS)])
def test_record_without_a_key_is_refused_by_a_compacted_topic(codec: Compression, magic: int) -> None:
    convert: Callable[[bytearray], bytes | bytearray] = lambda batch: batch if magic == 2 else down_convert(batch, magic, 0)  # noqa: E731
    keyed = build_batch(records_of(3), compression=codec)
    keyless = build_batch([*records_of(2), Record(value=b"v", timestamp=NOW_MS)], compression=codec)
    assert append(convert(keyed), COMPACTED).header.last_offset == 102
    assert refusal(convert(keyless), COMPACTED) == ErrorCode.INVALID_RECORD
    assert append(convert(keyless)).header.last_offset == 102


def test_error_names_the_records_without_a_key() -> None:
    keyless = Record(value=b"v", timestamp=NOW_MS)
    with pytest.raises(KafkaError, match="has no key") as caught:
        append(build_batch([*records_of(2), keyless, *records_of(1), keyless]), COMPACTED)
    assert caught.value.record_indexes == [2, 4]


def test_timestamp_too_far_ahead_is_refused() -> None:
    ahead = [Record(value=b"v", timestamp=NOW_MS + HOUR_MS + 1)]
    assert refusal(build_batch(ahead)) == ErrorCode.INVALID_TIMESTAMP
    assert append(build_batch([Record(value=b"v", timestamp=NOW_MS + HOUR_MS)])).header.max_timestamp == NOW_MS + HOUR_MS
    assert append(build_batch(ahead), config_of(message_timestamp_after_max_ms=HOUR_MS + 1)).header.last_offset == 100


@every_codec
def test_timestamp_too_old_is_refused_wherever_in_the_batch(codec: Compression) -> None:
    config = config_of(message_timestamp_before_max_ms=HOUR_MS)
    old = Record(value=b"v", timestamp=NOW_MS - HOUR_MS - 1)
    for records in ([old], [*records_of(2), old], [old, *records_of(2)]):
        assert refusal(build_batch(records, compression=codec), config) == ErrorCode.INVALID_TIMESTAMP
        assert append(build_batch(records, compression=codec)).header.base_offset == 100
    just = [Record(value=b"v", timestamp=NOW_MS - HOUR_MS)]
    assert append(build_batch(just, compression=codec), config).header.base_offset == 100


@every_codec
def test_error_names_the_records_with_timestamps_out_of_bounds(codec: Compression) -> None:
    config = config_of(message_timestamp_before_max_ms=HOUR_MS)
    old, ahead = (Record(value=b"v", timestamp=NOW_MS + sign * (HOUR_MS + 1)) for sign in (-1, 1))
    timeless = Record(value=b"v")
    with pytest.raises(KafkaError, match="not within") as caught:
        append(build_batch([*records_of(1), old, timeless, ahead], compression=codec), config)
    assert caught.value.record_indexes == [1, 3]


def test_records_without_a_timestamp_keep_within_any_bound() -> None:
    config = config_of(message_timestamp_before_max_ms=0, message_timestamp_after_max_ms=0)
    assigned = append(build_batch([Record(value=b"v")]), config)
    assert assigned.header.max_timestamp == -1


@every_codec
def test_log_append_time_replaces_the_producers(codec: Compression) -> None:
    config = config_of(message_timestamp_type="LogAppendTime")
    batch = build_batch([Record(value=b"v", timestamp=5), Record(value=b"w", timestamp=1 << 60)], compression=codec)
    assigned = append(batch, config)
    written = stored(assigned)
    header = BatchHeader(written)
    assert check_crc(written, 0, header)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert [record.timestamp for record in iterate_records(written)] == [NOW_MS, NOW_MS]
    assert (assigned.header.max_timestamp, assigned.header.last_offset) == (NOW_MS, 101)


def test_producer_must_not_claim_the_brokers_time() -> None:
    flagged = build_batch(records_of(1), timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert refusal(flagged, config_of(message_timestamp_type="LogAppendTime")) == ErrorCode.INVALID_TIMESTAMP
    nothing = build_batch([Record(value=b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert refusal(nothing) == ErrorCode.INVALID_TIMESTAMP


def test_claim_of_the_brokers_time_is_taken_away_where_the_producers_counts() -> None:
    """As in Kafka, which accepts such a batch if it has a timestamp."""
    written = stored(append(build_batch(records_of(2), timestamp_type=TimestampType.LOG_APPEND_TIME)))
    header = BatchHeader(written)
    assert check_crc(written, 0, header)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.CREATE_TIME, NOW_MS + 1)


# Compression


@pytest.mark.parametrize("source", Compression, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("name", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batch_is_stored_in_the_codec_that_the_topic_asks_for(source: Compression, name: str) -> None:
    records = records_of(20, 50)
    batch = build_batch(records, compression=source, producer_id=5, producer_epoch=0, base_sequence=3)
    assigned = append(batch, config_of(compression_type=name))
    written = stored(assigned)
    header = BatchHeader(written)
    targets = {"producer": source, "uncompressed": Compression.NONE}
    target = targets[name] if name in targets else Compression[name.upper()]
    assert check_crc(written, 0, header)
    assert (header.compression, header.base_offset, header.producer_id, header.base_sequence) == (target, 100, 5, 3)
    assert len(assigned.data) == len(written) == header.size_bytes
    assert [record.value for record in iterate_records(written)] == [record.value for record in records]
    if target == source:
        assert written[21:] == batch[21:]


def test_level_of_the_codec_is_the_topics() -> None:
    records = [Record(value=str(number * number).encode(), timestamp=NOW_MS) for number in range(5_000)]
    configs = [config_of(compression_type="gzip", compression_gzip_level=level) for level in (1, 9)]
    sizes = [append(build_batch(records), config).header.size_bytes for config in configs]
    assert sizes[0] > sizes[1]


def test_batch_that_is_too_large_in_the_topics_codec_is_refused() -> None:
    batch = build_batch(records_of(1, 10_000), compression=Compression.GZIP)
    assert refusal(batch, config_of(compression_type="uncompressed", max_message_bytes=1_000)) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("config", [PLAIN, COMPACTED], ids=["plain", "compacted"])
def test_decompression_bomb_is_refused_within_bounded_memory(codec: Compression, config: LogConfig) -> None:
    bomb = build_batch([Record(key=b"k", value=bytes(CONTENT_LIMIT_BYTES + 1_000), timestamp=NOW_MS)], compression=codec)
    assert len(bomb) < PLAIN.max_message_bytes
    tracemalloc.start()
    try:
        assert refusal(bomb, config) == ErrorCode.MESSAGE_TOO_LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_bomb_in_an_old_format_is_refused_within_bounded_memory() -> None:
    content = CONTENT_LIMIT_BYTES // 4 + 1_000
    old = down_convert(build_batch([Record(value=bytes(content), timestamp=NOW_MS)], compression=Compression.GZIP), 1, 0)
    tracemalloc.start()
    try:
        assert refusal(old) == ErrorCode.MESSAGE_TOO_LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * content


def test_large_content_within_the_limit_takes_the_memory_of_a_chunk() -> None:
    batch = build_batch([Record(value=bytes(CONTENT_LIMIT_BYTES - 100), timestamp=NOW_MS)], compression=Compression.ZSTD)
    tracemalloc.start()
    try:
        assert append(batch).header.last_offset == 100
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    assert refusal(garbage) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


@given(st.data())
def test_any_spoiled_byte_is_refused_or_is_outside_of_the_checksum(data: st.DataObject) -> None:
    batch = build_batch(records_of(5), compression=data.draw(st.sampled_from(list(Compression))))
    pos = data.draw(st.integers(0, len(batch) - 1))
    batch[pos] ^= 1 << data.draw(st.integers(0, 7))
    if 12 <= pos < 16:
        assert append(batch).header.partition_leader_epoch == 3, "the leader epoch is the broker's anyway"
    else:
        assert refusal(batch) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def latest_of(batch: Batch) -> int:
    assert check_crc(batch.data, 0, BatchHeader(batch.data))
    return BatchHeader(batch.data).max_timestamp


@every_codec
@pytest.mark.parametrize("claimed", [-1, 0, NOW_MS - 1, NOW_MS + 50, (1 << 63) - 1])
def test_wrong_greatest_timestamp_in_the_header_is_corrected(codec: Compression, claimed: int) -> None:
    batch = changed(build_batch(records_of(10), compression=codec), ">q", 35, claimed)
    assert latest_of(append(batch)) == NOW_MS + 9


@every_codec
def test_right_greatest_timestamp_is_left_as_it_is(codec: Compression) -> None:
    batch = build_batch(records_of(10), compression=codec)
    assert stored(append(batch))[16:] == bytes(batch)[16:]


def test_single_record_with_a_wrong_greatest_timestamp_in_the_header_is_corrected() -> None:
    assert latest_of(append(changed(build_batch(records_of(1)), ">q", 35, -1))) == NOW_MS


@every_codec
@pytest.mark.parametrize("claimed", [-1, NOW_MS])
def test_future_timestamp_is_refused_whatever_the_header_says(codec: Compression, claimed: int) -> None:
    records = [Record(key=b"k", timestamp=NOW_MS), Record(key=b"k", timestamp=NOW_MS + 2 * HOUR_MS)]
    batch = changed(build_batch(records, compression=codec), ">q", 35, claimed)
    assert refusal(batch, config_of(message_timestamp_after_max_ms=HOUR_MS)) == ErrorCode.INVALID_TIMESTAMP


@every_codec
@pytest.mark.parametrize(("base", "deltas"), [((1 << 63) - 5, [0, 10]), (-(1 << 63) + 5, [0, -10]), (0, [1 << 63])])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamp_that_does_not_fit_into_64_bits_is_refused(codec: Compression, base: int, deltas: list[int], kind: str) -> None:
    body = b"".join(
        varint(7 + len(wide(delta))) + b"\0" + wide(delta) + varint(number) + b"\2k\1\0\0" for number, delta in enumerate(deltas)
    )
    batch = seal_batch(body, record_count=len(deltas), base_timestamp=base, max_timestamp=base, compression=codec)
    assert refusal(batch, config_of(message_timestamp_type=kind)) == ErrorCode.INVALID_TIMESTAMP


def wide(value: int) -> bytes:
    """Encodes a zigzag varint, also of more than 64 bits."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@every_codec
@pytest.mark.parametrize("offsets", [[0, 0, 0], [0, 2, 1], [2, 1, 0], [5, 6, 7], [-1, 0, 1], [0, 1, 70_000]])
@pytest.mark.parametrize("size", [3, 30, 3_000])
def test_wrong_offset_deltas_are_corrected(codec: Compression, offsets: list[int], size: int) -> None:
    records = [Record(key=b"k", value=bytes(size), timestamp=NOW_MS, offset=offset) for offset in offsets]
    batch = build_batch(
        records, keeps_offsets=True, last_offset=2, compression=codec, producer_id=7, producer_epoch=1, base_sequence=4
    )
    found = append(batch)
    header = BatchHeader(found.data)
    assert check_crc(found.data, 0, header)
    assert (header.compression, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 7, 1, 4)
    assert [record.offset for record in iterate_records(found.data)] == [100, 101, 102]
    assert [record.value for record in iterate_records(found.data)] == [bytes(size)] * 3


def test_client_that_sets_a_delete_horizon_is_refused() -> None:
    batch = build_batch(records_of(2), delete_horizon_ms=NOW_MS)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


def test_batch_of_too_many_records_is_refused() -> None:
    batch = changed(build_batch(records_of(3), compression=Compression.ZSTD), ">i", 57, MOST_RECORDS + 1)
    assert refusal(changed(batch, ">i", 23, MOST_RECORDS)) == ErrorCode.MESSAGE_TOO_LARGE


def test_max_message_bytes_lifts_the_content_limit_to_a_bound() -> None:
    assert content_limit(PLAIN) == CONTENT_LIMIT_BYTES
    assert content_limit(config_of(max_message_bytes=100 << 20)) == 100 << 20
    assert content_limit(config_of(max_message_bytes=0x7FFFFFFF)) == MOST_CONTENT_LIMIT_BYTES


def heavy(batch: bytes | bytearray, config: LogConfig = PLAIN) -> None:
    """Checks that the loop refuses the batch as too large and leaves it unchanged, and that a thread accepts it."""
    records = bytearray(batch)
    with pytest.raises(HeavyBatchError):
        validate_batch(memoryview(records), config=config, now_ms=NOW_MS)
    assert records == batch
    append(batch, config)


def test_batch_of_many_records_is_too_much_for_the_loop() -> None:
    at_most = build_batch(records_of(ON_LOOP.record_count, 1))
    assert validate_batch(memoryview(at_most), config=PLAIN, now_ms=NOW_MS)
    heavy(build_batch(records_of(ON_LOOP.record_count + 1, 1)))


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_compressed_batch_of_much_content_is_too_much_for_the_loop(codec: Compression) -> None:
    heavy(build_batch(records_of(2, ON_LOOP.content_bytes), compression=codec))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_large_message_set_is_too_much_for_the_loop(codec: Compression, magic: int) -> None:
    heavy(down_convert(build_batch(records_of(1_000, 20), compression=codec), magic, 0))


def test_recoding_of_much_or_at_a_high_level_is_too_much_for_the_loop() -> None:
    heavy(build_batch(records_of(1, ON_LOOP.recoded_bytes)), config_of(compression_type="gzip"))
    heavy(build_batch(records_of(1)), config_of(compression_type="zstd", compression_zstd_level=22))
    small = build_batch(records_of(1))
    assert validate_batch(memoryview(small), config=config_of(compression_type="zstd"), now_ms=NOW_MS)
