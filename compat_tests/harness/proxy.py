"""TCP proxies on loopback: one cuts connections, at once or between a Produce request and its answer; one holds requests."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

PRODUCE = 0


@dataclass(eq=False)
class Link:
    """A client's connection and the proxy's connection to the broker."""

    client: socket.socket
    broker: socket.socket
    is_doomed: bool = False


class CuttingProxy:
    """Forwards every connection to `upstream`, in threads, because the clients under test block.

    Attributes:
        upstream: the address of the broker; may change while the proxy runs.
        bootstrap: HOST:PORT at which the proxy listens.
        cuts_left: for this many Produce requests the proxy forwards the request, drops the answer and cuts the connection.
        cut_count: the number of connections that the proxy has cut.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.upstream: tuple[str, int] | None = None
        self.cuts_left = 0
        self.cut_count = 0
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut_all(self) -> None:
        """Cuts every open connection."""
        with self._lock:
            links = list(self._links)
        for link in links:
            self._cut(link)

    def close(self) -> None:
        """Stops listening and cuts all connections."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                assert self.upstream is not None
                try:
                    broker = socket.create_connection(self.upstream, timeout=5)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                link = Link(client, broker)
                with self._lock:
                    self._links.add(link)
                self._start(self._forward_requests, link)
                self._start(self._forward_answers, link)

    def _forward_requests(self, link: Link) -> None:
        with contextlib.suppress(OSError), link.client.makefile("rb") as requests:
            while len(head := requests.read(6)) == 6:
                size, api_key = struct.unpack(">ih", head)
                body = requests.read(size - 2)
                if api_key == PRODUCE:
                    self._see_produce(link, len(body))
                link.broker.sendall(head + body)
        self._cut(link)

    def _see_produce(self, link: Link, size: int) -> None:
        """Is called before a Produce request of so many bytes is forwarded."""
        with self._lock:
            if self.cuts_left and not link.is_doomed:
                self.cuts_left -= 1
                link.is_doomed = True

    def _forward_answers(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while piece := link.broker.recv(1 << 16):
                if link.is_doomed:
                    break
                link.client.sendall(piece)
        self._cut(link)

    def _cut(self, link: Link) -> None:
        with self._lock:
            if link not in self._links:
                return
            self._links.remove(link)
            self.cut_count += link.is_doomed
        for end in (link.client, link.broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Gate(CuttingProxy):
    """Forwards Produce requests up to a number of bytes, and holds the later ones until more are allowed.

    So a producer is in the middle of its work when the gate holds it, on a fast machine and on a slow one. A request of a client
    that was killed meanwhile is still forwarded when the gate opens, like one that the network has delayed.
    """

    def __init__(self) -> None:
        self._allowed_bytes: float = 0
        self._holding_count = 0
        self._changed = threading.Condition()
        super().__init__()

    def allow(self, size: float) -> None:
        """Lets Produce requests of about so many more bytes pass, from now on; infinity opens the gate for good."""
        with self._changed:
            self._allowed_bytes = size
            self._changed.notify_all()

    def is_holding(self) -> bool:
        """Whether all that is allowed has passed, and a request waits."""
        with self._changed:
            return self._holding_count > 0 and self._allowed_bytes <= 0

    def close(self) -> None:
        """Opens the gate, so that no thread waits, and closes the proxy."""
        self.allow(float("inf"))
        super().close()

    def _see_produce(self, link: Link, size: int) -> None:
        with self._changed:
            self._holding_count += 1
            self._changed.wait_for(lambda: self._allowed_bytes > 0)
            self._holding_count -= 1
            self._allowed_bytes -= size


Proxy = TypeVar("Proxy", bound=CuttingProxy)


@contextlib.contextmanager
def cutting_proxy() -> Iterator[CuttingProxy]:
    """Yields a proxy, and closes it at the end."""
    with closing_proxy(CuttingProxy()) as proxy:
        yield proxy


@contextlib.contextmanager
def closing_proxy(proxy: Proxy) -> Iterator[Proxy]:
    """Yields a proxy, and closes it at the end."""
    try:
        yield proxy
    finally:
        proxy.close()
