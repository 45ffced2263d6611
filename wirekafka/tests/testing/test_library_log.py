"""Where the log of a broker in another program goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = "structlog.get_logger('wirekafka.x').warning('A line', number=1)"


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", ["logging: A line number=1"]),
        ("with structlog.testing.capture_logs(): pass", ["logging: A line number=1"]),
        (
            "structlog.configure(processors=[lambda logger, method, event: f'own: {event}'])",
            ["own: {'number': 1, 'event': 'A line'}"],
        ),
        ("structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())", None),
    ],
    ids=["nothing", "a test that captures", "own processors", "own factory"],
)
def test_log_goes_to_logging_unless_the_program_has_configured_structlog(before: str, shown: list[str] | None) -> None:
    program = f"""
import logging, sys, structlog
from wirekafka.testing.library_log import use_logging
logging.basicConfig(format="logging: %(message)s", stream=sys.stdout)
{before}
use_logging()
{SHOW}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    if shown is not None:
        assert done.stdout.splitlines() == shown
    else:
        assert "A line number=1" not in done.stdout, "the default processors of structlog show it in another form"


def test_log_is_captured_by_the_test_that_starts_a_broker() -> None:
    program = f"""
import structlog
from wirekafka.testing.library_log import use_logging
with structlog.testing.capture_logs() as lines:
    use_logging()
    {SHOW}
assert [line["event"] for line in lines] == ["A line"], lines
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
