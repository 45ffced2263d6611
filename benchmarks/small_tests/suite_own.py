"""Small tests with a broker for each."""

from __future__ import annotations

import pytest

from benchmarks.small_tests.round_trip import NUMBERS, check_round_trip
from wirekafka.testing import EmbeddedBroker


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.kafka_settings(num_partitions=1)
def test_records_come_back(kafka_broker: EmbeddedBroker, kafka_topic: str, number: int) -> None:
    check_round_trip(kafka_broker.bootstrap, kafka_topic)
