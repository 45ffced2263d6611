"""The client of `wirekafka cluster` and brokers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from wirekafka.cli.cluster import client as client_module
from wirekafka.cli.cluster.client import Address, ClusterClient, Connection, UnreachableError, parse_bootstrap
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.snapshot import LIST_REASSIGNMENTS, read_reassignments
from wirekafka.tests.cli.played_cluster import played_cluster
from wirekafka.wire.requests import RequestType


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("broker", [("broker", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_read(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses
    assert [parse_bootstrap(str(Address(*each))) for each in addresses] == [[each] for each in addresses]


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:65536", "a:x", "http://a:1", ":9092"])
def test_malformed_bootstrap_server_is_refused(text: str) -> None:
    with pytest.raises(ClusterCommandError, match="accepted is HOST:PORT"):
        parse_bootstrap(text)


@contextmanager
def broker_that(act: Callable[[socket.socket], object]) -> Iterator[Address]:
    """Runs a broker that does this with its first connection, and then closes it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            act(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address(*listener.getsockname()[:2])
        finally:
            thread.join(10)


def reason_of(address: Address, timeout_s: float = 5.0) -> str:
    with pytest.raises(UnreachableError) as caught:
        Connection(address, timeout_s)
    return str(caught.value)


def test_broker_that_closes_the_connection_is_reported_with_the_listener_to_use() -> None:
    with broker_that(lambda connection: None) as address:
        assert "has closed the connection at ApiVersions: look at its log; the listener must be PLAINTEXT" in reason_of(address)


@pytest.mark.parametrize("size", [0, -1, (100 << 20) + 1, 0x48545450])
def test_response_of_an_impossible_size_is_refused_before_it_is_received(size: int) -> None:
    with broker_that(lambda connection: connection.sendall(struct.pack(">i", size))) as address:
        assert f"a response of {size} bytes" in reason_of(address)


def test_response_to_another_request_and_one_that_is_cut_are_refused() -> None:
    with broker_that(lambda connection: connection.sendall(struct.pack(">iih", 6, 99, 0))) as address:
        assert "the response belongs to another request" in reason_of(address)
    with broker_that(lambda connection: connection.sendall(struct.pack(">iih", 6, 1, 0))) as address:
        assert "sends no response of Kafka (not a ApiVersionsResponse of version 0" in reason_of(address)


def test_broker_that_sends_a_byte_now_and_then_does_not_hold_the_client() -> None:
    done = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">i", 1000))
        while not done.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with broker_that(drip) as address:
        try:
            assert "does not answer ApiVersions within 0.2 s" in reason_of(address, timeout_s=0.2)
        finally:
            done.set()


def test_no_broker_that_answers_is_an_error_with_each_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address(*unused.getsockname())
        with ClusterClient([address], 1.0) as client, pytest.raises(UnreachableError, match="start the broker, or correct"):
            client.metadata()


def test_lost_connection_is_opened_again_once() -> None:
    with played_cluster({1: None}) as cluster, ClusterClient([Address("127.0.0.1", cluster.ports[1])], 5.0) as client:
        client.metadata()
        for connection in client._connections.values():
            connection._socket.shutdown(socket.SHUT_RDWR)
        assert client.metadata().cluster_id == "played"
        assert cluster.asked.count("ApiVersions") == 2


def test_request_for_the_controller_follows_it_to_another_broker() -> None:
    with played_cluster({1: None, 2: None}) as cluster:
        waits: list[float] = []
        address = Address("127.0.0.1", cluster.ports[1])
        with ClusterClient([address], 5.0, sleep=waits.append) as client:
            client.metadata()
            cluster.controller_id = 2
            assert read_reassignments(client) == {}
        assert waits == [client_module.RETRY_SECONDS]


def test_broker_without_a_common_version_is_too_old_for_the_command() -> None:
    with played_cluster({1: None}) as cluster, ClusterClient([Address("127.0.0.1", cluster.ports[1])], 5.0) as client:
        kind = RequestType(99, LIST_REASSIGNMENTS.request, LIST_REASSIGNMENTS.response, range(1), None)
        with pytest.raises(ClusterCommandError, match="does not serve ListPartitionReassignments: the broker is too old"):
            client.ask(kind, LIST_REASSIGNMENTS.request())
