"""Listeners: the listening sockets, and the limits on the connections that they accept.

Rules of this file:
    A listener is bound before any code needs its port, and listens only when the broker can answer.
    Options that all connections of a listener share are set on the listening socket, from which Linux copies them.
    At `max.connections`, further connections wait in the backlog. A connection from an address with too many connections is
    closed, with one log line for the address, as in Apache Kafka.
    The last file descriptors of the process are reserved for the logs and for code that is imported later: a connection that gets
    one of them is closed, and accepting pauses.

Source: kafka.network.SocketServer (Acceptor, ConnectionQuotas).
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from wirekafka.api.registry import Client
from wirekafka.server.published_ports import is_through_published_port, read_routes

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig, Listener
    from wirekafka.server.drivers import EpollDriver

log = structlog.get_logger(__name__)

ACCEPTS_PER_TURN = 64
"""The number of connections that are accepted before other tasks run."""

EXHAUSTED_PAUSE_SECONDS = 0.1

MOST_RESERVED_DESCRIPTORS = 1024
"""The number of file descriptors that connections do not use, but at most a quarter of the descriptors of the process."""

MOST_TURNED_AWAY = 1000
"""The number of refused hosts that are kept, so that each is logged once."""

EVERY_INTERFACE = "0.0.0.0"  # noqa: S104


class ListenError(Exception):
    """The broker cannot listen on an address. The text has the address and the reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, printed in the form that clients use."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PublishedFile:
    """A file with the address of a published port, HOST:PORT.

    An engine chooses a port when it starts the container. After that, whoever has started it copies the file into the container,
    before the first client connects. The file is read for each connection through the port.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._is_missed = False

    def read(self) -> Address | None:
        """Returns the address; None, with one log line, if the file does not have one yet."""
        try:
            host, _, port = self._path.read_text().strip().rpartition(":")
            found = Address(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            if not self._is_missed:
                log.warning("The file of --published has no address HOST:PORT", file=str(self._path), reason=str(error))
            self._is_missed = True
            return None
        self._is_missed = False
        return found


Published = Address | PublishedFile


def plain_host(host: str) -> str:
    """Returns the address without the parts that only this machine understands: an IPv4 prefix of IPv6, a scope."""
    host = host.partition("%")[0]
    return host[7:] if host.startswith("::ffff:") and "." in host else host


class ConnectionQuotas:
    """The number of connections, and their limits.

    Attributes:
        reserved_from: the first file descriptor that connections must not use; None if there is no limit.

    Args:
        descriptor_limit: the most open files of the process; None to ask the system.
    """

    def __init__(self, config: BrokerConfig, descriptor_limit: int | None = None) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if descriptor_limit is None else descriptor_limit
        is_limited = limit != resource.RLIM_INFINITY
        self.reserved_from = limit - min(limit // 4, MOST_RESERVED_DESCRIPTORS) if is_limited else None
        self._most = config.integer("max.connections")
        self._most_per_host = config.integer("max.connections.per.ip")
        self._most_of_host = config.max_connections_per_ip_overrides
        self._count = 0
        self._counts: Counter[str] = Counter()
        self._turned_away: set[str] = set()
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def is_full(self) -> bool:
        """Whether `max.connections` is reached."""
        return self._count >= self._most

    async def wait_for_room(self) -> None:
        """Returns once a connection is closed; several listeners may wait."""
        await self._waiting.park()

    def admit(self, host: str) -> bool:
        """Counts a connection from `host`; returns False if the host has reached its limit."""
        if self._counts[host] >= self._most_of_host.get(host, self._most_per_host):
            return False
        self._count += 1
        self._counts[host] += 1
        self._turned_away.discard(host)
        return True

    def note_refusal(self, host: str) -> bool:
        """Returns whether this is the first refusal of the host since its last admission, and records the refusal."""
        if host in self._turned_away:
            return False
        if len(self._turned_away) >= MOST_TURNED_AWAY:
            self._turned_away.clear()
        self._turned_away.add(host)
        return True

    def leave(self, client: Client) -> None:
        """Subtracts an admitted connection that is closed."""
        self._count -= 1
        self._counts[client.host] -= 1
        if not self._counts[client.host]:
            del self._counts[client.host]
        self._waiting.unpark_all()


class BoundListener:
    """One of the broker's listeners, with its socket.

    Attributes:
        name: Kafka's name of the listener.
        address: the configured host and the actual port. Without a host it is `::`, which also accepts connections over IPv4,
            or `0.0.0.0` on a machine without IPv6.
    """

    __slots__ = ("_published", "_socket", "address", "name")

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        published: Published | None = None,
        *,
        shares_port: bool = False,
    ) -> None:
        """Binds the address.

        Args:
            published: the address that clients of a published port use; None without a published port.
            shares_port: other sockets of this user that share their ports too may be bound to the same port, and listen.

        Raises:
            ListenError: the address cannot be bound.
        """
        self.name = listener.name
        self._published = published
        try:
            self._socket = _bind(listener.host, listener.port, shares_port=shares_port)
            _set_options(self._socket, config)
        except OSError as error:
            raise _listen_error(Address(listener.host, listener.port), error) from None
        host, port = self._socket.getsockname()[:2]
        self.address = Address(listener.host or host, port)

    def listen(self, backlog: int) -> None:
        """Accepts connections from now on; they wait in the backlog until `accept` runs.

        Raises:
            ListenError: another socket has begun to listen on the address since both were bound.
        """
        try:
            self._socket.listen(backlog)
        except OSError as error:
            raise _listen_error(self.address, error) from None

    def stop(self) -> None:
        """Lets the kernel accept no more connections, at once; those in the backlog end. `close` follows."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accepts no more connections."""
        self._socket.close()

    async def accept(self, driver: EpollDriver, quotas: ConnectionQuotas) -> None:
        """Accepts connections for the driver until cancelled."""
        is_exhausted = False
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            if quotas.is_full:
                log.warning("max.connections is reached: further connections wait", listener=self.name)
                await quotas.wait_for_room()
            try:
                self._accept_waiting(driver, quotas)
                is_exhausted = False
            except OSError as error:  # no descriptors or no memory: logged once, until accepting succeeds again
                if not is_exhausted:
                    log.error("Cannot accept connections", listener=self.name, error=error.strerror)
                is_exhausted = True
                await trio.sleep(EXHAUSTED_PAUSE_SECONDS)

    def _accept_waiting(self, driver: EpollDriver, quotas: ConnectionQuotas) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if quotas.is_full:
                return
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            # Linux gives the lowest free descriptor, so its number shows how many are in use.
            if quotas.reserved_from is not None and accepted.fileno() >= quotas.reserved_from:
                accepted.close()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._admit(accepted, peer, driver, quotas)

    def _admit(self, accepted: socket.socket, peer: Sequence[str | int], driver: EpollDriver, quotas: ConnectionQuotas) -> None:
        host, port = plain_host(str(peer[0])), int(peer[1])
        if not quotas.admit(host):
            write = log.warning if quotas.note_refusal(host) else log.debug
            write("Connection refused: max.connections.per.ip is reached", client=host, listener=self.name)
            accepted.close()
            return
        accepted.setblocking(False)
        reached = self._reached(host, accepted)
        driver.add(accepted, Client(host, port, self.name, reached.host, reached.port))

    def _reached(self, client_host: str, accepted: socket.socket) -> Address:
        """Returns the address at which a client reached the broker, as the client knows it."""
        if self._published is not None and is_through_published_port(client_host, read_routes()):
            published = self._published.read() if isinstance(self._published, PublishedFile) else self._published
            if published is not None:
                return published
        host, port = accepted.getsockname()[:2]
        return Address(plain_host(host), port)


def _listen_error(address: Address, error: OSError) -> ListenError:
    return ListenError(f"Cannot listen on {address}: {error.strerror or error}")


def _bind(host: str, port: int, *, shares_port: bool) -> socket.socket:
    if not host:
        if socket.has_dualstack_ipv6():
            return _bound(socket.AF_INET6, ("::", port), shares_port=shares_port, is_dual=True)
        host = EVERY_INTERFACE
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 comes first if a name has both, as in Java.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return _bound(family, address, shares_port=shares_port)


def _bound(family: int, address: Any, *, shares_port: bool, is_dual: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _set_options(bound: socket.socket, config: BrokerConfig) -> None:
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, setting in ((socket.SO_SNDBUF, "socket.send.buffer.bytes"), (socket.SO_RCVBUF, "socket.receive.buffer.bytes")):
        size = config.integer(setting)
        if size != -1:
            bound.setsockopt(socket.SOL_SOCKET, option, size)
