"""Requests of controllers, which the broker executes one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending, Work
from wirekafka.replication.controller_queue import ControllerQueue


class Runner:
    """Runs one step of each work, and the others when the test says."""

    def __init__(self) -> None:
        self.begun: list[tuple[Work[Any], Pending[Any]]] = []

    def run(self, work: Work[Any], *, outlives_client: bool) -> Any:
        assert outlives_client
        try:
            next(work)
        except StopIteration as ended:
            return ended.value
        pending: Pending[Any] = Pending()
        self.begun.append((work, pending))
        return pending

    def finish(self) -> None:
        """Runs the oldest work to its end."""
        work, pending = self.begun.pop(0)
        try:
            while True:
                next(work)
        except StopIteration as ended:
            pending.complete_with(ended.value)
        except KafkaError as error:
            pending.complete(error)


class Stage:
    def __init__(self) -> None:
        self.runner = Runner()
        self.queue = ControllerQueue(self.runner)
        self.log: list[str] = []

    def work(self, name: str, steps: int, result: object = None, error: KafkaError | None = None) -> Work[Any]:
        for step in range(steps):
            self.log.append(f"{name}{step}")
            yield
        if error is not None:
            raise error
        return result or name

    def ask(self, work: Work[Any]) -> list[Any]:
        """Returns the answer, once there is one."""
        answers: list[Any] = []
        answer = self.queue.run(work)
        if isinstance(answer, Pending):
            answer.then(answers.append)
        else:
            answers.append(answer)
        return answers


def test_request_begins_when_the_former_one_has_ended() -> None:
    stage = Stage()
    first, second, third = stage.ask(stage.work("a", 2)), stage.ask(stage.work("b", 0)), stage.ask(stage.work("c", 2))
    assert (stage.log, first, second, third) == (["a0"], [], [], [])
    stage.runner.finish()
    assert (stage.log, first, second, third) == (["a0", "a1", "c0"], ["a"], ["b"], [])
    stage.runner.finish()
    assert (third, len(stage.queue)) == (["c"], 0)
    assert stage.ask(stage.work("d", 0)) == ["d"]


def test_request_that_waits_for_something_at_its_end_has_not_ended() -> None:
    stage = Stage()
    settings: Pending[str] = Pending()
    first, second = stage.ask(stage.work("a", 0, settings)), stage.ask(stage.work("b", 0))
    assert (first, second) == ([], [])
    settings.complete("read")
    assert (first, second) == (["read"], ["b"])


def test_request_that_has_begun_outlives_its_connection() -> None:
    stage = Stage()
    answer = stage.queue.run(stage.work("a", 2))
    assert isinstance(answer, Pending)
    answer.abandon()
    second = stage.ask(stage.work("b", 0))
    assert second == []
    stage.runner.finish()
    assert (stage.log, second) == (["a0", "a1"], ["b"])


def test_request_that_waits_is_dropped_with_its_connection() -> None:
    stage = Stage()
    stage.ask(stage.work("a", 1))
    answer = stage.queue.run(stage.work("b", 1))
    third = stage.ask(stage.work("c", 0))
    assert isinstance(answer, Pending)
    answer.abandon()
    stage.runner.finish()
    assert (stage.log, third, len(stage.queue)) == (["a0"], ["c"], 0)


@pytest.mark.parametrize("steps", [0, 1])
def test_request_that_fails_does_not_stop_the_later_ones(steps: int) -> None:
    stage = Stage()
    error = KafkaError(ErrorCode.STALE_BROKER_EPOCH)
    stage.ask(stage.work("a", 1))
    second, third = stage.ask(stage.work("b", steps, error=error)), stage.ask(stage.work("c", 0))
    for _ in range(1 + steps):
        stage.runner.finish()
    assert (second, third) == ([error], ["c"])


def test_request_that_fails_at_once_raises_and_does_not_stop_the_later_ones() -> None:
    stage = Stage()
    with pytest.raises(KafkaError):
        stage.queue.run(stage.work("a", 0, error=KafkaError(ErrorCode.STALE_BROKER_EPOCH)))
    assert stage.ask(stage.work("b", 0)) == ["b"]


def test_answer_that_cannot_be_sent_does_not_stop_the_later_ones() -> None:
    stage = Stage()
    answer = stage.queue.run(stage.work("a", 1))
    second = stage.ask(stage.work("b", 0))
    assert isinstance(answer, Pending)
    answer.then(lambda result: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        stage.runner.finish()
    assert second == ["b"]


def test_many_requests_that_end_at_once_are_no_deep_calls() -> None:
    stage = Stage()
    stage.ask(stage.work("a", 1))
    answers = []
    for _ in range(2000):
        settings: Pending[str] = Pending()
        settings.complete("read")
        answers.append(stage.ask(stage.work("b", 0, settings)))
    stage.runner.finish()
    assert answers == [["read"]] * 2000
