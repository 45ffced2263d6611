"""Kafka's own command line tools, as an operator uses them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from compat_tests.harness import jars, tools
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import Agent, Client, Member, Record
from compat_tests.harness.tools import LOGGING, Tools, run_alone
from compat_tests.harness.topics import create_topic

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

Join = Callable[..., Member]
Agents = Callable[[Client], Agent]


@pytest.fixture
def server(broker: Broker) -> tuple[str, str]:
    """Returns the arguments by which a tool finds the broker."""
    return "--bootstrap-server", broker.bootstrap


def numbered(count: int, partition: int = 0) -> list[Record]:
    return [Record(b"k%d" % n, b"v%d" % n, timestamp_ms=1_700_000_000_000 + n, partition=partition) for n in range(count)]


def test_console_producer_and_consumer_carry_keys_headers_and_tombstones(
    broker: Broker, server: tuple[str, str], topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    produced = run_alone(
        tools.CONSOLE_PRODUCER,
        *(*server, "--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        input_text="h:1\tk1\tgrüße\nh:2\tk2\tNULL\nh:3\tk3\tthird\n",
    )
    assert produced.code == 0, produced
    consumed = run_alone(
        tools.CONSOLE_CONSUMER,
        *(*server, "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
        *("--formatter-property", "print.offset=true", "--formatter-property", "null.literal=NULL"),
    )
    assert consumed.code == 0, consumed
    assert consumed.out.splitlines() == ["Offset:0\th:1\tk1\tgrüße", "Offset:1\th:2\tk2\tNULL", "Offset:2\th:3\tk3\tthird"]


def test_topics_are_created_listed_described_altered_and_deleted(server: tuple[str, str], tools_jvm: Tools, topic: str) -> None:
    run = tools_jvm.check
    created = run(tools.TOPICS, *server, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1234567")
    assert f"Created topic {topic}." in created.out
    assert topic in run(tools.TOPICS, *server, "--list").out.splitlines()
    described = run(tools.TOPICS, *server, "--describe", "--topic", topic).out
    assert re.search(rf"Topic: {re.escape(topic)}\tTopicId: [\w-]{{22}}\s*\tPartitionCount: 2\tReplicationFactor: 1\t", described)
    assert "retention.ms=1234567" in described
    assert re.findall(r"Partition: (\d)\tLeader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)", described) == [
        ("0", "1", "1", "1"),
        ("1", "1", "1", "1"),
    ]
    run(tools.TOPICS, *server, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run(tools.TOPICS, *server, "--describe", "--topic", topic).out
    run(tools.TOPICS, *server, "--delete", "--topic", topic)
    assert topic not in run(tools.TOPICS, *server, "--list").out.splitlines()
    again = run(tools.TOPICS, *server, "--create", "--topic", topic, "--partitions", "1")
    assert f"Created topic {topic}." in again.out, "the name of a deleted topic is free at once"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--create", "--topic", "no/slash"), "InvalidTopicException"),
        (("--create", "--topic", "too-many-replicas", "--replication-factor", "3"), "InvalidReplicationFactorException"),
        (
            ("--create", "--topic", "bad-config", "--config", "cleanup.policy=burn"),
            "InvalidConfigurationException|ConfigException",
        ),
        (("--alter", "--topic", "does-not-exist", "--partitions", "3"), "does not exist"),
    ],
    ids=["slash", "replicas", "config", "missing"],
)
def test_topics_that_cannot_be_are_refused(
    server: tuple[str, str], tools_jvm: Tools, arguments: tuple[str, ...], error: str
) -> None:
    outcome = tools_jvm.run(tools.TOPICS, *server, *arguments)
    assert outcome.code == 1
    assert re.search(error, outcome.out + outcome.err), outcome


def test_the_configs_of_a_topic_are_set_shown_and_reset(
    server: tuple[str, str], tools_jvm: Tools, broker: Broker, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    entity = (*server, "--entity-type", "topics", "--entity-name", topic)
    run = tools_jvm.check
    run(
        tools.CONFIGS,
        *entity,
        "--alter",
        "--add-config",
        "segment.ms=3600000,cleanup.policy=[compact,delete],max.message.bytes=2000000",
    )
    shown = run(tools.CONFIGS, *entity, "--describe").out
    assert "segment.ms=3600000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.ms=3600000}" in shown
    assert "cleanup.policy=compact,delete" in shown
    assert "max.message.bytes=2000000" in shown
    assert "DEFAULT_CONFIG:message.max.bytes=1048588" in shown
    run(tools.CONFIGS, *entity, "--alter", "--delete-config", "segment.ms,cleanup.policy")
    shown = run(tools.CONFIGS, *entity, "--describe").out
    assert "segment.ms" not in shown
    assert "max.message.bytes=2000000" in shown
    everything = run(tools.CONFIGS, *entity, "--describe", "--all").out
    assert "segment.bytes=1073741824 sensitive=false synonyms={" in everything
    refused = tools_jvm.run(tools.CONFIGS, *entity, "--alter", "--add-config", "retention.ms=soon")
    assert refused.code == 1
    assert "retention.ms" in refused.out + refused.err


def test_the_configs_of_the_broker_are_shown(server: tuple[str, str], tools_jvm: Tools) -> None:
    shown = tools_jvm.check(tools.CONFIGS, *server, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all").out
    assert "group.initial.rebalance.delay.ms=0 sensitive=false synonyms={STATIC_BROKER_CONFIG:" in shown
    assert re.search(
        r"message\.max\.bytes=1048588 sensitive=false synonyms=\{.*DEFAULT_CONFIG:message\.max\.bytes=1048588", shown
    )


def test_the_configs_of_the_broker_are_changed_while_it_runs(make_broker: Callable[..., Broker], tools_jvm: Tools) -> None:
    broker = make_broker()
    entity = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-name", "1")
    tools_jvm.check(tools.CONFIGS, *entity, "--alter", "--add-config", "message.max.bytes=2000000")
    shown = tools_jvm.check(tools.CONFIGS, *entity, "--describe").out
    assert "message.max.bytes=2000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=2000000" in shown
    refused = tools_jvm.run(tools.CONFIGS, *entity, "--alter", "--add-config", "log.dirs=/elsewhere")
    assert refused.code == 1
    tools_jvm.check(tools.CONFIGS, *entity, "--alter", "--delete-config", "message.max.bytes")
    assert "message.max.bytes" not in tools_jvm.check(tools.CONFIGS, *entity, "--describe").out


def test_get_offsets_answers_earliest_latest_and_by_time(
    server: tuple[str, str], tools_jvm: Tools, broker: Broker, writer: Agent, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    writer.produce(broker.bootstrap, topic, numbered(20, 0) + numbered(5, 1))

    def offsets(*arguments: str) -> list[str]:
        return sorted(tools_jvm.check(tools.GET_OFFSETS, *server, "--topic", topic, *arguments).out.splitlines())

    assert offsets() == [f"{topic}:0:20", f"{topic}:1:5"]
    assert offsets("--time", "earliest") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert offsets("--time", "1700000000003") == [f"{topic}:0:3", f"{topic}:1:3"]
    assert offsets("--time", "max-timestamp") == [f"{topic}:0:19", f"{topic}:1:4"]
    assert offsets("--partitions", "1") == [f"{topic}:1:5"]


def test_broker_api_versions_knows_every_api_and_version(server: tuple[str, str], tools_jvm: Tools) -> None:
    shown = tools_jvm.check(tools.API_VERSIONS, *server).out
    assert re.match(r"127\.0\.0\.1:\d+ \(id: 1 rack: null isFenced: false\) -> \(", shown)
    assert "UNKNOWN" not in shown
    assert re.search(r"Produce\(0\): \d+ to 13 \[usable: 13\]", shown)
    assert re.search(r"Fetch\(1\): \d+ to 18 \[usable: 18\]", shown)


def test_records_are_deleted_before_an_offset(
    server: tuple[str, str], tools_jvm: Tools, broker: Broker, writer: Agent, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    create_topic(broker.bootstrap, topic)
    writer.produce(broker.bootstrap, topic, numbered(20))
    request = tmp_path_factory.mktemp("delete-records") / "offsets.json"
    request.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 12}], "version": 1}))
    shown = tools_jvm.check(tools.DELETE_RECORDS, *server, "--offset-json-file", str(request)).out
    assert f"partition: {topic}-0\tlow_watermark: 12" in shown
    assert [record.offset for record in writer.read(broker.bootstrap, topic, 8)] == list(range(12, 20))


def test_log_dirs_describes_the_size_of_every_partition(
    server: tuple[str, str], tools_jvm: Tools, broker: Broker, writer: Agent, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    writer.produce(broker.bootstrap, topic, numbered(20))
    shown = tools_jvm.check(tools.LOG_DIRS, *server, "--describe", "--topic-list", topic).out
    (described,) = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))["brokers"]
    (directory,) = described["logDirs"]
    assert directory["error"] is None
    assert directory["logDir"] == str(broker.data_dir)
    sizes = {entry["partition"]: entry["size"] for entry in directory["partitions"]}
    files = {f"{topic}-{n}": (broker.data_dir / f"{topic}-{n}" / f"{0:020}.log").stat().st_size for n in range(2)}
    assert sizes == files
    assert sizes[f"{topic}-0"] > 0


def test_the_cluster_id_is_told(server: tuple[str, str], tools_jvm: Tools) -> None:
    assert re.fullmatch(r"Cluster ID: [\w-]{22}", tools_jvm.check(tools.CLUSTER, "cluster-id", *server).out.strip())


def test_the_verifiable_producer_and_consumer_agree(broker: Broker, server: tuple[str, str], topic: str) -> None:
    create_topic(broker.bootstrap, topic, 3)
    command = jars.java_command(jars.KAFKA, tools.VERIFIABLE_CONSUMER, flags=LOGGING)
    arguments = [
        *server,
        "--topic",
        topic,
        "--group-id",
        topic,
        "--max-messages",
        "2000",
        "--reset-policy",
        "earliest",
        "--verbose",
    ]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        produced = run_alone(
            tools.VERIFIABLE_PRODUCER, *server, "--topic", topic, "--max-messages", "2000", "--acks", "-1", "--throughput", "-1"
        )
        try:
            consumed, errors = consumer.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            consumer.send_signal(signal.SIGKILL)
            raise
    sent = [json.loads(line) for line in produced.out.splitlines()]
    read = [json.loads(line) for line in consumed.splitlines()]
    assert produced.code == 0, produced
    assert consumer.returncode == 0, errors
    assert next(event for event in sent if event["name"] == "tool_data")["acked"] == 2000
    acknowledged = {
        (event["partition"], event["offset"]): event["value"] for event in sent if event["name"] == "producer_send_success"
    }
    received = {(event["partition"], event["offset"]): event["value"] for event in read if event["name"] == "record_data"}
    assert len(acknowledged) == 2000
    assert received == acknowledged
    assert any(event["name"] == "offsets_committed" and event["success"] for event in read)
