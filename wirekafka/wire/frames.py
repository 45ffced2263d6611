"""The headers in front of a request's body.

Rules of this file: what every version of the header has is read without knowing the API, for it says which API it is. Tagged
fields (header 2, KIP-482) come behind it, in the versions that have them, and are the caller's.

Source: RequestHeader.json; org.apache.kafka.common.requests.RequestHeader.parse.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from wirekafka.errors import ProtocolError
from wirekafka.wire.codec import Buffer

_FIXED = struct.Struct(">hhih")


@dataclass(slots=True)
class RequestHeader:
    """The header of one request.

    Attributes:
        client_id: None if the client named none.
        body_offset: where the body begins, or the header's tagged fields in a version that has them.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def read_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request, versions 1 and 2 up to the tagged fields.

    Raises:
        ProtocolError: the frame is too short for it, or the client id is not UTF-8.
    """
    if len(frame) < _FIXED.size:
        raise ProtocolError(f"a request of {len(frame)} bytes")
    api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
    end = _FIXED.size + max(0, length)
    if end > len(frame):
        raise ProtocolError("a client id ends behind its request")
    try:
        client_id = None if length < 0 else str(frame[_FIXED.size : end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a client id is not UTF-8: {error}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)
