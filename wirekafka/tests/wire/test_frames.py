import struct

import pytest
from kafka.protocol.api_header import RequestHeader as TheirHeader

from wirekafka.errors import ProtocolError
from wirekafka.wire.frames import RequestHeader, read_request_header


def header_bytes(client_id: bytes | None) -> bytes:
    length = struct.pack(">h", -1 if client_id is None else len(client_id))
    return struct.pack(">hhi", 3, 12, 77) + length + (client_id or b"")


@pytest.mark.parametrize("client_id", [None, "", "producer-1", "ü" * 100])
def test_header_is_read_up_to_its_tagged_fields(client_id: str | None) -> None:
    head = header_bytes(None if client_id is None else client_id.encode())
    assert read_request_header(memoryview(head + b"\0body")) == RequestHeader(3, 12, 77, client_id, len(head))


@pytest.mark.parametrize("broker_id", [0, 1, 2**31 - 1, -1])
def test_header_without_a_client_id_is_read_whatever_follows(broker_id: int) -> None:
    frame = struct.pack(">hhii", 7, 0, 77, broker_id)
    assert read_request_header(frame) == RequestHeader(7, 0, 77, None, 8)


def test_header_cut_anywhere_is_refused() -> None:
    head = header_bytes(b"client")
    for cut in range(len(head)):
        with pytest.raises(ProtocolError):
            read_request_header(head[:cut])


def test_client_id_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        read_request_header(header_bytes(b"\xff"))


@pytest.mark.parametrize("flexible", [False, True])
def test_header_of_kafka_python_is_read(flexible: bool) -> None:
    theirs = TheirHeader(request_api_key=18, request_api_version=3, correlation_id=5, client_id="me")
    head = theirs.encode(flexible=flexible)
    assert read_request_header(head) == RequestHeader(18, 3, 5, "me", len(head) - flexible)
