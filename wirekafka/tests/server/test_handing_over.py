"""The end of a member: the controller moves its leaderships away, and if it is the controller, the brokers have learned it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from wirekafka.config import BrokerConfig
from wirekafka.server.membership import MOST_WAIT_FOR_REPLICAS_S, _hand_over


class Ending:
    """A member that ends; each wait of the test jumps over the time.

    Attributes:
        asked: the broker ids and epochs of the controlled shutdowns.
        answered: set when the controller has answered the controlled shutdown.
        local_controller: the controller of this broker, which waits for answers of other brokers until the test says otherwise.
        all_failed: set when all data directories have failed.
        nursery: runs the tasks of the member.
    """

    def __init__(self, nursery: trio.Nursery, **settings: str) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answered = trio.Event()
        self.local_controller = SimpleNamespace(is_idle=False)
        self.all_failed = trio.Event()
        self.nursery = nursery
        given = {"broker.id": "1", "zookeeper.connect": "model"}
        self._config = BrokerConfig.load(None, given | {name.replace("_", "."): value for name, value in settings.items()})

    async def hand_over(self, *, is_controller: bool = True) -> float:
        """Hands over; returns how many seconds it took."""
        begin = trio.current_time()
        broker = SimpleNamespace(config=self._config, logs=SimpleNamespace(all_failed=self.all_failed), node_id=1)
        member = SimpleNamespace(
            controller_requests=self, broker_epoch=7, local_controller=self.local_controller if is_controller else None
        )
        await _hand_over(cast(Any, broker), cast(Any, member), self.nursery)
        return trio.current_time() - begin

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> None:
        """Asks the controller, in place of `membership.controller_requests.ControllerRequests`."""
        self.asked.append((broker_id, broker_epoch))
        await self.answered.wait()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Lets something happen after a time."""

        async def wait() -> None:
            await trio.sleep(seconds)
            act()

        self.nursery.start_soon(wait)


def run(act: Callable[[Ending], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await act(Ending(nursery, **settings))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_controller_ends_when_the_other_brokers_have_answered_its_requests() -> None:
    async def act(ending: Ending) -> None:
        ending.later(1, ending.answered.set)
        ending.later(2, lambda: setattr(ending.local_controller, "is_idle", True))
        assert await ending.hand_over() == pytest.approx(2, abs=0.1)
        assert ending.asked == [(1, 7)]

    run(act)


def test_controller_ends_although_a_broker_does_not_answer() -> None:
    async def act(ending: Ending) -> None:
        ending.answered.set()
        assert await ending.hand_over() == pytest.approx(MOST_WAIT_FOR_REPLICAS_S, abs=0.1)

    run(act)


def test_member_that_is_no_controller_ends_when_the_controller_has_answered() -> None:
    async def act(ending: Ending) -> None:
        ending.later(1, ending.answered.set)
        assert await ending.hand_over(is_controller=False) == pytest.approx(1, abs=0.1)

    run(act)


@pytest.mark.parametrize("is_answered", [False, True])
def test_member_whose_directories_fail_while_it_hands_over_ends_at_once(*, is_answered: bool) -> None:
    async def act(ending: Ending) -> None:
        if is_answered:
            ending.answered.set()
        ending.later(1, ending.all_failed.set)
        assert await ending.hand_over() == pytest.approx(1, abs=0.1)

    run(act)


def test_member_whose_tasks_are_cancelled_while_it_hands_over_ends_at_once() -> None:
    async def act(ending: Ending) -> None:
        ending.later(1, ending.nursery.cancel_scope.cancel)
        with trio.CancelScope(shield=True):
            assert await ending.hand_over() == pytest.approx(1, abs=0.1)

    run(act)


def test_member_that_is_cancelled_or_has_no_directory_hands_nothing_over() -> None:
    async def without_directory(ending: Ending) -> None:
        ending.all_failed.set()
        await ending.hand_over()
        assert ending.asked == []

    async def cancelled(ending: Ending) -> None:
        ending.nursery.cancel_scope.cancel()
        await ending.hand_over()
        assert ending.asked == []

    run(without_directory)
    run(cancelled)


def test_controlled_shutdown_that_is_disabled_is_not_asked_for() -> None:
    async def act(ending: Ending) -> None:
        assert await ending.hand_over() == 0
        assert ending.asked == []

    run(act, controlled_shutdown_enable="false")
