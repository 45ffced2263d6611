"""The driver's sleep: the events that end it, and the tasks that it must not delay."""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.server import idle
from wirekafka.server.idle import Idle

FAILED_AFTER_SECONDS = 5


class Turns(trio.abc.Instrument):
    """Counts the turns of trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Sleeper:
    """Sleeps as the driver does, on an epoll that a test controls."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.epoll.register(self._fd, select.EPOLLIN)
        self.idle = Idle(self.epoll)

    def tell(self) -> None:
        """Causes an event of the epoll; any thread may call it."""
        os.eventfd_write(self._fd, 1)

    async def sleep(self) -> None:
        """Sleeps until the test wakes it."""
        while not self.epoll.poll(0):
            await self.idle.sleep()
        os.eventfd_read(self._fd)

    def close(self) -> None:
        self.epoll.close()
        os.close(self._fd)


@contextmanager
def sleeping() -> Iterator[Sleeper]:
    it = Sleeper()
    try:
        yield it
    finally:
        it.close()


def run(test: Callable[[Sleeper, trio.Nursery], Awaitable[None]], **options: Any) -> None:
    """Runs a test with a sleeper; the test fails if the sleeper does not wake by itself."""
    overslept = threading.Event()
    with sleeping() as it:

        def shout() -> None:
            overslept.set()
            it.tell()

        watch = threading.Timer(FAILED_AFTER_SECONDS, shout)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await it.idle.begin()
                try:
                    await test(it, nursery)
                finally:
                    it.idle.end()

        watch.start()
        try:
            trio.run(main, **options)
        finally:
            watch.cancel()
    assert not overslept.is_set(), "it slept on"


async def let_all_begin() -> None:
    """Lets the started tasks reach their waits."""
    for _ in range(3):
        await trio.lowlevel.checkpoint()


def test_event_ends_the_sleep_without_a_turn_of_trios_loop() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        for _ in range(10):
            threading.Timer(0.01, it.tell).start()
            await it.sleep()
        assert turns.count == 0
        trio.lowlevel.remove_instrument(turns)

    run(test)


def test_deadline_of_another_task_is_kept() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def wake() -> None:
            for _ in range(3):
                await trio.sleep(0.01)
            it.tell()

        nursery.start_soon(wake)
        await it.sleep()

    run(test)


def test_deadline_that_has_passed_already_is_noticed() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def wake() -> None:
            await trio.sleep(0.01)
            it.tell()

        nursery.start_soon(wake)
        await let_all_begin()
        time.sleep(0.03)  # noqa: ASYNC251 - what a busy turn is
        await it.sleep()

    run(test)


def test_every_task_that_can_run_does() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def work(left: int) -> None:
            for _ in range(left):
                await trio.lowlevel.checkpoint()
            tasks.discard(left)
            if not tasks:
                it.tell()

        for _ in range(50):  # trio runs the tasks of a pass forwards or backwards, at random
            tasks = set(range(5))
            for left in tuple(tasks):
                nursery.start_soon(work, left)
            await it.sleep()

    run(test)


def test_tasks_that_were_scheduled_before_it_began_run() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        for _ in range(20):
            it.idle.end()
            left = set(range(3))

            async def work(number: int, left: set[int]) -> None:
                left.discard(number)
                if not left:
                    it.tell()

            for number in tuple(left):
                nursery.start_soon(work, number, left)
            await it.idle.begin()
            await it.sleep()

    run(test)


def test_others_have_their_turn_though_there_are_always_events() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        near, far = trio.socket.socketpair()
        received = trio.Event()

        async def receive() -> None:
            await near.recv(10)
            received.set()

        nursery.start_soon(receive)
        await let_all_begin()
        os.write(far.fileno(), b"hello")
        it.tell()
        for _ in range(10):
            await it.idle.sleep()
        assert received.is_set()
        near.close()
        far.close()

    run(test)


def test_task_that_the_sleeper_itself_woke_runs() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        event = trio.Event()

        async def wait() -> None:
            await event.wait()
            it.tell()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        event.set()
        await it.sleep()

    run(test)


def test_thread_that_is_done_is_noticed() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def work() -> None:
            await trio.to_thread.run_sync(threading.Event().wait, 0.02)
            it.tell()

        nursery.start_soon(work)
        await it.sleep()

    run(test)


def test_descriptor_of_another_task_is_noticed() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        near, far = trio.socket.socketpair()

        async def receive() -> None:
            assert await near.recv(10) == b"hello"
            it.tell()

        nursery.start_soon(receive)
        threading.Timer(0.02, os.write, (far.fileno(), b"hello")).start()
        await it.sleep()
        near.close()
        far.close()

    run(test)


def test_signal_is_noticed() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def receive() -> None:
            with trio.open_signal_receiver(signal.SIGUSR1) as signals:
                threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                async for _ in signals:
                    it.tell()
                    return

        nursery.start_soon(receive)
        await it.sleep()

    run(test)


def test_cancellation_ends_the_sleep() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        with trio.move_on_after(0.02) as scope:
            await it.sleep()
        assert scope.cancelled_caught

    run(test)


def test_who_waits_for_idleness_is_not_kept_waiting() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def wait() -> None:
            await trio.testing.wait_all_tasks_blocked(0.05)
            it.tell()

        nursery.start_soon(wait)
        await let_all_begin()
        await it.sleep()

    run(test)


def test_two_sleepers_share_a_loop() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        with sleeping() as other:

            async def answer() -> None:
                await other.idle.begin()
                for _ in range(100):
                    await other.sleep()
                    it.tell()
                other.idle.end()

            nursery.start_soon(answer)
            for _ in range(100):
                other.tell()
                await it.sleep()

    run(test)


def test_clock_that_jumps_goes_on_jumping() -> None:
    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        async def wake() -> None:
            await trio.sleep(86_400)
            it.tell()

        nursery.start_soon(wake)
        await it.sleep()

    run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_loop_that_is_a_guest_is_not_kept_from_its_host() -> None:
    todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    outcomes = []

    async def main() -> None:
        with sleeping() as it:
            await it.idle.begin()
            todo.put(it.tell)  # only the host does this, between two turns of the loop
            await it.sleep()

    def done(outcome: Any) -> None:
        outcomes.append(outcome)

    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=todo.put, done_callback=done)
    while not outcomes:
        todo.get(timeout=FAILED_AFTER_SECONDS)()
    outcomes[0].unwrap()


def test_loop_that_cannot_be_looked_into_is_slept_in_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = trio._core._run.SystemClock()
    monkeypatch.delattr(trio._core._run, "SystemClock")

    async def test(it: Sleeper, nursery: trio.Nursery) -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        threading.Timer(0.01, it.tell).start()
        await it.sleep()
        assert turns.count

    run(test, clock=clock)


def test_nothing_is_left_of_it_in_the_loop() -> None:
    async def main() -> None:
        with sleeping() as it:
            await it.idle.begin()
            runnable = it.idle._runnable
            it.idle.end()
            it.idle.end()
            with pytest.raises(KeyError):
                trio.lowlevel.remove_instrument(runnable)

    trio.run(main)


def test_installed_trio_can_be_looked_into() -> None:
    async def main() -> None:
        assert idle._run_loop() is not None, "the driver still works, but each waking costs twice as much"

    trio.run(main)
