"""Scripts: operations on ZooKeeper in a row or together, with pauses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from wirekafka.controller.scripts import PAUSE, SLICE_SECONDS, Script, in_slices, run_script
from wirekafka.tests.controller.stage import NOW_MS, Stage
from wirekafka.zookeeper.model.client import ModelClient
from wirekafka.zookeeper.session import Create, Data, GetData, Operation, R, ZooKeeperError, ZooKeeperErrorCode


def test_script_receives_the_result_of_an_operation() -> None:
    stage = Stage()
    stage.do(Create("/x", b"1"))

    def script() -> Script[bytes]:
        found: Data = yield GetData("/x")
        return found.data

    assert stage.run(script()) == b"1"


def test_script_receives_the_error_of_an_operation_where_it_waits() -> None:
    def script() -> Script[ZooKeeperErrorCode]:
        try:
            yield GetData("/x")
        except ZooKeeperError as error:
            return error.code
        raise AssertionError("the znode does not exist")

    assert Stage().run(script()) is ZooKeeperErrorCode.NO_NODE


def test_script_receives_the_results_and_errors_of_a_list_in_order() -> None:
    stage = Stage()
    stage.do(Create("/x", b"1"))

    def script() -> Script[list[Any]]:
        return (yield [GetData("/y"), GetData("/x")])

    error, found = stage.run(script())
    assert (error.code, found.data) == (ZooKeeperErrorCode.NO_NODE, b"1")


def test_script_receives_an_empty_list_for_an_empty_list() -> None:
    def script() -> Script[list[Any]]:
        return (yield [])

    assert Stage().run(script()) == []


def test_list_that_is_long_goes_out_in_slices_and_keeps_its_order() -> None:
    stage = Stage()
    for number in range(20):
        stage.do(Create(f"/x{number}", b"%d" % number))
    submitted: list[int] = []
    ticks = count()

    def script() -> Script[list[Any]]:
        return (yield [GetData(f"/x{number}") for number in range(20)])

    results: list[Any] = []
    run_script(stage.client, script(), results.append, stage.steps.append, lambda: next(ticks) * SLICE_SECONDS / 4)
    while stage.steps:
        submitted.append(len(stage.client._requests))
        stage.steps.popleft()()

    assert [each.data for each in results[0]] == [b"%d" % number for number in range(20)]
    assert max(submitted) < 20


def test_script_that_pauses_lets_others_run_after_its_slice() -> None:
    stage = Stage()
    ticks = count()

    def script() -> Script[str]:
        for _ in range(10):
            yield PAUSE
        return "done"

    results: list[Any] = []
    run_script(stage.client, script(), results.append, stage.steps.append, lambda: next(ticks) * SLICE_SECONDS / 4)

    assert results == []
    assert len(stage.steps) == 1
    stage.turn()
    assert results == ["done"]


def test_script_that_fails_ends_with_its_exception() -> None:
    def script() -> Script[None]:
        yield GetData("/")
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        Stage().run(script())


class _FailingClient(ModelClient):
    """A client that cannot send the operation with a number."""

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage.server, stage.steps.append, lambda: NOW_MS)
        self._numbers = count()
        self._fails_at = number

    def submit(self, operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        """Raises instead of sending one operation."""
        if next(self._numbers) == self._fails_at:
            raise ValueError("cannot be encoded")
        super().submit(operation, callback)


@pytest.mark.parametrize(("step", "number"), [(GetData("/"), 0), ([GetData("/")] * 3, 0), ([GetData("/")] * 3, 2)])
def test_operation_that_cannot_be_sent_raises_where_the_script_waits(
    step: Operation[Any] | list[Operation[Any]], number: int
) -> None:
    stage = Stage()
    client = _FailingClient(stage, number)
    stage.turn()
    seen: list[str] = []

    def script() -> Script[str]:
        try:
            yield step
        except ValueError as error:
            seen.append(str(error))
        found: Data = yield GetData("/")
        return f"then {len(found.data)} bytes"

    results: list[Any] = []
    run_script(client, script(), results.append, stage.steps.append)
    stage.turn()

    assert seen == ["cannot be encoded"]
    assert results == ["then 0 bytes"]


def test_end_that_fails_is_logged(logged_faults: list[str]) -> None:
    stage = Stage()

    def script() -> Script[None]:
        yield PAUSE

    def end(result: object) -> None:
        raise ValueError("a defect")

    run_script(stage.client, script(), end, stage.steps.append)

    assert "a defect" in logged_faults.pop()


def test_in_slices_collects_what_is_wanted_and_pauses_among_what_is_not() -> None:
    collected: list[int] = []

    def script() -> Script[None]:
        collected.extend((yield from in_slices(range(200), lambda number: number >= 150, 64)))

    assert [*script()] == [PAUSE] * 3
    assert collected == [*range(150, 200)]
