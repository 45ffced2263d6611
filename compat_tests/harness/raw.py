"""A connection that sends any bytes, valid or invalid."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any

from wirekafka.api.registry import APIS, Api, all_apis
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.compression import Compression
from wirekafka.wire.types import Message

KEYS = {api.name: api.key for api in all_apis()}


class ConnectionEndedError(Exception):
    """The broker has closed the connection."""


class RawConnection:
    """One connection, used synchronously."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 20) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.correlation_ids = itertools.count(1)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes as they are; it is no error if the broker no longer reads."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionEndedError from error

    def receive(self, size: int) -> bytes:
        """Receives exactly this many bytes.

        Raises:
            ConnectionEndedError: the broker has closed the connection before.
        """
        pieces = bytearray()
        while len(pieces) < size:
            try:
                piece = self.socket.recv(size - len(pieces))
            except ConnectionResetError as error:
                raise ConnectionEndedError from error
            if not piece:
                raise ConnectionEndedError
            pieces += piece
        return bytes(pieces)

    def receive_frame(self) -> bytes:
        """Returns the payload of the next frame."""
        (size,) = struct.unpack(">i", self.receive(4))
        return self.receive(size)

    def is_closed_by_broker(self) -> bool:
        """Waits until the broker closes the connection; returns False if the broker sends bytes instead.

        Raises:
            TimeoutError: the broker does neither.
        """
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def ask(self, request: Message, version: int) -> Any:
        """Sends a request; returns the decoded response. Every byte of the response must be decoded."""
        api = APIS[KEYS[type(request).__name__.removesuffix("Request")]]
        correlation_id = next(self.correlation_ids)
        self.send(framed(api, version, encode(request, version, api.is_flexible(version)), correlation_id))
        frame = self.receive_frame()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        pos = 4
        if api.has_flexible_response_header(version):
            assert frame[4] == 0, "no tagged fields are known in a response's header"
            pos = 5
        return decode(api.response, version, api.is_flexible(version), frame[pos:])


def framed(api: Api, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """Encodes a request as a frame."""
    return frame_of(api.key, version, body, correlation_id, tagged=api.is_flexible(version))


def frame_of(api_key: int, version: int, body: bytes, correlation_id: int = 1, *, tagged: bool = False) -> bytes:
    """Encodes a frame with any API key and version, known or unknown."""
    header = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"raw" + (b"\0" if tagged else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def batch(*values: bytes, compression: Compression = Compression.NONE, timestamp_ms: int = 1_700_000_000_000) -> bytearray:
    """Builds a valid record batch."""
    records = [Record(offset=n, timestamp=timestamp_ms, key=None, value=value, headers=()) for n, value in enumerate(values)]
    return build_batch(records, compression=compression)


def reseal(data: bytearray) -> bytearray:
    """Returns the batch with the CRC of its present bytes."""
    import crc32c

    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    struct.pack_into(">i", data, 8, len(data) - 12)
    return data
