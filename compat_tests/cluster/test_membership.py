"""wirekafka as broker 3 of a cluster of Apache Kafka 3.9 with ZooKeeper: it follows, leads, is killed, and stops in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(500)]
MORE = [b"more %d" % number for number in range(500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def _all_run(cluster: MixedCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.is_running():
            broker.start()


def test_member_is_described_by_every_broker(cluster: MixedCluster, tools_jvm: Tools) -> None:
    cluster.create_topic("described", [[1, 2, 3], [3, 1, 2]])
    for broker_id in (*JVM_IDS, WIREKAFKA_ID):
        metadata = cluster.admin(broker_id).list_topics(timeout=60)
        assert sorted(metadata.brokers) == [1, 2, 3]
        address = metadata.brokers[WIREKAFKA_ID]
        assert f"{address.host}:{address.port}" == cluster.brokers[WIREKAFKA_ID].bootstrap
        assert cluster.describe("described", broker_id) == cluster.describe("described")
        shown = tools_jvm.check(
            tools.TOPICS,
            "--bootstrap-server",
            cluster.brokers[broker_id].bootstrap,
            "--describe",
            "--under-replicated-partitions",
        )
        assert shown.lines() == []


@pytest.fixture(scope="module")
def tools_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


def test_member_follows_in_sync_with_the_same_bytes(cluster: MixedCluster) -> None:
    cluster.create_topic("followed", [[1, 2, 3]])
    cluster.produce("followed", 0, VALUES, **{"compression.type": "lz4"})
    cluster.until_in_sync("followed", WIREKAFKA_ID)
    cluster.until_equal("followed", 0)
    assert cluster.consume("followed", 0, len(VALUES)) == VALUES


def test_member_leads_and_the_others_follow_with_the_same_bytes(cluster: MixedCluster) -> None:
    cluster.create_topic("led", [[3, 1, 2]])
    cluster.until_leader("led", 0, WIREKAFKA_ID)
    cluster.produce("led", 0, VALUES)
    assert cluster.consume("led", 0, len(VALUES)) == VALUES
    cluster.until_equal("led", 0)
    dumped = tools.run_alone(
        tools.DUMP_LOG,
        "--deep-iteration",
        "--files",
        str(cluster.brokers[1].data_dir / "led-0" / "00000000000000000000.log"),
    )
    assert dumped.code == 0
    assert f"lastOffset: {len(VALUES) - 1}" in dumped.out


def test_member_that_is_killed_is_replaced_and_returns_as_leader(cluster: MixedCluster) -> None:
    cluster.create_topic("killed", [[3, 1, 2]])
    cluster.produce("killed", 0, VALUES)
    cluster.brokers[WIREKAFKA_ID].kill()
    cluster.until_leader("killed", 0, *JVM_IDS)
    cluster.produce("killed", 0, MORE)
    cluster.brokers[WIREKAFKA_ID].start()
    cluster.until_in_sync("killed")
    cluster.elect_preferred("killed", 0)
    cluster.until_leader("killed", 0, WIREKAFKA_ID)
    assert cluster.consume("killed", 0, len(VALUES + MORE)) == VALUES + MORE
    cluster.until_equal("killed", 0)


def test_member_shrinks_and_expands_the_in_sync_replicas_of_a_killed_follower(cluster: MixedCluster) -> None:
    cluster.create_topic("shrunk", [[3, 2, 1]])
    cluster.produce("shrunk", 0, VALUES)
    cluster.brokers[2].kill()
    cluster.produce("shrunk", 0, MORE)
    wait_until(
        lambda: cluster.describe("shrunk")[0].in_sync_replicas == (1, 3), timeout_s=60, what="broker 2 has left", poll_s=0.1
    )
    cluster.brokers[2].start()
    cluster.until_in_sync("shrunk")
    assert cluster.consume("shrunk", 0, len(VALUES + MORE)) == VALUES + MORE
    cluster.until_equal("shrunk", 0)


def test_member_takes_over_from_a_killed_leader(cluster: MixedCluster) -> None:
    cluster.create_topic("failed-over", [[2, 3]])
    cluster.produce("failed-over", 0, VALUES)
    cluster.brokers[2].kill()
    cluster.until_leader("failed-over", 0, WIREKAFKA_ID)
    cluster.brokers[2].start()
    cluster.until_in_sync("failed-over")
    cluster.produce("failed-over", 0, MORE)
    assert cluster.consume("failed-over", 0, len(VALUES + MORE)) == VALUES + MORE


def test_member_hands_its_partitions_over_before_it_stops(cluster: MixedCluster) -> None:
    cluster.create_topic("handed-over", [[3, 1, 2], [3, 2, 1]])
    cluster.produce("handed-over", 0, VALUES)
    member = cluster.brokers[WIREKAFKA_ID]
    assert member.terminate() == 0
    views = cluster.describe("handed-over")
    assert all(view.leader in JVM_IDS for view in views.values()), views
    assert "remaining_partition_count=0" in member.log_text()
    cluster.produce("handed-over", 0, MORE)
    member.start()
    cluster.until_in_sync("handed-over")
    assert cluster.consume("handed-over", 0, len(VALUES + MORE)) == VALUES + MORE


def test_transactions_and_groups_have_their_coordinators_on_any_broker(cluster: MixedCluster) -> None:
    cluster.create_topic("transacted", [[3, 1, 2], [1, 2, 3], [2, 3, 1]])
    committed = [[b"%d-%d" % (round_, number) for number in range(5)] for round_ in range(8)]
    for values in committed:
        cluster.transact("transacted", [0, 1, 2], values)
        cluster.transact("transacted", [0, 1, 2], [b"aborted"], is_aborted=True)
    for index in range(3):
        assert cluster.consume("transacted", index, 40) == [value for values in committed for value in values]
        cluster.until_equal("transacted", index)
    for state_topic in ("__transaction_state", "__consumer_offsets"):
        for index in cluster.until_in_sync(state_topic):
            cluster.elect_preferred_if_needed(state_topic, index)
    leaders = {view.leader for view in cluster.describe("__consumer_offsets").values()}
    assert WIREKAFKA_ID in leaders
    for number in range(8):
        cluster.commit(f"group-{number}", "transacted", [number, 2 * number, 3 * number])
        assert cluster.committed_offsets(f"group-{number}", "transacted", 3) == [number, 2 * number, 3 * number]


def test_offsets_of_groups_survive_the_kill_of_their_coordinator(cluster: MixedCluster) -> None:
    cluster.create_topic("grouped", [[1, 2]])
    for number in range(8):
        cluster.commit(f"survivor-{number}", "grouped", [number])
    cluster.brokers[WIREKAFKA_ID].kill()
    for index in cluster.describe("__consumer_offsets"):
        cluster.until_leader("__consumer_offsets", index, *JVM_IDS)
    assert [cluster.committed_offsets(f"survivor-{number}", "grouped", 1) for number in range(8)] == [[n] for n in range(8)]
    cluster.brokers[WIREKAFKA_ID].start()
    cluster.until_in_sync("__consumer_offsets")
