"""Clients that connect through a container's published port."""

from __future__ import annotations

import sys

import pytest

from wirekafka.server.published_ports import is_through_published_port

HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def route(destination: str, gateway: str, mask: str) -> str:
    def field(address: str) -> str:
        number = int.from_bytes(bytes(map(int, address.split("."))), sys.byteorder)
        return f"{number:08X}"

    return f"eth0\t{field(destination)}\t{field(gateway)}\t0003\t0\t0\t0\t{field(mask)}\t0\t0\t0\n"


ROUTES = HEADER + route("0.0.0.0", "172.17.0.1", "0.0.0.0") + route("172.17.0.0", "0.0.0.0", "255.255.0.0")


@pytest.mark.parametrize(
    ("client", "is_through"),
    [
        ("172.17.0.1", True),  # the gateway: from the host, through its port
        ("192.168.7.9", True),  # another machine, through the host's port
        ("172.17.0.3", False),  # another container
        ("127.0.0.1", False),  # inside the container
        ("fd00::7", False),
    ],
)
def test_client_in_front_of_the_gateway_is_told_apart_from_neighbours(client: str, is_through: bool) -> None:
    assert is_through_published_port(client, ROUTES) is is_through


def test_network_without_a_gateway_makes_a_client_a_neighbour() -> None:
    assert not is_through_published_port("10.5.0.7", ROUTES + route("10.5.0.0", "0.0.0.0", "255.255.0.0"))
