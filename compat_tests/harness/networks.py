"""A network of namespaces, one for each broker and for ZooKeeper, in which each direction between two of them can be cut.

    with network(["1", "2", "zookeeper"]) as made:
        made.machines["1"].prefix       # runs a command there
        made.cut("1", "2")              # packets from 1 to 2 are lost; those from 2 to 1 arrive
        made.heal()

How it works: all namespaces have a virtual Ethernet to a bridge, which is in a namespace of its own, out of the reach of the
firewall of this machine. The machine itself is the member `CLIENTS`. A direction is cut by a wrong hardware address: the sender
goes on sending, and no one takes the packets. Connections neither end nor fail, as with a real cable.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CLIENTS = "clients"
ZOOKEEPER = "zookeeper"
_NOWHERE = "02:00:00:00:de:ad"


@dataclass(frozen=True)
class Machine:
    """Where a process runs.

    Attributes:
        prefix: precedes its command line.
    """

    host: str
    prefix: tuple[str, ...] = ()


class Network:
    """The namespaces.

    Attributes:
        machines: by name, `CLIENTS` included.
    """

    def __init__(self, names: Iterable[str]) -> None:
        tag = f"wk{os.urandom(3).hex()}"
        # 198.18.0.0/15 is for benchmarks of networks (RFC 2544): no real network has these addresses.
        subnet = f"198.{random.choice((18, 19))}.{random.randrange(256)}"
        self._switch, self._uplink = f"{tag}-switch", f"{tag}-up"
        self._namespaces = {name: f"{tag}-{name}" for name in names}
        self.machines = {CLIENTS: Machine(f"{subnet}.254")}
        for number, (name, namespace) in enumerate(self._namespaces.items(), start=1):
            self.machines[name] = Machine(f"{subnet}.{number}", ("ip", "netns", "exec", namespace))
        self._cuts: set[tuple[str, str]] = set()

    def open(self) -> None:
        """Makes the namespaces."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        _ip("link", "add", self._uplink, "type", "veth", "peer", "name", "uplink", "netns", self._switch)
        self._connect("uplink", CLIENTS)
        for number, (name, namespace) in enumerate(self._namespaces.items(), start=1):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{number}", "netns", self._switch)
            self._connect(f"port{number}", name)

    def _connect(self, port: str, name: str) -> None:
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        inside, device = self._inside(name)
        _ip(*inside, "addr", "add", f"{self.machines[name].host}/24", "dev", device)
        _ip(*inside, "link", "set", device, "up")

    def _inside(self, name: str) -> tuple[tuple[str, ...], str]:
        """Returns the options of `ip` for the namespace of a member, and its device."""
        return ((), self._uplink) if name == CLIENTS else (("-n", self._namespaces[name]), "eth0")

    def cut(self, sender: str, receiver: str) -> None:
        """Loses all packets from one member to another, until `heal`."""
        inside, device = self._inside(sender)
        host = self.machines[receiver].host
        _ip(*inside, "neigh", "replace", host, "lladdr", _NOWHERE, "dev", device, "nud", "permanent")
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Ends all cuts."""
        for sender, receiver in self._cuts:
            inside, device = self._inside(sender)
            _ip(*inside, "neigh", "del", self.machines[receiver].host, "dev", device)
        self._cuts.clear()

    def close(self) -> None:
        """Deletes the namespaces that were made. Their processes must have ended."""
        for namespace in (self._switch, *self._namespaces.values()):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._uplink], capture_output=True, check=False)


class CannotMakeNetworkError(Exception):
    """This machine cannot make network namespaces."""


@contextlib.contextmanager
def network(names: Iterable[str]) -> Iterator[Network]:
    """Yields a network of members with these names, and deletes it at the end.

    Raises:
        CannotMakeNetworkError: the message says why.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise CannotMakeNetworkError("network namespaces need root and iproute2 (Debian: iproute2)")
    made = Network(names)
    try:
        try:
            made.open()
        except subprocess.CalledProcessError as error:
            raise CannotMakeNetworkError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield made
    finally:
        made.close()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
