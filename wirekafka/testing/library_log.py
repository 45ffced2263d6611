"""The log of a broker in another program: its lines go to Python's `logging`, where the program decides what is shown."""

from __future__ import annotations

import logging

import structlog

ROOT = "wirekafka"
"""The logger above those of all modules."""


def _configuration() -> dict[str, object]:
    config = structlog.get_config()
    return {**config, "processors": [*config["processors"]]}


_UNCONFIGURED = None if structlog.is_configured() else _configuration()
"""How structlog is before anybody configures it; None if somebody did before this module was imported."""


def use_logging() -> None:
    """Sends the broker's log to `logging`, unless the program has configured structlog itself.

    `structlog.testing.capture_logs` of a test leaves structlog marked as configured, with the configuration from before.
    """
    if structlog.is_configured() and _configuration() != _UNCONFIGURED:
        return
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _as_text],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _as_text(logger: object, method: str, event: structlog.typing.EventDict) -> str:
    text = str(event.pop("event"))
    trace = event.pop("exception", None)
    values = " ".join(f"{name}={_value(value)}" for name, value in event.items())
    line = f"{text} {values}".rstrip()
    return line if trace is None else f"{line}\n{trace}"


def _value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else repr(value)
