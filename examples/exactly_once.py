"""Turns orders into invoices, each exactly once, although the billing program crashes in the middle.

A transaction writes invoices and the position in the orders together: both are committed, or neither. The billing program
here crashes after it has written and before it commits. Its successor aborts the open transaction and reads the same orders
again. A consumer with isolation.level=read_committed never sees an invoice twice.

Run: pip install confluent-kafka; python examples/exactly_once.py [HOST:PORT]
"""

from __future__ import annotations

import sys
import uuid

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS = 100


class CrashError(Exception):
    """The billing program has crashed."""


def create_topics(bootstrap: str, *topics: str) -> None:
    """Creates the topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        future.result(timeout=10)


def order(bootstrap: str, topic: str) -> None:
    """Writes the orders."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(ORDERS):
        producer.produce(topic, f"order {number}")
    producer.flush(10)


def consumer_of(bootstrap: str, group: str, topic: str) -> Consumer:
    """Returns a consumer that reads committed records only, and does not commit its position itself."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    return consumer


def bill(bootstrap: str, orders: str, invoices: str, *, crashes_after: int | None = None) -> None:
    """Turns orders into invoices until all orders are billed, ten orders in each transaction.

    A producer that takes over the transactional id aborts the open transaction of the producer before it, and fences that
    producer.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"billing of {orders}"})
    producer.init_transactions(10)
    consumer = consumer_of(bootstrap, f"billing-{orders}", orders)
    is_done = False
    while not is_done:
        read: list[Message] = [message for message in consumer.consume(10, timeout=1) if message.error() is None]
        if not read:
            continue
        producer.begin_transaction()
        for message in read:
            producer.produce(invoices, message.value().replace(b"order", b"invoice"))
        position = TopicPartition(orders, 0, read[-1].offset() + 1)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata())
        if crashes_after is not None and position.offset > crashes_after:
            producer.flush(10)
            consumer.close()  # otherwise the group would wait for the end of the session
            raise CrashError
        producer.commit_transaction()
        print(f"billed the orders before {position.offset}")
        is_done = position.offset == ORDERS
    consumer.close()


def read_invoices(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    """Returns everything in the topic that a consumer with this isolation level sees."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "auditor", "enable.partition.eof": True, "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    return found


def main(bootstrap: str) -> None:
    """Runs a billing program that crashes, then one that continues, and counts the invoices."""
    orders, invoices = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "invoices"))
    create_topics(bootstrap, orders, invoices)
    order(bootstrap, orders)
    try:
        bill(bootstrap, orders, invoices, crashes_after=50)
    except CrashError:
        print("the billing has crashed in the middle of a transaction")
    bill(bootstrap, orders, invoices)
    for isolation in ("read_uncommitted", "read_committed"):
        found = read_invoices(bootstrap, invoices, isolation)
        print(f"{isolation}: {len(found)} invoices, {len(set(found))} different ones")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
