from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.lowlevel
import trio.testing

from wirekafka.api.registry import Client
from wirekafka.config import BrokerConfig, Listener
from wirekafka.server import listener as module
from wirekafka.server.listener import Address, BoundListener, ConnectionQuotas, ListenError, Published, PublishedFile, plain_host


class Collector:
    """A driver that only records its connections."""

    def __init__(self) -> None:
        self.added: list[tuple[socket.socket, Client]] = []

    def add(self, sock: socket.socket, client: Client) -> None:
        self.added.append((sock, client))

    def close(self) -> None:
        for sock, _ in self.added:
            sock.close()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@asynccontextmanager
async def listening(
    host: str, *, published: Published | None = None, **settings: str
) -> AsyncIterator[tuple[BoundListener, Collector, ConnectionQuotas]]:
    config = BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})
    listener, driver, quotas = BoundListener(Listener("LAN", host, 0), config, published), Collector(), ConnectionQuotas(config)
    listener.listen(50)
    try:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.accept, driver, quotas)  # type: ignore[arg-type]
                yield listener, driver, quotas
                nursery.cancel_scope.cancel()
    finally:
        listener.close()
        driver.close()


async def until_added(driver: Collector, count: int) -> None:
    while len(driver.added) < count:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("listen", "connect", "seen"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "::1", "::1", marks=needs_ipv6),
        pytest.param("", "::1", "::1", marks=needs_ipv6),
    ],
)
def test_client_knows_where_it_comes_from_and_where_it_came_to(listen: str, connect: str, seen: str) -> None:
    async def main() -> None:
        async with listening(listen) as (listener, driver, _):
            with socket.create_connection((connect, listener.address.port)) as ours:
                await until_added(driver, 1)
                port = ours.getsockname()[1]
        accepted, client = driver.added[0]
        assert (client.host, client.port, client.listener) == (seen, port, "LAN")
        assert (client.local_host, client.local_port) == (seen, listener.address.port)
        assert accepted.gettimeout() == 0

    trio.run(main)


def test_port_0_is_chosen_by_the_kernel_and_read_back() -> None:
    listener = BoundListener(Listener("PLAINTEXT", "127.0.0.1", 0), BrokerConfig())
    assert listener.address.port > 0
    assert str(listener.address) == f"127.0.0.1:{listener.address.port}"
    listener.close()


def test_bound_listener_refuses_until_it_listens() -> None:
    listener = BoundListener(Listener("PLAINTEXT", "127.0.0.1", 0), BrokerConfig())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((listener.address.host, listener.address.port))
    listener.close()


def test_accepted_sockets_inherit_the_options() -> None:
    async def main() -> None:
        listen = listening("127.0.0.1", socket_send_buffer_bytes="50000", socket_receive_buffer_bytes="60000")
        async with listen as (listener, driver, _):
            with socket.create_connection(("127.0.0.1", listener.address.port)):
                await until_added(driver, 1)
                accepted = driver.added[0][0]
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000

    trio.run(main)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [("127.0.0.1", None, "Address already in use"), ("192.0.2.1", 0, "Cannot assign"), ("no such host", 0, "no such host:0: ")],
)
def test_address_that_cannot_be_bound_is_named_with_the_reason(host: str, port: int | None, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = Listener("PLAINTEXT", host, other.getsockname()[1] if port is None else port)
        with pytest.raises(ListenError, match=f"Cannot listen on {listener.host}:{listener.port}: ") as caught:
            BoundListener(listener, BrokerConfig())
    assert reason in str(caught.value)


def test_address_with_too_many_connections_is_turned_away() -> None:
    async def main() -> None:
        limits: dict[str, Any] = {"max_connections_per_ip": "1", "max_connections_per_ip_overrides": "127.0.0.2:2"}
        async with listening("127.0.0.1", **limits) as (listener, driver, quotas):
            address = ("127.0.0.1", listener.address.port)
            with structlog.testing.capture_logs() as lines:
                for source, admitted in (("127.0.0.1", 1), ("127.0.0.2", 3)):
                    ours = [socket.create_connection(address, source_address=(source, 0)) for _ in range(3)]
                    await until_added(driver, admitted)
                    await until_logged(lines, 2 if source == "127.0.0.1" else 3)
                    for each in ours:
                        each.close()
            assert {(line["client"], line["event"].partition(":")[0]) for line in lines} == {
                ("127.0.0.1", "Connection refused"),
                ("127.0.0.2", "Connection refused"),
            }
            assert [line["log_level"] for line in lines] == ["warning", "debug", "warning"]
            quotas.leave(driver.added[0][1])
            with structlog.testing.capture_logs() as lines:
                ours = [socket.create_connection(address, source_address=("127.0.0.1", 0)) for _ in range(2)]
                await until_added(driver, 4)
                await until_logged(lines, 1)
                for each in ours:
                    each.close()
            assert [line["log_level"] for line in lines] == ["warning"]

    async def until_logged(lines: list[Any], count: int) -> None:
        while len(lines) < count:
            await trio.lowlevel.checkpoint()

    trio.run(main)


def test_connection_beyond_max_connections_waits_for_another_to_leave() -> None:
    async def main() -> None:
        async with listening("127.0.0.1", max_connections="2") as (listener, driver, quotas):
            ours = [socket.create_connection(("127.0.0.1", listener.address.port)) for _ in range(3)]
            await until_added(driver, 2)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert len(driver.added) == 2
            quotas.leave(driver.added[0][1])
            await until_added(driver, 3)
            for each in ours:
                each.close()

    with structlog.testing.capture_logs() as lines:
        trio.run(main)
    assert [line["event"] for line in lines] == ["max.connections is reached: further connections wait"]


def test_each_listener_that_waits_for_room_gets_it_when_connections_leave() -> None:
    async def main() -> None:
        config = BrokerConfig({"max.connections": "2"})
        quotas, driver = ConnectionQuotas(config), Collector()
        listeners = [BoundListener(Listener(name, "127.0.0.1", 0), config) for name in ("ONE", "TWO")]
        with trio.fail_after(10), structlog.testing.capture_logs():
            async with trio.open_nursery() as nursery:
                for each in listeners:
                    each.listen(50)
                    nursery.start_soon(each.accept, driver, quotas)  # type: ignore[arg-type]
                addresses = [("127.0.0.1", each.address.port) for each in listeners]
                ours = [socket.create_connection(address) for address in addresses]
                await until_added(driver, 2)
                ours += [socket.create_connection(address) for address in addresses]  # both listeners wait now
                await trio.testing.wait_all_tasks_blocked(0.02)
                for number in range(2):
                    quotas.leave(driver.added[number][1])
                    await until_added(driver, 3 + number)
                nursery.cancel_scope.cancel()
        assert {client.listener for _, client in driver.added[2:]} == {"ONE", "TWO"}
        for sock in ours:
            sock.close()
        for listener in listeners:
            listener.close()
        driver.close()

    trio.run(main)


def test_last_descriptors_are_not_used_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXHAUSTED_PAUSE_SECONDS", 0)

    async def main() -> None:
        async with listening("127.0.0.1") as (listener, driver, quotas):
            address = ("127.0.0.1", listener.address.port)
            with structlog.testing.capture_logs() as lines, socket.socket() as next_one:
                quotas.reserved_from = next_one.fileno()
                with socket.create_connection(address) as ours:
                    ours.setblocking(False)
                    await trio.lowlevel.wait_readable(ours)
                    assert ours.recv(1) == b""
                assert not driver.added
                quotas.reserved_from = None
                with socket.create_connection(address):
                    await until_added(driver, 1)
        assert [(line["event"], line["error"]) for line in lines] == [("Cannot accept connections", "Too many open files")]

    trio.run(main)


@pytest.mark.parametrize(("limit", "reserved_from"), [(256, 192), (1024, 768), (1 << 20, (1 << 20) - 1024), (-1, None)])
def test_quarter_of_the_descriptors_is_reserved_up_to_a_thousand(limit: int, reserved_from: int | None) -> None:
    assert ConnectionQuotas(BrokerConfig(), limit).reserved_from == reserved_from


def test_addresses_are_printed_as_clients_write_them() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert plain_host("::ffff:192.0.2.1") == "192.0.2.1"
    assert plain_host("fe80::1%eth0") == "fe80::1"
    assert plain_host("::ffff:0:1") == "::ffff:0:1"


@pytest.mark.parametrize("published", [Address("kafka.example", 19092), None])
def test_client_of_a_published_port_has_reached_the_published_address(
    monkeypatch: pytest.MonkeyPatch, published: Address | None
) -> None:
    monkeypatch.setattr(module, "is_through_published_port", lambda host, routes: True)

    async def main() -> None:
        async with listening("127.0.0.1", published=published) as (listener, driver, _):
            stream = await trio.open_tcp_stream("127.0.0.1", listener.address.port)
            await until_added(driver, 1)
            client = driver.added[0][1]
            expected = published or listener.address
            assert (client.local_host, client.local_port) == (expected.host, expected.port)
            await stream.aclose()

    trio.run(main)


def test_client_of_a_published_port_is_told_what_the_file_has_when_it_connects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "is_through_published_port", lambda host, routes: True)
    file = tmp_path / "published"

    async def main() -> None:
        async with listening("127.0.0.1", published=PublishedFile(str(file))) as (listener, driver, _):
            own = (listener.address.host, listener.address.port)
            for text, expected in (
                (None, own),
                ("", own),
                ("localhost:", own),
                ("localhost:32768\n", ("localhost", 32768)),
                ("[::1]:32769", ("::1", 32769)),
            ):
                if text is not None:
                    file.write_text(text)
                count = len(driver.added)
                stream = await trio.open_tcp_stream("127.0.0.1", listener.address.port)
                await until_added(driver, count + 1)
                client = driver.added[-1][1]
                assert (client.local_host, client.local_port) == expected
                await stream.aclose()

    with structlog.testing.capture_logs() as logs:
        trio.run(main)
    assert [entry["file"] for entry in logs if "file" in entry] == [str(file)], "one line until the file has an address"
