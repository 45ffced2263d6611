"""`wirekafka cluster leave`, with a model of ZooKeeper on a socket."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from wirekafka.clock import Clock
from wirekafka.membership.growing import grow
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.tests.membership.nodes import config_of, journal_of, make_node
from wirekafka.zookeeper.kazoo_session import open_kazoo_session
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model
from wirekafka.zookeeper.session import Create


@pytest.fixture
def connect() -> Iterator[str]:
    """A ZooKeeper in a thread: its address, with a chroot."""
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    stops: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def serve() -> None:
        with trio.CancelScope() as scope:
            async with serve_model(ModelServer(lambda: round(time.time() * 1000))) as address:
                stops.append((trio.lowlevel.current_trio_token(), scope))
                addresses.put(address)
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    yield f"{addresses.get(timeout=30)}/kafka"
    token, scope = stops[0]
    token.run_sync_soon(scope.cancel)
    thread.join()


def make_member(path: Path, connect: str, *registered: int) -> None:
    """Makes the directories of a member, and registers other brokers."""

    async def main() -> None:
        await make_node(path)
        async with open_kazoo_session(connect) as client:
            await grow(RetryingClient(client), config_of(path), Clock())
            for broker_id in registered:
                await RetryingClient(client).ask(Create(paths.broker(broker_id), b"{}"))

    trio.run(main)


def leave(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wirekafka", "cluster", "leave", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def properties_of(path: Path, connect: str) -> Path:
    file = path / "server.properties"
    directories = f"{path / 'a'},{path / 'b'}"
    file.write_text(f"broker.id=1\nzookeeper.connect={connect}\nlog.dirs={directories}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    return file


def test_the_last_member_becomes_a_single_node(tmp_path: Path, connect: str) -> None:
    make_member(tmp_path, connect)
    result = leave(properties_of(tmp_path, connect))
    assert (result.returncode, result.stderr) == (0, "")
    assert "is a single node now: 2 topics, 3 partitions." in result.stdout
    assert set(journal_of(tmp_path).topics) == {"orders", "logins"}
    again = leave(properties_of(tmp_path, connect))
    assert again.returncode == 1
    assert "single node already" in again.stderr


def test_a_member_with_others_is_refused_in_one_line(tmp_path: Path, connect: str) -> None:
    make_member(tmp_path, connect, 7)
    result = leave(properties_of(tmp_path, connect))
    assert result.returncode == 1
    assert result.stderr.startswith("wirekafka: The broker cannot leave its cluster. Brokers are registered in the cluster: 7.")
    assert result.stderr.count("\n") == 1


def test_a_directory_needs_the_address_of_zookeeper(tmp_path: Path, connect: str) -> None:
    make_member(tmp_path, connect)
    result = leave(tmp_path / "a")
    assert result.returncode == 1
    assert "give --zookeeper HOST:PORT/CHROOT" in result.stderr
    with_address = leave(tmp_path / "a", "--zookeeper", connect)
    assert with_address.returncode == 1
    assert "Name all log.dirs of the broker" in with_address.stderr


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    result = leave(tmp_path, "--zookeeper", "127.0.0.1:1")
    assert result.returncode == 1
    assert "it has no meta.properties" in result.stderr
