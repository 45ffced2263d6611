"""Coordinators that gain and lose the partitions of their state: a broker without sockets, with the test as the controller."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio

from wirekafka.broker import Broker
from wirekafka.coordinator.cluster import CoordinatorCluster, Peers
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.image import ClusterImage, PartitionImage, TopicImage
from wirekafka.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.tests.coordinator.transactions.test_runtime import begin, refuse_appends, run, state_of


def join_cluster(broker: Broker) -> None:
    """Makes the broker a member of a cluster in which it leads nothing yet."""
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        if broker.topics.find(name) is None:
            broker.topics.create_internal(name)
    image = ClusterImage()
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "t"):
        topic = image.topics[name] = TopicImage(name, b"i" * 16)
        count = 1 if name == "t" else len(broker.topics.get(name).partitions)
        for index in range(count):
            topic.partitions[index] = PartitionImage(broker.node_id, 1, (broker.node_id,), 0, (broker.node_id,), ())
    broker.join_cluster(CoordinatorCluster(broker.node_id, image, cast(Peers, None), is_hosted=lambda partition: False))


def partition_of(broker: Broker, transactional_id: str) -> Partition:
    return broker.topics.get(TRANSACTION_STATE_TOPIC).partitions[broker.transactions.partition_of(transactional_id)]


async def lead(broker: Broker, transactional_id: str, epoch: int) -> None:
    partition = partition_of(broker, transactional_id)
    partition.leader_epoch = epoch
    broker.load_coordinator(partition)
    await trio.sleep(1)


async def resign(broker: Broker, transactional_id: str, epoch: int | None) -> None:
    broker.unload_coordinator(partition_of(broker, transactional_id), epoch)
    await trio.sleep(1)


def refusal(broker: Broker, transactional_id: str) -> ErrorCode | None:
    try:
        broker.transactions.init_producer_id(InitRequest(transactional_id, 60_000))
    except KafkaError as error:
        return error.code
    return None


def test_transactional_id_is_served_where_its_partition_is_led(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        assert refusal(broker, "x") is ErrorCode.NOT_COORDINATOR
        await lead(broker, "x", 3)
        assert refusal(broker, "x") is None
        await resign(broker, "x", 4)
        assert refusal(broker, "x") is ErrorCode.NOT_COORDINATOR

    run(tmp_path, body)


def test_transaction_continues_after_its_partition_comes_back(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        await lead(broker, "x", 1)
        producer = begin(broker)
        await resign(broker, "x", 2)
        assert broker.transactions._coordinator.transactions == {}
        await lead(broker, "x", 3)
        assert state_of(broker) == "Ongoing"
        broker.transactions.end("x", producer, is_commit=True, client_version=2)
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def test_decided_transaction_is_ended_by_the_new_leader_with_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write_marker = Partition.write_marker

    def note(self: Partition, *args: int, coordinator_epoch: int, **settings: bool | int) -> object:
        written.append(coordinator_epoch)
        return write_marker(self, *args, coordinator_epoch=coordinator_epoch, **settings)  # type: ignore[arg-type]

    async def body(broker: Broker) -> None:
        join_cluster(broker)
        await lead(broker, "x", 1)
        producer = begin(broker)
        with monkeypatch.context() as patch:
            refuse_appends(patch, "write_marker")
            broker.transactions.end("x", producer, is_commit=True, client_version=2)
            await resign(broker, "x", 2)
        monkeypatch.setattr(Partition, "write_marker", note)
        await trio.sleep(10)
        assert written == []
        await lead(broker, "x", 7)
        assert written == [7]
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, body)


def test_election_of_an_older_epoch_is_ignored(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        await lead(broker, "x", 5)
        await resign(broker, "x", 4)
        assert refusal(broker, "x") is None
        await resign(broker, "x", None)
        await lead(broker, "x", 5)
        assert refusal(broker, "x") is ErrorCode.NOT_COORDINATOR

    run(tmp_path, body)


def test_transaction_whose_partition_is_led_elsewhere_is_not_aborted_here(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        await lead(broker, "x", 1)
        begin(broker, timeout_ms=1_000)
        await resign(broker, "x", 2)
        await trio.sleep(60)
        end_offset = partition_of(broker, "x").log.log_end_offset
        await lead(broker, "x", 3)
        assert state_of(broker) == "Ongoing"
        assert partition_of(broker, "x").log.log_end_offset == end_offset
        await trio.sleep(60)
        assert state_of(broker) == "CompleteAbort"

    run(tmp_path, body)


def test_groups_are_served_where_their_partition_is_led(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        broker.topics.create("t", 1)
        partition = broker.topics.get(GROUP_METADATA_TOPIC).partitions[broker.groups.partition_of("g")]
        partition.leader_epoch = 1
        commit = CommitRequest("g", [PartitionCommit("t", 0, 5)])
        with pytest.raises(KafkaError) as raised:
            broker.groups.commit_offsets(commit)
        assert raised.value.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as raised:
            broker.groups.has_open_transaction("g", 7, 0)
        assert raised.value.code is ErrorCode.NOT_COORDINATOR
        broker.load_coordinator(partition)
        await trio.sleep(1)
        assert broker.groups.commit_offsets(commit) == [ErrorCode.NONE]
        broker.unload_coordinator(partition, 2)
        with pytest.raises(KafkaError):
            broker.groups.commit_offsets(commit)

    run(tmp_path, body)


def test_partitions_of_other_topics_load_no_coordinator(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        [partition] = broker.topics.create("t", 1).partitions
        broker.load_coordinator(partition)
        broker.unload_coordinator(partition, 1)
        broker.unload_coordinator(broker.topics.get(GROUP_METADATA_TOPIC).partitions[0], 1)
        assert not {"groups", "transactions"} & vars(broker).keys()

    run(tmp_path, body)


def test_large_partition_of_transactions_is_removed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.coordinator.transactions.coordinator.EXAMINED_AT_ONCE", 10)

    async def body(broker: Broker) -> None:
        join_cluster(broker)
        await lead(broker, "x", 1)
        for number in range(100):
            assert refusal(broker, f"x{number}") is None
        known = broker.transactions._coordinator.transactions
        broker.unload_coordinator(partition_of(broker, "x"), 2)
        assert len(known) == 90
        await trio.sleep(1)
        assert known == {}

    run(tmp_path, body, transaction_state_log_num_partitions="1")


def test_marker_of_offsets_is_refused_where_their_partition_is_not_led(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        with pytest.raises(KafkaError) as raised:
            broker.groups.complete_transaction(0, 7, 0, coordinator_epoch=0, is_commit=True, transaction_version=1)
        assert raised.value.code is ErrorCode.NOT_COORDINATOR
        assert broker.topics.get(GROUP_METADATA_TOPIC).partitions[0].log.log_end_offset == 0

    run(tmp_path, body)


def test_producer_is_unknown_until_the_transaction_is_loaded(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        partitions = [TopicPartition("t", 0)]
        errors = broker.transactions.check_produce("x", *ProducerIdentity(1, 0), partitions, adds=False)
        assert errors == {partitions[0]: ErrorCode.NOT_COORDINATOR}

    run(tmp_path, body)


def test_groups_of_the_consumer_protocol_are_known_before_a_partition_of_groups_is_loaded(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        join_cluster(broker)
        broker.load_coordinator(broker.topics.get(GROUP_METADATA_TOPIC).partitions[0])
        assert "consumer" in broker.groups.coordinator.kinds

    run(tmp_path, body)
