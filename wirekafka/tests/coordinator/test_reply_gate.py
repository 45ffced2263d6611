"""The gate of coordinators' replies, for work in slices: partitions that later slices note hold the reply too."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from wirekafka.clock import Clock
from wirekafka.coordinator.reply_gate import ReplyGate, after_commit
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending, Work
from wirekafka.replication.purgatory import Purgatory
from wirekafka.slices import SLICE_SECONDS, Slices
from wirekafka.tests.coordinator.manual_clock import ManualClock

STEPS_A_SLICE = 10


class UncommittedPartitions:
    """Partitions of coordinator state in which every record is uncommitted until the test commits it."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[ErrorCode | None], object]] = {}

    def is_committed(self, index: int) -> bool:
        return False

    def await_commit(self, index: int, callback: Callable[[ErrorCode | None], object]) -> None:
        self.callbacks[index] = callback


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.gate = ReplyGate(Purgatory(cast(Clock, self.clock)))
        self.partitions = UncommittedPartitions()
        numbers = count()
        self.slices = Slices(cast(Clock, self.clock), seconds=lambda: next(numbers) * SLICE_SECONDS / STEPS_A_SLICE)
        self.runs = 0

    def work(self, noted: dict[int, int]) -> Work[str]:
        """Work of 30 steps that notes partitions, given by the number of the step."""
        self.runs += 1
        for number in range(30):
            if number in noted:
                self.gate.note(self.partitions, noted[number])
            yield
        return f"run {self.runs}"

    def ask(self, noted: dict[int, int]) -> Any:
        def handler(broker: Any, call: Any) -> Any:
            return self.gate.run_in_slices(self.slices, lambda: self.work(noted))

        return self.gate.handle(handler, None, None)

    def finish(self) -> None:
        self.clock.pass_time(1)


def replies_of(response: Any) -> list[Any]:
    assert isinstance(response, Pending)
    replies: list[Any] = []
    response.then(replies.append)
    return replies


@pytest.mark.parametrize("step", [0, 25])
def test_reply_of_sliced_work_waits_for_the_commit_of_what_any_slice_has_noted(step: int) -> None:
    world = World()
    replies = replies_of(world.ask({step: 7}))
    world.finish()
    assert (replies, list(world.partitions.callbacks)) == ([], [7])
    world.partitions.callbacks[7](None)
    assert replies == ["run 1"]


def test_reply_of_sliced_work_that_noted_nothing_leaves_with_the_last_slice() -> None:
    world = World()
    replies = replies_of(world.ask({}))
    assert replies == []
    world.finish()
    assert replies == ["run 1"]


def test_sliced_work_runs_again_if_a_noted_partition_is_lost() -> None:
    world = World()
    replies = replies_of(world.ask({25: 7}))
    world.finish()
    world.partitions.callbacks[7](ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.finish()
    world.partitions.callbacks[7](None)
    assert replies == ["run 2"]


@pytest.mark.parametrize("step", [0, 25])
def test_sliced_work_that_has_waited_too_long_may_use_no_uncommitted_state_in_any_slice(step: int) -> None:
    world = World()
    replies = replies_of(world.ask({step: 7}))
    world.finish()
    world.partitions.callbacks[7](ErrorCode.COORDINATOR_NOT_AVAILABLE)
    world.finish()
    [refused] = replies
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.gate.noted is None


def test_requests_between_two_slices_do_not_wait_for_what_the_slices_have_noted() -> None:
    world = World()
    world.ask({0: 7, 25: 8})
    assert world.gate.handle(lambda broker, call: "at once", None, None) == "at once"
    world.finish()
    assert world.gate.handle(lambda broker, call: "at once", None, None) == "at once"


@pytest.mark.parametrize("is_sliced", [False, True])
def test_reply_made_anew_after_a_loss_waits_for_what_it_has_seen_itself(is_sliced: bool) -> None:
    world = World()
    noted = {25: 7}
    if is_sliced:
        response = world.ask(noted)
    else:
        response = world.gate.handle(lambda *_: world.gate.note(world.partitions, noted[25]), None, None)
    replies = replies_of(response)
    world.finish()
    noted[25] = 8
    world.partitions.callbacks.pop(7)(ErrorCode.NOT_COORDINATOR)
    world.finish()
    assert (replies, list(world.partitions.callbacks)) == ([], [8])
    world.partitions.callbacks.pop(8)(None)
    assert len(replies) == 1


def test_reply_made_anew_after_a_loss_leaves_nothing_noted_for_others() -> None:
    world = World()
    world.gate.handle(lambda *_: world.gate.note(world.partitions, 7), None, None)
    world.partitions.callbacks.pop(7)(ErrorCode.NOT_COORDINATOR)
    assert world.gate.noted is None


def test_request_that_waits_after_a_commit_is_abandoned_with_its_client() -> None:
    world = World()
    inner: Pending[str] = Pending()
    late: Any = after_commit(world.partitions, 0, lambda error: inner, prepare=lambda: None)
    world.partitions.callbacks[0](None)
    late.abandon()
    assert inner.is_done
    assert not inner.complete("too late")


def test_reply_whose_client_goes_away_is_not_kept_until_the_commit() -> None:
    class Response:
        pass

    world, made = World(), weakref.WeakSet[Response]()

    def handler(broker: Any, call: Any) -> Response:
        world.gate.note(world.partitions, 7)
        response = Response()
        made.add(response)
        return response

    pending = world.gate.handle(handler, None, None)
    assert len(made) == 1
    pending.abandon()
    assert len(made) == 0
    world.partitions.callbacks[7](ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(made) == 0
