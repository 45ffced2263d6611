"""Small tests that share a broker, which the fixture of wirekafka's plugin empties before each test."""

from __future__ import annotations

import pytest

from benchmarks.small_tests.round_trip import NUMBERS, check_round_trip
from wirekafka.testing import EmbeddedBroker


@pytest.mark.parametrize("number", NUMBERS)
def test_records_come_back(kafka_broker: EmbeddedBroker, kafka_topic: str, number: int) -> None:
    check_round_trip(kafka_broker.bootstrap, kafka_topic)
