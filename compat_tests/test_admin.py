"""The admin client of each library: topics, settings, partitions, records, groups and offsets."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import AGENTS, CONFLUENT, Agent, Member, Record, old_kafka_python
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

Join = Callable[..., Member]


EXPECTED = {
    "created": True,
    "retention": "111",
    "altered retention": "222",
    "partitions": 4,
    "low watermark": 5,
    "listed group": True,
    "group": ["Empty", "consumer"],
    "offset": 12,
    "deleted group": True,
    "brokers": [1],
    "deleted": True,
}
"""The expected output of each walk."""


def settled(read: Callable[[], str]) -> str:
    """Waits for the altered setting; Apache Kafka shows it after its broker has read the log of its controller."""
    return wait_until(lambda: "222" if read() == "222" else "", timeout_s=60, what="the altered setting is told")


@pytest.fixture
def read_topic(broker: Broker, writer: Agent, join: Join, topic: str) -> str:
    """Makes a topic with 20 records; a group of the same name has read and committed 12 of them."""
    create_topic(broker.bootstrap, topic)
    writer.produce(broker.bootstrap, topic, [Record(b"k", b"%d" % n, timestamp_ms=1_700_000_000_000 + n) for n in range(20)])
    member = join(CONFLUENT, topic, topic, limit=12, max_poll=12)
    member.wait_until_left(40)
    return topic


def test_kafka_python_2_administers(broker: Broker, read_topic: str) -> None:
    script = AGENTS / "admin_of_kafka_python_2.py"
    command = [str(old_kafka_python()), str(script), broker.bootstrap, read_topic, read_topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: value for name, value in EXPECTED.items() if name != "low watermark"}


def test_kafka_python_administers(broker: Broker, read_topic: str) -> None:
    from kafka import OffsetAndMetadata, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic, OffsetSpec

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    created, group, place = f"{read_topic}-3", read_topic, TopicPartition(read_topic, 0)
    resource = ConfigResource(ConfigResourceType.TOPIC, created)

    def retention() -> str:
        return admin.describe_configs([resource])["topic"][created]["retention.ms"]["value"]

    found: dict[str, Any] = {}
    try:
        admin.create_topics([NewTopic(created, 2, 1, topic_configs={"retention.ms": "111"})])
        found["created"] = created in admin.list_topics()
        found["retention"] = retention()
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created, {"retention.ms": "222"})])
        found["altered retention"] = settled(retention)
        admin.create_partitions({created: NewPartitions(4)})
        found["partitions"] = len(admin.describe_topics([created])[0]["partitions"])
        found["low watermark"] = admin.delete_records({place: 5})[place]["low_watermark"]
        found["listed group"] = group in [listed["group_id"] for listed in admin.list_groups()]
        description = admin.describe_groups([group])[group]
        found["group"] = [description["group_state"], description["protocol_type"]]
        found["offset"] = admin.list_group_offsets(group)[group][place].offset
        assert admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 20
        admin.alter_group_offsets(group, {place: OffsetAndMetadata(7, "rewound", -1)})
        assert admin.list_group_offsets(group)[group][place].metadata == "rewound"
        admin.delete_groups([group])
        found["deleted group"] = group not in [listed["group_id"] for listed in admin.list_groups()]
        found["brokers"] = [node["broker_id"] for node in admin.describe_cluster()["brokers"]]
        assert admin.describe_log_dirs()
        admin.delete_topics([created])
        found["deleted"] = created not in admin.list_topics()
    finally:
        admin.close()
    assert found == EXPECTED


def test_confluent_kafka_administers(broker: Broker, read_topic: str) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created, group, place = f"{read_topic}-3", read_topic, TopicPartition(read_topic, 0)
    resource = ConfigResource(ResourceType.TOPIC, created)

    def only(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(60)

    def groups() -> list[str]:
        return [listed.group_id for listed in admin.list_consumer_groups(request_timeout=60).result().valid]

    def committed() -> Any:
        return only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions[0]

    found: dict[str, Any] = {}
    only(admin.create_topics([NewTopic(created, 2, 1, config={"retention.ms": "111"})]))
    found["created"] = created in admin.list_topics(timeout=60).topics
    found["retention"] = only(admin.describe_configs([resource]))["retention.ms"].value
    entry = ConfigEntry("retention.ms", "222", incremental_operation=AlterConfigOpType.SET)
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, created, incremental_configs=[entry])]))
    found["altered retention"] = settled(lambda: only(admin.describe_configs([resource]))["retention.ms"].value)
    only(admin.create_partitions([NewPartitions(created, 4)]))
    found["partitions"] = len(admin.list_topics(created, timeout=60).topics[created].partitions)
    found["low watermark"] = only(admin.delete_records([TopicPartition(read_topic, 0, 5)])).low_watermark
    found["listed group"] = group in groups()
    description = only(admin.describe_consumer_groups([group]))
    found["group"] = [description.state.name.capitalize(), "consumer"]
    found["offset"] = committed().offset
    assert only(admin.list_offsets({place: OffsetSpec.latest()})).offset == 20
    rewound = TopicPartition(read_topic, 0, 7)
    only(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [rewound])]))
    assert committed().offset == 7
    only(admin.delete_consumer_groups([group]))
    found["deleted group"] = group not in groups()
    cluster = admin.describe_cluster(request_timeout=60).result()
    found["brokers"] = [node.id for node in cluster.nodes]
    assert cluster.controller.id == 1
    only(admin.delete_topics([created]))
    found["deleted"] = created not in admin.list_topics(timeout=60).topics
    assert found == EXPECTED


def test_aiokafka_administers(broker: Broker, read_topic: str) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    created, group, place = f"{read_topic}-3", read_topic, TopicPartition(read_topic, 0)

    async def retention(admin: AIOKafkaAdminClient) -> str:
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, created)])
        return next(entry[1] for entry in response.resources[0][4] if entry[0] == "retention.ms")

    async def walk() -> dict[str, Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        found: dict[str, Any] = {}
        try:
            await admin.create_topics([NewTopic(created, 2, 1, topic_configs={"retention.ms": "111"})])
            found["created"] = created in await admin.list_topics()
            found["retention"] = await retention(admin)
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created, {"retention.ms": "222"})])
            async with asyncio.timeout(10):
                while await retention(admin) != "222":
                    pass
            found["altered retention"] = "222"
            await admin.create_partitions({created: NewPartitions(4)})
            (described,) = await admin.describe_topics([created])
            found["partitions"] = len(described["partitions"])
            found["low watermark"] = (await admin.delete_records({place: RecordsToDelete(5)}))[place]
            found["listed group"] = group in [listed[0] for listed in await admin.list_consumer_groups()]
            (response,) = await admin.describe_consumer_groups([group])
            _, _, state, protocol_type, *_ = response.groups[0]
            found["group"] = [state, protocol_type]
            found["offset"] = (await admin.list_consumer_group_offsets(group))[place].offset
            found["brokers"] = [node["node_id"] for node in (await admin.describe_cluster())["brokers"]]
            await admin.delete_topics([created])
            found["deleted"] = created not in await admin.list_topics()
        finally:
            await admin.close()
        return found

    assert asyncio.run(walk()) == {name: value for name, value in EXPECTED.items() if name != "deleted group"}
