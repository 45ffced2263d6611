"""Clients of a container that come in through a published port, and so do not know the address that they reached.

Theory of operation: a container engine hands such a connection on from the gateway of the container's network, or rewrites its
destination and leaves the source outside that network. A client in a neighbouring container has an address on a network of
the container's own, and reached the container by an address that it can use again.

Rules of this file: the routes are read for each connection, because a container may join a network while it runs; 20 us
(2026-11), and only where the broker was told what is published.

Source: Linux, Documentation/networking/proc_net_route (addresses in hexadecimal, in the host's byte order).
"""

from __future__ import annotations

import sys
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

ROUTES = Path("/proc/net/route")


def is_through_published_port(client_host: str, routes: str) -> bool:
    """Whether a client is on none of this host's own networks, or is the gateway of one.

    Args:
        client_host: the client's address.
        routes: the text of `/proc/net/route`.
    """
    address = ip_address(client_host)
    if not isinstance(address, IPv4Address) or address.is_loopback:
        return False
    table = [line.split() for line in routes.splitlines()[1:]]
    gateways = {_address(fields[2]) for fields in table}
    networks = [IPv4Network((_address(fields[1]), str(_address(fields[7])))) for fields in table if int(fields[2], 16) == 0]
    return address in gateways or not any(address in network for network in networks)


def read_routes() -> str:
    """The text of `/proc/net/route`; empty where there is none, as on other systems than Linux."""
    return ROUTES.read_text() if ROUTES.exists() else ""


def _address(text: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(text), sys.byteorder))
