"""Compression and decompression of the records of a batch, in the five codecs of Kafka.

How it works: compressed bytes come from any client, so decompression yields chunks of bounded size. A caller that needs
the content in one piece gives a limit. A size that a frame announces is checked before memory is allocated: the block length
of snappy against the greatest ratio of snappy, the window of zstd against Kafka's limit. Each codec's library is imported on its
first use, so a broker that receives no snappy does not load snappy.

Rules of this file: an invalid stream is `INVALID_RECORD`, not `CORRUPT_MESSAGE`. A client sends the same bytes again after
`CORRUPT_MESSAGE`; that cannot help, because the checksum was right.

Source: org.apache.kafka.common.compress (GzipCompression, SnappyCompression, Lz4BlockInputStream, ZstdCompression); the
snappy framing is xerial's, org.xerial.snappy.SnappyInputStream; zstd is KIP-110.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache
from typing import Any, NoReturn

from wirekafka.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES = 256 * 1024
"""The most bytes that one step of a decompression yields. Only raw snappy, which has no blocks, comes in one piece."""

INPUT_BYTES = 128 * 1024
"""The input of one step of gzip and lz4. Both copy unread input at each step; steps over a whole batch take quadratic time.

Each step costs an allocation of `CHUNK_BYTES`: 1 MB of lz4 takes 20 % more time with steps of 16 KiB."""

MOST_CONTENT_BYTES = 1 << 30
"""The default limit for uncompressed records; a log that another broker wrote may hold batches of any size."""

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
SNAPPY_MOST_RATIO = 22
"""A snappy element of three bytes stands for 64 at most."""

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_HAS_CONTENT_SIZE = 0x08

ZSTD_MOST_HEADER_BYTES = 18
ZSTD_MOST_COMPRESSOR_BYTES = 1 << 23
"""A compressor is made for content of this size at most; for 64 MiB at level 22 it would take 745 MB of memory."""
ZSTD_MOST_WINDOW_BYTES = 1 << 27
"""The greatest window that zstd-jni, and so Kafka, accepts."""


class Compression(IntEnum):
    """Kafka's codecs by their number in a batch's attributes; `compression.type` uses the name in lower case."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compression_of(number: int) -> Compression:
    """Returns the codec of a number in a batch's attributes.

    Raises:
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE, there is no such codec.
    """
    if number > Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression type {number}")
    return Compression(number)


def compress(compression: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compresses the data.

    Args:
        level: the compression level of the codec; None is the codec's default. Snappy has no levels and ignores it.
    """
    return _COMPRESSORS[compression](data, level)


def decompress_stream(compression: Compression, data: Buffer, *, limit_bytes: int = MOST_CONTENT_BYTES) -> Iterator[Buffer]:
    """Yields the content in chunks of at most `CHUNK_BYTES`; a block of snappy is one chunk of any size.

    Args:
        limit_bytes: a block of snappy that announces more bytes is not decompressed. The caller counts the bytes of all chunks.

    Raises:
        KafkaError: INVALID_RECORD, the stream is broken, ends early or has bytes after its end; MESSAGE_TOO_LARGE, a block of
            snappy is larger than `limit_bytes`.
    """
    if compression is Compression.SNAPPY:
        return _snappy_chunks(data, limit_bytes)
    return _DECOMPRESSORS[compression](data)


def decompress(compression: Compression, data: Buffer, *, limit_bytes: int) -> bytes:
    """Returns the content in one piece.

    Raises:
        KafkaError: INVALID_RECORD, as for `decompress_stream`; MESSAGE_TOO_LARGE, the content has more than `limit_bytes`.
    """
    chunks: list[Buffer] = []
    size = 0
    for chunk in decompress_stream(compression, data, limit_bytes=limit_bytes):
        size += len(chunk)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        chunks.append(chunk)
    return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)


def too_large(limit_bytes: int) -> KafkaError:
    """Returns the error for content of more than `limit_bytes`; after this error, clients send smaller batches."""
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a compressed batch has more than {limit_bytes} bytes of records")


def _broken(compression: Compression, reason: object) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_RECORD, f"broken {compression.name.lower()} stream: {reason}") from None


def _plain_chunks(data: Buffer) -> Iterator[Buffer]:
    yield data


def _gzip(data: Buffer, level: int | None) -> bytes:
    engine = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, 31)
    return engine.compress(data) + engine.flush()


def _gzip_chunks(data: Buffer) -> Iterator[Buffer]:
    engine = zlib.decompressobj(31)
    view = memoryview(data)
    pos = 0
    try:
        while not engine.eof:
            # The engine copies the input that it does not consume, so each step gets little input.
            piece = view[pos : pos + INPUT_BYTES]
            chunk = engine.decompress(piece, CHUNK_BYTES)
            pos += len(piece) - len(engine.unconsumed_tail) - len(engine.unused_data)
            if chunk:
                yield chunk
            elif not engine.eof and not piece:
                _broken(Compression.GZIP, "it ends early")
    except zlib.error as error:
        _broken(Compression.GZIP, error)
    if pos < len(view):
        _broken(Compression.GZIP, "it continues after its end")


def _snappy(data: Buffer, level: int | None) -> bytes:
    """Compresses in xerial's framing, which all Java clients read, with blocks of its default size."""
    compress_block = _snappy_library().compress_raw
    pieces = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(compress_block(data[start : start + XERIAL_BLOCK_BYTES]))
        pieces += (struct.pack(">i", len(block)), block)
    return b"".join(pieces)


def _snappy_chunks(data: Buffer, limit_bytes: int) -> Iterator[Buffer]:
    """Yields the blocks of xerial's framing if the data begins with its magic. Otherwise the data is one raw block.

    Clients that are not written in Java send raw blocks.
    """
    if data[:8] != XERIAL_HEADER[:8]:
        yield _snappy_block(data, limit_bytes)
        return
    if len(data) < len(XERIAL_HEADER):
        _broken(Compression.SNAPPY, "it ends early")
    pos = len(XERIAL_HEADER)
    while pos < len(data):
        if len(data) - pos < 4:
            _broken(Compression.SNAPPY, "it ends early")
        (size,) = struct.unpack_from(">i", data, pos)
        pos += 4
        if not 0 <= size <= len(data) - pos:
            _broken(Compression.SNAPPY, f"{len(data) - pos} bytes are left for a block of {size}")
        yield _snappy_block(data[pos : pos + size], limit_bytes)
        pos += size


def _snappy_block(block: Buffer, limit_bytes: int) -> Buffer:
    announced = shift = 0
    for byte in bytes(block[:5]):
        announced |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if announced > SNAPPY_MOST_RATIO * len(block):
        _broken(Compression.SNAPPY, f"{len(block)} bytes cannot hold {announced}")
    if announced > limit_bytes:
        raise too_large(limit_bytes)
    library = _snappy_library()
    try:
        return bytes(library.decompress_raw(block))
    except library.DecompressionError as error:
        _broken(Compression.SNAPPY, error)


class _SnappyLibrary:
    """The functions of python-snappy 0.7, which uses cramjam and takes any buffer without a copy."""

    def __init__(self) -> None:
        import snappy

        self.compress_raw: Callable[[Buffer], Any] = snappy.compress
        self.decompress_raw: Callable[[Buffer], Any] = snappy.uncompress
        self.DecompressionError = snappy.UncompressError


@cache
def _snappy_library() -> _SnappyLibrary:
    return _SnappyLibrary()


def _lz4(data: Buffer, level: int | None) -> bytes:
    """Compresses to independent blocks of 64 KiB without checksums; Kafka's reader does not support linked blocks."""
    import lz4.frame

    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level is None else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


def _lz4_chunks(data: Buffer) -> Iterator[Buffer]:
    import lz4.frame

    engine = lz4.frame.LZ4FrameDecompressor()
    view = memoryview(data)
    pos = 0
    try:
        while not engine.eof:
            # Each call copies the input that the engine does not consume, so each call gets little input.
            piece = view[pos : pos + INPUT_BYTES] if engine.needs_input else b""
            pos += len(piece)
            chunk: bytes = engine.decompress(piece, CHUNK_BYTES)
            if chunk:
                yield chunk
            elif not engine.eof and engine.needs_input and pos == len(view):
                _broken(Compression.LZ4, "it ends early")
    except (RuntimeError, EOFError) as error:
        _broken(Compression.LZ4, error)
    if engine.unused_data or pos < len(view):
        _broken(Compression.LZ4, "it continues after its end")


def with_right_lz4_checksum(data: Buffer) -> bytes:
    """Returns an lz4 frame from a client of message format 0 with the right header checksum.

    These clients compute the checksum over the magic number and the descriptor; the specification has only the descriptor. The
    function replaces the checksum without reading it.

    Raises:
        KafkaError: INVALID_RECORD, the data does not begin with an lz4 frame header.

    Source: KAFKA-3160; org.apache.kafka.common.compress.Lz4BlockInputStream (ignoreFlagDescriptorChecksum).
    """
    end = _lz4_descriptor_end(data)
    frame = bytearray(data)
    frame[end] = (xxh32(bytes(frame[4:end])) >> 8) & 0xFF
    return bytes(frame)


def with_old_lz4_checksum(data: Buffer) -> bytes:
    """Returns an lz4 frame with the header checksum that clients of message format 0 compute and require.

    Source: KAFKA-3160; org.apache.kafka.common.compress.Lz4BlockOutputStream (useBrokenFlagDescriptorChecksum).
    """
    end = _lz4_descriptor_end(data)
    frame = bytearray(data)
    frame[end] = (xxh32(bytes(frame[:end])) >> 8) & 0xFF
    return bytes(frame)


def _lz4_descriptor_end(data: Buffer) -> int:
    if data[:4] != LZ4_MAGIC or len(data) < 7:
        _broken(Compression.LZ4, "no frame header")
    end = 14 if data[4] & LZ4_HAS_CONTENT_SIZE else 6
    if len(data) <= end:
        _broken(Compression.LZ4, "no frame header")
    return end


def xxh32(data: bytes) -> int:
    """Returns the XXH32 hash, with seed 0, of fewer than 16 bytes. The header of an lz4 frame is shorter than 16 bytes.

    Source: the xxHash specification, XXH32 for short input.
    """
    assert len(data) < 16
    accumulator = 374761393 + len(data)
    words, rest = divmod(len(data), 4)
    for word in struct.unpack_from(f"<{words}I", data):
        accumulator = _rotate_left(accumulator + word * 3266489917, 17) * 668265263
    for byte in data[len(data) - rest :]:
        accumulator = _rotate_left(accumulator + byte * 374761393, 11) * 2654435761
    accumulator &= 0xFFFFFFFF
    accumulator = (accumulator ^ (accumulator >> 15)) * 2246822519 & 0xFFFFFFFF
    accumulator = (accumulator ^ (accumulator >> 13)) * 3266489917 & 0xFFFFFFFF
    return accumulator ^ (accumulator >> 16)


def _rotate_left(value: int, count: int) -> int:
    value &= 0xFFFFFFFF
    return (value << count | value >> (32 - count)) & 0xFFFFFFFF


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    level = 3 if level is None else level
    if len(data) <= ZSTD_MOST_COMPRESSOR_BYTES:
        return zstandard.ZstdCompressor(level=level).compress(data)
    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=ZSTD_MOST_COMPRESSOR_BYTES)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def _zstd_chunks(data: Buffer) -> Iterator[Buffer]:
    """Yields the content of all frames. The one-shot call of the library is not used, as it allocates the announced size."""
    import zstandard

    try:
        _check_zstd_blocks(data)
        engine = _ZSTD_ENGINES.pop() if _ZSTD_ENGINES else zstandard.ZstdDecompressor(max_window_size=ZSTD_MOST_WINDOW_BYTES)
        reader = engine.stream_reader(data, read_across_frames=True)
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk
        _ZSTD_ENGINES.append(engine)
    except zstandard.ZstdError as error:
        _broken(Compression.ZSTD, error)


_ZSTD_ENGINES: list[Any] = []
"""Idle decompressors. Making one takes as long as decompressing 16 KiB. Each has one user at a time, on any thread."""


def _check_zstd_blocks(data: Buffer) -> None:
    """Raises unless all blocks of the stream are complete; the library does not report a stream that ends early.

    Source: RFC 8878, 3.1.1.2 (a block's header: last block, type, size).
    """
    import zstandard

    pos = 0
    while pos < len(data):
        head = data[pos : pos + ZSTD_MOST_HEADER_BYTES]
        pos += zstandard.frame_header_size(head)
        is_last = False
        while not is_last and pos <= len(data):
            block = int.from_bytes(data[pos : pos + 3], "little")
            is_last, is_run = bool(block & 1), block >> 1 & 3 == 1
            pos += 3 + (1 if is_run else block >> 3)
        pos += 4 * zstandard.get_frame_parameters(head).has_checksum
    if pos > len(data):
        _broken(Compression.ZSTD, "it ends early")


_COMPRESSORS: dict[Compression, Callable[[Buffer, int | None], bytes]] = {
    Compression.NONE: lambda data, level: bytes(data),
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}

_DECOMPRESSORS: dict[Compression, Callable[[Buffer], Iterator[Buffer]]] = {
    Compression.NONE: _plain_chunks,
    Compression.GZIP: _gzip_chunks,
    Compression.LZ4: _lz4_chunks,
    Compression.ZSTD: _zstd_chunks,
}
