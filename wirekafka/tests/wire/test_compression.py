import gzip
import io
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.compression import (
    CHUNK_BYTES,
    XERIAL_HEADER,
    Compression,
    compress,
    compression_of,
    decompress,
    decompress_stream,
    with_old_lz4_checksum,
    with_right_lz4_checksum,
    xxh32,
)

CODECS = [codec for codec in Compression if codec]
TEXT = b"the quick brown fox jumps over the lazy dog " * 3_000
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())

READERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.GZIP: gzip.decompress,
    Compression.SNAPPY: kafka_python.snappy_decode,
    Compression.LZ4: kafka_python.lz4_decode,
    Compression.ZSTD: lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(),
}
WRITERS: dict[Compression, list[Callable[[bytes], bytes]]] = {
    Compression.GZIP: [gzip.compress, kafka_python.gzip_encode],
    Compression.SNAPPY: [snappy.compress, kafka_python.snappy_encode],
    Compression.LZ4: [lz4.frame.compress, kafka_python.lz4_encode, lambda data: lz4.frame.compress(data, content_checksum=True)],
    Compression.ZSTD: [zstandard.compress, lambda data: zstandard.compress(data[:7]) + zstandard.compress(data[7:])],
}


def refusal(codec: Compression, data: bytes, limit_bytes: int = 1 << 30) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, limit_bytes=limit_bytes)
    return caught.value.code


@given(data=st.binary(max_size=200_000) | st.integers(0, 1_000_000).map(bytes), codec=st.sampled_from(list(Compression)))
def test_content_survives_any_codec(data: bytes, codec: Compression) -> None:
    packed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(bytearray(packed)), limit_bytes=len(data)) == data


@every_codec
def test_compressed_content_is_read_by_other_libraries(codec: Compression) -> None:
    assert READERS[codec](compress(codec, TEXT)) == TEXT


@every_codec
def test_content_of_other_libraries_is_read(codec: Compression) -> None:
    for write in WRITERS[codec]:
        assert decompress(codec, write(TEXT), limit_bytes=len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_higher_level_compresses_more(codec: Compression) -> None:
    data = b"".join(struct.pack(">I", number * number) for number in range(50_000))
    assert len(compress(codec, data, 9)) < len(compress(codec, data, 1))


@every_codec
def test_stream_comes_in_bounded_chunks(codec: Compression) -> None:
    chunks = list(decompress_stream(codec, compress(codec, bytes(3_000_000))))
    assert max(map(len, chunks)) <= CHUNK_BYTES
    assert sum(map(len, chunks)) == 3_000_000


@every_codec
def test_stream_that_ends_early_is_refused(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    cuts = range(1, len(packed), 97) if codec != Compression.SNAPPY else (9, 17, 19, len(packed) - 1)
    for cut in (*cuts, len(packed) - 1):
        assert refusal(codec, packed[:cut]) == ErrorCode.INVALID_RECORD


@every_codec
def test_stream_that_is_something_else_is_refused(codec: Compression) -> None:
    assert refusal(codec, b"\xff" * 100) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_bytes_behind_the_stream_are_refused(codec: Compression) -> None:
    assert refusal(codec, compress(codec, TEXT) + b"more") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_empty_bytes_are_no_stream(codec: Compression) -> None:
    assert refusal(codec, b"") == ErrorCode.INVALID_RECORD


def test_gzip_with_a_wrong_checksum_is_refused() -> None:
    packed = bytearray(compress(Compression.GZIP, TEXT))
    packed[-8] ^= 1
    assert refusal(Compression.GZIP, bytes(packed)) == ErrorCode.INVALID_RECORD


def test_xerial_header_is_what_java_writes() -> None:
    assert compress(Compression.SNAPPY, b"")[:16] == bytes.fromhex("82534e41505059000000000100000001") == XERIAL_HEADER


@pytest.mark.parametrize("size", [-1, 1 << 30])
def test_xerial_block_of_impossible_size_is_refused(size: int) -> None:
    assert refusal(Compression.SNAPPY, XERIAL_HEADER + struct.pack(">i", size) + b"abc") == ErrorCode.INVALID_RECORD


def test_snappy_block_that_announces_more_than_it_can_hold_takes_no_memory() -> None:
    announces_4_gib = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    tracemalloc.start()
    assert refusal(Compression.SNAPPY, announces_4_gib) == ErrorCode.INVALID_RECORD
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@every_codec
def test_decompression_bomb_is_refused_within_bounded_memory(codec: Compression) -> None:
    if codec == Compression.SNAPPY:
        bomb = compress(codec, bytes(64 << 20))
    elif codec == Compression.GZIP:
        engine = zlib.compressobj(9, zlib.DEFLATED, 31)
        bomb = b"".join([*(engine.compress(bytes(1 << 20)) for _ in range(64)), engine.flush()])
    else:
        bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    assert refusal(codec, bomb, limit_bytes=1 << 20) == ErrorCode.MESSAGE_TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) + (4 << 20)


def test_zstd_window_above_kafkas_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    engine = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert refusal(Compression.ZSTD, engine.compress(bytes(1000)) + engine.flush()) == ErrorCode.INVALID_RECORD


def test_zstd_decompressor_is_not_shared_by_two_streams() -> None:
    first = decompress_stream(Compression.ZSTD, compress(Compression.ZSTD, b"a" * 1_000_000))
    second = decompress_stream(Compression.ZSTD, compress(Compression.ZSTD, b"b" * 1_000_000))
    assert [bytes({*one, *two}) for one, two in zip(first, second, strict=True)][0] in (b"ab", b"ba")


def test_unknown_codec_is_unsupported() -> None:
    with pytest.raises(KafkaError) as caught:
        compression_of(5)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("data", "digest"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcdefghijklmno", 0xB918A375)],
)
def test_xxh32_is_the_published_hash(data: bytes, digest: int) -> None:
    assert xxh32(data) == digest


def test_lz4_header_checksum_is_the_librarys() -> None:
    frame = lz4.frame.compress(TEXT, store_size=True)
    spoiled = bytearray(frame)
    spoiled[14] ^= 0xFF
    assert with_right_lz4_checksum(bytes(spoiled)) == frame


def test_old_lz4_checksum_is_what_clients_of_format_0_computed() -> None:
    ours = with_old_lz4_checksum(compress(Compression.LZ4, TEXT))
    assert ours[:7].hex() == "04224d1860401a"  # as kafka-python's lz4_encode_old_kafka writes it, with xxhash installed
    assert refusal(Compression.LZ4, ours) == ErrorCode.INVALID_RECORD
    assert decompress(Compression.LZ4, with_right_lz4_checksum(ours), limit_bytes=len(TEXT)) == TEXT


@pytest.mark.parametrize("data", [b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x68\x40\0\0", b"no lz4 at all"])
def test_lz4_checksum_without_a_header_is_refused(data: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        with_right_lz4_checksum(data)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("level", [None, 1, 22])
def test_zstd_of_much_content_needs_no_larger_window_than_of_8_mib(level: int | None) -> None:
    content = bytes(range(256)) * (9 << 12)
    packed = compress(Compression.ZSTD, content, level)
    assert zstandard.get_frame_parameters(packed).window_size <= 8 << 20
    assert decompress(Compression.ZSTD, packed, limit_bytes=len(content)) == content


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4])
def test_stream_is_fed_to_its_codec_in_pieces_that_add_up_to_it(codec: Compression) -> None:
    content = random.Random(1).randbytes(3 << 20)
    packed = compress(codec, content)
    assert len(packed) > 3 << 20
    assert b"".join(bytes(chunk) for chunk in decompress_stream(codec, packed)) == content
    for wrong in (packed[:-1], packed[: len(packed) // 2], packed + b"\0"):
        with pytest.raises(KafkaError) as caught:
            list(decompress_stream(codec, wrong))
        assert caught.value.code == ErrorCode.INVALID_RECORD
