from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wirekafka.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wirekafka.broker import Broker
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join_alone, run


def init(broker: Broker) -> ProducerIdentity:
    return broker.transactions.init_producer_id(InitRequest("worker", 60_000))


def add_offsets(broker: Broker, producer: ProducerIdentity, group: str = "g") -> None:
    partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_of(group))
    broker.transactions.add_partitions("worker", producer, [partition])


def end(broker: Broker, producer: ProducerIdentity, *, is_commit: bool = True) -> None:
    broker.transactions.end("worker", producer, is_commit=is_commit, client_version=3)


def txn_commit(
    caller: Caller,
    producer: ProducerIdentity,
    version: int = 3,
    *,
    offset: int = 5,
    partition: int = 1,
    topic: str = "flights",
    group: str = "g",
    metadata: str | None = None,
    transactional_id: str = "worker",
    **fields: Any,
) -> int:
    """Commits one offset; returns the error."""
    asked = TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=4, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[asked])],
        **fields,
    )
    (answer,) = caller.ask(request, version).topics
    assert (answer.name, answer.partitions[0].partition_index) == (topic, partition)
    return int(answer.partitions[0].error_code)


def fetch(caller: Caller, version: int = 7, *, require_stable: bool, all_topics: bool = False) -> tuple[int, int]:
    """Returns offset and error of partition 1, by one of the two shapes of the request."""
    if version < 8:
        named = None if all_topics else [OffsetFetchRequestTopic(name="flights", partition_indexes=[1])]
        request = OffsetFetchRequest(group_id="g", topics=named, require_stable=require_stable)
        ((found,),) = (topic.partitions for topic in caller.ask(request, version).topics)
    else:
        flights = caller.broker.topics.find("flights")
        assert flights is not None
        asked = OffsetFetchRequestTopics(name="flights", topic_id=flights.topic_id, partition_indexes=[1])
        group = OffsetFetchRequestGroup(group_id="g", topics=None if all_topics else [asked])
        (answer,) = caller.ask(OffsetFetchRequest(groups=[group], require_stable=require_stable), version).groups
        ((found,),) = (topic.partitions for topic in answer.topics)
    return found.committed_offset, found.error_code


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit_of_any_version_counts_once_the_transaction_has_committed(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        broker, producer = caller.broker, init(caller.broker)
        commit(caller, offset=2)
        if version < 5:
            add_offsets(broker, producer)
        assert txn_commit(caller, producer, version, metadata="here") == ErrorCode.NONE
        assert fetch(caller, require_stable=False) == (2, ErrorCode.NONE)
        end(broker, producer)
        assert fetch(caller, require_stable=True) == (5, ErrorCode.NONE)
        offset = broker.groups.fetch_offsets("g")["flights"][1]
        assert (offset.metadata, offset.leader_epoch) == ("here", 4 if version >= 2 else None)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(5))
def test_txn_offset_commit_outside_of_the_transaction_is_refused_by_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        producer = init(caller.broker)
        expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert txn_commit(caller, producer, version) == expected
        assert not caller.broker.groups.fetch_offsets("g")
        assert not caller.broker.groups.is_unstable("g", "flights", 1)

    run(body, tmp_path)


@pytest.mark.parametrize("version", [7, 8, 9, 10])
@pytest.mark.parametrize("all_topics", [False, True])
def test_stable_offsets_are_waited_for(tmp_path: Path, version: int, all_topics: bool) -> None:
    async def body(caller: Caller) -> None:
        producer = init(caller.broker)
        commit(caller, offset=2)
        txn_commit(caller, producer, 5)
        unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert fetch(caller, version, require_stable=True, all_topics=all_topics) == unstable
        assert fetch(caller, version, require_stable=False, all_topics=all_topics) == (2, ErrorCode.NONE)
        end(caller.broker, producer, is_commit=False)
        assert fetch(caller, version, require_stable=True, all_topics=all_topics) == (2, ErrorCode.NONE)

    run(body, tmp_path)


def test_txn_offset_commit_of_a_fenced_producer_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        old = init(caller.broker)
        assert txn_commit(caller, old, 5) == ErrorCode.NONE
        with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS"):
            init(caller.broker)  # The first request aborts the transaction.
        new = init(caller.broker)
        assert new.producer_epoch > old.producer_epoch
        assert txn_commit(caller, old, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert not caller.broker.groups.is_unstable("g", "flights", 1)
        assert txn_commit(caller, ProducerIdentity(old.producer_id + 7, 0), 5) == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    run(body, tmp_path)


def test_txn_offset_commit_into_what_is_open_in_the_log_needs_no_more_of_the_transaction(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        producer = init(caller.broker)
        assert txn_commit(caller, producer, 5, transactional_id="other") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert txn_commit(caller, producer, 5) == ErrorCode.NONE
        assert txn_commit(caller, producer, 5, transactional_id="other") == ErrorCode.NONE
        end(caller.broker, producer)
        assert txn_commit(caller, producer, 5, transactional_id="other") == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    run(body, tmp_path)


def test_txn_offset_commit_is_held_to_the_membership_that_it_names(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        producer = init(caller.broker)
        member = await join_alone(caller, instance="one")
        names: dict[str, Any] = {"member_id": member, "generation_id": 1, "group_instance_id": "one"}
        assert txn_commit(caller, producer, 5, **names) == ErrorCode.NONE
        assert txn_commit(caller, producer, 5, **names | {"generation_id": 0}) == ErrorCode.ILLEGAL_GENERATION
        assert txn_commit(caller, producer, 5, **names | {"member_id": "x"}) == ErrorCode.FENCED_INSTANCE_ID
        assert txn_commit(caller, producer, 5, member_id="x", generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert txn_commit(caller, producer, 5, group="nobody", generation_id=1) == ErrorCode.ILLEGAL_GENERATION
        assert txn_commit(caller, producer, 5) == ErrorCode.NONE

    run(body, tmp_path)


def test_txn_offset_commit_of_what_does_not_exist_has_errors_of_its_own(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        producer = init(caller.broker)
        assert txn_commit(caller, producer, 5, topic="nothing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert txn_commit(caller, producer, 5, partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert txn_commit(caller, producer, 5, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert txn_commit(caller, producer, 5, group="") == ErrorCode.INVALID_GROUP_ID
        assert txn_commit(caller, producer, 5, metadata="x" * 5000) == ErrorCode.OFFSET_METADATA_TOO_LARGE

    run(body, tmp_path)


def test_pending_offsets_outlive_the_broker(tmp_path: Path) -> None:
    producers = []

    async def first(caller: Caller) -> None:
        producers.append(init(caller.broker))
        commit(caller, offset=2)
        txn_commit(caller, producers[0], 5)

    async def second(caller: Caller) -> None:
        assert fetch(caller, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        end(caller.broker, producers[0])
        assert fetch(caller, require_stable=True) == (5, ErrorCode.NONE)

    async def third(caller: Caller) -> None:
        assert fetch(caller, require_stable=True) == (5, ErrorCode.NONE)

    for body in (first, second, third):
        run(body, tmp_path)
