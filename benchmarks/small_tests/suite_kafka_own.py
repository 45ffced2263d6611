"""Small tests with a process of Apache Kafka for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.small_tests.kafka_process import kafka, new_topic
from benchmarks.small_tests.round_trip import NUMBERS, check_round_trip


@pytest.mark.parametrize("number", NUMBERS)
def test_records_come_back(tmp_path: Path, number: int) -> None:
    with kafka(tmp_path / "kafka") as bootstrap, new_topic(bootstrap, "orders") as topic:
        check_round_trip(bootstrap, topic)
