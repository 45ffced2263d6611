"""The CPU time and the memory of a measured process."""

from __future__ import annotations

from typing import Protocol

import psutil


class Server(Protocol):
    """A measured process and its address."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...


def cpu_seconds(*servers: Server) -> float:
    """Returns the CPU time of the processes of all servers so far, user and system."""
    times = [psutil.Process(server.pid).cpu_times() for server in servers]
    return sum(each.user + each.system for each in times)


def resident_bytes(server: Server) -> int:
    """Returns VmRSS, the resident memory of the process."""
    return int(psutil.Process(server.pid).memory_info().rss)
