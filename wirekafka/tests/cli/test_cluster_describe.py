"""`wirekafka cluster describe` on a cluster that the test plays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from wirekafka.cli.cluster.client import UnreachableError
from wirekafka.cli.cluster.description import shown_bytes
from wirekafka.names import TopicPartition
from wirekafka.tests.cli.played_cluster import PlayedCluster, PlayedPartition, played_cluster


@pytest.fixture
def cluster() -> Iterator[PlayedCluster]:
    with played_cluster({1: "a", 2: "b", 3: None}) as played:
        yield played


def described(cluster: PlayedCluster, exit_code: int = 0) -> dict[str, Any]:
    result = cluster.run("describe", "--json", "--timeout", "0.5")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_cluster_in_order_is_shown_with_leaders_and_bytes_by_broker_and_exit_code_0(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 2], size_bytes=2048)
    cluster.add("orders", 1, [2, 1], size_bytes=100, leader=1)
    result = cluster.run("describe")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert result.stdout.startswith("Cluster played: 3 brokers, controller 1, 1 topic, 2 partitions, all in sync\n")
    address = {each: f"127.0.0.1:{port}" for each, port in cluster.ports.items()}
    assert lines[3:] == [
        ["1", address[1], "a", "2", "1", "2", "0", "2.1", "KiB", "controller"],
        ["2", address[2], "b", "0", "1", "2", "0", "2.1", "KiB"],
        ["3", address[3], "0", "0", "0", "0", "0", "B"],
    ]


def test_offline_partition_is_shown_and_the_exit_code_is_1(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 2], leader=-1, isr=[])
    found = described(cluster, exit_code=1)
    assert found["is_degraded"] is True
    assert [(each["topic"], each["partition"], each["leader"]) for each in found["offline_partitions"]] == [("orders", 0, None)]


def test_partitions_are_under_min_isr_and_under_replicated_by_their_topics_settings(cluster: PlayedCluster) -> None:
    cluster.min_isr["strict"] = "2"
    cluster.add("loose", 0, [1, 2], isr=[1], ends={1: 7, 2: 7})
    cluster.add("strict", 0, [1, 2], isr=[1], ends={1: 7, 2: 7})
    cluster.add("strict", 1, [1, 2])
    found = described(cluster)
    assert [(each["topic"], each["partition"]) for each in found["under_replicated_partitions"]] == [("loose", 0), ("strict", 0)]
    assert [(each["topic"], each["partition"]) for each in found["under_min_isr_partitions"]] == [("strict", 0)]


def test_min_insync_replicas_above_the_number_of_replicas_counts_as_that_number(cluster: PlayedCluster) -> None:
    cluster.min_isr["single"] = "2"
    cluster.add("single", 0, [1])
    assert described(cluster)["under_min_isr_partitions"] == []


def test_lag_of_a_replica_is_the_difference_of_the_log_end_offsets(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 2, 3], isr=[1], ends={1: 1000, 2: 400})
    cluster.add("orders", 1, [2, 1])
    found = described(cluster)
    assert found["out_of_sync_replicas"] == [
        {"topic": "orders", "partition": 0, "replica": 2, "lag_records": 600},
        {"topic": "orders", "partition": 0, "replica": 3, "lag_records": None},
    ]
    assert cluster.asked.count("ListOffsets") == 3


def test_replicas_that_a_reassignment_adds_do_not_count_as_missing(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 3], isr=[1], size_bytes=10_000, ends={1: 5, 3: 0})
    cluster.partitions[TopicPartition("orders", 0)] = PlayedPartition(1, [1], [1], 10_000, target=[3])
    found = described(cluster)
    assert found["reassignments"] == [
        {"topic": "orders", "partition": 0, "replicas": [1], "adding_replicas": [3], "removing_replicas": [1]}
    ]
    assert found["under_replicated_partitions"] == []


def test_broker_that_is_not_registered_but_has_replicas_is_down(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 7], isr=[1])
    found = described(cluster, exit_code=1)
    [down] = [each for each in found["brokers"] if not each["is_registered"]]
    assert (down["id"], down["bytes"], down["replica_count"], down["out_of_sync_count"]) == (7, None, 1, 1)


def test_broker_that_does_not_answer_costs_its_own_bytes_only_and_the_exit_code_is_1(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 3], size_bytes=50)
    cluster.silent.add(3)
    found = described(cluster, exit_code=1)
    assert [each["bytes"] for each in found["brokers"]] == [50, 0, None]
    assert "does not answer ApiVersions within 0.5 s" in found["brokers"][2]["problem"]


def test_cluster_with_a_broker_that_does_not_answer_is_not_in_sync(cluster: PlayedCluster) -> None:
    cluster.add("orders", 0, [1, 3])
    assert "1 partition, all in sync" in cluster.run("describe").stdout
    cluster.silent.add(3)
    shown = cluster.run("describe").stdout
    assert "1 partition (1 broker without an answer)" in shown
    assert "all in sync" not in shown


def test_broker_that_is_down_has_one_note_and_no_row_for_each_replica(cluster: PlayedCluster) -> None:
    for index in range(3):
        cluster.add("orders", index, [1, 7], isr=[1])
    shown = cluster.run("describe").stdout
    assert "note: broker 7 is down: start it, or move its 3 replicas to other brokers" in shown
    assert "lag in records" not in shown


def test_controller_that_does_not_answer_makes_the_exit_code_1(cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(client: object) -> None:
        raise UnreachableError("no controller answers")

    monkeypatch.setattr("wirekafka.cli.cluster.snapshot.read_reassignments", refuse)
    assert described(cluster, exit_code=1)["is_degraded"] is True


def test_failed_data_directory_is_shown_and_the_exit_code_is_1(cluster: PlayedCluster) -> None:
    cluster.failed_dirs.add(2)
    assert described(cluster, exit_code=1)["brokers"][1]["failed_log_dirs"] == ["/failed"]
    assert "broker 2: the data directory /failed has failed" in cluster.run("describe").stdout


def test_cluster_without_a_controller_is_shown_and_the_exit_code_is_1(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.cli.cluster.client.SECONDS_FOR_A_CONTROLLER", 0.0)
    cluster.controller_id = -1
    found = described(cluster, exit_code=1)
    assert found["controller"] is None
    assert "reassignments are unknown: no controller answers" in found["notes"][0]


def test_table_of_many_partitions_is_cut_and_says_so(cluster: PlayedCluster) -> None:
    for index in range(60):
        cluster.add("orders", index, [1, 2], leader=-1, isr=[])
    shown = cluster.run("describe").stdout
    assert "60 partitions (60 offline)" in shown
    assert shown.count("none") == 50
    assert "... and 10 more; --json has all" in shown


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 30, "1.0 GiB"), (5 << 60, "5120.0 PiB")]
)
def test_bytes_are_shown_with_a_unit(count: int, text: str) -> None:
    assert shown_bytes(count) == text
