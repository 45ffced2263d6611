"""aiokafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from agent import Found, Options, Record, answer, answer_assigned, answer_records, answer_uncommitted, is_told_to_leave
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


def record_of(message: Any) -> Record:
    return Record(message.partition, message.offset, message.key, message.value, message.timestamp, list(message.headers))


class Listener(ConsumerRebalanceListener):
    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        answer("revoked", ",".join(str(partition.partition) for partition in revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        answer_assigned([partition.partition for partition in assigned])


class Transactions:
    """A transactional producer with an event loop of its own, which runs between the lines too."""

    def __init__(self, bootstrap: str, transactional_id: str, options: Options) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.sent: list[Any] = []
        self._await(self._open(bootstrap, transactional_id, options))

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def _open(self, bootstrap: str, transactional_id: str, options: Options) -> None:
        self.producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(options.get("transaction_timeout", 60_000)),
            compression_type=options.get("codec"),
            linger_ms=5,
        )
        await self.producer.start()

    def begin(self) -> None:
        self._await(self.producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self.sent.append(self._await(self.producer.send(topic, value, partition=partition)))

    def flush(self) -> None:
        sent, self.sent = self.sent, []
        self._await(self._gather(sent))

    async def _gather(self, sent: list[Any]) -> None:
        await asyncio.wait_for(asyncio.gather(*sent), 30)

    def commit(self) -> None:
        self._await(self.producer.commit_transaction())

    def abort(self) -> None:
        self._await(self.producer.abort_transaction())
        for future in self.sent:
            future.cancelled() or future.exception()  # retrieve the exception, so that asyncio does not warn of it
        self.sent = []

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        places = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        self._await(self.producer.send_offsets_to_transaction(places, group))

    def close(self) -> None:
        try:
            self._await(self.producer.stop())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


class Client:
    def open_transactions(self, bootstrap: str, transactional_id: str, options: Options) -> Transactions:
        return Transactions(bootstrap, transactional_id, options)

    def produce(self, *arguments: Any) -> None:
        asyncio.run(self._produce(*arguments))

    def read(self, *arguments: Any) -> list[Record]:
        return asyncio.run(self._read(*arguments))

    def find(self, *arguments: Any) -> Found:
        return asyncio.run(self._find(*arguments))

    def join(self, *arguments: Any) -> None:
        asyncio.run(self._join(*arguments))

    async def _produce(self, bootstrap: str, topic: str, codec: str, options: Options, records: list[Record]) -> None:
        acks = options.get("acks", "all")
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            linger_ms=5,
            max_request_size=int(options.get("max_request_size", 2_000_000)),
            enable_idempotence=options.get("idempotent") == "1",
            request_timeout_ms=int(options.get("timeout_ms", 40_000)),
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers or None,
                )
                for record in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), 60)

    async def _read(self, bootstrap: str, topic: str, count: int, timeout_s: float, options: Options) -> list[Record]:
        isolation = options.get("isolation", "read_uncommitted")
        settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "isolation_level": isolation}
        async with AIOKafkaConsumer(**settings) as consumer:
            deadline = time.monotonic() + timeout_s
            await consumer._client.force_metadata_update()
            partitions = consumer.partitions_for_topic(topic)
            while not partitions and time.monotonic() < deadline:
                consumer._client.add_topic(topic)
                await consumer._client.force_metadata_update()
                partitions = consumer.partitions_for_topic(topic)
            consumer.assign([TopicPartition(topic, partition) for partition in partitions])
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(consumer.assignment()) if options.get("until") == "end" else None
            found: list[Record] = []

            async def is_read() -> bool:
                if ends is None:
                    return len(found) >= count
                return all([await consumer.position(place) >= end for place, end in ends.items()])

            while not await is_read() and time.monotonic() < deadline:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    found += map(record_of, messages)
            return found

    async def _find(self, bootstrap: str, topic: str, partition: int, timestamp: int, timeout_s: float) -> Found:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            found = (await consumer.offsets_for_times({place: timestamp}))[place]
            if found is None:
                return -1, None
            consumer.seek(place, found.offset)
            message = await asyncio.wait_for(consumer.getone(), timeout_s)
            return found.offset, record_of(message)

    async def _join(self, bootstrap: str, group: str, topic: str, options: Options) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=options.get("instance"),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=int(options.get("session", 3000)),
            heartbeat_interval_ms=int(options.get("session", 3000)) // 4,
            rebalance_timeout_ms=int(options.get("session", 3000)),
            partition_assignment_strategy=(ASSIGNORS[options.get("assignor", "range")],),
        )
        consumer.subscribe(topic.split(","), listener=Listener(consumer))
        async with consumer:
            left = int(options.get("limit", 1 << 60))
            while left > 0 and not is_told_to_leave():
                limit = min(left, int(options.get("max_poll", 500)))
                batches = await consumer.getmany(timeout_ms=100, max_records=limit)
                records = [record_of(message) for messages in batches.values() for message in messages]
                if records:
                    answer_records(records)
                    try:
                        await consumer.commit()
                    except KafkaError as error:
                        answer_uncommitted(error)
                    left -= len(records)
