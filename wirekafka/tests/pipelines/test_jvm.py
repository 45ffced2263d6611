"""The start of Spark's JVM, without Spark."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import java_gateway

from wirekafka.pipelines.jvm import killed_on_failure


class Stopped(Exception):  # noqa: N818
    """What the handler of SIGTERM raises."""


def stop(_: int, __: object) -> None:
    raise Stopped


@pytest.fixture(autouse=True)
def stopping() -> Iterator[None]:
    """Lets SIGTERM raise an exception, as a pipeline does."""
    former = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, former)


def test_jvm_whose_start_a_signal_interrupts_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        """A process during whose start SIGTERM comes, before `Popen` has returned it."""

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(java_gateway, "Popen", Interrupted)
    with pytest.raises(Stopped), killed_on_failure():
        java_gateway.Popen(["sleep", "60"])

    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert java_gateway.Popen is Interrupted
    assert signal.getsignal(signal.SIGTERM) is stop
