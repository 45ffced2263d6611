"""The parts of the client by kazoo that need no ZooKeeper; `compat_tests/zookeeper` has the tests with one."""

from __future__ import annotations

import select
import subprocess
import sys

import pytest

from wirekafka.zookeeper.kazoo_session import _WakeUp, split_connect


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("localhost:2181", "localhost:2181", ""),
        ("a:1,b:2", "a:1,b:2", ""),
        ("a:1/", "a:1", ""),
        ("a:1,[::1]:2/kafka", "a:1,[::1]:2", "/kafka"),
        ("a/clusters/one", "a", "/clusters/one"),
    ],
)
def test_connect_string_is_split_into_hosts_and_chroot(connect: str, hosts: str, chroot: str) -> None:
    assert split_connect(connect) == (hosts, chroot)


@pytest.mark.parametrize(
    "connect", ["", "/kafka", "a:1,,b:2", "a:1/kafka/", "a:1//kafka", "a:1/./kafka", "a:1/..", "a:x", "a:0,b:2", "a:65536"]
)
def test_connect_string_of_another_form_is_refused(connect: str) -> None:
    with pytest.raises(ValueError, match=r"zookeeper\.connect"):
        split_connect(connect)


class Queue:
    """The queue of kazoo, with the wake-up of its thread."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.wake_up = _WakeUp(lambda: bool(self.requests))

    def is_readable(self) -> bool:
        return bool(select.select([self.wake_up], [], [], 0)[0])

    def add(self) -> None:
        self.requests.append(0)
        self.wake_up.send(b"\0")

    def take(self) -> None:
        self.requests.pop()
        self.wake_up.recv(1)


def test_wake_up_is_readable_while_requests_wait() -> None:
    queue = Queue()
    assert not queue.is_readable()
    for _ in range(3):
        queue.add()
    readable = []
    for _ in range(3):
        readable.append(queue.is_readable())
        queue.take()
    assert readable == [True] * 3
    assert not queue.is_readable()
    queue.wake_up.close()


def test_wake_up_takes_any_number_of_requests() -> None:
    queue = Queue()
    for _ in range(10_000):
        queue.add()
    for _ in range(9_999):
        queue.take()
    assert queue.is_readable()
    queue.take()
    assert not queue.is_readable()
    queue.wake_up.close()


def test_wake_up_keeps_a_request_that_comes_while_the_bytes_are_read() -> None:
    answers = iter([False, True])
    wake_up = _WakeUp(lambda: next(answers))
    wake_up.send(b"\0")
    wake_up.recv(1)
    assert select.select([wake_up], [], [], 0)[0] == [wake_up]
    wake_up.close()


def test_broker_without_zookeeper_imports_nothing_of_it() -> None:
    source = (
        "import sys, wirekafka.cli, wirekafka.broker, wirekafka.server.running\n"
        "sys.exit(any(name.startswith(('kazoo', 'wirekafka.zookeeper')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False, timeout=60).returncode == 0
