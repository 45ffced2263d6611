"""Runs cases with all clients at once: each client has a broker and a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tools.client_outcomes.cases import Case
from tools.client_outcomes.jobs import Client
from tools.client_outcomes.page import Cells, Row
from tools.client_outcomes.running import Stage
from tools.client_outcomes.with_aiokafka import Aiokafka
from tools.client_outcomes.with_confluent_kafka import ConfluentKafka
from tools.client_outcomes.with_java import JavaClient
from tools.client_outcomes.with_kafka_python import KafkaPython
from wirekafka.testing import EmbeddedBroker


@contextmanager
def clients() -> Iterator[Mapping[str, Client]]:
    """Returns the clients by the heads of their columns."""
    with JavaClient() as java:
        yield {"Java": java, "confluent-kafka": ConfluentKafka(), "kafka-python": KafkaPython(), "aiokafka": Aiokafka()}


def find_cells(cases: Mapping[Row, Case], logs: Path | None = None) -> Cells:
    """Returns what all clients do.

    Args:
        logs: as `Stage` has it; each client gets a directory there.
    """

    def run(name: str, client: Client) -> list[str]:
        # Few partitions of internal topics, because their logs are checked after each case.
        with EmbeddedBroker(storage="memory", offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1) as broker:
            stage = Stage(broker, client, None if logs is None else logs / name)
            return [stage.outcome(case) for case in cases.values()]

    with clients() as by_name, ThreadPoolExecutor(len(by_name)) as pool:
        columns = dict(zip(by_name, pool.map(run, by_name, by_name.values()), strict=True))
    return {row: {name: columns[name][index] for name in columns} for index, row in enumerate(cases)}
