"""The port between the topics and the host of their partitions: the host is told of every change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.metadata.topics import Topics
from wirekafka.testing.memory_store import MemoryStore
from wirekafka.tests.replication.memory_logs import MemoryLogs


class NamesHost:
    """A host whose partitions are their names; it records the changes."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def open(self, topic: str, index: int, *, topic_id: bytes, config: LogConfig, is_new: bool) -> str:
        name = f"{topic}-{index}"
        self.events.append(f"open {name}")
        return name

    def configure(self, partition: str, config: LogConfig) -> None:
        self.events.append(f"configure {partition} {config.retention_ms}")

    def raise_leader_epoch(self, partition: str, leader_epoch: int) -> None:
        self.events.append(f"raise {partition} {leader_epoch}")

    def notify_offline(self, partitions: Iterable[str], logs: Collection[Log]) -> None:
        self.events.append(f"offline {list(partitions)}")

    def close(self, partition: str) -> None:
        self.events.append(f"close {partition}")

    def delete(self, partition: str) -> None:
        self.events.append(f"delete {partition}")


def open_topics(store: MemoryStore, host: NamesHost) -> Topics[str]:
    return Topics.open(BrokerConfig(), cast(LogManager, MemoryLogs()), store, host)


def test_host_opens_configures_and_deletes_partitions_as_topics_change() -> None:
    host = NamesHost()
    topics = open_topics(MemoryStore(), host)
    topic = topics.create("a", 1, {"retention.ms": "5"})
    topics.alter(topic, {"retention.ms": "7"})
    topics.add_partitions(topic, 2)
    assert topics.find_partition("a", 1) == "a-1"
    topics.delete(topic)
    assert host.events == [
        "open a-0",
        "configure a-0 5",
        "configure a-0 7",
        "open a-1",
        "configure a-1 7",
        "configure a-0 7",
        "configure a-1 7",
        "delete a-0",
        "delete a-1",
    ]


def test_host_opens_partitions_again_after_a_restart_and_closes_them_at_the_end() -> None:
    store = MemoryStore()
    open_topics(store, NamesHost()).create("a", 2)
    host = NamesHost()
    open_topics(store, host).close()
    assert [event for event in host.events if not event.startswith("configure")] == [
        "open a-0",
        "open a-1",
        "close a-0",
        "close a-1",
    ]
