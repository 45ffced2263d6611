"""The protocols that need finalized features, over three brokers in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.cli import main
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.metadata.config_resources import AlterConfigOp, ResourceType
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.testing.cluster import TestCluster, open_cluster
from wirekafka.testing.data_plane import Caller, wait_for
from wirekafka.tests.api.sharing import ACCEPT, Member, acquired, errors, topic_id

FEATURES = ["group.version", "share.version", "transaction.version"]
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.assignment.interval.ms": "0",
}


def run(act: Callable[[TestCluster], Awaitable[None]], path: Path) -> None:
    async def body() -> None:
        with trio.fail_after(120):
            async with open_cluster(3, path, SETTINGS) as cluster:
                await trio.to_thread.run_sync(finalize, cluster.bootstrap)
                for running in cluster.brokers.values():
                    await until(lambda features=running.broker.topics.features: len(features.finalized) == len(FEATURES))
                await act(cluster)

    trio.run(body)


def finalize(bootstrap: str) -> None:
    done = CliRunner().invoke(main, ["cluster", "features", "--bootstrap-server", bootstrap, "--finalize"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line.split()[:1] and line.split()[0] in FEATURES]
    assert [(row[0], row[1] == row[2]) for row in rows] == [(name, True) for name in FEATURES]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it waits for other brokers
        await trio.sleep(0.02)


def create(bootstrap: str, topic: str, replicas: list[list[int]]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas)])[topic].result(60)


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def leader_of(cluster: TestCluster, topic: str) -> int | None:
    """Returns the leader of the first partition, once a broker knows it and it has loaded its state."""
    for broker_id, running in cluster.brokers.items():
        found = running.broker.topics.find(topic)
        if found is not None and found.partitions and found.partitions[0].leader == broker_id:
            return broker_id
    return None


def test_group_of_the_consumer_protocol_moves_to_another_broker(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        bootstrap = cluster.bootstrap
        await trio.to_thread.run_sync(create, bootstrap, "t", [[1, 2, 3]])
        settings = {"group.id": "g", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
        consumer.subscribe(["t"])

        def read(count: int) -> list[bytes]:
            messages: list[bytes] = []
            while len(messages) < count:
                message = consumer.poll(60)
                assert message is not None and message.error() is None, message and message.error()
                messages.append(message.value())
            consumer.commit(asynchronous=False)
            return messages

        await trio.to_thread.run_sync(produce, bootstrap, "t", [b"a", b"b"])
        assert await trio.to_thread.run_sync(read, 2) == [b"a", b"b"]
        former = leader_of(cluster, GROUP_METADATA_TOPIC)
        assert former is not None
        assert "g" in cluster.brokers[former].broker.groups.coordinator.groups
        await cluster.stop(former)
        await trio.to_thread.run_sync(produce, cluster.bootstrap, "t", [b"c"])
        assert await trio.to_thread.run_sync(read, 1) == [b"c"]
        now = leader_of(cluster, GROUP_METADATA_TOPIC)
        assert now is not None
        group = cluster.brokers[now].broker.groups.coordinator.groups["g"]
        assert (group.group_type, group.is_empty) == ("consumer", False)
        await trio.to_thread.run_sync(consumer.close)

    run(act, tmp_path)


def test_share_group_stores_its_state_on_another_broker(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        bootstrap = cluster.bootstrap
        await trio.to_thread.run_sync(create, bootstrap, "flights", [[1, 2, 3]])
        # Any client creates the topics of coordinators; here the places of their leaders are chosen.
        await trio.to_thread.run_sync(create, bootstrap, GROUP_METADATA_TOPIC, [[2, 3, 1]])
        await trio.to_thread.run_sync(create, bootstrap, SHARE_STATE_TOPIC, [[3, 1, 2]])
        await until(lambda: (leader_of(cluster, GROUP_METADATA_TOPIC), leader_of(cluster, SHARE_STATE_TOPIC)) == (2, 3))
        callers = {broker_id: Caller(running.broker) for broker_id, running in cluster.brokers.items()}
        group = cluster.brokers[2].broker.groups
        await until(lambda: group.state.is_active(0))
        member = Member(callers[2], joins=False)
        joining = ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["flights"])
        assert (await answered(member.ask(joining, 1))).error_code == 0
        key = ShareKey("g", topic_id(callers[2]), 0)
        states = cluster.brokers[3].broker.share_groups.states
        await until(lambda: states.get(key) is not None)
        fetcher = Member(callers[1], joins=False)
        assert acquired(await fetcher.fetch(0)) == {}
        await trio.to_thread.run_sync(produce, bootstrap, "flights", [b"a", b"b"])
        [(first, last, _)] = acquired(await fetcher.fetch(0, max_wait_ms=30_000))[0]
        assert (first, last) == (0, 1)
        assert errors(await answered(fetcher.acknowledge((0, 0, 1, [ACCEPT])))) == {0: 0}
        stored = states.get(key)
        assert stored is not None
        assert stored.start_offset == 2

    run(act, tmp_path)


def test_settings_of_a_group_hold_on_every_broker(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        callers = [Caller(running.broker) for running in cluster.brokers.values()]
        change = AlterableConfig(name="share.auto.offset.reset", config_operation=AlterConfigOp.SET, value="earliest")
        resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name="a/b", configs=[change])
        altered = await answered(callers[0].ask(IncrementalAlterConfigsRequest(resources=[resource]), 1))
        assert [each.error_code for each in altered.responses] == [0]
        asked = DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name="a/b", configuration_keys=[change.name])
        for caller in callers:
            described = await answered(caller.ask(DescribeConfigsRequest(resources=[asked]), 4))
            assert [each.value for each in described.results[0].configs] == ["earliest"]
            configs = caller.broker.topics.group_configs
            await until(lambda configs=configs: configs.resolve("a/b").text("share.auto.offset.reset") == "earliest")

    run(act, tmp_path)


async def answered(response: Any) -> Any:
    return await wait_for(response) if isinstance(response, Pending) else response
