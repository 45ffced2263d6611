"""kafka-python 3.0.12 or 2.0.6, depending on the interpreter."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from agent import Found, Options, Record, answer, answer_assigned, answer_records, answer_uncommitted, is_told_to_leave
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition, __version__
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError

if __version__.startswith("3"):
    from kafka.structs import OffsetAndMetadata

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


def common(bootstrap: str, options: Options) -> dict[str, object]:
    settings: dict[str, object] = {"bootstrap_servers": bootstrap}
    if "api_version" in options:
        settings["api_version"] = tuple(map(int, options["api_version"].split(".")))
    return settings


def record_of(message: Any) -> Record:
    return Record(message.partition, message.offset, message.key, message.value, message.timestamp, list(message.headers or []))


class Listener(ConsumerRebalanceListener):
    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        answer("revoked", ",".join(str(partition.partition) for partition in revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        answer_assigned([partition.partition for partition in self.consumer.assignment()])


class Transactions:
    """A transactional producer; `flush` and `commit` report records that were not delivered."""

    def __init__(self, bootstrap: str, transactional_id: str, options: Options) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(options.get("transaction_timeout", 60_000)),
            compression_type=options.get("codec"),
            linger_ms=5,
        )
        self.producer.init_transactions()
        self.begin, self.abort = self.producer.begin_transaction, self.producer.abort_transaction
        self.commit = self.producer.commit_transaction
        self.sent: list[Any] = []

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self.sent.append(self.producer.send(topic, value=value, partition=partition))

    def flush(self) -> None:
        sent, self.sent = self.sent, []
        self.producer.flush(timeout=30)
        for future in sent:
            future.get(timeout=30)

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        places = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        self.producer.send_offsets_to_transaction(places, group)

    def close(self) -> None:
        self.producer.close(timeout=5)


class Client:
    def open_transactions(self, bootstrap: str, transactional_id: str, options: Options) -> Transactions:
        return Transactions(bootstrap, transactional_id, options)

    def produce(self, bootstrap: str, topic: str, codec: str, options: Options, records: list[Record]) -> None:
        settings = common(bootstrap, options)
        settings["compression_type"] = None if codec == "none" else codec
        acks = options.get("acks", "all")
        settings["acks"] = acks if acks == "all" else int(acks)
        settings["linger_ms"] = 5
        settings["max_request_size"] = int(options.get("max_request_size", 2_000_000))
        if __version__.startswith("3"):
            settings["enable_idempotence"] = options.get("idempotent") == "1"
        settings["retries"] = int(options.get("retries", 10))
        producer = KafkaProducer(**settings)
        try:
            futures = []
            for record in records:
                extra = {"headers": record.headers} if record.headers else {}
                futures.append(
                    producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        **extra,
                    )
                )
            producer.flush(timeout=60)
            for future in futures:
                future.get(timeout=60)
        finally:
            producer.close(timeout=5)

    def read(self, bootstrap: str, topic: str, count: int, timeout_s: float, options: Options) -> list[Record]:
        isolation = {"isolation_level": options["isolation"]} if "isolation" in options else {}
        consumer = KafkaConsumer(
            auto_offset_reset="earliest", enable_auto_commit=False, **isolation, **common(bootstrap, options)
        )
        try:
            deadline = time.monotonic() + timeout_s
            partitions = consumer.partitions_for_topic(topic)
            while not partitions and time.monotonic() < deadline:
                partitions = consumer.partitions_for_topic(topic)
            consumer.assign([TopicPartition(topic, partition) for partition in partitions])
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(consumer.assignment()) if options.get("until") == "end" else None
            found: list[Record] = []

            def is_read() -> bool:
                if ends is None:
                    return len(found) >= count
                return all(consumer.position(place) >= end for place, end in ends.items())

            while not is_read() and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=200).values():
                    found += map(record_of, messages)
            return found
        finally:
            consumer.close()

    def find(self, bootstrap: str, topic: str, partition: int, timestamp: int, timeout_s: float) -> Found:
        consumer = KafkaConsumer(enable_auto_commit=False, **common(bootstrap, {}))
        try:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            found = consumer.offsets_for_times({place: timestamp})[place]
            if found is None:
                return -1, None
            consumer.seek(place, found.offset)
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=200).values():
                    return found.offset, record_of(messages[0])
            return found.offset, None
        finally:
            consumer.close()

    def join(self, bootstrap: str, group: str, topic: str, options: Options) -> None:
        settings = common(bootstrap, options)
        if "instance" in options:
            settings["group_instance_id"] = options["instance"]
        consumer = KafkaConsumer(
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=int(options.get("session", 3000)),
            heartbeat_interval_ms=int(options.get("session", 3000)) // 4,
            max_poll_records=int(options.get("max_poll", 500)),
            partition_assignment_strategy=[ASSIGNORS[options.get("assignor", "range")]],
            **settings,
        )
        consumer.subscribe(topic.split(","), listener=Listener(consumer))
        left = int(options.get("limit", 1 << 60))
        while left > 0 and not is_told_to_leave():
            # Version 3 loses its assignment if the answer to SyncGroup arrives as poll's timeout ends, so the timeout is long;
            # it returns as soon as it has records. Seen with Apache Kafka as well, once in some 50 joins at 100 ms (2026-11).
            polled = consumer.poll(timeout_ms=2000, max_records=left)
            records = [record_of(message) for messages in polled.values() for message in messages]
            if records:
                answer_records(records)
                try:
                    consumer.commit()
                except KafkaError as error:
                    answer_uncommitted(error)
                left -= len(records)
        consumer.close()
