"""The header of a request.

Rules of this file: the fields that all versions of the header have are read first, because they name the API. The caller reads
the tagged fields of header version 2 (KIP-482), which follow these fields.

Source: RequestHeader.json; org.apache.kafka.common.requests.RequestHeader.parse.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from wirekafka.errors import ProtocolError
from wirekafka.wire.codec import Buffer

_FIXED = struct.Struct(">hhih")


WITHOUT_CLIENT_ID_BYTES = 8
"""The size of a header of version 0: the key, the version and the correlation id."""


@dataclass(slots=True)
class RequestHeader:
    """The header of one request.

    Attributes:
        client_id: None if the client sends null.
        body_offset: the position of the header's tagged fields if its version has them, otherwise of the body.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def has_client_id(api_key: int, api_version: int) -> bool:
    """Whether the header of a request has a client id. Version 0 of ControlledShutdown has none.

    Source: ApiMessageType.requestHeaderVersion.
    """
    return (api_key, api_version) != (7, 0)


def read_request_header(frame: Buffer) -> RequestHeader:
    """Reads the header of a request, of any version, up to its tagged fields.

    Raises:
        ProtocolError: the frame is shorter than the header, or the client id is not UTF-8.
    """
    if len(frame) < _FIXED.size:
        raise ProtocolError(f"a request of {len(frame)} bytes")
    api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
    if not has_client_id(api_key, api_version):
        return RequestHeader(api_key, api_version, correlation_id, None, WITHOUT_CLIENT_ID_BYTES)
    end = _FIXED.size + max(0, length)
    if end > len(frame):
        raise ProtocolError("a client id ends after its request")
    try:
        client_id = None if length < 0 else str(frame[_FIXED.size : end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a client id is not UTF-8: {error}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)
