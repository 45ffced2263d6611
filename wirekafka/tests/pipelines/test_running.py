"""The run of a stream: stops between batches, and starts again after outages; with a fake of Spark's query."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wirekafka.pipelines import running
from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.running import STOPPED, StopRequest, run_query, stop_on_signals, stoppable

pyspark_errors = pytest.importorskip("pyspark.errors")


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "JITTER", 0.0)


class FakeQuery:
    """A query that ends one batch at each look, and ends itself after `batches` looks, with the failure if there is one."""

    def __init__(self, batches: int = 3, failure: str | None = None, *, is_stuck: bool = False) -> None:
        self.batches, self.failure, self.is_stuck = batches, failure, is_stuck
        self.done = 0
        self.progress_reads = 0
        self.isActive = True

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802
        if self.done >= self.batches:
            self.isActive = False
            if self.failure is not None:
                raise pyspark_errors.StreamingQueryException(self.failure)
            return True
        self.done += not self.is_stuck
        return False

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        self.progress_reads += 1
        self.done += not self.is_stuck and self.isActive
        return {"batchId": self.done, "timestamp": str(self.done)} if self.done else None

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": True}

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> Exception | None:
        return None if self.failure is None else pyspark_errors.StreamingQueryException(self.failure)


class FakeStop(StopRequest):
    """A request that remembers the waits and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self.is_set()


def starts(*queries: FakeQuery | Exception) -> Callable[[], Any]:
    """Returns a function that starts these, one after the other; an exception is raised instead."""
    remaining: Iterator[FakeQuery | Exception] = iter(queries)

    def start() -> FakeQuery:
        query = next(remaining)
        if isinstance(query, Exception):
            raise query
        return query

    return start


OUTAGE = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment"


def test_a_query_that_ends_by_itself_ends_the_run() -> None:
    stop = FakeStop()
    run_query(starts(FakeQuery()), stop)
    assert stop.waits == []


def test_a_running_query_is_not_asked_for_its_progress() -> None:
    query = FakeQuery(batches=100)
    run_query(starts(query), FakeStop())
    assert query.progress_reads == 0


def test_a_stop_waits_for_the_end_of_the_running_batch() -> None:
    query, stop = FakeQuery(batches=1000), FakeStop()
    stop.set()
    run_query(starts(query), stop)
    assert not query.isActive
    assert query.done >= 1


def test_an_urgent_stop_does_not_wait() -> None:
    query, stop = FakeQuery(batches=1000, is_stuck=True), FakeStop()
    stop.set()
    stop.set()
    run_query(starts(query), stop)
    assert not query.isActive


def test_an_urgent_stop_takes_the_interrupted_batch_for_no_failure() -> None:
    stop = FakeStop()
    stop.set()
    stop.set()
    run_query(starts(FakeQuery(batches=1000, failure="null", is_stuck=True)), stop)


def test_a_batch_that_fails_at_a_stop_is_a_failure() -> None:
    stop = FakeStop()
    stop.set()
    with pytest.raises(PipelineError, match="no space is left"):
        run_query(starts(FakeQuery(batches=1000, failure="No space left on device")), stop)


def test_a_stop_waits_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_TIMEOUT_S", 0.0)
    query, stop = FakeQuery(batches=1000, is_stuck=True), FakeStop()
    stop.set()
    run_query(starts(query), stop)
    assert not query.isActive


def test_after_an_outage_the_query_is_started_again() -> None:
    stop, told = FakeStop(), list[str]()
    run_query(starts(FakeQuery(failure=OUTAGE), FakeQuery()), stop, told.append)
    assert stop.waits == [1.0]
    assert told == [f"no broker answers: {OUTAGE.rpartition('.')[2]}; the pipeline tries again in 1.0 s"]


def test_the_waits_double_up_to_a_limit() -> None:
    stop = FakeStop()
    away = UnreachableError("no broker answers")
    run_query(starts(FakeQuery(failure=OUTAGE), *[away] * 6, FakeQuery()), stop, lambda message: None)
    assert stop.waits == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_a_batch_after_an_outage_makes_the_waits_short_again() -> None:
    stop = FakeStop()
    away = UnreachableError("no broker answers")
    run_query(starts(FakeQuery(0, OUTAGE), away, FakeQuery(2, OUTAGE), FakeQuery()), stop, lambda message: None)
    assert stop.waits == [1.0, 2.0, 1.0]


def test_a_start_without_a_batch_does_not_make_the_waits_short_again() -> None:
    stop = FakeStop()
    run_query(starts(FakeQuery(2, OUTAGE), FakeQuery(0, OUTAGE), FakeQuery(0, OUTAGE), FakeQuery()), stop, lambda message: None)
    assert stop.waits == [1.0, 2.0, 4.0]


def test_the_waits_are_shorter_by_a_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "JITTER", 0.5)
    stop = FakeStop()
    run_query(starts(FakeQuery(0, OUTAGE), *[FakeQuery(0, OUTAGE)] * 2, FakeQuery()), stop, lambda message: None)
    assert all(most / 2 <= wait < most for wait, most in zip(stop.waits, (1.0, 2.0, 4.0), strict=True))


def test_a_query_whose_failure_is_mended_is_started_again_after_a_wait() -> None:
    stop, told, failures = FakeStop(), list[str](), list[str]()

    def recover(failure: str) -> UnreachableError:
        failures.append(failure)
        return UnreachableError("the checkpoint was unusable")

    run_query(starts(FakeQuery(0, "broken"), FakeQuery(0, "broken"), FakeQuery()), stop, told.append, recover)
    assert stop.waits == [1.0, 2.0]
    assert told[0] == "the checkpoint was unusable; the pipeline tries again in 1.0 s"
    assert [text.strip() for text in failures] == ["broken"] * 2


def test_an_outage_while_a_failure_is_mended_is_an_outage() -> None:
    def recover(failure: str) -> UnreachableError | None:
        raise UnreachableError("no broker answers")

    stop = FakeStop()
    run_query(starts(FakeQuery(0, "broken"), FakeQuery()), stop, lambda message: None, recover)
    assert stop.waits == [1.0]


def test_a_failure_that_cannot_be_mended_is_an_error() -> None:
    with pytest.raises(PipelineError, match="broken"):
        run_query(starts(FakeQuery(0, "broken")), FakeStop(), recover=lambda failure: None)


def test_an_outage_at_the_first_start_is_an_error() -> None:
    with pytest.raises(UnreachableError):
        run_query(starts(UnreachableError("no broker answers")), FakeStop())


def test_an_outage_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "OUTAGE_S", -1.0)
    with pytest.raises(UnreachableError, match="no broker answers"):
        run_query(starts(FakeQuery(failure=OUTAGE)), FakeStop(), lambda message: None)


def test_an_outage_long_after_the_last_batch_is_not_too_long_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("wirekafka.pipelines.running.time.monotonic", lambda: now_s)

    class QueryOfEachHour(FakeQuery):
        def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802
            nonlocal now_s
            now_s += 3600.0
            return super().awaitTermination(timeout_s)

    stop = FakeStop()
    run_query(starts(QueryOfEachHour(1, OUTAGE), QueryOfEachHour(3, OUTAGE), FakeQuery()), stop, lambda message: None)
    assert stop.waits == [1.0, 1.0]


def test_a_stop_in_an_outage_ends_the_run() -> None:
    stop = FakeStop()
    run_query(starts(FakeQuery(0, OUTAGE)), stop, lambda message: stop.set())
    assert stop.waits == [1.0]


def test_another_failure_is_an_error() -> None:
    with pytest.raises(PipelineError, match="no space is left"):
        run_query(starts(FakeQuery(failure="java.io.IOException: No space left on device")), FakeStop())


def test_a_query_that_ended_between_batches_has_not_failed() -> None:
    run_query(starts(FakeQuery(failure=f"wirekafka.pipelines.errors.PipelineError: {STOPPED}")), FakeStop())


def test_a_batch_is_not_begun_after_the_signal() -> None:
    seen: list[int] = []
    write = stoppable(lambda frame, number: seen.append(number))
    frame: Any = None
    with stop_on_signals() as stop:
        write(frame, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        assert not stop.is_urgent
        with pytest.raises(PipelineError, match=STOPPED):
            write(frame, 2)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_urgent
    write(frame, 3)
    assert seen == [1, 3]


def test_the_handlers_of_the_signals_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
