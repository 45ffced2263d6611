"""The notices to systemd, received by a socket of the test."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from wirekafka.server.systemd import notify, service_manager, watchdog_interval


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and its address in NOTIFY_SOCKET."""
    name = f"@wirekafka-{secrets.token_hex(8)}"
    if request.param == "path":
        # The address of a socket has 107 bytes at most, fewer than some paths of tests.
        monkeypatch.chdir(tmp_path)
        name = "./notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.settimeout(20)
        ours.bind(name.replace("@", "\0"))
        yield ours, name


def test_broker_is_ready_in_the_block_and_stops_at_its_end(manager: tuple[socket.socket, str]) -> None:
    ours, name = manager

    async def main() -> None:
        async with service_manager({"NOTIFY_SOCKET": name}):
            assert ours.recv(100) == b"READY=1"
        assert ours.recv(100) == b"STOPPING=1"

    trio.run(main)


def test_watchdog_is_told_twice_in_its_time(manager: tuple[socket.socket, str]) -> None:
    ours, name = manager

    async def main() -> None:
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}
        async with service_manager(environ):
            await trio.sleep(12)
            assert [ours.recv(100) for _ in range(4)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        assert ours.recv(100) == b"STOPPING=1"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}, 15.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/run/x"}, None),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, None),
    ],
)
def test_watchdog_is_that_of_this_process_only(environ: dict[str, str], interval: float | None) -> None:
    assert watchdog_interval(environ) == interval


def test_nothing_happens_without_a_service_manager() -> None:
    with structlog.testing.capture_logs() as lines:
        notify("READY=1", {})
    assert lines == []


def test_service_manager_that_is_not_there_costs_one_line(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert [each["event"] for each in lines] == ["Cannot notify the service manager"]


def test_process_says_when_it_serves_and_when_it_stops(tmp_path: Path) -> None:
    name = f"@wirekafka-{secrets.token_hex(8)}"
    command = [sys.executable, "-m", "wirekafka", "serve", "--listen", "127.0.0.1:0"]
    environ = os.environ | {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3600000000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.settimeout(60)
        ours.bind(name.replace("@", "\0"))
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ, cwd=tmp_path
        ) as process:
            try:
                assert [ours.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
                process.terminate()
                assert ours.recv(100) == b"STOPPING=1"
                assert process.wait(60) == 0
            finally:
                process.kill()
