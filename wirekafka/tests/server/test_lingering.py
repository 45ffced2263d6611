"""The conditions in which the epoll driver polls before it sleeps."""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace

import pytest
import trio

from wirekafka.server import drivers
from wirekafka.server.drivers import BULK_BYTES, LINGER_AFTER_SLEEPS, EpollDriver
from wirekafka.tests.server.driver_bench import Bench, run
from wirekafka.tests.server.frames import frame


class Habits:
    """Counts the sleeps and polls of the idle epoll driver, with a clock of the test.

    Attributes:
        sleeps, lingers: the number of sleeps, and of polls before a sleep.
        step: the seconds that pass with each reading of the clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
        self.sleeps = self.lingers = 0
        self.step = step
        self._now = 0.0
        self._idle_times = 0
        monkeypatch.setattr(drivers, "time", SimpleNamespace(perf_counter=self._clock, thread_time=lambda: self._now))
        self._sleep, self._linger = EpollDriver._sleep, EpollDriver._linger
        monkeypatch.setattr(EpollDriver, "_sleep", lambda driver: self._go_to_sleep(driver))
        monkeypatch.setattr(EpollDriver, "_linger", lambda driver, until: self._look(driver, until))

    def _clock(self) -> float:
        self._now += self.step
        return self._now

    async def _go_to_sleep(self, driver: EpollDriver) -> None:
        self.sleeps += 1
        self._idle_times += 1
        await self._sleep(driver)

    def _look(self, driver: EpollDriver, until: float) -> list[tuple[int, int]]:
        self.lingers += 1
        self._idle_times += 1
        events = self._linger(driver, until)
        if not events:
            self._idle_times -= 1
        return events

    async def ask_one_by_one(self, bench: Bench, count: int, payload: bytes = b"what is new") -> None:
        """A client in a thread of its own, which sends a request when it has its answer and the driver is idle."""
        stream = await bench.connect()
        assert isinstance(stream, trio.SocketStream)
        fd = stream.socket.fileno()

        def ask() -> None:
            with socket.socket(fileno=os.dup(fd)) as asking:
                asking.settimeout(10)
                answer = frame(payload.upper())
                for asked in range(count):
                    while self._idle_times <= asked:
                        time.sleep(0)
                    asking.sendall(frame(payload))
                    received = b""
                    while len(received) < len(answer):
                        received += asking.recv(len(answer))
                    assert received == answer
            self.step = 1.0

        await trio.to_thread.run_sync(ask)

    async def read_slowly(self, bench: Bench, size: int) -> None:
        """A client that sends one request, and reads part of the answer whenever the driver is idle, or after a moment."""
        stream = await bench.connect()
        assert isinstance(stream, trio.SocketStream)
        await stream.send_all(frame(b"what is new"))
        fd = stream.socket.fileno()

        def read() -> None:
            left, times = size, 0
            with socket.socket(fileno=os.dup(fd)) as reading:
                reading.settimeout(10)
                while left:
                    until = time.monotonic() + 0.01
                    while self._idle_times <= times and time.monotonic() < until:
                        time.sleep(0)
                    times = self._idle_times
                    left -= len(reading.recv(1 << 20))

        await trio.to_thread.run_sync(read)


def test_epoll_driver_lingers_for_a_client_that_asks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits(monkeypatch, step=0.0)

    async def test(bench: Bench) -> None:
        await habits.ask_one_by_one(bench, 20)
        await bench.until(lambda: habits.sleeps == LINGER_AFTER_SLEEPS + 1)
        assert habits.lingers == 20 - LINGER_AFTER_SLEEPS + 1, "the last one was in vain"

    run("epoll", test)


def test_epoll_driver_goes_to_sleep_where_a_client_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits(monkeypatch, step=1.0)

    async def test(bench: Bench) -> None:
        await habits.ask_one_by_one(bench, 20)
        assert habits.sleeps >= 20
        assert not habits.lingers

    run("epoll", test)


def test_epoll_driver_does_not_linger_for_large_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits(monkeypatch, step=0.0)

    async def test(bench: Bench) -> None:
        await habits.ask_one_by_one(bench, 20, b"what is new" * BULK_BYTES)
        assert habits.sleeps >= 20
        assert not habits.lingers

    run("epoll", test)


def test_epoll_driver_does_not_linger_where_a_large_response_goes_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits(monkeypatch, step=0.0)
    answer = bytes(64 << 20)

    async def test(bench: Bench) -> None:
        bench.dispatcher.answer = lambda payload: answer
        await habits.read_slowly(bench, len(answer))
        assert habits.sleeps > 2 * LINGER_AFTER_SLEEPS
        assert not habits.lingers

    run("epoll", test)


def test_epoll_driver_that_lingered_in_vain_waits_for_short_sleeps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits(monkeypatch, step=0.0)
    monkeypatch.setattr(drivers, "LINGER_SECONDS", 0.0)

    async def test(bench: Bench) -> None:
        await habits.ask_one_by_one(bench, 3 * (LINGER_AFTER_SLEEPS + 1) - 1)
        await bench.until(lambda: habits.sleeps == 3 * (LINGER_AFTER_SLEEPS + 1))
        assert habits.lingers == 3

    run("epoll", test)
