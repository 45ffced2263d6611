"""Requests of wirekafka to a controller of Apache Kafka: topics, producer ids and changes of in-sync replicas."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(50)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("controller-requests"), {"zookeeper.session.timeout.ms": "12000"}) as running:
        yield running


@pytest.fixture(autouse=True)
def _all_run(cluster: MixedCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.is_running():
            broker.start()


def produce_by_member(cluster: MixedCluster, topic: str, **settings: str | bool) -> None:
    """Produces to a topic with the member as the only bootstrap server, which therefore answers the first Metadata."""
    producer = Producer({"bootstrap.servers": cluster.brokers[WIREKAFKA_ID].bootstrap, **settings})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def test_topic_that_a_client_asks_for_is_created_by_the_controller(cluster: MixedCluster) -> None:
    produce_by_member(cluster, "asked-for")
    views = cluster.until_in_sync("asked-for")
    assert len(views) == 2 and all(len(view.replicas) == 3 for view in views.values())


def test_idempotent_producers_of_all_brokers_have_different_producer_ids(cluster: MixedCluster) -> None:
    cluster.create_topic("idempotent", [[WIREKAFKA_ID, 1, 2]])
    for _ in range(3):
        produce_by_member(cluster, "idempotent", **{"enable.idempotence": True})
    log_text = cluster.brokers[WIREKAFKA_ID].log_text()
    assert "The broker got no block of producer ids" not in log_text
    assert len(cluster.consume("idempotent", 0, 3 * len(VALUES))) == 3 * len(VALUES)


def test_in_sync_replicas_change_by_the_next_controller(cluster: MixedCluster) -> None:
    former = cluster.let_apache_kafka_rule()
    cluster.create_topic("next", [[WIREKAFKA_ID, 1, 2]], {"min.insync.replicas": "1"})
    cluster.brokers[former].kill()
    cluster.produce("next", 0, VALUES)
    other = next(number for number in JVM_IDS if number != former)
    wait_until(
        lambda: cluster.describe("next", other)[0].in_sync_replicas == (other, WIREKAFKA_ID),
        timeout_s=60,
        what="the killed controller has left the in-sync replicas",
        poll_s=0.1,
    )
    cluster.brokers[former].start()
    cluster.until_in_sync("next", other)
    cluster.until_equal("next", 0)


def test_controller_that_hangs_does_not_hold_changes_of_in_sync_replicas(cluster: MixedCluster) -> None:
    hung = cluster.let_apache_kafka_rule()
    cluster.create_topic("hung", [[WIREKAFKA_ID, 1, 2]], {"min.insync.replicas": "1"})
    other = next(number for number in JVM_IDS if number != hung)
    os.kill(cluster.brokers[hung].pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: cluster.describe("hung", other)[0].in_sync_replicas == tuple(sorted((other, WIREKAFKA_ID))),
            timeout_s=25,
            what="the hung controller has left the in-sync replicas, before a request to it has timed out",
            poll_s=0.1,
        )
    finally:
        os.kill(cluster.brokers[hung].pid, signal.SIGCONT)
    cluster.until_in_sync("hung", other)
    cluster.produce("hung", 0, VALUES)
    cluster.until_equal("hung", 0)


def test_groups_find_a_coordinator_by_the_member(cluster: MixedCluster) -> None:
    produce_by_member(cluster, "grouped")
    cluster.until_in_sync("grouped")
    settings = {"bootstrap.servers": cluster.brokers[WIREKAFKA_ID].bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["grouped"])
    seen: list[bytes | None] = []

    def has_all() -> bool:
        seen.extend(message.value() for message in consumer.consume(100, timeout=1.0) if message.error() is None)
        return len(seen) >= len(VALUES)

    wait_until(has_all, timeout_s=60, what="the group has read the topic")
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition("grouped", index) for index in (0, 1)], timeout=60)
    assert sum(max(0, partition.offset) for partition in committed) == len(VALUES)
    consumer.close()
