"""The endings of transactions share the turns of the loop; each marker takes a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from wirekafka.clock import Clock
from wirekafka.coordinator.transactions.endings import SLICE_MS, Ending, Endings
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.names import TopicPartition
from wirekafka.tests.coordinator.manual_clock import ManualClock


class World:
    """Attributes:
    missing: the markers that each transaction still needs.
    completed: the completed transactions, in order.
    on_marker: called in the middle of the writing of each marker.
    """

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.missing: dict[str, list[Marker]] = {}
        self.completed: list[str] = []
        self.written_count = 0
        self.on_marker: Callable[[], object] = lambda: None
        self.endings = Endings(cast(Clock, self.clock), self, self)

    def decide(self, transactional_id: str, marker_count: int) -> Ending:
        partitions = [TopicPartition(transactional_id, index) for index in range(marker_count)]
        self.missing[transactional_id] = [Marker(each, 1, 0, is_commit=True, transaction_version=2) for each in partitions]
        ending = Ending(transactional_id, 0, 0)
        self.endings.put(ending)
        return ending

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int, on_written: Callable[[Any], object]) -> None:
        self.clock.time_ms += 1
        self.written_count += 1
        on_written(None)
        self.on_marker()

    def missing_markers(self, transactional_id: str) -> list[Marker]:
        return self.missing[transactional_id]

    def marked(self, transactional_id: str, partition: TopicPartition) -> None:
        pass

    def complete(self, index: int, transactional_id: str) -> None:
        self.completed.append(transactional_id)


def test_long_transaction_is_ended_in_turns_of_a_few_milliseconds() -> None:
    world = World()
    world.endings.begin(world.decide("x", 100), None)
    assert world.written_count == SLICE_MS
    world.clock.pass_time(1000)
    assert (world.written_count, world.completed) == (100, ["x"])


@pytest.mark.parametrize("marker_count", [1, 20])
def test_transactions_of_a_loaded_partition_are_ended_in_turns_together(marker_count: int) -> None:
    world = World()
    endings = [world.decide(str(number), marker_count) for number in range(50)]
    world.endings.begin_all(endings, None)
    assert world.written_count == SLICE_MS
    world.clock.pass_time(10_000)
    assert sorted(world.completed) == sorted(map(str, range(50)))


def test_ending_that_begins_while_a_marker_is_written_starts_no_second_series_of_turns() -> None:
    world = World()
    world.endings.begin(world.decide("x", 20), None)
    second = world.decide("y", 20)

    def begin_second() -> None:
        world.on_marker = lambda: None
        world.endings.begin(second, None)

    world.on_marker = begin_second
    world.clock.pass_time(1000)
    assert sorted(world.completed) == ["x", "y"]


def test_ending_that_is_dropped_between_two_turns_goes_no_further() -> None:
    world = World()
    world.endings.begin(world.decide("x", 100), None)
    world.endings.drop(["x"])
    world.clock.pass_time(1000)
    assert (world.written_count, world.completed) == (SLICE_MS, [])
