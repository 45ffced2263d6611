"""Finds out what listens at an address: a Kafka broker, TLS, an HTTP server, or something else.

How it works: ApiVersions 0 is what every client may ask first, before SASL too. The answer tells the protocol: a TLS server sends
an alert or closes the connection, an HTTP server sends an error page. After a connection was closed, a TLS handshake is tried.

Source: KIP-35; RFC 8446, section 5.1.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import closing
from enum import Enum
from typing import NamedTuple

from wirekafka.errors import ProtocolError
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from wirekafka.wire.requests import read_correlation_id

CORRELATION_ID = 1
MOST_RESPONSE_BYTES = 1 << 20
TLS_ALERT = b"\x15\x03"
HTTP = b"HTTP/"

_SIZE = struct.Struct(">i")


class Speaks(Enum):
    """What answers at an address."""

    KAFKA = "Kafka"
    TLS = "TLS"
    HTTP = "HTTP"
    SOMETHING_ELSE = "something else"
    NOTHING = "nothing"


class Found(NamedTuple):
    """What a probe has found.

    Attributes:
        versions: the first and the last version of each API by its key; empty unless it is Kafka.
    """

    speaks: Speaks
    versions: dict[int, tuple[int, int]] = {}


def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a name, each once.

    Raises:
        OSError, UnicodeError: the name cannot be resolved.
    """
    return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def probe(host: str, port: int, timeout_s: float) -> Found:
    """Connects and asks for ApiVersions.

    Raises:
        OSError, UnicodeError: the connection is not accepted.
    """
    with closing(socket.create_connection((host, port), timeout_s)) as connection:
        try:
            return _ask(connection, timeout_s)
        except TimeoutError:
            return Found(Speaks.NOTHING)
        except (OSError, EOFError):
            pass
    return Found(Speaks.TLS if _has_tls(host, port, timeout_s) else Speaks.SOMETHING_ELSE)


def _ask(connection: socket.socket, timeout_s: float) -> Found:
    """Returns what answers ApiVersions.

    Raises:
        OSError, EOFError: the connection is closed.
        TimeoutError: nothing does.
    """
    deadline = time.monotonic() + timeout_s
    connection.sendall(API_VERSIONS.frame(ApiVersionsRequest(), 0, correlation_id=CORRELATION_ID, client_id="wirekafka-doctor"))
    head = _receive(connection, _SIZE.size, deadline)
    if head.startswith(TLS_ALERT):
        return Found(Speaks.TLS)
    if head == HTTP[: _SIZE.size]:
        return Found(Speaks.HTTP)
    [size] = _SIZE.unpack(head)
    if not _SIZE.size <= size <= MOST_RESPONSE_BYTES:
        return Found(Speaks.SOMETHING_ELSE)
    frame = memoryview(_receive(connection, size, deadline))
    try:
        if read_correlation_id(frame) != CORRELATION_ID:
            return Found(Speaks.SOMETHING_ELSE)
        response = API_VERSIONS.read_response(frame, 0)
    except ProtocolError:
        return Found(Speaks.SOMETHING_ELSE)
    return Found(Speaks.KAFKA, {each.api_key: (each.min_version, each.max_version) for each in response.api_keys})


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError
        received += part
    return received


def _has_tls(host: str, port: int, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is checked by the client that follows
    try:
        with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except (OSError, ValueError):
        return False
