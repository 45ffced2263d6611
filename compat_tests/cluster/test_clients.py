"""Clients of a member of a cluster of Apache Kafka 3.9 see the cluster as its other brokers show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import WIREKAFKA_ID, MixedCluster, mixed_cluster, rack_of
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until
from wirekafka.api.cluster_versions import CLUSTER_VERSIONS
from wirekafka.api.describe_cluster import DescribeClusterRequest
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.wire.messages.api_versions import ApiVersionsRequest
from wirekafka.wire.types import Message

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster-clients")]

KAFKA_ID = 1
UNKNOWN_SETTINGS = {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"}
"""Settings of Apache Kafka 3.9 for formats of records before 2, which later releases have dropped."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.create_topic("known", [[1, 2, 3], [3, 1, 2], [2, 3, 1]])
        yield running


@pytest.fixture(scope="module")
def tools_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


def ask(cluster: MixedCluster, broker_id: int, request: Message, version: int) -> Any:
    with RawConnection(cluster.brokers[broker_id].address) as connection:
        return connection.ask(request, version)


def in_order(message: Any) -> Any:
    """Returns a response as text, with the elements of each array in one order."""
    if isinstance(message, list):
        return sorted((in_order(each) for each in message), key=str)
    if isinstance(message, Message):
        return {name: in_order(getattr(message, name)) for name in message.field_defaults}
    return message


def test_member_serves_the_versions_of_apache_kafka(cluster: MixedCluster) -> None:
    served, member = (
        {each.api_key: (each.min_version, each.max_version) for each in ask(cluster, broker_id, ApiVersionsRequest(), 0).api_keys}
        for broker_id in (KAFKA_ID, WIREKAFKA_ID)
    )
    assert {key: newest for key, (_, newest) in member.items()} == CLUSTER_VERSIONS
    assert member == {key: served[key] for key in member}


@pytest.mark.parametrize("version", range(13))
def test_metadata_is_that_of_apache_kafka(cluster: MixedCluster, version: int) -> None:
    asked = [MetadataRequestTopic(name=name) for name in ("known", "unknown")]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    if version < 4:
        # These versions always create topics.
        request.topics = asked[:1]
    answers = [in_order(ask(cluster, broker_id, request, version)) for broker_id in (KAFKA_ID, WIREKAFKA_ID)]
    assert answers[1] == answers[0]


@pytest.mark.parametrize("version", range(2))
def test_cluster_is_described_as_by_apache_kafka(cluster: MixedCluster, version: int) -> None:
    answers = [in_order(ask(cluster, broker_id, DescribeClusterRequest(), version)) for broker_id in (KAFKA_ID, WIREKAFKA_ID)]
    assert answers[1] == answers[0]


def test_topic_has_the_settings_of_apache_kafka(cluster: MixedCluster) -> None:
    asked = DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name="known", configuration_keys=None)
    values, member = (
        {each.name: (each.value, each.config_source, each.config_type) for each in result.configs}
        for broker_id in (KAFKA_ID, WIREKAFKA_ID)
        for result in ask(cluster, broker_id, DescribeConfigsRequest(resources=[asked]), 4).results
    )
    assert member == {name: value for name, value in values.items() if name not in UNKNOWN_SETTINGS}


def test_topic_is_created_for_a_producer_and_groups_find_their_coordinators(cluster: MixedCluster) -> None:
    bootstrap = cluster.brokers[WIREKAFKA_ID].bootstrap
    producer = Producer({"bootstrap.servers": bootstrap, "allow.auto.create.topics": True, "acks": "all"})
    errors: list[Any] = []
    for number in range(100):
        producer.produce("created", b"value %d" % number, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * 100
    views = cluster.until_in_sync("created", WIREKAFKA_ID)
    assert [len(view.replicas) for view in views.values()] == [3, 3]
    cluster.commit("group", "created", [7, 8])
    keys = [f"group-{number}" for number in range(20)]
    answers = []
    for broker_id in (KAFKA_ID, WIREKAFKA_ID):
        response = ask(cluster, broker_id, FindCoordinatorRequest(coordinator_keys=keys), 4)
        answers.append({each.key: (each.error_code, each.node_id, each.host, each.port) for each in response.coordinators})
    assert answers[1] == answers[0]
    assert {error for error, *_ in answers[1].values()} == {0}


@pytest.mark.parametrize(("index", "leader", "follower"), [(0, KAFKA_ID, WIREKAFKA_ID), (1, WIREKAFKA_ID, KAFKA_ID)])
def test_consumer_reads_from_the_replica_of_its_rack(cluster: MixedCluster, index: int, leader: int, follower: int) -> None:
    cluster.until_leader("known", index, leader)
    values = [b"value %d" % number for number in range(200)]
    cluster.produce("known", index, values[:100])
    places: list[int] = []

    def on_statistics(text: str) -> None:
        place = json.loads(text)["topics"].get("known", {}).get("partitions", {}).get(str(index))
        if place is not None:
            places.append(place["broker"])

    racks = {"client.rack": rack_of(follower), "statistics.interval.ms": 100, "stats_cb": on_statistics}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "racks", **racks})
    try:
        consumer.assign([TopicPartition("known", index, 0)])
        read: list[Any] = []

        def has_read(count: int) -> bool:
            read.extend(message.value() for message in consumer.consume(100, timeout=0.2) if message.error() is None)
            return len(read) >= count and places[-1:] == [follower]

        wait_until(lambda: has_read(100), timeout_s=60, what=f"the consumer reads from broker {follower}; it read from {places}")
        cluster.produce("known", index, values[100:])
        wait_until(lambda: has_read(200), timeout_s=60, what=f"the consumer reads from broker {follower}; it read from {places}")
    finally:
        consumer.close()
    assert read == values


def test_tools_change_the_cluster_by_its_controller(cluster: MixedCluster, tools_jvm: Tools) -> None:
    addresses = {each: ("--bootstrap-server", cluster.brokers[each].bootstrap) for each in (KAFKA_ID, WIREKAFKA_ID)}
    bootstrap, topic = addresses[WIREKAFKA_ID], ("--topic", "tool")
    replicas = ("--replica-assignment", "3:1:2,1:2:3")
    tools_jvm.check(tools.TOPICS, *bootstrap, "--create", *topic, *replicas, "--config", "retention.ms=5000")
    cluster.until_in_sync("tool", WIREKAFKA_ID)
    tools_jvm.check(tools.TOPICS, *bootstrap, "--alter", *topic, "--partitions", "4")
    wait_until(lambda: len(cluster.describe("tool", WIREKAFKA_ID)) == 4, timeout_s=60, what="4 partitions", poll_s=0.1)
    cluster.until_in_sync("tool", WIREKAFKA_ID)
    shown = {each: tools_jvm.check(tools.TOPICS, *addresses[each], "--describe", *topic).lines() for each in addresses}
    assert shown[WIREKAFKA_ID] == shown[KAFKA_ID]
    assert "retention.ms=5000" in shown[WIREKAFKA_ID][0]
    listed = tools_jvm.check(tools.REASSIGN_PARTITIONS, *bootstrap, "--list").out
    assert "No partition reassignments found." in listed
    tools_jvm.check(tools.TOPICS, *bootstrap, "--delete", *topic)
    wait_until(lambda: not cluster.describe("tool", WIREKAFKA_ID), timeout_s=60, what="the topic is deleted", poll_s=0.1)
