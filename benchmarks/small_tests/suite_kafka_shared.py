"""Small tests that share a process of Apache Kafka; each creates a topic, and deletes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.small_tests.kafka_process import kafka, new_topic
from benchmarks.small_tests.round_trip import NUMBERS, check_round_trip


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.mark.parametrize("number", NUMBERS)
def test_records_come_back(bootstrap: str, number: int) -> None:
    with new_topic(bootstrap, f"orders-{number}") as topic:
        check_round_trip(bootstrap, topic)
