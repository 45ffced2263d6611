"""`wirekafka cluster describe` and `balance` in a cluster of Apache Kafka 3.9 with wirekafka: any broker may answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster, rack_of
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"%06d" % number + b"x" * 1000 for number in range(4_000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def command(cluster: MixedCluster, *arguments: str) -> list[str]:
    name, *options = arguments
    return [sys.executable, "-m", "wirekafka", "cluster", name, "--bootstrap-server", cluster.bootstrap, *options]


def run(cluster: MixedCluster, *arguments: str, exit_code: int = 0) -> str:
    done = subprocess.run(command(cluster, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == exit_code, done.stderr
    return done.stdout


def described(cluster: MixedCluster, exit_code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(cluster, "describe", "--json", exit_code=exit_code))
    return found


def throttles(cluster: MixedCluster, topic: str) -> list[str]:
    """Returns the dynamic settings of throttles that are set on the topic and on the brokers."""
    resources = [ConfigResource(ResourceType.TOPIC, topic)]
    resources += [ConfigResource(ResourceType.BROKER, str(broker_id)) for broker_id in cluster.brokers]
    found, admin = [], cluster.admin(JVM_IDS[0])
    for resource in resources:
        [described] = admin.describe_configs([resource]).values()
        found += [each.name for each in described.result(60).values() if "throttled" in each.name and not each.is_default]
    return found


def test_describe_shows_brokers_of_both_kinds_and_the_lag_of_a_replica_that_is_down(cluster: MixedCluster) -> None:
    cluster.create_topic("shown", [[1, 2], [WIREKAFKA_ID, 2]])
    found = described(cluster)
    assert [(each["id"], each["rack"]) for each in found["brokers"]] == [(each, rack_of(each)) for each in cluster.brokers]
    assert found["controller"] == cluster.controller_id()
    assert found["under_replicated_partitions"] == found["reassignments"] == found["out_of_sync_replicas"] == []
    follower = next(each for each in JVM_IDS if each != found["controller"])
    cluster.brokers[follower].kill()

    def lag() -> list[int | None]:
        done = subprocess.run(command(cluster, "describe", "--json"), capture_output=True, text=True, timeout=120, check=False)
        replicas = json.loads(done.stdout)["out_of_sync_replicas"]
        return [each["lag_records"] for each in replicas if each["replica"] == follower]

    wait_until(lag, timeout_s=60, what="a replica is out of sync")
    assert [each["id"] for each in described(cluster, exit_code=1)["brokers"] if not each["is_registered"]] == [follower]
    cluster.brokers[follower].start()
    cluster.until_all_know_each_other()
    cluster.until_in_sync("shown")


def test_balance_moves_bytes_to_an_empty_broker_and_leaves_no_throttle(cluster: MixedCluster) -> None:
    cluster.create_topic("heavy", [[1, 2], [2, 1], [1, 2]])
    for index in range(3):
        cluster.produce("heavy", index, VALUES)
    run(cluster, "balance", "--execute", "--throttle", "50000000")
    views = cluster.until_in_sync("heavy")
    assert any(WIREKAFKA_ID in view.replicas for view in views.values())
    assert throttles(cluster, "heavy") == []
    sizes = [each["bytes"] for each in described(cluster)["brokers"]]
    assert max(sizes) < 2 * min(sizes)
    for index in range(3):
        assert cluster.consume("heavy", index, len(VALUES)) == VALUES


def test_interrupted_balance_cancels_its_moves_and_leaves_no_throttle(cluster: MixedCluster) -> None:
    cluster.create_topic("slow", [[1, 2], [1, 2], [1, 2], [1, 2]])
    before = {index: view.replicas for index, view in cluster.describe("slow").items()}
    for index in range(4):
        cluster.produce("slow", index, VALUES)
    slow = command(cluster, "balance", "--execute", "--within", "1", "--throttle", "1000")
    with subprocess.Popen(slow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: described(cluster)["reassignments"], timeout_s=60, what="partitions move")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "interrupted: " in errors
    assert described(cluster)["reassignments"] == []
    assert throttles(cluster, "slow") == []
    wait_until(
        lambda: sum(set(view.replicas) == set(before[index]) for index, view in cluster.describe("slow").items()) > 0,
        timeout_s=60,
        what="cancelled moves have their former replicas",
    )


def test_balance_by_leaders_elects_every_broker(cluster: MixedCluster) -> None:
    cluster.create_topic("led", [[1, 2, 3]] * 6)
    run(cluster, "balance", "--by", "leaders", "--execute")
    counts = [each["leader_count"] for each in described(cluster)["brokers"]]
    assert max(counts) - min(counts) <= 1
