"""Creates topics for tests with confluent-kafka's admin client."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.waiting import wait_until


def create_topic(bootstrap: str, name: str, partition_count: int = 1, configs: Mapping[str, str] = {}) -> None:
    """Creates a topic and waits until every partition has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request = NewTopic(name, num_partitions=partition_count, replication_factor=1, config=dict(configs))
    admin.create_topics([request])[name].result(60)

    def has_leaders() -> bool:
        found = admin.list_topics(timeout=60).topics.get(name)
        if found is None or found.error is not None:
            return False
        return len(found.partitions) == partition_count and all(p.leader >= 0 for p in found.partitions.values())

    wait_until(has_leaders, timeout_s=60, what=f"{name} has its leaders")
