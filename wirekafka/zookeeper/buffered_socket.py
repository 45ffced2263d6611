"""A socket that sends and receives many small frames at once, for a client that writes and reads them one by one.

kazoo's thread waits for the socket, and calls it, several times for each request and each response. Each of these calls gives up
the interpreter's lock, and then waits up to 5 ms for it while the loop is busy. On a busy machine of two cores, 10,000 reads
of znodes took 2.7 to 4.2 s and 1.6 to 3.5 s of CPU time without this class, and 1.1 to 1.9 s and 0.4 to 0.6 s with it (2026-11).

Rules of this file:
    All methods belong to one thread.
    Nothing blocks but the methods whose names begin with `wait`.
    While the socket waits until it can send, it also receives: ZooKeeper stops to read from a client that does not.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

RECEIVE_BYTES = 1 << 16
MOST_UNSENT_BYTES = 1 << 16
"""With so many bytes that are not sent yet, `is_full` says so."""


class BufferedSocket:
    """A connected socket with buffers.

    `_received` has the bytes that nobody has read yet, from `_position` on.

    Args:
        connected: the socket; this object closes it.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = b""
        self._position = 0
        self._unsent = bytearray()
        self._has_ended = False

    def fileno(self) -> int:
        """Returns the descriptor of the socket."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - the method of a socket
        """Makes the socket blocking or not. The buffers need one that does not block."""
        self._socket.setblocking(flag)

    def close(self) -> None:
        """Closes the socket. Unsent bytes are lost."""
        self._socket.close()

    def pending(self) -> int:
        """Returns how many bytes `recv` returns without the socket; also if there is the end of the stream to be read."""
        return len(self._received) - self._position or int(self._has_ended)

    @property
    def is_full(self) -> bool:
        """Whether so much is unsent that the caller should wait before it sends more."""
        return len(self._unsent) >= MOST_UNSENT_BYTES

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Takes all bytes. They are sent by `flush` and while the caller waits."""
        self._unsent += data
        return len(data)

    def recv(self, size: int) -> bytes:
        """Returns up to `size` bytes that were received; none after the end of the stream.

        Raises:
            OSError: the connection is broken, or there is nothing to be read yet.
        """
        if not self.pending():
            self._receive()
        chunk = self._received[self._position : self._position + size]
        self._position += len(chunk)
        return chunk

    def flush(self) -> None:
        """Sends what the socket takes now.

        Raises:
            OSError: the connection is broken.
        """
        if self._unsent:
            with suppress(BlockingIOError):
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]

    def wait_until_received(self, wake_ups: Sequence[int], timeout_s: float | None) -> list[int]:
        """Sends everything, until something was received, a descriptor among `wake_ups` is readable, or the time is over.

        Returns:
            the descriptors among `wake_ups` that are readable.

        Raises:
            OSError: the connection is broken.
        """
        return self._wait(lambda: self.pending() > 0, wake_ups, timeout_s)

    def wait_until_not_full(self, timeout_s: float | None) -> None:
        """Sends until not much is unsent, the stream has ended, or the time is over. Sends nothing if not much is unsent.

        Raises:
            OSError: the connection is broken.
        """
        if self.is_full:
            self._wait(lambda: not self.is_full or self._has_ended, (), timeout_s)

    def _wait(self, is_done: Callable[[], bool], wake_ups: Sequence[int], timeout_s: float | None) -> list[int]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        for wake_up in wake_ups:
            poll.register(wake_up, select.POLLIN)
        while True:
            self.flush()
            if is_done():
                return []
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            events = dict(poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000))
            if events.get(self._socket.fileno(), 0) & ~select.POLLOUT:
                with suppress(BlockingIOError):
                    self._receive()
            ready = [wake_up for wake_up in wake_ups if wake_up in events]
            if ready or not events:
                return ready

    def _receive(self) -> None:
        """Adds to what was received."""
        data = self._socket.recv(RECEIVE_BYTES)
        self._has_ended = self._has_ended or not data
        self._received = self._received[self._position :] + data
        self._position = 0
