"""Keeps the log of embedded brokers out of what commands print in the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_of_brokers() -> Iterator[None]:
    """Sends the log of brokers to `logging`, which pytest captures.

    An embedded broker does that itself, unless structlog is configured. But `structlog.testing.capture_logs` of an earlier test
    configures structlog, after which a broker's thread would print its lines among those of the command.
    """
    former = structlog.get_config()["logger_factory"]
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
    try:
        yield
    finally:
        structlog.configure(logger_factory=former)
