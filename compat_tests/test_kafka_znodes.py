"""Kafka's znodes: those of a broker of Kafka 3.9 are read and written again byte for byte, and it acts on those that we write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.broker import Broker, running
from compat_tests.harness.tools import CONFIGS, Tools
from compat_tests.harness.waiting import wait_until
from compat_tests.harness.zookeeper import KafkaOfZooKeeper, zookeeper
from wirekafka.names import TopicPartition, new_topic_id
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs, read_config_change, write_config_change
from wirekafka.zookeeper.layout.membership import (
    BrokerRegistration,
    ControllerRegistration,
    read_cluster_id,
    read_controller_epoch,
    write_cluster_id,
    write_controller_epoch,
)
from wirekafka.zookeeper.layout.requests import (
    write_isr_change,
    write_log_dir_event,
    write_preferred_replica_election,
    write_reassignment,
)
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("znodes")]

CHROOT = "/kafka"


@pytest.fixture(scope="module")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as running_zookeeper:
        yield running_zookeeper.address


@pytest.fixture(scope="module")
def kafka(zookeeper_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Returns a broker of Kafka 3.9 in ZooKeeper mode."""
    directory = tmp_path_factory.mktemp("kafka")
    with running(KafkaOfZooKeeper(directory, zookeeper_address + CHROOT, 1, {"broker.rack": "r1"})) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(zookeeper_address: str, kafka: Broker) -> Iterator[KazooClient]:
    """Returns a client of ZooKeeper whose root is the cluster's."""
    client = KazooClient(zookeeper_address + CHROOT)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def tools(zookeeper_address: str, request: pytest.FixtureRequest) -> Tools:
    """Returns Kafka's tools. They start after the check for Java."""
    return request.getfixturevalue("tools_jvm")


@pytest.fixture(scope="module")
def admin(kafka: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def create_topic(admin: AdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)


def all_znodes(client: KazooClient, path: str = "/") -> dict[str, bytes | None]:
    """Returns the data of every znode below a path."""
    try:
        data, _ = client.get(path)
        names = client.get_children(path)
    except NoNodeError:
        return {}
    znodes = {path: data}
    for name in names:
        znodes |= all_znodes(client, f"{path.rstrip('/')}/{name}")
    return znodes


def rewritten_epoch(path: str, data: bytes) -> bytes:
    return write_controller_epoch(read_controller_epoch(data))


def rewritten_cluster_id(path: str, data: bytes) -> bytes:
    return write_cluster_id(read_cluster_id(data))


def rewritten_change(path: str, data: bytes) -> bytes:
    assert paths.sequence_number(path, paths.CONFIG_CHANGE_PREFIX) >= 0
    return write_config_change(read_config_change(path, data))


def rewriting(read: Callable[[str, bytes], Any]) -> Callable[[str, bytes], bytes]:
    """Returns a function that reads content and writes it again. Nothing in it is unknown to us."""

    def rewrite(path: str, data: bytes) -> bytes:
        value = read(path, data)
        assert value.unknown == {}
        return value.write()

    return rewrite


def read_state(path: str, data: bytes) -> PartitionState:
    _, _, _, topic, _, partition, _ = path.split("/")
    assert path == paths.partition_state(TopicPartition(topic, int(partition)))
    return PartitionState.read(TopicPartition(topic, int(partition)), data)


REWRITERS: dict[str, Callable[[str, bytes], bytes]] = {
    "/cluster/id": rewritten_cluster_id,
    r"/brokers/ids/\d+": rewriting(lambda path, data: BrokerRegistration.read(1, data)),
    "/brokers/topics/[^/]+": rewriting(lambda path, data: TopicAssignment.read(path.split("/")[-1], data)),
    r"/brokers/topics/[^/]+/partitions/\d+/state": rewriting(read_state),
    "/controller": rewriting(lambda path, data: ControllerRegistration.read(data)),
    "/controller_epoch": rewritten_epoch,
    "/config/topics/.+": rewriting(EntityConfigs.read),
    "/config/brokers/.+": rewriting(EntityConfigs.read),
    "/config/users/.+": rewriting(EntityConfigs.read),
    "/config/clients/.+": rewriting(EntityConfigs.read),
    "/config/ips/.+": rewriting(EntityConfigs.read),
    r"/config/changes/config_change_\d{10}": rewritten_change,
    "/feature": rewriting(lambda path, data: FinalizedFeatures.read(data)),
    "/latest_producer_id_block": rewriting(lambda path, data: ProducerIdBlock.read(data)),
}
"""For each kind of znode with data, what reads it and writes it again."""


def test_every_znode_that_kafka_wrote_is_written_again_byte_for_byte(
    kafka: Broker, client: KazooClient, admin: AdminClient, tools: Tools
) -> None:
    configs = {
        "retention.ms": "600000",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "1048576",
        "min.insync.replicas": "1",
        "compression.type": "zstd",
        "max.message.bytes": "100000",
        "flush.ms": "1000",
        "preallocate": "false",
    }
    create_topic(admin, "many", 130, configs)
    create_topic(admin, "one", 1, {})
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    producer.produce("one", b"x")
    assert producer.flush(30) == 0
    quota = ["--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048"]
    user, client_id = ["--entity-type", "users"], ["--entity-type", "clients"]
    for arguments in (
        ["--entity-type", "brokers", "--entity-default", "--add-config", "log.cleaner.threads=2"],
        [*user, "--entity-name", "a b/ü*~", *client_id, "--entity-name", "c", *quota],
        [*user, "--entity-default", *quota],
        [*client_id, "--entity-name", "x.y-z", *quota],
        ["--entity-type", "ips", "--entity-name", "127.0.0.9", "--add-config", "connection_creation_rate=5"],
    ):
        tools.check(CONFIGS, "--bootstrap-server", kafka.bootstrap, "--alter", *arguments)

    znodes = all_znodes(client)
    seen = set()
    for path, data in znodes.items():
        if not data:
            continue
        kinds = [kind for kind in REWRITERS if re.fullmatch(kind, path)]
        assert len(kinds) == 1, f"what is {path}?"
        assert REWRITERS[kinds[0]](path, data) == data, path
        seen.add(kinds[0])
    assert seen == {*REWRITERS}
    assert paths.configs("users", f"{paths.sanitize('a b/ü*~')}/clients/c") in znodes
    assert paths.configs("brokers", paths.DEFAULT_ENTITY) in znodes


def test_every_broker_creates_the_persistent_znodes_without_data(client: KazooClient) -> None:
    for path in paths.PERSISTENT:
        for each in (path, *paths.parents(path)):
            data, stat = client.get(each)
            assert stat.ephemeralOwner == 0
            # The data of one of them come later, with the first producer id.
            assert data is None or each == paths.PRODUCER_ID_BLOCK, each


def test_kafka_acts_on_the_znodes_that_we_write(client: KazooClient, admin: AdminClient) -> None:
    def gone(path: str) -> Callable[[], bool]:
        return lambda: client.exists(path) is None

    def partition_count(topic: str) -> int:
        found = admin.list_topics(timeout=60).topics.get(topic)
        return 0 if found is None else len(found.partitions)

    topic_id = new_topic_id()
    assignment = TopicAssignment(topic_id, {index: ReplicaAssignment((1,)) for index in range(3)}, {"wirekafka": {"x": 1}})
    client.create(paths.configs("topics", "ours"), EntityConfigs({"retention.ms": "77"}).write())
    client.create(paths.topic("ours"), assignment.write())
    wait_until(lambda: partition_count("ours") == 3, timeout_s=60, what="Kafka serves the topic")
    assert TopicAssignment.read("ours", client.get(paths.topic("ours"))[0]) == assignment

    changed = EntityConfigs({"retention.ms": "88", "flush.ms": "9"})
    client.set(paths.configs("topics", "ours"), changed.write())
    client.create(paths.CONFIG_CHANGE_PREFIX, write_config_change("topics/ours"), sequence=True)

    def retention() -> str:
        resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, "ours")
        return str(admin.describe_configs([resource])[resource].result(60)["retention.ms"].value)

    wait_until(lambda: retention() == "88", timeout_s=60, what="Kafka applies the configs")

    partition = TopicPartition("ours", 1)
    for path, data in [
        (paths.REASSIGN_PARTITIONS, write_reassignment({partition: (1,)})),
        (paths.PREFERRED_REPLICA_ELECTION, write_preferred_replica_election([partition])),
    ]:
        client.create(path, data)
        wait_until(gone(path), timeout_s=60, what=f"the controller has deleted {path}")
    for prefix, data in [
        (paths.ISR_CHANGE_PREFIX, write_isr_change([partition])),
        (paths.LOG_DIR_EVENT_PREFIX, write_log_dir_event(1)),
    ]:
        path = client.create(prefix, data, sequence=True)
        wait_until(gone(path), timeout_s=60, what=f"the controller has deleted {path}")

    client.create(paths.deleted_topic("ours"), None)
    wait_until(gone(paths.topic("ours")), timeout_s=60, what="Kafka has deleted the topic")
