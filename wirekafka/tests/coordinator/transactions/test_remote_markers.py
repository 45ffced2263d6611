"""Transactions whose coordinator and partitions are on several brokers: the markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from wirekafka.coordinator.effects import WritingProducer
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.coordinator.transactions.requests import InitRequest, Marker, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import TRANSACTION_VERSION, FeatureUpdate, UpgradeType
from wirekafka.names import GROUP_METADATA_TOPIC, NO_LEADER_ID, TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.pending import finish
from wirekafka.replication.absent_log import ABSENT_LOG
from wirekafka.replication.partition import Partition
from wirekafka.tests.coordinator.two_brokers import TOPIC, ClusterMember, TwoBrokers, partitions, run, told
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.write_txn_markers import WriteTxnMarkersRequest

MARKERS = "txn-markers"


def begin(cluster: TwoBrokers, transactional_id: str = "x", *indexes: int, client_version: int = 0) -> ProducerIdentity:
    """Opens a transaction with a record in each of these partitions of the topic."""
    transactions = cluster.members[1].broker.transactions
    producer = transactions.init_producer_id(InitRequest(transactional_id, 60_000))
    transactions.add_partitions(transactional_id, producer, partitions(*indexes), client_version=client_version)
    for index in indexes:
        write(cluster.members[index + 1], index, producer)
    return producer


def write(member: ClusterMember, index: int, producer: ProducerIdentity) -> None:
    batch = build_batch(
        [Record(value=b"a")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    member.partition(TOPIC, index).append(memoryview(batch), now_ms=0)


def end(cluster: TwoBrokers, producer: ProducerIdentity, transactional_id: str = "x", *, is_commit: bool = True) -> None:
    cluster.members[1].broker.transactions.end(transactional_id, producer, is_commit=is_commit, client_version=0)


def state_of(cluster: TwoBrokers, transactional_id: str = "x") -> str:
    return cluster.members[1].broker.transactions.describe(transactional_id)[0].state.title


def is_open(cluster: TwoBrokers, index: int) -> bool:
    return cluster.members[index + 1].partition(TOPIC, index).log.producers.first_unstable_offset is not None


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_ends_in_the_partitions_of_both_brokers(tmp_path: Path, is_commit: bool) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0, 1)
        end(cluster, producer, is_commit=is_commit)
        assert state_of(cluster) == ("PrepareCommit" if is_commit else "PrepareAbort")
        await trio.sleep(0.1)
        assert state_of(cluster) == ("CompleteCommit" if is_commit else "CompleteAbort")
        assert not is_open(cluster, 0) and not is_open(cluster, 1)
        assert len(cluster.members[2].partition(TOPIC, 1).log.aborted_transactions(0, 2)) == (not is_commit)
        assert cluster.coordinator_epochs(2, TOPIC, 1) == [5]

    run(body, tmp_path)


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_a_transaction_of_version_2_bumps_the_epoch_on_both_brokers(tmp_path: Path, is_commit: bool) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0, 1, client_version=2)
        transactions = cluster.members[1].broker.transactions
        after = transactions.end("x", producer, is_commit=is_commit, client_version=2)
        assert after == (producer.producer_id, producer.producer_epoch + 1)
        await trio.sleep(0.1)
        assert state_of(cluster) == ("CompleteCommit" if is_commit else "CompleteAbort")
        [(request, _)] = cluster.members[1].channels[MARKERS].sent
        assert isinstance(request, WriteTxnMarkersRequest)
        assert [(marker.producer_epoch, marker.transaction_version) for marker in request.markers] == [(after.producer_epoch, 2)]
        with pytest.raises(KafkaError) as caught:
            write(cluster.members[2], 1, producer)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH

    run(body, tmp_path)


@pytest.mark.parametrize(("level", "expected"), [(2, 2), (1, 1), (0, 1)])
def test_markers_of_many_transactions_go_in_one_request(tmp_path: Path, level: int, expected: int) -> None:
    async def body(cluster: TwoBrokers) -> None:
        downgrade = FeatureUpdate(TRANSACTION_VERSION, level, UpgradeType.SAFE_DOWNGRADE)
        cluster.members[1].broker.topics.features.update([downgrade], validate_only=False)
        names = [f"x{number}" for number in range(20)]
        producers = [begin(cluster, name, 1) for name in names]
        for name, producer in zip(names, producers, strict=True):
            end(cluster, producer, name)
        await trio.sleep(0.1)
        [(request, version)] = cluster.members[1].channels[MARKERS].sent
        assert isinstance(request, WriteTxnMarkersRequest)
        assert version == expected
        assert [marker.producer_id for marker in request.markers] == [producer.producer_id for producer in producers]
        assert {state_of(cluster, name) for name in names} == {"CompleteCommit"}

    run(body, tmp_path)


def test_marker_follows_its_partition_to_the_new_leader(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        await cluster.elect(TOPIC, 1, NO_LEADER_ID, epoch=2)
        end(cluster, producer)
        await trio.sleep(5)
        assert state_of(cluster) == "PrepareCommit"
        assert cluster.members[1].channels == {}
        await cluster.elect(TOPIC, 1, 2, epoch=3)
        assert state_of(cluster) == "CompleteCommit"
        assert not is_open(cluster, 1)

    run(body, tmp_path)


def test_marker_is_sent_again_after_a_broker_that_does_not_lead_refuses_it(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        cluster.members[2].take_role(TOPIC, 1, 3, 2)
        end(cluster, producer)
        await trio.sleep(0.1)
        assert state_of(cluster) == "PrepareCommit"
        assert len(cluster.members[1].channels[MARKERS].sent) == 1
        cluster.members[2].take_role(TOPIC, 1, 2, 3)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert len(cluster.members[1].channels[MARKERS].sent) == 2

    run(body, tmp_path)


def test_marker_is_sent_again_after_a_lost_connection(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        end(cluster, begin(cluster, "y", 1), "y")
        await trio.sleep(1)
        producer = begin(cluster, "x", 1)
        cluster.members[1].channels[MARKERS].is_cut = True
        end(cluster, producer)
        await trio.sleep(5)
        assert state_of(cluster) == "PrepareCommit"
        cluster.members[1].channels[MARKERS].is_cut = False
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"

    run(body, tmp_path)


def test_marker_in_flight_to_a_broker_that_leaves_goes_to_the_new_leader_at_once(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        end(cluster, begin(cluster, "y", 1), "y")
        await trio.sleep(1)
        producer = begin(cluster, "x", 1)
        former = cluster.members[1].channels[MARKERS]
        former.is_silent = True
        end(cluster, producer)
        await trio.sleep(1)
        cluster.tell_brokers(1)
        await trio.sleep(5)
        assert former.is_closed
        assert state_of(cluster) == "PrepareCommit"
        assert cluster.members[1].channels[MARKERS] is former, "nothing is sent to a broker that is not alive"
        cluster.tell_brokers(1, 2)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert not is_open(cluster, 1)

    run(body, tmp_path)


def test_deleted_topic_needs_no_marker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        cluster.forget(TOPIC)
        end(cluster, producer)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"

    run(body, tmp_path)


def test_topic_is_not_taken_for_deleted_before_the_controller_has_told_the_topics(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        image = cluster.members[1].image
        image.topics.clear()
        image.controller_epoch += 1
        finish(image.update(told([], image)))
        end(cluster, producer)
        await trio.sleep(5)
        assert state_of(cluster) == "PrepareCommit"
        for _ in image.update(told([(TRANSACTION_STATE_TOPIC, 0, 1), (TOPIC, 1, 2)], image)):
            await trio.sleep(5)
            assert state_of(cluster) == "PrepareCommit" or TOPIC in image.topics
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert not is_open(cluster, 1)

    run(body, tmp_path)


def test_partition_that_is_hosted_before_the_controller_has_told_it_gets_its_marker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0)
        member = cluster.members[1]
        del member.image.topics[TOPIC].partitions[0]
        member.hosted.add(TopicPartition(TOPIC, 0))
        end(cluster, producer)
        await trio.sleep(5)
        assert state_of(cluster) == "PrepareCommit"
        cluster.tell(TOPIC, 0, 1)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert not is_open(cluster, 0)

    run(body, tmp_path)


def test_partition_of_a_newer_producer_needs_no_marker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        log = cluster.members[2].partition(TOPIC, 1)
        settings: dict[str, Any] = {"coordinator_epoch": 5, "is_commit": False, "now_ms": 0, "transaction_version": 0}
        log.write_marker(producer.producer_id, producer.producer_epoch + 1, **settings)
        end(cluster, producer)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert log.log.log_end_offset == 2

    run(body, tmp_path)


@pytest.mark.parametrize("refusal", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_partition_of_a_broker_that_has_no_transactions_in_it_needs_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: ErrorCode
) -> None:
    def refuse(partition: Partition, *arguments: object, **settings: object) -> None:
        raise KafkaError(refusal)

    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        monkeypatch.setattr(Partition, "write_marker", refuse)
        end(cluster, producer)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"

    run(body, tmp_path)


def test_marker_for_a_partition_that_this_broker_no_longer_hosts_is_needed(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0)
        marker = Marker(TopicPartition(TOPIC, 0), *producer, is_commit=True, transaction_version=0)
        writer = cluster.members[1].broker.markers
        assert writer.is_needed(marker)
        cluster.members[1].partition(TOPIC, 0).log = cast(Any, ABSENT_LOG)
        assert writer.is_needed(marker)

    run(body, tmp_path)


def test_offsets_of_a_group_elsewhere_are_committed_by_the_marker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0)
        transactions, groups = cluster.members[1].broker.transactions, cluster.members[2].broker.groups
        offsets_partition = TopicPartition(GROUP_METADATA_TOPIC, 0)
        transactions.add_partitions("x", producer, [offsets_partition])
        commit = CommitRequest("g", [PartitionCommit(TOPIC, 0, 7)])
        assert groups.commit_offsets_in_transaction(commit, WritingProducer(*producer)) == [ErrorCode.NONE]
        assert groups.fetch_offsets("g") == {}
        end(cluster, producer)
        await trio.sleep(1)
        assert state_of(cluster) == "CompleteCommit"
        assert groups.fetch_offsets("g")[TOPIC][0].offset == 7

    run(body, tmp_path)


def test_group_coordinator_that_is_not_loaded_gets_the_marker_later(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0)
        cluster.members[1].broker.transactions.add_partitions("x", producer, [TopicPartition(GROUP_METADATA_TOPIC, 0)])
        other = cluster.members[2]
        other.broker.groups.unload_partition(0, 2)
        end(cluster, producer)
        await trio.sleep(5)
        assert state_of(cluster) == "PrepareCommit"
        assert other.partition(GROUP_METADATA_TOPIC, 0).log.log_end_offset == 0
        await cluster.elect(GROUP_METADATA_TOPIC, 0, 2, epoch=3)
        assert state_of(cluster) == "CompleteCommit"

    run(body, tmp_path)


def test_marker_waits_until_enough_replicas_are_in_sync(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 0)
        partition = cluster.members[1].partition(TOPIC, 0)
        partition.is_sole_replica = False
        partition.replicas, partition.in_sync_replicas = (1, 2, 3), (1,)
        end(cluster, producer)
        await trio.sleep(5)
        assert (state_of(cluster), partition.log.log_end_offset) == ("PrepareCommit", 1)
        partition.in_sync_replicas = (1, 2)
        await trio.sleep(1)
        assert partition.log.log_end_offset == 2
        partition.advance_high_watermark(2)
        assert state_of(cluster) == "CompleteCommit"

    run(body, tmp_path, min_insync_replicas="2")


def test_coordinator_that_lost_the_transaction_does_not_complete_it(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        producer = begin(cluster, "x", 1)
        end(cluster, producer)
        end_offset = cluster.members[1].partition(TRANSACTION_STATE_TOPIC, 0).log.log_end_offset
        cluster.members[1].take_role(TRANSACTION_STATE_TOPIC, 0, 2, 6)
        await trio.sleep(5)
        assert cluster.members[1].partition(TRANSACTION_STATE_TOPIC, 0).log.log_end_offset == end_offset

    run(body, tmp_path)


def test_broker_that_leaves_the_cluster_closes_its_connections_and_sends_no_marker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        end(cluster, begin(cluster, "y", 1), "y")
        await trio.sleep(1)
        producer = begin(cluster, "x", 1)
        end(cluster, producer)
        cluster.members[1].broker.leave_cluster()
        await trio.sleep(5)
        channel = cluster.members[1].channels[MARKERS]
        assert channel.is_closed
        assert len(channel.sent) == 1
        assert state_of(cluster) == "PrepareCommit"

    run(body, tmp_path)
