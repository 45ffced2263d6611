"""The addresses of a broker, as `listeners`, `advertised.listeners` and related settings give them.

Rules of this file: listener names are upper case. An empty host means every interface. Port 0 lets the kernel choose.

Source: kafka.utils.CoreUtils.listenerListToEndPoints; kafka.server.KafkaConfig.validateValues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from wirekafka.config.definition import ConfigError

_ADDRESS = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)", re.ASCII)
_ACCEPTED = "NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
UNROUTABLE_HOSTS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104
"""Hosts that a server can bind and no client can connect to."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One address under its listener's name."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(setting: str, items: Iterable[str]) -> list[Listener]:
    """Returns the listeners of a list such as `PLAINTEXT://:9092,LAN://10.0.0.1:9093`.

    Raises:
        ConfigError: an address is malformed, or two have the same name.
    """
    listeners: list[Listener] = []
    for item in items:
        match = _ADDRESS.fullmatch(item)
        if match is None or not match[1] or int(match[3]) > 65535:
            raise ConfigError(setting, item, _ACCEPTED)
        name = match[1].upper()
        if any(listener.name == name for listener in listeners):
            raise ConfigError(setting, item, "one address for each listener name", f"there is another listener {name}")
        listeners.append(Listener(name, match[2], int(match[3])))
    return listeners


def check_addresses(listeners: Iterable[Listener]) -> None:
    """Raises unless every listener has an address of its own; the kernel gives port 0 a different port each time.

    Raises:
        ConfigError: two listeners have the same address.
    """
    names: dict[tuple[str, int], str] = {}
    for listener in listeners:
        address = (listener.host, listener.port)
        if listener.port and address in names:
            reason = f"listener {names[address]} has the same address"
            raise ConfigError("listeners", str(listener), "a different host or port for each listener", reason)
        names[address] = listener.name


def parse_protocols(setting: str, text: str) -> dict[str, str]:
    """Returns the security protocol of each listener name.

    Raises:
        ConfigError: an entry is not NAME:PROTOCOL, or its protocol is none of Kafka's.
    """
    protocols: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, protocol = item.partition(":")
        if not name or protocol.strip().upper() not in _PROTOCOLS:
            raise ConfigError(setting, item, f"NAME:PROTOCOL, the protocol one of {', '.join(_PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def check_protocols(listeners: Iterable[Listener], protocols: dict[str, str]) -> None:
    """Raises unless every listener has the protocol PLAINTEXT, the only supported one.

    Raises:
        ConfigError: a listener has another protocol, or none.
    """
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            accepted = f"a listener named in listener.security.protocol.map ({', '.join(protocols)})"
            raise ConfigError("listeners", str(listener), accepted, "no security protocol is defined for it")
        if protocol != "PLAINTEXT":
            raise ConfigError("listeners", str(listener), "listeners that speak PLAINTEXT", f"{protocol} is not supported yet")


def check_advertised(advertised: Iterable[Listener], listeners: Iterable[Listener]) -> None:
    """Raises unless every advertised address belongs to a listener, and clients can connect to it.

    Raises:
        ConfigError: an address belongs to no listener, or clients cannot connect to it.
    """
    names = [listener.name for listener in listeners]
    for listener in advertised:
        if listener.name not in names:
            accepted = f"listeners named in listeners ({', '.join(names)})"
            raise ConfigError("advertised.listeners", str(listener), accepted, "there is no such listener")
        if listener.host in UNROUTABLE_HOSTS:
            raise ConfigError("advertised.listeners", str(listener), "a host that clients can connect to")


def parse_connection_overrides(setting: str, text: str) -> dict[str, int]:
    """Returns the number of connections for each address of `max.connections.per.ip.overrides`.

    Raises:
        ConfigError: an entry is not ADDRESS:NUMBER. The name of a host is refused, because clients are compared by address.
    """
    overrides: dict[str, int] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        address, _, number = item.rpartition(":")
        try:
            if not re.fullmatch(r"[0-9]{1,10}", number.strip(), re.ASCII):
                raise ValueError(number)
            overrides[str(ip_address(address.strip().strip("[]")))] = int(number)
        except ValueError:
            raise ConfigError(setting, item, "ADDRESS:NUMBER, such as 127.0.0.1:200; hosts by their IP address") from None
    return overrides
