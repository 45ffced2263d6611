"""Tells systemd that the broker serves, that it stops, and that it is alive (`sd_notify`).

How it works: systemd gives a service of `Type=notify` the address of a datagram socket in `NOTIFY_SOCKET`. The broker sends
`READY=1` to it when clients can connect, and `STOPPING=1` when the broker begins to stop. If `WATCHDOG_USEC` is set, the broker's
loop sends `WATCHDOG=1` twice in that time, so that systemd restarts a broker whose loop no longer turns.

Rules of this file: a service manager that cannot be reached costs a line in the log, and nothing else.

Source: the manual pages sd_notify(3) and sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
import trio

log = structlog.get_logger(__name__)

SOCKET = "NOTIFY_SOCKET"
SEND_SECONDS = 0.5
"""The longest time that a full queue of systemd holds the loop. systemd reads its queue all the time."""


@asynccontextmanager
async def service_manager(environ: Mapping[str, str] = os.environ) -> AsyncIterator[None]:
    """Reports that the broker serves for as long as the block lasts, and that it stops when the block ends."""
    interval = watchdog_interval(environ)
    async with trio.open_nursery() as nursery:
        notify("READY=1", environ)
        if interval is not None:
            nursery.start_soon(_report_alive, interval, environ)
        try:
            yield
        finally:
            notify("STOPPING=1", environ)
            nursery.cancel_scope.cancel()


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends one state to systemd; does nothing if systemd has not started the broker, or does not want to know."""
    address = environ.get(SOCKET, "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            ours.settimeout(SEND_SECONDS)
            ours.sendto(state.encode(), address)
    except OSError as error:
        log.warning("Cannot notify the service manager", state=state, socket=environ[SOCKET], error=str(error))


def watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Returns the seconds between two signs of life; None if systemd wants none from this process."""
    time_limit = environ.get("WATCHDOG_USEC", "")
    process = environ.get("WATCHDOG_PID", "")
    if not environ.get(SOCKET) or not time_limit.isdecimal() or int(time_limit) == 0 or process not in ("", str(os.getpid())):
        return None
    return int(time_limit) / 2_000_000


async def _report_alive(interval: float, environ: Mapping[str, str]) -> None:
    while True:
        notify("WATCHDOG=1", environ)
        await trio.sleep(interval)
