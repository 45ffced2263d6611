"""Waits until the controller has told this broker of topics: that they have leaders, or that they were deleted.

How it works: a wait has a condition for each topic, and looks at a topic when the image of the cluster changes it. So clients
that ask this broker after the reply find what they asked for.

Source: kafka.server.{DelayedCreatePartitions, DelayedDeleteTopics, DelayedElectLeader}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from wirekafka.clock import Clock, Timer
from wirekafka.metadata.image import ClusterImage, TopicImage
from wirekafka.pending import Pending

Condition = Callable[[TopicImage | None], bool]
"""Whether the wait for a topic is over; the topic is None if the image does not have it. It is not asked again after that."""


def is_gone(topic: TopicImage | None) -> bool:
    """Whether a topic was deleted."""
    return topic is None


def has_leaders(partitions: Collection[int]) -> Condition:
    """Returns the condition that these partitions of a topic have leaders."""
    missing = {*partitions}

    def is_over(topic: TopicImage | None) -> bool:
        if topic is not None:
            led = [index for index in missing if index in topic.partitions and topic.partitions[index].leader >= 0]
            missing.difference_update(led)
        return not missing

    return is_over


class ExpectedLeaders:
    """The condition that partitions of a topic have certain leaders.

    Attributes:
        missing: the leaders that the image does not have yet, by the index of the partition.
    """

    __slots__ = ("missing",)

    def __init__(self) -> None:
        self.missing: dict[int, int] = {}

    def __call__(self, topic: TopicImage | None) -> bool:
        """Whether all partitions have their leaders."""
        if topic is not None:
            images = topic.partitions
            has_leader = [index for index, leader in self.missing.items() if index in images and images[index].leader == leader]
            for index in has_leader:
                del self.missing[index]
        return not self.missing


class _Wait:
    """A wait.

    Attributes:
        conditions: of the topics that are missing.
        timer: ends the wait.
    """

    __slots__ = ("conditions", "pending", "timer")

    def __init__(self, conditions: dict[str, Condition], let_go: Callable[[_Wait], object]) -> None:
        self.conditions = conditions
        self.pending: Pending[set[str]] = Pending(on_abandon=lambda: let_go(self))
        self.timer: Timer | None = None


class TopicWaits:
    """The waits of a broker."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._waiting: dict[str, dict[_Wait, None]] = {}
        image.on_topic_change.append(self._on_topic_change)

    def wait(self, conditions: Mapping[str, Condition], timeout_ms: int, clock: Clock) -> Pending[set[str]]:
        """Waits for the conditions of topics.

        Returns:
            A Pending of the topics whose conditions are not met after `timeout_ms`; empty as soon as all are met.
        """
        topics = self._image.topics
        missing = {name: condition for name, condition in conditions.items() if not condition(topics.get(name))}
        wait = _Wait(missing, self._let_go)
        if not missing or timeout_ms <= 0:
            wait.pending.complete({*missing})
            return wait.pending
        for name in missing:
            self._waiting.setdefault(name, {})[wait] = None
        wait.timer = clock.call_later(timeout_ms, lambda: self._end(wait))
        return wait.pending

    def _on_topic_change(self, name: str, topic: TopicImage | None, indexes: Sequence[int]) -> None:
        for wait in [*self._waiting.get(name, ())]:
            if wait.conditions[name](topic):
                del wait.conditions[name]
                self._forget(name, wait)
                if not wait.conditions:
                    self._end(wait)

    def _end(self, wait: _Wait) -> None:
        self._let_go(wait)
        wait.pending.complete({*wait.conditions})

    def _let_go(self, wait: _Wait) -> None:
        for name in wait.conditions:
            self._forget(name, wait)
        if wait.timer is not None:
            wait.timer.cancel()

    def _forget(self, name: str, wait: _Wait) -> None:
        waits = self._waiting[name]
        del waits[wait]
        if not waits:
            del self._waiting[name]
