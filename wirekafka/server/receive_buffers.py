"""The memory into which a loop receives requests.

How it works: a frame that does not fit into the shared buffer is received into a buffer of its connection. This buffer grows to
twice its size each time it is full. After `MAPPED_AFTER_BYTES`, a frame of more than `SPARE_BYTES` gets a private anonymous
mapping of its whole size. The kernel gives memory to a page of a mapping when the page is first written. So the mapping takes the
memory of the received bytes only, and no byte is copied again. Growth by copies took up to 51 ms for 100 MiB (2026-11).

Rules of this file:
    The memory of received bytes is at most twice their number. It never depends on the size that a frame announces.
    The memory of a mapping is used for one frame only, so a request may refer to it for as long as the request needs.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

SHARED_BYTES = 1 << 18
"""The size of the receive buffer that all connections of a loop share."""

SPARE_BYTES = 1 << 22
"""The largest buffer that is kept for the next large frame."""

MAPPED_AFTER_BYTES = 1 << 20
"""After so many received bytes, a large frame gets a mapping of its whole size."""

MOST_HELD_BYTES = 1 << 27
"""The default of `queued.max.request.bytes`: the memory that partly received frames of all connections may take together. Beyond
it, the driver receives one large frame at a time."""


def is_mapped(buffer: memoryview) -> bool:
    """Whether the bytes are in a mapping, which is used for one frame only."""
    return isinstance(buffer.obj, mmap.mmap)


class ReceiveBuffers:
    """The receive buffers of one loop: one that all its connections share, and one spare buffer for larger frames.

    With the spare, a producer of large batches does not grow a new buffer for each batch.

    Attributes:
        is_short: the connections' own buffers take more than `most_bytes` together.
        owed_bytes: estimate of the memory of the requests of all connections whose replies are pending.
    """

    __slots__ = ("_held_bytes", "_most_bytes", "_spare", "is_short", "owed_bytes", "shared")

    def __init__(self, most_bytes: int = MOST_HELD_BYTES) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.is_short = False
        self.owed_bytes = 0
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._spare: memoryview | None = None

    def take(self, size: int, announced: int) -> memoryview:
        """Returns a buffer of at least `size` bytes: the spare buffer if `announced` bytes fit into it, otherwise a new one."""
        spare = self._spare
        if spare is not None and max(size, announced) <= len(spare):
            self._spare = None
            buffer = spare
        else:
            buffer = memoryview(bytearray(size))
        return buffer

    def grow(self, full: memoryview, announced: int) -> memoryview:
        """Returns a larger buffer for a frame of `announced` bytes, whose first bytes fill the buffer `full`."""
        size = len(full)
        if size >= MAPPED_AFTER_BYTES and announced > SPARE_BYTES:
            with suppress(OSError):  # the limit on address space is reached
                return memoryview(mmap.mmap(-1, announced, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return self.take(min(announced, 2 * size), announced)

    def give_back(self, buffer: memoryview) -> None:
        """Takes back a buffer that is no longer used; the largest of at most `SPARE_BYTES` becomes the spare."""
        if len(buffer) <= SPARE_BYTES and (self._spare is None or len(buffer) > len(self._spare)):
            self._spare = buffer

    def hold(self, count: int) -> None:
        """Adds `count` bytes, which may be negative, to the memory of the connections' own buffers."""
        self._held_bytes += count
        self.is_short = self._held_bytes > self._most_bytes

    def shrink(self) -> None:
        """Frees the spare buffer; the driver calls this when it sweeps."""
        self._spare = None
