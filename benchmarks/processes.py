"""What a measured process has used: CPU time and memory."""

from __future__ import annotations

from typing import Protocol

import psutil


class Server(Protocol):
    """What is measured: a process, and where it is reached."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...


def cpu_seconds(server: Server) -> float:
    """CPU time of the server's process so far, user and system."""
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def resident_bytes(server: Server) -> int:
    """VmRSS: what the process holds in memory."""
    return int(psutil.Process(server.pid).memory_info().rss)
