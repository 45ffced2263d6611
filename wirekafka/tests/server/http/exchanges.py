"""What a client sends to an HTTP server, and receives."""

from __future__ import annotations

import trio


async def received(stream: trio.SocketStream) -> bytes:
    """Returns everything that arrives until the end of the connection."""
    found = b""
    try:
        async for part in stream:
            found += part
    except trio.BrokenResourceError:
        pass
    return found


async def exchange(stream: trio.SocketStream, request: bytes) -> tuple[bytes, bytes]:
    """Sends a request, and closes the connection; returns the first line of the response, and its body."""
    async with stream:
        await stream.send_all(request)
        head, _, body = (await received(stream)).partition(b"\r\n\r\n")
        return head.partition(b"\r\n")[0], body
