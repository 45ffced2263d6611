"""Frames to send, and a dispatcher whose answers a test controls."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from wirekafka.api.registry import Client
from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending


def frame(payload: bytes) -> bytes:
    """A size-delimited frame; the payload must have at least ten bytes, as a request has."""
    return struct.pack(">i", len(payload)) + payload


def produce(text: bytes) -> bytes:
    """Makes a frame that begins as a Produce frame and continues with a text."""
    return frame(bytes(2) + text)


def request(
    api_key: int, version: int, correlation_id: int = 1, body: bytes = b"", *, client_id: bytes | None = b"test"
) -> bytes:
    """A framed request with header 1, or 2 if the body begins with the header's tagged fields."""
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return frame(struct.pack(">hhi", api_key, version, correlation_id) + name + body)


def client(host: str = "192.0.2.7") -> Client:
    """A client at this address."""
    return Client(host, 40000, "PLAINTEXT", "192.0.2.1", 9092)


class EchoDispatcher:
    """Answers each frame with the same frame, in capitals; frames that begin with `wait` once a test completes their replies.

    A Produce frame (`produce`) whose text begins with `wait` holds the connection, one whose text begins with `commit` has
    released it.

    Attributes:
        frames: the payloads that were handled, in order.
        pendings: the replies that are to come, in the order of their requests.
    """

    def __init__(self, max_request_bytes: int = 1 << 20) -> None:
        self.max_request_bytes = max_request_bytes
        self.is_busy = False
        self.frames: list[bytes] = []
        self.pendings: list[Pending[Any]] = []
        self.abandoned = 0
        self.answer: Callable[[bytes], Any] = lambda payload: frame(payload.upper())
        self.answer_client: Callable[[bytes, Client], Any] | None = None

    @staticmethod
    def now_ms() -> int:
        return 1_700_000_000_000

    def handle(self, payload: memoryview, client: Client, now_ms: int) -> Any:
        data = bytes(payload)
        self.frames.append(data)
        text = data.removeprefix(bytes(2))
        if text.startswith((b"wait", b"commit")):
            pending: Pending[Any] = Pending(self._on_abandon)
            if text.startswith(b"commit"):
                pending.release_connection()
            self.pendings.append(pending)
            return pending
        return self.answer(data) if self.answer_client is None else self.answer_client(data, client)

    @staticmethod
    def refusal(client: Client, reason: str) -> ProtocolError:
        return ProtocolError(reason)

    def complete(self, index: int = 0) -> None:
        """Completes the reply of the waiting request with this index; by default, of the one that has waited longest."""
        self.pendings.pop(index).complete(frame(b"REPLY TO A WAITING ONE"))

    def _on_abandon(self) -> None:
        self.abandoned += 1
