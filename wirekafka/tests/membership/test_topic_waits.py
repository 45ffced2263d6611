"""Replies that wait for word of topics from the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.membership.topic_waits import ExpectedLeaders, TopicWaits, has_leaders, is_gone
from wirekafka.metadata.image import ClusterImage
from wirekafka.pending import Pending, finish
from wirekafka.tests.api.members import topic, update

TIMEOUT_MS = 1_000


class Waiting:
    """An image, and its waits."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.waits = TopicWaits(self.image)
        self.clock = Clock()

    def tell(self, name: str, *leaders: int) -> None:
        """Lets the controller tell the leaders of the first partitions of a topic."""
        finish(self.image.update(update(topic(name, *leaders))))


def play(act: Callable[[Waiting], Awaitable[None]]) -> None:
    """Runs a test with timers on a clock that jumps."""

    async def main() -> None:
        waiting = Waiting()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.clock.run)
            await act(waiting)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def result_of(pending: Pending[set[str]]) -> list[set[str]]:
    """Returns the list that has the result when there is one."""
    found: list[set[str]] = []
    pending.then(found.append)
    return found


def test_wait_ends_when_all_partitions_of_all_topics_have_leaders() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1, -1)
        found = result_of(waiting.waits.wait({"a": has_leaders(range(2)), "b": has_leaders(range(1))}, TIMEOUT_MS, waiting.clock))
        waiting.tell("b", 2)
        waiting.tell("a", -1, -1)
        assert found == []
        waiting.tell("a", -1, 3)
        assert found == [set()]

    play(act)


def test_wait_for_what_is_known_ends_at_once() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1)
        assert result_of(waiting.waits.wait({"a": has_leaders([0]), "b": is_gone}, TIMEOUT_MS, waiting.clock)) == [set()]
        assert result_of(waiting.waits.wait({}, TIMEOUT_MS, waiting.clock)) == [set()]

    play(act)


def test_wait_without_time_tells_what_is_missing_at_once() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1)
        assert result_of(waiting.waits.wait({"a": is_gone, "b": is_gone}, 0, waiting.clock)) == [{"a"}]
        assert result_of(waiting.waits.wait({"a": is_gone}, -1, waiting.clock)) == [{"a"}]

    play(act)


def test_wait_ends_at_its_time_with_what_is_missing() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1)
        waiting.tell("b", 1)
        found = result_of(waiting.waits.wait({"a": is_gone, "b": is_gone}, TIMEOUT_MS, waiting.clock))
        waiting.tell("b", -2)
        await trio.sleep(TIMEOUT_MS / 1000 - 0.01)
        assert found == []
        await trio.sleep(0.02)
        assert found == [{"a"}]
        waiting.tell("a", -2)
        assert found == [{"a"}]

    play(act)


def test_expected_leaders_are_counted_one_by_one() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1, 1, 1)
        expected = ExpectedLeaders()
        expected.missing = {0: 1, 1: 2, 2: 3}
        found = result_of(waiting.waits.wait({"a": expected}, TIMEOUT_MS, waiting.clock))
        waiting.tell("a", 9, 2, 1)
        assert expected.missing == {2: 3}
        await trio.sleep(TIMEOUT_MS / 1000 + 0.01)
        assert found == [{"a"}]

    play(act)


def test_wait_that_is_abandoned_looks_at_no_topic_any_more() -> None:
    async def act(waiting: Waiting) -> None:
        waiting.tell("a", 1)
        looks: list[object] = []

        def look(topic: object) -> bool:
            looks.append(topic)
            return False

        waiting.waits.wait({"a": look}, TIMEOUT_MS, waiting.clock).abandon()
        waiting.tell("a", -2)
        assert len(looks) == 1

    play(act)
