"""A member of a group, with aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from members import Part


class Listener(ConsumerRebalanceListener):
    def __init__(self, part: Part, consumer: AIOKafkaConsumer, processing: asyncio.Lock) -> None:
        self.part, self.consumer, self.processing = part, consumer, processing

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.part.assigned(self.consumer._coordinator.generation, [place.partition for place in assigned])

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        # The library rebalances in parallel with the program, so the program must first finish its batch.
        async with self.processing:
            is_lost = self.consumer._coordinator.generation < 0
            self.part.revoked((place.partition for place in revoked), is_lost=is_lost)


def take(part: Part) -> None:
    """Reads and commits until the line `leave` comes."""
    asyncio.run(live(part))


async def live(part: Part) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=part.bootstrap,
        group_id=part.group,
        client_id=part.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=part.session_ms,
        heartbeat_interval_ms=part.session_ms // 6,
        rebalance_timeout_ms=60_000,
        fetch_max_wait_ms=200,
        partition_assignment_strategy=(RangePartitionAssignor,),
        retry_backoff_ms=50,
    )
    processing = asyncio.Lock()
    consumer.subscribe([part.topic], listener=Listener(part, consumer, processing))
    async with consumer:
        while not part.is_told_to_leave:
            # Not under the lock: during a rebalance this call waits for the end of the rebalance.
            polled = await consumer.getmany(timeout_ms=100, max_records=100)
            ranges = {place.partition: (found[0].offset, found[-1].offset) for place, found in polled.items() if found}
            if ranges:
                async with processing:
                    await commit(part, consumer, ranges)
        part.closing()


async def commit(part: Part, consumer: AIOKafkaConsumer, ranges: dict[int, tuple[int, int]]) -> None:
    part.read(ranges)
    try:
        await consumer.commit({TopicPartition(part.topic, partition): last + 1 for partition, (_, last) in ranges.items()})
    except KafkaError as error:
        part.refused(error)
    else:
        part.committed(ranges)
