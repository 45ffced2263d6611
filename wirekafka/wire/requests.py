"""Requests that a broker sends to another broker, and the responses to them.

How it works: a `RequestType` has what sender and receiver of a request must agree on: the key, the messages, their versions
and the first flexible version. The modules of `wire.messages` declare one for each API. An API is served, and reported by
ApiVersions, only if a module of `api` has a handler for it.

Source: RequestHeader.json, ResponseHeader.json; KIP-482.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Generic, TypeVar

from wirekafka.errors import ProtocolError
from wirekafka.pending import Work
from wirekafka.wire.codec import (
    MOST_ELEMENTS_OF_A_BROKER,
    Buffer,
    ElementBudget,
    Piece,
    StepBudget,
    counting_writer,
    decode,
    skip_tagged_fields,
    step_reader,
    step_writer,
    writer,
)
from wirekafka.wire.frames import WITHOUT_CLIENT_ID_BYTES, has_client_id
from wirekafka.wire.types import Message

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

_HEADER = struct.Struct(">ihhih")
"""The size of the frame, the key, the version, the correlation id, and the size of the client id."""
_SHORT_HEADER = struct.Struct(">ihhi")
"""The same without a client id."""
_SIZE_BYTES = 4
_CORRELATION_ID = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class RequestType(Generic[Q, A]):
    """One type of request, with the type of its response.

    Attributes:
        key: Kafka's API key.
        versions: the versions that the messages declare, oldest to newest without a gap.
        flexible_since: the first version with compact lengths and tagged fields; None if there is none.
    """

    key: int
    request: type[Q]
    response: type[A]
    versions: range
    flexible_since: int | None

    @property
    def name(self) -> str:
        """Kafka's name, such as `LeaderAndIsr`."""
        return self.request.__name__.removesuffix("Request")

    def is_flexible(self, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields, in its bodies and its headers."""
        return self.flexible_since is not None and version >= self.flexible_since

    def newest_common_version(self, first: int, last: int) -> int | None:
        """Returns the newest version that a peer, with the versions from `first` to `last`, has too; None if there is none."""
        version = min(last, self.versions[-1])
        return version if version >= max(first, self.versions[0]) else None

    def frame(self, request: Q, version: int, *, correlation_id: int, client_id: str) -> bytes:
        """Returns the request as it is sent: size, header and body."""
        pieces = self._begin_body(version)
        writer(self.request, version, self.is_flexible(version))(pieces.append, request)
        return self._framed(pieces, version, correlation_id, client_id)

    def frame_of_few(self, request: Q, version: int, *, correlation_id: int, client_id: str) -> bytes:
        """Returns the request as `frame` does, if it has few elements.

        Raises:
            LargeMessageError: it has more elements than are written in one step.
        """
        pieces = self._begin_body(version)
        counting_writer(self.request, version, self.is_flexible(version))(pieces.append, request, StepBudget())
        return self._framed(pieces, version, correlation_id, client_id)

    def frame_in_steps(self, request: Q, version: int, *, correlation_id: int, client_id: str) -> Work[bytes]:
        """Returns the request as `frame` does, and writes some elements in each step. The request must not change meanwhile."""
        pieces = self._begin_body(version)
        yield from step_writer(self.request, version, self.is_flexible(version))(pieces.append, request)
        return self._framed(pieces, version, correlation_id, client_id)

    def _begin_body(self, version: int) -> list[Piece]:
        assert version in self.versions, f"{self.name} has no version {version}"
        return [b"\0"] if self.is_flexible(version) else []

    def _framed(self, pieces: list[Piece], version: int, correlation_id: int, client_id: str) -> bytes:
        body, name = b"".join(pieces), client_id.encode()
        if not has_client_id(self.key, version):
            return _SHORT_HEADER.pack(WITHOUT_CLIENT_ID_BYTES + len(body), self.key, version, correlation_id) + body
        size_bytes = _HEADER.size - _SIZE_BYTES + len(name) + len(body)
        return _HEADER.pack(size_bytes, self.key, version, correlation_id, len(name)) + name + body

    def read_response(self, frame: Buffer, version: int) -> A:
        """Reads the response to a request of `version`.

        Args:
            frame: the response without its size. Its `records` are valid as long as the frame.

        Raises:
            ProtocolError: the bytes are not such a response.
        """
        body = self._body_of(frame, version)
        response: A = decode(self.response, version, self.is_flexible(version), body)
        return response

    def read_response_in_steps(self, frame: Buffer, version: int) -> Work[A]:
        """Reads the response to a request of `version`, as `read_response` does, some elements in each step.

        Raises:
            ProtocolError: the bytes are not such a response, or it has more than `MOST_ELEMENTS_OF_A_BROKER` elements.
        """
        body = self._body_of(frame, version)
        read = step_reader(self.response, version, self.is_flexible(version))
        try:
            response, end = yield from read(body, 0, len(body), ElementBudget(MOST_ELEMENTS_OF_A_BROKER))
        except (struct.error, IndexError, UnicodeDecodeError, MemoryError) as error:
            raise ProtocolError(f"not a response to {self.name} {version}: {error}") from None
        if end != len(body):
            raise ProtocolError(f"{len(body) - end} bytes too many after a response to {self.name} {version}")
        result: A = response
        return result

    def _body_of(self, frame: Buffer, version: int) -> memoryview:
        """Returns what follows the header of a response.

        Raises:
            ProtocolError: the frame ends before it.
        """
        body_offset = _CORRELATION_ID.size
        if self.is_flexible(version):
            try:
                body_offset = skip_tagged_fields(frame, body_offset, len(frame))
            except IndexError:
                raise ProtocolError(f"a response of {len(frame)} bytes") from None
        return memoryview(frame)[body_offset:]


def read_correlation_id(frame: Buffer) -> int:
    """Returns the correlation id of a response, by which the sender finds the request and its version.

    Raises:
        ProtocolError: the frame is shorter than the id.
    """
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(f"a response of {len(frame)} bytes")
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    return correlation_id
