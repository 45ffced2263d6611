"""`wirekafka doctor` at an embedded broker, and at other servers."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from wirekafka.cli import main
from wirekafka.cli.client import examination
from wirekafka.cli.client.connection import Connection
from wirekafka.cli.client.examination import Patient, Report
from wirekafka.cli.client.probe import Speaks, probe
from wirekafka.testing import EmbeddedBroker

# Of a server on the loopback interface for the time of a test; nothing else trusts it. Valid until 2126.
KEY_AND_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdXFD4qEP1nWPUH7N
5u0QWJvyI5YoojB8UczCDkpYcQehRANCAAS95G7dmkgwkQbQSLAyozl0+uW13aAC
CG4obm+w1B+mS9MyMsuKcY9o4nqhGlCojyyijFuZxGibRQkdm8K4vXqk
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUNwfEVvn1Z5ZnZX0gEBZpq4j9m/YwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNDAzMTUzOVoYDzIxMjYxMDMx
MDMxNTM5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS95G7dmkgwkQbQSLAyozl0+uW13aACCG4obm+w1B+mS9MyMsuKcY9o
4nqhGlCojyyijFuZxGibRQkdm8K4vXqko1MwUTAdBgNVHQ4EFgQUjwmzGbuNDZt3
CL+K0Kx1XacHZs0wHwYDVR0jBBgwFoAUjwmzGbuNDZt3CL+K0Kx1XacHZs0wDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAxBIogMtzYcsutvtT8eUK
qi3KKGhqvpHsgyLTPsAwfksCIQCBv1XwQvEJkvWwK1QWIKX++XdjgzBv0m51HdUb
G3jUgQ==
-----END CERTIFICATE-----
"""


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serves each connection in one thread until the end of the block; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        is_over = threading.Event()

        def run() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if is_over.is_set():
                        return
                    with suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        port: int = listener.getsockname()[1]
        try:
            yield port
        finally:
            is_over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def answer_http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def answer_alert(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"\x15\x03\x03\x00\x02\x02\x46")


def answer_greeting(connection: socket.socket) -> None:
    connection.sendall(b"220 mail.example.com ESMTP\r\n")
    connection.recv(1000)


def close(connection: socket.socket) -> None:
    connection.recv(1000)


def examined(address: str, *arguments: str, exit_code: int = 0) -> dict[str, tuple[str, str, str | None]]:
    """Returns state, detail and remedy of each check, the last ones of its name."""
    result = CliRunner().invoke(main, ["doctor", address, "--json", "--timeout", "60", *arguments])
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["could_look"] == (exit_code != 2)
    return {each["check"]: (each["state"], each["detail"], each["remedy"]) for each in found["checks"]}


def test_broker_in_order_is_fine_and_the_temporary_topic_is_deleted() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("alone", min_insync_replicas=2)
        checks = examined(broker.bootstrap)
        names = ["name", "connection", "protocol", "versions", "metadata", "advertised", "topics", "record", "clock"]
        assert {name: state for name, (state, _, _) in checks.items()} == dict.fromkeys(names, "ok")
        assert (
            CliRunner().invoke(main, ["topic", "list", "--names", "-b", broker.bootstrap, "--timeout", "60"]).stdout == "alone\n"
        )
        shown = CliRunner().invoke(main, ["doctor", broker.bootstrap, "--no-write", "--timeout", "60"])
        assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "Everything is fine.")


def test_record_goes_to_the_topic_that_is_named() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("mine")
        checks = examined(broker.bootstrap, "--topic", "mine")
        assert (checks["record"][0], checks["clock"][0]) == ("ok", "skipped")
        assert len(broker.records("mine")) == 1
        assert "topic nope does not exist" in examined(broker.bootstrap, "--topic", "nope", exit_code=1)["record"][1]


def test_clock_that_is_ahead_is_a_finding_with_a_remedy() -> None:
    with EmbeddedBroker() as broker:
        broker.clock.advance(36_000)
        state, detail, remedy = examined(broker.bootstrap, exit_code=1)["clock"]
        assert (state, "ahead of this machine's" in detail) == ("finding", True)
        assert remedy is not None
        shown = CliRunner().invoke(main, ["doctor", broker.bootstrap, "--timeout", "60"])
        assert shown.stdout.splitlines()[-1].strip() == remedy


def test_refused_record_is_a_finding_with_the_reason() -> None:
    with EmbeddedBroker() as broker, broker.fault(api="Produce", error="TOPIC_AUTHORIZATION_FAILED"):
        state, detail, remedy = examined(broker.bootstrap, exit_code=1)["record"]
    assert (state, "the user of the connection needs permission" in detail) == ("finding", True)
    assert remedy is not None
    assert "--topic" in remedy


def test_advertised_address_that_does_not_answer_is_a_finding_and_no_record_is_tried() -> None:
    with EmbeddedBroker(advertised_listeners="PLAINTEXT://127.0.0.1:1") as broker:
        checks = examined(broker.bootstrap, exit_code=1)
    state, detail, remedy = checks["advertised"]
    assert (state, detail.partition(" (")[0]) == (
        "finding",
        "broker 1 is advertised as 127.0.0.1:1, which does not accept connections",
    )
    assert remedy is not None
    assert "advertised.listeners" in remedy
    assert checks["record"][0] == "skipped"


@pytest.mark.parametrize(
    ("addresses", "trouble"),
    [
        ({"kafka.example.com": ["192.0.2.1"]}, "a name that this machine cannot resolve"),
        ({"kafka.example.com": ["192.0.2.1"], "broker": ["127.0.0.1", "::1"]}, "which is the machine of each client itself"),
        ({"kafka.example.com": ["192.0.2.1"], "broker": ["0.0.0.0"]}, "which is the machine of each client itself"),
    ],
)
def test_advertised_name_is_wrong_for_clients_elsewhere(
    monkeypatch: pytest.MonkeyPatch, addresses: dict[str, list[str]], trouble: str
) -> None:
    def resolve(host: str, port: int) -> list[str]:
        if host not in addresses:
            raise OSError("no such name")
        return addresses[host]

    monkeypatch.setattr(examination, "resolve", resolve)
    patient = Patient("kafka.example.com", 9092, Connection({}, 60))
    metadata = SimpleNamespace(brokers={1: SimpleNamespace(id=1, host="broker", port=9092)})
    report = Report()
    assert not examination._check_advertised(patient, metadata, report)
    assert report.findings[0].detail == f"broker 1 is advertised as broker:9092, {trouble}"


def test_topics_in_trouble_are_named_by_their_worst_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def partition(leader: int, isrs: list[int]) -> SimpleNamespace:
        return SimpleNamespace(leader=leader, isrs=isrs, replicas=[1, 2])

    partitions = {0: partition(-1, []), 1: partition(1, [1]), 2: partition(1, [1, 2])}
    metadata = SimpleNamespace(topics={name: SimpleNamespace(partitions=partitions) for name in ("loose", "strict")})
    monkeypatch.setattr(examination, "_min_isr", lambda connection, topics: {"loose": 1, "strict": 2})
    report = Report()
    examination._check_topics(Patient("h", 1, Connection({}, 60)), metadata, report)
    assert [result.detail for result in report.findings] == [
        "2 partitions offline: loose-0, strict-0",
        "1 partition under min.insync.replicas: strict-1",
        "1 partition under-replicated: loose-1",
    ]


@pytest.mark.parametrize(
    ("serve", "detail"),
    [
        (answer_http, "it speaks HTTP, not Kafka"),
        (answer_alert, "it speaks TLS"),
        (answer_greeting, "it does not speak Kafka to clients"),
        (close, "it does not speak Kafka to clients"),
    ],
)
def test_server_that_is_no_broker_is_said_to_be_what_it_is(serve: Callable[[socket.socket], None], detail: str) -> None:
    with server(serve) as port:
        state, found, remedy = examined(f"127.0.0.1:{port}", exit_code=2)["protocol"]
    assert (state, found) == ("finding", detail)
    assert remedy


def test_server_that_closes_is_asked_for_tls(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text(KEY_AND_CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    def shake_hands(connection: socket.socket) -> None:
        if connection.recv(1, socket.MSG_PEEK) != b"\x16":
            return
        connection.settimeout(60)
        context.wrap_socket(connection, server_side=True).close()

    with server(shake_hands) as port:
        assert probe("127.0.0.1", port, 60).speaks is Speaks.TLS


def test_server_that_stays_silent_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert probe("127.0.0.1", listener.getsockname()[1], 0.2).speaks is Speaks.NOTHING


def test_listener_without_tls_is_a_finding_for_a_client_with_tls() -> None:
    with EmbeddedBroker() as broker:
        checks = examined(broker.bootstrap, "-X", "security.protocol=SSL", exit_code=2)
    assert checks["protocol"][:2] == ("finding", "the listener has no TLS")


def test_address_that_nobody_listens_on_cannot_be_looked_at() -> None:
    state, detail, _ = examined("127.0.0.1:1", exit_code=2)["connection"]
    assert (state, detail.startswith("127.0.0.1:1 does not accept connections")) == ("finding", True)


def test_wrong_arguments_and_a_missing_library_exit_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "accepted is HOST:PORT" in CliRunner().invoke(main, ["doctor", "a:1,b:2"]).stderr
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    result = CliRunner().invoke(main, ["doctor", "127.0.0.1:1"])
    assert (result.exit_code, "pip install 'wirekafka[cli]'" in result.stderr) == (2, True)
