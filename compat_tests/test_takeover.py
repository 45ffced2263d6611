"""wirekafka takes over the data directory of an Apache Kafka in KRaft mode with its topics' settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from compat_tests.harness import broker as brokers
from compat_tests.harness import tools
from compat_tests.harness.broker import ApacheKafka, Broker, OlderApacheKafka, Wirekafka
from compat_tests.harness.clients import CONFLUENT, Agent, Client, Record
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

COMPACTED = {"cleanup.policy": "compact", "retention.ms": "1000", "min.cleanable.dirty.ratio": "0.9"}
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "100", "offsets.topic.num.partitions": "3"}


def configs_of(broker: Broker, type_: ResourceType, name: str, source: ConfigSource) -> dict[str, str]:
    resource = ConfigResource(type_, name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_configs([resource])[resource].result(60)
    return {entry.name: entry.value for entry in found.values() if entry.source == source.value}


def topic_configs(broker: Broker, name: str) -> dict[str, str]:
    return configs_of(broker, ResourceType.TOPIC, name, ConfigSource.DYNAMIC_TOPIC_CONFIG)


@pytest.fixture(scope="module", params=[ApacheKafka, OlderApacheKafka], ids=["4.3", "3.9"])
def kafka(
    request: pytest.FixtureRequest, agent: Callable[[Client], Agent], tools_jvm: Tools, tmp_path_factory: pytest.TempPathFactory
) -> ApacheKafka:
    """An Apache Kafka with data that has been stopped; `settings.txt` has the output of kafka-configs for its topics."""
    kafka: ApacheKafka = request.param(tmp_path_factory.mktemp("kafka"), SNAPSHOTS)
    with brokers.running(kafka):
        create_topic(kafka.bootstrap, "kept", 2, COMPACTED)
        create_topic(kafka.bootstrap, "plain", 1)
        create_topic(kafka.bootstrap, "gone", 1, {"retention.ms": "1"})
        server = ("--bootstrap-server", kafka.bootstrap)
        of_kept = (*server, "--alter", "--entity-type", "topics", "--entity-name", "kept")
        tools_jvm.check(tools.CONFIGS, *of_kept, "--add-config", "segment.ms=60000")
        tools_jvm.check(tools.CONFIGS, *of_kept, "--delete-config", "min.cleanable.dirty.ratio")
        of_all = (*server, "--alter", "--entity-type", "brokers", "--entity-default")
        tools_jvm.check(tools.CONFIGS, *of_all, "--add-config", "log.retention.ms=86400000")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_topics(["gone"])["gone"].result(60)
        agent(CONFLUENT).produce(kafka.bootstrap, "kept", [Record(b"key", b"value")])
        described = tools_jvm.check(tools.CONFIGS, *server, "--describe", "--entity-type", "topics").out
        (kafka.directory / "settings.txt").write_text(described)
        kafka.terminate()
    return kafka


def copy_of(kafka: Broker, directory: Path, settings: Mapping[str, str] = {}) -> Wirekafka:
    wirekafka = Wirekafka(directory / "wirekafka", settings)
    wirekafka.directory.mkdir()
    shutil.copytree(kafka.data_dir, wirekafka.data_dir)
    for folder in wirekafka.data_dir.glob("gone-*"):
        shutil.rmtree(folder)  # Kafka deletes the directory a minute after the topic
    return wirekafka


def test_takeover_of_kraft_keeps_topics_and_brokers_settings(
    kafka: Broker, agent: Callable[[Client], Agent], tmp_path: Path
) -> None:
    wirekafka = copy_of(kafka, tmp_path)
    assert list(wirekafka.data_dir.glob("__cluster_metadata-0/*.checkpoint")), "a snapshot is part of the test"
    with brokers.running(wirekafka):
        assert topic_configs(wirekafka, "kept") == {"cleanup.policy": "compact", "retention.ms": "1000", "segment.ms": "60000"}
        assert topic_configs(wirekafka, "plain") == {}
        everywhere = configs_of(wirekafka, ResourceType.BROKER, "1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        assert everywhere["log.retention.ms"] == "86400000"
        assert sorted(AdminClient({"bootstrap.servers": wirekafka.bootstrap}).list_topics(timeout=60).topics) == ["kept", "plain"]
        assert [record.value for record in agent(CONFLUENT).read(wirekafka.bootstrap, "kept", 1)] == [b"value"]
        wirekafka.terminate()
        wirekafka.start()
        assert topic_configs(wirekafka, "kept")["cleanup.policy"] == "compact"


def test_takeover_without_the_metadata_log_needs_the_settings_that_kafka_configs_printed(kafka: Broker, tmp_path: Path) -> None:
    wirekafka = copy_of(kafka, tmp_path)
    shutil.rmtree(wirekafka.data_dir / "__cluster_metadata-0")
    with pytest.raises(AssertionError, match="wirekafka.takeover.without=settings"), brokers.running(wirekafka):
        pass
    wirekafka.settings["wirekafka.takeover.settings"] = str(kafka.directory / "settings.txt")
    with brokers.running(wirekafka):
        assert topic_configs(wirekafka, "kept") == {"cleanup.policy": "compact", "retention.ms": "1000", "segment.ms": "60000"}
