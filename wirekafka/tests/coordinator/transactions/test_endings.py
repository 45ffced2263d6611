"""The endings of transactions share the turns of the loop; each marker takes a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.coordinator.transactions.endings import RETRY_MS, SLICE_MS, Ending, Endings
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.errors import ErrorCode
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

    def is_needed(self, marker: Marker) -> bool:
        return True

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


class DelayedWorld(World):
    """A world in which a test says when each marker is committed.

    Attributes:
        waiting: what was written and is not committed, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[TopicPartition, Callable[[Any], object]]] = []

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int, on_written: Callable[[Any], object]) -> None:
        self.written_count += 1
        self.waiting.append((marker.topic_partition, on_written))

    def marked(self, transactional_id: str, partition: TopicPartition) -> None:
        self.missing[transactional_id] = [each for each in self.missing[transactional_id] if each.topic_partition != partition]

    def complete(self, index: int, transactional_id: str) -> None:
        assert not self.missing[transactional_id], "a partition has no committed marker"
        super().complete(index, transactional_id)

    def answer(self, partition: int, error: ErrorCode | None = None, transactional_id: str = "x") -> None:
        found = next(each for each in self.waiting if each[0] == (transactional_id, partition))
        self.waiting.remove(found)
        found[1](error)


def test_marker_that_waits_for_its_commit_is_not_written_again_with_one_that_failed() -> None:
    world = DelayedWorld()
    world.endings.begin(world.decide("x", 2), None)
    world.endings.begin(world.decide("y", 1), None)
    world.answer(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.answer(0, ErrorCode.NOT_ENOUGH_REPLICAS, "y")
    world.clock.pass_time(RETRY_MS)
    assert sorted(partition for partition, _ in world.waiting) == [("x", 0), ("x", 1), ("y", 0)]
    world.answer(1)
    assert world.completed == []
    world.answer(0)
    assert world.completed == ["x"]


def test_failed_marker_is_written_again_while_another_waits_for_its_commit() -> None:
    world = DelayedWorld()
    world.endings.begin(world.decide("x", 2), None)
    for _ in range(3):
        world.answer(0, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert [partition for partition, _ in world.waiting] == [("x", 1)]
        world.clock.pass_time(RETRY_MS)
    world.answer(0)
    assert world.completed == []
    world.answer(1)
    assert world.completed == ["x"]


def test_marker_whose_writer_calls_back_and_fails_counts_once() -> None:
    world = World()

    def fail() -> None:
        world.on_marker = lambda: None
        raise ZeroDivisionError

    world.on_marker = fail
    with capture_logs():
        world.endings.begin(world.decide("x", 3), None)
    assert (world.written_count, world.completed) == (3, ["x"])


@pytest.mark.parametrize("step", ["missing_markers", "marked", "complete"])
def test_unexpected_exception_of_a_step_costs_its_own_transaction_until_the_next_try(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    works = getattr(world, step)

    def fail_of_x(*arguments: Any) -> Any:
        if "x" in arguments:
            raise ZeroDivisionError
        return works(*arguments)

    endings = [world.decide(transactional_id, 20) for transactional_id in "axb"]
    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(world, step, fail_of_x)
        world.endings.begin_all(endings, None)
        world.clock.pass_time(RETRY_MS // 2)
        assert sorted(world.completed) == ["a", "b"]
    world.clock.pass_time(2 * RETRY_MS)
    assert sorted(world.completed) == ["a", "b", "x"]


def test_refused_marker_whose_need_is_not_known_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(marker: Marker) -> bool:
        raise ZeroDivisionError

    world = DelayedWorld()
    world.endings.begin(world.decide("x", 1), None)
    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(world, "is_needed", fail)
        world.answer(0, ErrorCode.INVALID_PRODUCER_EPOCH)
        world.clock.pass_time(RETRY_MS)
    world.answer(0)
    assert world.completed == ["x"]
