"""The control port of an embedded broker, by real clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from wirekafka.server.listener import ListenError
from wirekafka.testing import EmbeddedBroker
from wirekafka.tests.testing.control.http_client import ask


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(control_port=0) as running:
        yield running


def produce(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10, "retry.backoff.max.ms": 20})
    producer.produce("orders", value)
    assert producer.flush(60) == 0


def test_fault_over_http_hits_a_producer_that_tries_again(broker: EmbeddedBroker) -> None:
    _, fault = ask("POST", f"{broker.control_url}/faults", {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "times": 2})
    produce(broker.bootstrap, b"one")
    _, found = ask("GET", f"{broker.control_url}/topics/orders/records/wait?count=1")
    assert [each["value"] for each in found["records"]] == ["one"]
    status, ended = ask("DELETE", f"{broker.control_url}/faults/{fault['id']}")
    assert (status, [each["api"] for each in ended["hits"]]) == (200, ["Produce", "Produce"])


def test_reset_and_time_are_those_of_the_embedded_broker(broker: EmbeddedBroker) -> None:
    before = broker.clock.now_ms()
    assert ask("POST", f"{broker.control_url}/clock/advance", {"seconds": 3600})[0] == 200
    assert broker.clock.now_ms() - before >= 3_600_000
    assert ask("POST", f"{broker.control_url}/reset")[0] == 200
    assert broker.clock.now_ms() - before < 3_600_000
    assert broker.groups() == []


def test_wait_goes_on_while_the_time_is_moved(broker: EmbeddedBroker) -> None:
    host, port = broker.control_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as waiting:
        waiting.sendall(b"GET /topics/later/records/wait?count=1&timeout_s=60 HTTP/1.1\r\nHost: localhost\r\n")
        assert ask("POST", f"{broker.control_url}/clock/advance", {"seconds": 86_400})[0] == 200
        waiting.sendall(b"\r\n")
        assert ask("POST", f"{broker.control_url}/clock/advance", {"seconds": 86_400})[0] == 200
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("later", b"one")
        assert producer.flush(60) == 0
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_fork_in_python_has_a_control_port_of_its_own(broker: EmbeddedBroker) -> None:
    with broker.fork() as fork:
        assert fork.control_url != broker.control_url
        assert ask("GET", f"{fork.control_url}/broker")[1]["bootstrap"] == fork.bootstrap


def test_fork_over_http_has_a_control_port_of_its_own(broker: EmbeddedBroker) -> None:
    _, fork = ask("POST", f"{broker.control_url}/forks")
    assert ask("GET", f"{fork['control']}/broker")[1]["bootstrap"] == fork["bootstrap"]
    produce(fork["bootstrap"], b"in the fork")
    assert ask("DELETE", f"{broker.control_url}/forks/{fork['id']}")[0] == 200


def test_port_that_is_taken_is_an_error(broker: EmbeddedBroker) -> None:
    port = int(broker.control_url.rpartition(":")[2])
    with pytest.raises(ListenError, match="the control port"):
        EmbeddedBroker(control_port=port).start()


def test_broker_without_a_control_port_has_no_url() -> None:
    with EmbeddedBroker() as plain, pytest.raises(ValueError, match="control_port=0"):
        _ = plain.control_url
