"""`wirekafka cluster balance` on a cluster that the test plays."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest

from wirekafka.cli.cluster import reassigning
from wirekafka.cli.cluster.throttling import throttle_settings
from wirekafka.errors import ErrorCode
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.names import TopicPartition
from wirekafka.tests.cli.played_cluster import BROKER, TOPIC, PlayedCluster, played_cluster

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


@pytest.fixture
def cluster() -> Iterator[PlayedCluster]:
    """A cluster whose broker 3 is new and empty."""
    with played_cluster({1: None, 2: None, 3: None}) as played:
        for index in range(6):
            played.add("orders", index, [1, 2] if index % 2 else [2, 1], size_bytes=300)
        yield played


@pytest.fixture
def after_a_poll(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens in place of the pauses between two polls, in order."""
    acts: list[Callable[[], object]] = []
    original = reassigning.Reassigner.__init__

    def init(self: reassigning.Reassigner, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self.sleep = lambda seconds: acts.pop(0)() if acts else None

    monkeypatch.setattr(reassigning.Reassigner, "__init__", init)
    return acts


def replicas_of(cluster: PlayedCluster) -> list[list[int]]:
    return [each.replicas for each in cluster.partitions.values()]


def test_proposal_is_printed_in_the_format_of_kafka_reassign_partitions_and_nothing_changes(cluster: PlayedCluster) -> None:
    before = replicas_of(cluster)
    result = cluster.run("balance", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["version"] == 1
    assert len(found["partitions"]) == 4
    assert all(3 in each["replicas"] and each["topic"] == "orders" for each in found["partitions"])
    assert replicas_of(cluster) == before
    assert not {"AlterPartitionReassignments", "IncrementalAlterConfigs", "ElectLeaders"} & set(cluster.asked)


def test_table_shows_the_bytes_of_brokers_before_and_after(cluster: PlayedCluster) -> None:
    shown = cluster.run("balance").stdout
    rows = [line.split() for line in shown.splitlines() if line.split()[:1] == ["3"]]
    assert rows == [["3", "0", "B", "1.2", "KiB", "0", "0"]]
    assert "4 partitions change: 1.2 KiB are copied" in shown


@pytest.mark.usefixtures("after_a_poll")
def test_execution_moves_the_replicas_and_elects_their_preferred_leaders(cluster: PlayedCluster) -> None:
    result = cluster.run("balance", "--execute")
    assert result.exit_code == 0, result.output
    assert sum(3 in each for each in replicas_of(cluster)) == 4
    assert all(each.leader == each.replicas[0] for each in cluster.partitions.values())
    assert "4 of 4 partitions have their preferred leaders" in result.stderr
    assert cluster.config_changes == []


@pytest.mark.usefixtures("after_a_poll")
def test_throttle_is_set_before_the_moves_and_removed_after_them(cluster: PlayedCluster) -> None:
    result = cluster.run("balance", "--execute", "--throttle", "5000")
    assert result.exit_code == 0, result.output
    changes = {(type_, name): settings for _, type_, name, settings in cluster.config_changes[:4]}
    rates = {LEADER_RATE: "5000", FOLLOWER_RATE: "5000"}
    assert {name: settings for (type_, name), settings in changes.items() if type_ == BROKER} == {
        "1": rates,
        "2": rates,
        "3": rates,
    }
    assert len(changes[TOPIC, "orders"][FOLLOWER_REPLICAS].split(",")) == 4  # type: ignore[union-attr]
    assert cluster.configs == {}
    names = [each for each in cluster.asked if each in ("IncrementalAlterConfigs", "AlterPartitionReassignments")]
    assert names == ["IncrementalAlterConfigs"] * 4 + ["AlterPartitionReassignments"] + ["IncrementalAlterConfigs"] * 4


@pytest.mark.usefixtures("after_a_poll")
def test_settings_that_were_there_before_a_throttle_come_back(cluster: PlayedCluster) -> None:
    before = {(BROKER, "1"): {LEADER_RATE: "77"}, (TOPIC, "orders"): {LEADER_REPLICAS: "*"}}
    cluster.configs = {key: dict(settings) for key, settings in before.items()}
    assert cluster.run("balance", "--execute", "--throttle", "5000").exit_code == 0
    assert cluster.configs == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_cancels_the_moves_that_are_not_complete_and_leaves_no_throttle(
    cluster: PlayedCluster, after_a_poll: list[Callable[[], object]], number: signal.Signals
) -> None:
    cluster.partitions[TopicPartition("orders", 0)].size_bytes = 50
    cluster.copied_at_once = 50
    former = signal.getsignal(number)
    before = replicas_of(cluster)
    after_a_poll.append(lambda: signal.raise_signal(number))
    result = cluster.run("balance", "--execute", "--throttle", "5000")
    assert result.exit_code == 1
    assert "interrupted: " in result.stderr and "moves were cancelled" in result.stderr
    assert all(each.target is None for each in cluster.partitions.values())
    assert replicas_of(cluster)[1:] == before[1:]
    assert cluster.configs == {}
    assert signal.getsignal(number) is former


@pytest.mark.usefixtures("after_a_poll")
def test_refused_move_cancels_the_others_and_leaves_no_throttle(cluster: PlayedCluster) -> None:
    before = replicas_of(cluster)
    refused = json.loads(cluster.run("balance", "--json").stdout)["partitions"][0]["partition"]
    cluster.refused[TopicPartition("orders", refused)] = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    result = cluster.run("balance", "--execute", "--throttle", "5000")
    assert result.exit_code == 1
    assert f"the controller refuses moves (orders-{refused}: INVALID_REPLICA_ASSIGNMENT)" in result.stderr
    assert replicas_of(cluster) == before
    assert cluster.configs == {}


@pytest.mark.usefixtures("after_a_poll")
def test_leaders_are_spread_by_reordering_and_elections(cluster: PlayedCluster) -> None:
    for each in cluster.partitions.values():
        each.replicas, each.isr, each.leader = [1, 2, 3], [1, 2, 3], 1
    result = cluster.run("balance", "--by", "leaders", "--execute")
    assert result.exit_code == 0, result.output
    assert sorted(each.leader for each in cluster.partitions.values()) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(each.replicas) == [1, 2, 3] for each in cluster.partitions.values())


def test_leaders_that_are_only_not_the_preferred_ones_are_elected_without_a_reassignment(cluster: PlayedCluster) -> None:
    for each in cluster.partitions.values():
        each.leader = 1
    result = cluster.run("balance", "--by", "leaders", "--execute")
    assert result.exit_code == 0, result.output
    assert "Nothing to move." in result.stdout
    assert [each.leader for each in cluster.partitions.values()] == [2, 1, 2, 1, 2, 1]
    assert "AlterPartitionReassignments" not in cluster.asked


def test_partition_that_is_not_in_sync_stays_and_is_mentioned(cluster: PlayedCluster) -> None:
    for each in cluster.partitions.values():
        each.isr = each.replicas[:1]
    shown = cluster.run("balance").stdout
    assert "note: 6 partitions stay, because not all of their replicas are in sync" in shown
    assert "Nothing to move." in shown


def test_cluster_that_reassigns_already_gets_no_proposal(cluster: PlayedCluster) -> None:
    cluster.partitions[TopicPartition("orders", 0)].target = [3, 1]
    result = cluster.run("balance")
    assert result.exit_code == 1
    assert "reassignments are in progress: wait until" in result.stderr


def test_broker_whose_bytes_are_unknown_stops_a_proposal_by_bytes(cluster: PlayedCluster) -> None:
    cluster.silent.add(3)
    result = cluster.run("balance", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "the bytes of broker 3 are unknown" in result.stderr


@pytest.mark.parametrize("options", [["--throttle", "5"], ["--throttle", "5", "--by", "leaders", "--execute"]])
def test_throttle_without_bytes_to_move_is_refused(cluster: PlayedCluster, options: list[str]) -> None:
    assert cluster.run("balance", *options).exit_code == 2
    assert cluster.asked == []


@pytest.mark.usefixtures("after_a_poll")
def test_partitions_get_more_replicas_under_a_throttle_and_their_preferred_leaders(cluster: PlayedCluster) -> None:
    cluster.add("__consumer_offsets", 0, [1], size_bytes=10)
    cluster.add("alone", 0, [1], size_bytes=20)
    result = cluster.run("balance", "--replication-factor", "2", "--execute", "--throttle", "5000")
    assert result.exit_code == 0, result.output
    assert all(len(each) == 2 for each in replicas_of(cluster))
    grown = [each for name, each in cluster.partitions.items() if name.topic != "orders"]
    assert all(1 in each.replicas and each.leader == each.replicas[0] and set(each.isr) == {1, 3} for each in grown)
    assert "2 of 2 partitions have their preferred leaders" in result.stderr
    assert cluster.config_changes
    assert cluster.configs == {}


def test_more_replicas_are_only_proposed_for_the_topics_that_are_named(cluster: PlayedCluster) -> None:
    for topic in ("first", "second", "third"):
        cluster.add(topic, 0, [1], size_bytes=10)
    before = replicas_of(cluster)
    options = ["--topic", "first", "--topic", "third", "--replication-factor", "3"]
    found = json.loads(cluster.run("balance", *options, "--json").stdout)["partitions"]
    assert [each["topic"] for each in found] == ["first", "third"]
    assert all(sorted(each["replicas"]) == [1, 2, 3] for each in found)
    assert "2 partitions change: 40 B are copied" in cluster.run("balance", *options).stdout
    assert replicas_of(cluster) == before


def test_partitions_with_enough_replicas_get_no_proposal(cluster: PlayedCluster) -> None:
    assert "Nothing to move." in cluster.run("balance", "--replication-factor", "1").stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["4"], "4 replicas need 4 live brokers, and the cluster has 3 (1, 2, 3): start more brokers, or give at most"),
        (["3", "--topic", "ordres"], "the cluster has no topic ordres: correct --topic"),
    ],
)
def test_replicas_that_the_cluster_cannot_have_are_refused(cluster: PlayedCluster, options: list[str], told: str) -> None:
    result = cluster.run("balance", "--execute", "--replication-factor", *options)
    assert result.exit_code == 1
    assert told in result.stderr
    assert "AlterPartitionReassignments" not in cluster.asked


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--replication-factor", "0"], "0 is not in the range"),
        (["--replication-factor", "3", "--by", "leaders"], "leave out --by leaders"),
        (["--replication-factor", "3", "--within", "10"], "leave out --within"),
        (["--topic", "orders"], "--topic needs --replication-factor"),
    ],
)
def test_options_that_contradict_the_replication_factor_are_refused(
    cluster: PlayedCluster, options: list[str], told: str
) -> None:
    result = cluster.run("balance", *options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert cluster.asked == []


def test_throttle_lists_former_replicas_as_leaders_and_new_ones_as_followers() -> None:
    names = [TopicPartition("a", 0), TopicPartition("a", 1)]
    settings = throttle_settings({names[0]: (1, 3), names[1]: (9, 4)}, {names[0]: (1, 2), names[1]: (9, 2)}, 7, live=[1, 2, 3, 4])
    rates = {LEADER_RATE: "7", FOLLOWER_RATE: "7"}
    assert settings == {
        **{(ResourceType.BROKER, each): rates for each in "1234"},
        (ResourceType.TOPIC, "a"): {LEADER_REPLICAS: "0:1,0:2,1:9,1:2", FOLLOWER_REPLICAS: "0:3,1:4"},
    }
