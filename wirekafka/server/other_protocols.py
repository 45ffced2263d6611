"""Clients of other protocols that have found the port of a broker: what their first four bytes say, and the answer.

Rules of this file: pure.

Source: RFC 8446, 5.1 (TLS); RFC 9110, 9 and RFC 9113, 3.4 (HTTP); the four letter words in ZooKeeper's
administrator's guide.
"""

from __future__ import annotations

import struct

from wirekafka import __version__
from wirekafka.troubles import ZOOKEEPER_CLIENT

TLS_HANDSHAKE = 0x1603
"""The first bytes of a TLS connection, as the upper half of a frame's size."""

HTTP_METHODS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "})
"""The first bytes of HTTP requests; `PRI ` begins HTTP/2."""

ZOOKEEPER_WORDS = frozenset(
    {b"conf", b"cons", b"crst", b"dump", b"envi", b"isro", b"mntr", b"ruok", b"srst", b"srvr", b"stat", b"wchc", b"wchp", b"wchs"}
)

DOCUMENTATION = "https://github.com/wirekafka/wirekafka/tree/main/docs"

_TEXT = f"""This is the port of a Kafka broker (wirekafka {__version__}), which speaks Kafka's protocol and no HTTP.
Connect a Kafka client to it, with this address as its bootstrap.servers. Metrics are served on
wirekafka.metrics.listener, if that is set.
{DOCUMENTATION}
"""

_HEAD = (
    "HTTP/1.1 400 Bad Request\r\n"
    f"Server: wirekafka/{__version__}\r\n"
    "Content-Type: text/plain; charset=utf-8\r\n"
    f"Content-Length: {len(_TEXT)}\r\n"
    "Connection: close\r\n"
    "\r\n"
)


def is_http(size: int) -> bool:
    """Whether the size of a frame is the beginning of an HTTP request."""
    return _bytes_of(size) in HTTP_METHODS


def http_answer(size: int) -> bytes:
    """Returns the response to an HTTP request that begins with this size; a HEAD gets no text."""
    return (_HEAD if _bytes_of(size) == b"HEAD" else _HEAD + _TEXT).encode("ascii")


def refusal_of(size: int, max_request_bytes: int) -> str:
    """Returns why a frame of this size is not a request, and what to do about it."""
    if size >> 16 == TLS_HANDSHAKE:
        return "the client speaks TLS, and this listener is PLAINTEXT. Set security.protocol=PLAINTEXT in the client"
    if is_http(size):
        return "the client speaks HTTP, not Kafka's protocol. It has got an answer that says so; correct the port in its settings"
    if _bytes_of(size) in ZOOKEEPER_WORDS:
        return ZOOKEEPER_CLIENT
    if size > max_request_bytes:
        return (
            f"a request of {size} bytes is larger than socket.request.max.bytes={max_request_bytes}. "
            "Raise that setting, or let the client send smaller requests (max.request.size)"
        )
    return f"a request of {size} bytes is shorter than a request header. The client does not speak Kafka's protocol"


def _bytes_of(size: int) -> bytes:
    return struct.pack(">i", size)
