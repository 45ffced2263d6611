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


def cpu_seconds(server: Server) -> float:
    """Returns the CPU time of the server's process so far, user and system."""
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def resident_bytes(server: Server) -> int:
    """Returns VmRSS, the resident memory of the process."""
    return int(psutil.Process(server.pid).memory_info().rss)
