"""confluent-kafka, on librdkafka."""

from __future__ import annotations

import time

from agent import Found, Options, Record, answer, answer_assigned, answer_records, answer_uncommitted, is_told_to_leave
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition


def record_of(message: Message) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        list(message.headers() or []),
    )


def reader(bootstrap: str, **settings: object) -> Consumer:
    plain = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    return Consumer({**plain, **settings})


class Transactions:
    """A transactional producer; `flush` reports records that were not delivered."""

    def __init__(self, bootstrap: str, transactional_id: str, options: Options) -> None:
        self.bootstrap = bootstrap
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(options.get("transaction_timeout", 60_000)),
                "message.timeout.ms": int(options.get("transaction_timeout", 60_000)),
                "compression.type": options.get("codec", "none"),
                "linger.ms": 5,
            }
        )
        self.producer.init_transactions(30)
        self.begin = self.producer.begin_transaction
        self.errors: list[object] = []

    def send(self, topic: str, partition: int, value: bytes) -> None:
        def note(error: object, message: Message) -> None:
            if error is not None:
                self.errors.append(error)

        self.producer.produce(topic, value, partition=partition, on_delivery=note)

    def flush(self) -> None:
        try:
            unsent = self.producer.flush(30)
        except SystemError as error:
            # The library calls the callback with its own fatal error set, and Python then warns about the callback.
            raise error.__cause__ or error from None
        errors, self.errors = self.errors, []
        if errors or unsent:
            raise RuntimeError(f"{unsent} unsent, {errors[:1]}")

    def commit(self) -> None:
        self.producer.commit_transaction(30)

    def abort(self) -> None:
        self.producer.abort_transaction(30)
        self.errors = []

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        consumer = reader(self.bootstrap, **{"group.id": group})
        try:
            places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
            self.producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
        finally:
            consumer.close()

    def close(self) -> None:
        del self.producer, self.begin


class Client:
    def open_transactions(self, bootstrap: str, transactional_id: str, options: Options) -> Transactions:
        return Transactions(bootstrap, transactional_id, options)

    def produce(self, bootstrap: str, topic: str, codec: str, options: Options, records: list[Record]) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": options.get("acks", "all"),
                "linger.ms": 5,
                "enable.idempotence": options.get("idempotent") == "1",
                "message.max.bytes": int(options.get("max_request_size", 2_000_000)),
                "message.timeout.ms": int(options.get("timeout_ms", 60_000)),
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
            }
        )
        errors: list[object] = []
        for record in records:
            extra = {"timestamp": record.timestamp_ms} if record.timestamp_ms is not None else {}
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                partition=record.partition,
                headers=record.headers or None,
                on_delivery=lambda error, message: errors.append(error) if error is not None else None,
                **extra,
            )
            producer.poll(0)
        unsent = producer.flush(70)
        if errors or unsent:
            raise RuntimeError(f"{unsent} unsent, {errors[:1]}")

    def read(self, bootstrap: str, topic: str, count: int, timeout_s: float, options: Options) -> list[Record]:
        is_until_end = options.get("until") == "end"
        isolation = options.get("isolation", "read_uncommitted")
        consumer = reader(bootstrap, **{"isolation.level": isolation, "enable.partition.eof": is_until_end})
        try:
            deadline = time.monotonic() + timeout_s
            partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            found: list[Record] = []
            unfinished = set(partitions)
            while (unfinished if is_until_end else len(found) < count) and time.monotonic() < deadline:
                for message in consumer.consume(num_messages=500, timeout=0.2):
                    if message.error() is None:
                        found.append(record_of(message))
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        unfinished.discard(message.partition())
                    else:
                        raise KafkaException(message.error())
            return found
        finally:
            consumer.close()

    def find(self, bootstrap: str, topic: str, partition: int, timestamp: int, timeout_s: float) -> Found:
        consumer = reader(bootstrap)
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], timeout=timeout_s)
            if found.offset < 0:
                return -1, None
            consumer.assign([TopicPartition(topic, partition, found.offset)])
            message = consumer.poll(timeout_s)
            return found.offset, None if message is None else record_of(message)
        finally:
            consumer.close()

    def join(self, bootstrap: str, group: str, topic: str, options: Options) -> None:
        settings: dict[str, object] = {"group.id": group, "auto.offset.reset": "earliest"}
        is_classic = options.get("protocol", "classic") == "classic"
        is_incremental = not is_classic or options.get("assignor") == "cooperative-sticky"
        if is_classic:
            settings |= {
                "session.timeout.ms": int(options.get("session", 3000)),
                "heartbeat.interval.ms": int(options.get("session", 3000)) // 4,
                "partition.assignment.strategy": options.get("assignor", "range"),
            }
        else:
            settings["group.protocol"] = "consumer"
            if "assignor" in options:
                settings["group.remote.assignor"] = options["assignor"]
        if "instance" in options:
            settings["group.instance.id"] = options["instance"]
        consumer = reader(bootstrap, **settings)

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            if is_incremental:
                consumer.incremental_assign(partitions)
            else:
                consumer.assign(partitions)
            answer_assigned([place.partition for place in consumer.assignment()])

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            answer("revoked", ",".join(str(place.partition) for place in partitions))
            if is_incremental:
                # Read now, because the consumer may be closed once it has given up its partitions.
                left = [place.partition for place in consumer.assignment() if place not in partitions]
                consumer.incremental_unassign(partitions)
                answer_assigned(left)

        consumer.subscribe(topic.split(","), on_assign=assigned, on_revoke=revoked)
        left = int(options.get("limit", 1 << 60))
        while left > 0 and not is_told_to_leave():
            messages = consumer.consume(num_messages=min(left, int(options.get("max_poll", 500))), timeout=0.1)
            records = [record_of(message) for message in messages if message.error() is None]
            if records:
                answer_records(records)
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    answer_uncommitted(error)
                left -= len(records)
        consumer.close()
