"""A process that keeps a broker as busy as it can: `python -m compat_tests.harness.greedy HOST PORT CONNECTIONS OUTSTANDING`.

It reads one request from its stdin, a frame, and sends the request over each connection as often as replies may be outstanding.
After each reply it sends the next request. Once its stdin has ended and a reply has come, it prints the number of replies, and
ends: the first replies to many large requests come together, and on a slow machine late.

A process of its own, because the CPU time of the load would otherwise delay the client whose latency is measured.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
from contextlib import suppress

RECEIVE_BYTES = 1 << 18


class Greedy:
    """One connection.

    Attributes:
        reply_count: the replies that have been read.
    """

    def __init__(self, address: tuple[str, int], frame: bytes, outstanding: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self.reply_count = 0
        self._frame = frame
        self._unsent = memoryview(frame * outstanding)
        self._head = b""
        self._left = 0
        """The bytes of the current reply that are still to be read."""

    @property
    def events(self) -> int:
        """What the connection waits for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def send(self) -> None:
        """Sends what the socket accepts."""
        if self._unsent:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> None:
        """Reads what has come, and asks again for each reply.

        Raises:
            ConnectionError: the broker has closed the connection.
        """
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the broker has closed a connection")
        pos = 0
        while pos < len(data):
            if self._left:
                taken = min(self._left, len(data) - pos)
                self._left -= taken
                pos += taken
                if not self._left:
                    self.reply_count += 1
                    self._unsent = memoryview(bytes(self._unsent) + self._frame)
                continue
            taken = min(4 - len(self._head), len(data) - pos)
            self._head += data[pos : pos + taken]
            pos += taken
            if len(self._head) == 4:
                (self._left,) = struct.unpack(">i", self._head)
                self._head = b""


def read_frame() -> bytes:
    """The frame that stdin begins with."""
    size = os.read(0, 4)
    frame = bytearray(size)
    while len(frame) < 4 + struct.unpack(">i", size)[0]:
        frame += os.read(0, RECEIVE_BYTES)
    return bytes(frame)


def main() -> None:
    """Keeps the broker busy until stdin ends and a reply has come."""
    host, port, count, outstanding = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    frame = read_frame()
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    clients = [Greedy((host, port), frame, outstanding) for _ in range(count)]
    for client in clients:
        selector.register(client.socket, client.events, client)
    has_ended = False
    while not has_ended or not any(client.reply_count for client in clients):
        for key, events in selector.select():
            client = key.data
            if client is None:
                has_ended = True
                selector.unregister(0)
                continue
            if events & selectors.EVENT_READ:
                client.receive()
            if client.events & selectors.EVENT_WRITE:
                with suppress(BlockingIOError):
                    client.send()
            if client.events != key.events:
                selector.modify(client.socket, client.events, client)
    print(sum(client.reply_count for client in clients), flush=True)


if __name__ == "__main__":
    main()
