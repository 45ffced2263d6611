"""Apache Kafka in a process of its own for the small tests, on a copy of formatted storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.brokers import FormattedKafka
from compat_tests.harness.broker import running


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """Starts Apache Kafka; gives its address."""
    with running(broker := FormattedKafka(directory, Path(os.environ["SMALL_TESTS_STORAGE"]))):
        yield broker.bootstrap


@contextmanager
def new_topic(bootstrap: str, name: str) -> Iterator[str]:
    """Creates a topic, and deletes it at the end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    yield name
    admin.delete_topics([name])[name].result(60)
