"""The committed records of a topic, which a wait reads on as the topic grows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from confluent_kafka import Producer

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.testing import AsyncEmbeddedBroker, EmbeddedBroker, open_embedded
from wirekafka.testing.local_client import LocalClient
from wirekafka.testing.stored_records import SLICE_RECORDS, CommittedRecords
from wirekafka.tests.log.logs import batch


def run(act: Callable[[AsyncEmbeddedBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_embedded() as broker:
            await broker.create_topic("orders", 2)
            await act(broker)

    trio.run(main)


async def append(broker: AsyncEmbeddedBroker, *values: bytes, partition: int = 0) -> None:
    data = PartitionProduceData(index=partition, records=batch(*values))
    asked = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="orders", partition_data=[data])])
    response = await LocalClient(broker.broker).ask(asked, 7)
    assert response.responses[0].partition_responses[0].error_code == 0


def read_all(found: CommittedRecords, broker: AsyncEmbeddedBroker) -> list[bytes | None]:
    while found.read_slice(broker.broker):
        pass
    return [each.value for each in found.kept()]


def test_second_look_reads_only_what_came_since_the_first() -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        found = CommittedRecords("orders")
        await append(broker, b"two", partition=1)
        assert read_all(found, broker) == [b"two"]
        [first] = found.kept()
        await append(broker, b"one")
        await append(broker, b"three", partition=1)
        assert read_all(found, broker) == [b"one", b"two", b"three"]
        assert found.kept()[1] is first

    run(act)


def test_look_at_many_records_ends_after_a_slice() -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        await append(broker, *[b"x"] * (2 * SLICE_RECORDS + 1))
        found = CommittedRecords("orders")
        counts = []
        while found.read_slice(broker.broker):
            counts.append(found.count)
        assert [*counts, found.count] == [SLICE_RECORDS, 2 * SLICE_RECORDS, 2 * SLICE_RECORDS + 1]

    run(act)


def test_records_beyond_the_limit_are_counted_and_not_kept() -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        await append(broker, *[b"xx"] * 10)
        for found in (CommittedRecords("orders", most_records=3), CommittedRecords("orders", most_bytes=3 * len(b"kxx"))):
            assert read_all(found, broker) == [b"xx"] * 4
            assert (found.count, found.is_full) == (10, True)

    run(act)


def test_wait_reads_no_further_than_its_count_and_its_limit() -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        await append(broker, *[b"x"] * (2 * SLICE_RECORDS))
        found = CommittedRecords("orders", most_records=3)
        await broker.wait_for_count(found, 2)
        assert (found.count, len(found.kept())) == (SLICE_RECORDS, 4)

    run(act)


def test_records_that_the_log_has_lost_are_not_counted() -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        found = CommittedRecords("orders", 0)
        for value in (b"one", b"two", b"three"):
            await append(broker, value)
        assert read_all(found, broker) == [b"one", b"two", b"three"]
        log = broker.broker.topics.find_partition("orders", 0).writable_log
        log.truncate_to(2)
        await append(broker, b"other")
        assert read_all(found, broker) == [b"one", b"two", b"other"]
        log.retention.delete_records(1)
        assert read_all(found, broker) == [b"two", b"other"]

    run(act)


@pytest.mark.parametrize("is_created_again", [True, False])
def test_reset_in_the_middle_of_a_look_leaves_nothing(is_created_again: bool) -> None:
    async def act(broker: AsyncEmbeddedBroker) -> None:
        found = CommittedRecords("orders")
        await append(broker, *[b"x"] * (SLICE_RECORDS + 1))
        assert found.read_slice(broker.broker)
        await broker.reset()
        if is_created_again:
            await broker.create_topic("orders")
            await append(broker, b"new")
        assert read_all(found, broker) == ([b"new"] if is_created_again else [])

    run(act)


def test_transaction_counts_once_it_is_committed() -> None:
    found = CommittedRecords("orders")

    async def look(broker: AsyncEmbeddedBroker) -> tuple[list[bytes | None], bool]:
        return read_all(found, broker), found.hidden_count > 0

    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(20)
        for value, is_committed in ((b"dropped", False), (b"kept", True)):
            producer.begin_transaction()
            producer.produce("orders", value)
            producer.flush(20)
            assert broker.call(look) == ([], True)
            producer.commit_transaction(20) if is_committed else producer.abort_transaction(20)
        broker.wait_for_records("orders", 1)
        assert broker.call(look) == ([b"kept"], True)
        assert found.hidden_count == 1
