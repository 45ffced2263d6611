"""aiokafka in a test: two workers share the partitions of a topic. The test waits for conditions and never sleeps.

The methods of the broker block the thread, so a coroutine calls those that wait by `asyncio.to_thread`.

Run: pip install wirekafka pytest aiokafka; pytest examples/testing/test_with_aiokafka.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from wirekafka.testing import EmbeddedBroker

ORDERS = [f"order {number}".encode() for number in range(20)]


async def work(bootstrap: str, topic: str, handle: Callable[[bytes], None]) -> None:
    """Handles the values of a topic until it is cancelled. This is the program under test."""
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id="workers", auto_offset_reset="earliest", auto_commit_interval_ms=200
    ) as consumer:
        async for record in consumer:
            handle(record.value)


async def share_the_work(broker: EmbeddedBroker, topic: str) -> list[list[bytes]]:
    """Runs two workers until the group has read all orders; returns what each has read."""
    read: list[list[bytes]] = [[], []]
    async with asyncio.timeout(60):
        workers = [asyncio.create_task(work(broker.bootstrap, topic, values.append)) for values in read]
        group = await asyncio.to_thread(broker.wait_for_group_stable, "workers", members=2, timeout_s=30)
        assert [len(member.partitions) for member in group.members] == [1, 1]
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for number, value in enumerate(ORDERS):
                await producer.send_and_wait(topic, value, partition=number % 2)
        for partition in (0, 1):
            await asyncio.to_thread(
                broker.wait_for_committed, "workers", topic, len(ORDERS) // 2, partition=partition, timeout_s=30
            )
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return read


@pytest.mark.kafka_topic(partitions=2)
def test_two_workers_share_the_orders(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    read = asyncio.run(share_the_work(kafka_broker, kafka_topic))
    assert sorted(read) == sorted([ORDERS[0::2], ORDERS[1::2]])
