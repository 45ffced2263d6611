"""Recognizes the clients of a container that connect through a published port.

How it works: a container engine forwards such a connection from the gateway of the container's network, or rewrites its
destination and keeps its source, which is outside that network. A client in a neighbouring container has an address in a network
of the container, and can use the address at which it reached the container again.

Rules of this file: the routes are read for each connection, because a container may join a network while it runs. This takes 20
us (2026-11), and is done only if a published address is configured.

Source: Linux, Documentation/networking/proc_net_route (addresses in hexadecimal, in the host's byte order).
"""

from __future__ import annotations

import sys
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

ROUTES = Path("/proc/net/route")


def is_through_published_port(client_host: str, routes: str) -> bool:
    """Whether a client is in none of this host's networks, or is the gateway of one.

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
    """Returns the text of `/proc/net/route`; empty if the file does not exist, as on systems other than Linux."""
    return ROUTES.read_text() if ROUTES.exists() else ""


def _address(text: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(text), sys.byteorder))
