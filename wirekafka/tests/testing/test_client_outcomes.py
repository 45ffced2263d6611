"""Rows of the table of clients under faults in docs/testing.md; `tools/client_outcomes.py` writes all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tools.client_outcomes import outcome, write_with_confluent_kafka
from wirekafka.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(storage="memory") as running:
        yield running


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"error": "NOT_ENOUGH_REPLICAS"}, "retries, and nobody notices"),
        ({"error": "MESSAGE_TOO_LARGE"}, "raises MSG_SIZE_TOO_LARGE"),
        ({"full_disk": True}, "retries, and nobody notices"),
        ({"disconnect": "reply"}, "retries, and nobody notices; the record is there twice"),
    ],
)
def test_outcome_is_that_of_the_table(broker: EmbeddedBroker, fault: dict[str, Any], expected: str) -> None:
    assert outcome(broker, write_with_confluent_kafka, fault) == expected
