"""Fixtures of all unit tests, and the option that rewrites transcripts.

`pytest wirekafka/tests/coordinator --rewrite-transcripts` writes the present behaviour of the coordinators into the transcripts.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from wirekafka.faults import forget_logged

# By default, Hypothesis fails an example that takes longer than 200 ms, and a test whose examples take long to generate. Both
# limits measure the load of the machine, so a test that reaches them would fail now and then.
settings.register_profile("without_clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without_clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the coordinators' transcripts anew instead of comparing them"
    )


@pytest.fixture(autouse=True)
def _forget_logged_faults() -> None:
    """Resets the rate limits of the log, so that each test sees all lines about a failure."""
    forget_logged()


@pytest.fixture(autouse=True)
def logged_faults() -> Iterator[list[str]]:
    """Fails a test that leaves a line about a fault of the broker in the log: a traceback, or a failed request.

    The broker survives such a fault, so the test itself may not notice it. A test that provokes a fault removes the line, or
    captures it with `structlog.testing.capture_logs`.

    After the test structlog is unconfigured again, whatever configured it: an embedded broker, a command or a capture of logs.
    """
    faults: list[str] = []

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event.get("exc_info") or event.get("exception") or event.get("event") == "A request failed":
            faults.append(str(dict(event)))
        return event

    processors = structlog.get_config()["processors"]
    processors.insert(0, note)
    try:
        yield faults
    finally:
        if note in processors:
            processors.remove(note)
        structlog.reset_defaults()
    assert not faults, f"the broker logged a fault that the test did not expect: {faults[0]}"
