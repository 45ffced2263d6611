"""Kafka's tools that look at replicas, in a cluster of Apache Kafka 3.9 with wirekafka, and a Java producer through a kill."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster, rack_of
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(500)]
ALL_IDS = (*JVM_IDS, WIREKAFKA_ID)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


def registration(cluster: MixedCluster, broker_id: int) -> dict[str, object]:
    """Returns the znode of a broker, as zookeeper-shell shows it, without what differs between any two brokers."""
    shell = jars.java_command(jars.OLDER_KAFKA, tools.ZOOKEEPER_SHELL, heap_mib=64)
    server = ("-server", f"{cluster.zookeeper.address}/kafka")
    shown = subprocess.run(
        [*shell, *server, "get", f"/brokers/ids/{broker_id}"], capture_output=True, text=True, timeout=60, check=True
    )
    [line] = [each for each in shown.stdout.splitlines() if each.startswith("{")]
    host, _, port = cluster.brokers[broker_id].bootstrap.rpartition(":")
    found: dict[str, object] = json.loads(line.replace(host, "host").replace(port, "1"))
    assert str(found.pop("timestamp")).isdigit()
    assert found.pop("rack") == rack_of(broker_id)
    return found


def test_zookeeper_shell_shows_registrations_of_one_form(cluster: MixedCluster) -> None:
    member = registration(cluster, WIREKAFKA_ID)
    # Apache Kafka 3.9 has no features with ZooKeeper, and ignores keys that it does not know.
    assert member.pop("wirekafka") is not None
    member["features"] = {}
    assert member == registration(cluster, JVM_IDS[0])


@contextmanager
def lines_of(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Runs a program that ends by a signal; gives the process, and the lines that it has written so far."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(process.stdout,))
    reader.start()
    try:
        yield process, lines
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


@pytest.mark.parametrize("leader", [WIREKAFKA_ID, JVM_IDS[0]])
def test_replicas_are_equal_for_the_tools(cluster: MixedCluster, jvm: Tools, leader: int) -> None:
    topic = f"verified-{leader}"
    cluster.create_topic(topic, [sorted(ALL_IDS, key=lambda broker_id: broker_id != leader)])
    cluster.produce(topic, 0, VALUES)
    verify = jars.java_command(jars.TOOLS_3_9, tools.REPLICA_VERIFICATION, heap_mib=96)
    options = ["--broker-list", cluster.bootstrap, "--topics-include", topic, "--time", "-2", "--report-interval-ms", "500"]
    agreed = f"max lag is 0 for partition {topic}-0 at offset {len(VALUES)} among 1 partitions"
    with lines_of([*verify, *options]) as (_, lines):
        wait_until(lambda: any(agreed in line for line in lines), timeout_s=60, what=agreed)
        assert not any("different" in line or "unmatched" in line for line in lines)
    cluster.until_equal(topic, 0)
    assert len({dumped(cluster, jvm, broker_id, topic) for broker_id in ALL_IDS}) == 1


def dumped(cluster: MixedCluster, jvm: Tools, broker_id: int, topic: str) -> str:
    """Returns the records of partition 0 as kafka-dump-log shows them in the files of one broker."""
    path = cluster.brokers[broker_id].data_dir / f"{topic}-0" / "00000000000000000000.log"
    shown = jvm.check(tools.DUMP_LOG, "--deep-iteration", "--print-data-log", "--files", str(path)).out
    assert shown.count("payload: ") > 0
    return shown.replace(str(path), "")


def test_replica_of_a_killed_member_is_shown_while_a_java_producer_goes_on(
    cluster: MixedCluster, jvm: Tools, tmp_path: Path
) -> None:
    cluster.create_topic("watched", [[3, 1, 2]])
    asked = ("--bootstrap-server", cluster.brokers[1].bootstrap)

    def missing() -> list[str]:
        return jvm.check(tools.TOPICS, *asked, "--describe", "--topic", "watched", "--under-replicated-partitions").lines()

    assert missing() == []
    settings = tmp_path / "producer.properties"
    settings.write_text("enable.idempotence=true\nacks=all\nretries=2147483647\n")
    command = jars.java_command(jars.KAFKA, tools.VERIFIABLE_PRODUCER, heap_mib=96, flags=tools.LOGGING)
    options = ["--topic", "watched", "--throughput", "200", "--bootstrap-server", cluster.bootstrap]
    with lines_of([*command, *options, "--command-config", str(settings)]) as (producer, lines):
        wait_until(lambda: len(lines) > 100, timeout_s=60, what="records are acknowledged")
        cluster.brokers[WIREKAFKA_ID].kill()
        [shown] = wait_until(missing, timeout_s=60, what="a partition has too few replicas in sync", poll_s=0.5)
        assert "Isr: 1,2" in shown.replace("Isr: 2,1", "Isr: 1,2")
        cluster.brokers[WIREKAFKA_ID].start()
        cluster.until_in_sync("watched")
        assert missing() == []
        election = ("--election-type", "preferred", "--topic", "watched", "--partition", "0")
        jvm.check(tools.LEADER_ELECTION, *asked, *election)
        cluster.until_leader("watched", 0, WIREKAFKA_ID)
        before = len(lines)
        wait_until(lambda: len(lines) > before + 100, timeout_s=60, what="records are acknowledged by the member")
        producer.terminate()
        producer.wait(60)
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event for event in events if event["name"] == "producer_send_error"] == []
    stored = {event["offset"]: event["value"].encode() for event in events if event["name"] == "producer_send_success"}
    assert cluster.consume("watched", 0, len(stored)) == [stored[offset] for offset in sorted(stored)]
    cluster.until_equal("watched", 0)
