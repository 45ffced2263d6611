"""Validates the names of topics.

Source: org.apache.kafka.common.internals.Topic.
"""

from __future__ import annotations

import re

from wirekafka.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
"""The folder of a partition adds a dash and digits, a deleted folder adds a suffix; file systems allow 255 bytes."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Raises unless a topic may have this name.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION.
    """
    reason = _fault_of(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def is_valid_topic_name(name: str) -> bool:
    """Whether a topic may have this name."""
    return _fault_of(name) is None


def _fault_of(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str | None:
    """Returns a key that two topics may not share, because metrics replace `.` by `_`; None for a name without either."""
    return name.replace(".", "_") if "." in name or "_" in name else None
