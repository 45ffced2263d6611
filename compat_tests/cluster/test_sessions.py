"""wirekafka in a cluster of Apache Kafka 3.9 loses its session, its ZooKeeper and its time."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(200)]
MORE = [b"more %d" % number for number in range(200)]
LAST = [b"last %d" % number for number in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def registration_count(cluster: MixedCluster) -> int:
    return cluster.brokers[WIREKAFKA_ID].log_text().count("Registered in ZooKeeper")


def test_member_that_was_stopped_too_long_returns_with_a_new_epoch_and_loses_nothing(cluster: MixedCluster) -> None:
    cluster.create_topic("paused", [[3, 1, 2]])
    cluster.produce("paused", 0, VALUES)
    member = cluster.brokers[WIREKAFKA_ID]
    before = registration_count(cluster)
    assert member.process is not None
    member.process.send_signal(signal.SIGSTOP)
    try:
        cluster.until_leader("paused", 0, *JVM_IDS)
        cluster.produce("paused", 0, MORE, **{"bootstrap.servers": cluster.brokers[1].bootstrap})
    finally:
        member.process.send_signal(signal.SIGCONT)
    wait_until(lambda: registration_count(cluster) > before, timeout_s=60, what="the member has registered again")
    cluster.until_in_sync("paused")
    cluster.elect_preferred_if_needed("paused", 0)
    cluster.produce("paused", 0, LAST)
    assert cluster.consume("paused", 0, len(VALUES + MORE + LAST)) == VALUES + MORE + LAST
    cluster.until_equal("paused", 0)


def test_cluster_goes_on_without_zookeeper_and_after_its_return(cluster: MixedCluster) -> None:
    cluster.create_topic("alone", [[3, 1, 2], [1, 3, 2]])
    before = registration_count(cluster)
    producer = cluster.producer()
    cluster.produce("alone", 0, VALUES[:1], producer)
    cluster.zookeeper.kill()
    # A new producer may need a block of producer ids, which only the controller gives, and only from ZooKeeper.
    cluster.produce("alone", 0, VALUES[1:], producer)
    cluster.produce("alone", 1, VALUES, producer)
    cluster.zookeeper.start()
    cluster.create_topic("after", [[3, 1, 2]])
    cluster.produce("after", 0, VALUES)
    for index in range(2):
        cluster.produce("alone", index, MORE)
        assert cluster.consume("alone", index, len(VALUES + MORE)) == VALUES + MORE
        cluster.until_equal("alone", index)
    assert registration_count(cluster) in (before, before + 1)


def test_controller_that_is_killed_is_replaced(cluster: MixedCluster) -> None:
    controller = cluster.let_apache_kafka_rule()
    cluster.create_topic("ruled", [[3, 1, 2]])
    cluster.produce("ruled", 0, VALUES)
    cluster.brokers[controller].kill()
    (other,) = set(JVM_IDS) - {controller}
    wait_until(
        lambda: cluster.controller_id(other) != controller, timeout_s=60, what="another broker is the controller", poll_s=0.1
    )
    cluster.produce("ruled", 0, MORE)
    cluster.brokers[controller].start()
    cluster.until_in_sync("ruled", other)
    assert cluster.consume("ruled", 0, len(VALUES + MORE)) == VALUES + MORE
