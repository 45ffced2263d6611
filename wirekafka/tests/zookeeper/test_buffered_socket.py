"""The buffered socket, between a pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from wirekafka.zookeeper.buffered_socket import MOST_UNSENT_BYTES, BufferedSocket


@pytest.fixture
def pair() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    near, far = socket.socketpair()
    buffered = BufferedSocket(near)
    buffered.setblocking(False)
    far.setblocking(False)
    yield buffered, far
    buffered.close()
    far.close()


def test_small_frames_are_sent_together_when_the_caller_flushes(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    assert buffered.send(b"one") == 3
    buffered.send(b"two")
    with pytest.raises(BlockingIOError):
        far.recv(100)
    buffered.flush()
    assert far.recv(100) == b"onetwo"


def test_bytes_that_were_received_together_are_read_one_by_one(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    far.send(b"onetwo")
    assert buffered.wait_until_received([], 10) == []
    assert (buffered.recv(3), buffered.pending(), buffered.recv(100), buffered.pending()) == (b"one", 3, b"two", 0)


def test_wait_sends_and_ends_with_the_time(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    buffered.send(b"ping")
    assert buffered.wait_until_received([], 0) == []
    assert buffered.pending() == 0
    assert far.recv(100) == b"ping"


def test_wait_ends_when_another_descriptor_is_readable(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, _ = pair
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.send(b"wake up")
        assert buffered.wait_until_received([reader.fileno()], 10) == [reader.fileno()]


def test_end_of_the_stream_is_read_after_the_last_bytes(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    far.send(b"last")
    far.close()
    buffered.wait_until_received([], 10)
    assert buffered.recv(100) == b"last"
    buffered.wait_until_received([], 10)
    assert buffered.pending() == 1
    assert buffered.recv(100) == b""


def test_wait_until_not_full_sends_nothing_while_not_much_is_unsent(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    for frame in (b"one", b"two"):
        buffered.wait_until_not_full(10)
        buffered.send(frame)
    with pytest.raises(BlockingIOError):
        far.recv(100)
    buffered.wait_until_received([], 0)
    assert far.recv(100) == b"onetwo"


def test_wait_until_not_full_receives_from_a_peer_that_sends_before_it_reads(
    pair: tuple[BufferedSocket, socket.socket],
) -> None:
    buffered, far = pair
    sent = 0
    while not buffered.is_full:
        sent += buffered.send(b"x" * MOST_UNSENT_BYTES)
        buffered.flush()
    far.send(b"answer")
    buffered.wait_until_not_full(0)
    assert buffered.is_full
    assert buffered.recv(100) == b"answer"
    received = len(far.recv(1 << 20))
    buffered.wait_until_not_full(10)
    assert not buffered.is_full
    while received < sent:
        buffered.flush()
        received += len(far.recv(1 << 20))


def test_wait_until_not_full_ends_with_the_stream(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, far = pair
    while not buffered.is_full:
        buffered.send(b"x" * MOST_UNSENT_BYTES)
        buffered.flush()
    far.close()
    with pytest.raises(OSError, match="reset|pipe"):
        buffered.wait_until_not_full(10)
