"""A consumer group of three members shares six partitions. One member leaves, the others take over, and no record is lost.

Run: pip install confluent-kafka; python examples/group.py [HOST:PORT]
"""

from __future__ import annotations

import sys
import uuid

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
RECORDS = 600


def create_topic(bootstrap: str, topic: str) -> None:
    """Creates the topic with its partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(timeout=10)


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """Sends one record for each number, spread over the partitions by their keys."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, key=str(number), value=f"record {number}")
    producer.flush(10)


def join(bootstrap: str, topic: str, group: str) -> Consumer:
    """Returns a new member of the group. It commits its position every few seconds, and when it leaves."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    member = Consumer(settings | {"partition.assignment.strategy": "cooperative-sticky"})
    member.subscribe([topic])
    return member


def partitions_of(member: Consumer) -> list[int]:
    """Returns the partitions that are assigned to a member."""
    return sorted(place.partition for place in member.assignment())


def is_shared(members: dict[str, Consumer]) -> bool:
    """Returns whether every member has at least one partition, and every partition is assigned."""
    counts = [len(partitions_of(member)) for member in members.values()]
    return min(counts) > 0 and sum(counts) == PARTITIONS


def read(members: dict[str, Consumer], seen: set[bytes], count: int) -> None:
    """Lets the members read until they share the partitions and have seen `count` records; prints what each has read."""
    shares = dict.fromkeys(members, 0)
    while len(seen) < count or not is_shared(members):
        for name, member in members.items():
            records = [message.value() for message in member.consume(100, timeout=0.1) if message.error() is None]
            shares[name] += len(records)
            seen.update(records)
    for name, member in members.items():
        print(f"{name} read {shares[name]} records and has partitions {partitions_of(member)}")


def main(bootstrap: str) -> None:
    """Runs two rounds: with three members, then with two."""
    topic, group = f"work-{uuid.uuid4().hex[:8]}", f"workers-{uuid.uuid4().hex[:8]}"
    seen: set[bytes] = set()
    create_topic(bootstrap, topic)
    members = {name: join(bootstrap, topic, group) for name in ("ann", "ben", "cas")}
    read(members, seen, 0)
    produce(bootstrap, topic, range(RECORDS))
    read(members, seen, RECORDS)
    print("cas leaves")
    members.pop("cas").close()
    produce(bootstrap, topic, range(RECORDS, 2 * RECORDS))
    read(members, seen, 2 * RECORDS)
    print(f"{len(seen)} different records read by the group")
    for member in members.values():
        member.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
