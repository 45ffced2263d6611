"""Faults of what a broker stands on: its metadata, its disk, its coordinators. After each, the data directory is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from wirekafka.inspection.verification import verify
from wirekafka.testing import EmbeddedBroker

CONSUMER = {"group.id": "readers", "auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(storage="memory", offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1) as running:
        yield running


@pytest.fixture
def broker(shared: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    shared.reset()
    shared.create_topic("orders")
    yield shared
    snapshot = shared.snapshot()
    assert [*verify(snapshot.path, advance=lambda count: None, reads_records=True).damages()] == []
    snapshot.close()


def producer_of(broker: EmbeddedBroker, **settings: Any) -> Producer:
    base = {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "retry.backoff.ms": 20, "reconnect.backoff.ms": 20}
    return Producer(base | settings)


def write(producer: Producer, value: bytes) -> str | None:
    """Returns the name of the error, after the record was acknowledged or given up."""
    results: list[str | None] = []
    producer.produce(
        "orders", value, partition=0, on_delivery=lambda error, _: results.append(None if error is None else error.name())
    )
    assert producer.flush(60) == 0
    return results[0]


def values(broker: EmbeddedBroker) -> list[bytes | None]:
    return [each.value for each in broker.records("orders")]


def topics_of(broker: EmbeddedBroker) -> dict[str, int]:
    """Returns the number of partitions of each topic, as a new client sees them."""
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_stale_metadata_lacks_what_has_come_since(broker: EmbeddedBroker) -> None:
    with broker.fault(stale_metadata=True) as fault:
        broker.create_topic("later")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(30)
        assert topics_of(broker) == {"orders": 1}
        later = admin.list_topics("later", timeout=30).topics["later"]
        assert later.error is not None and later.error.name() == "UNKNOWN_TOPIC_OR_PART"
    assert {hit.api for hit in fault.hits} == {"Metadata"}
    assert topics_of(broker) == {"orders": 3, "later": 1}


def test_stale_metadata_of_one_topic_leaves_the_others_as_they_are(broker: EmbeddedBroker) -> None:
    broker.create_topic("others")
    with broker.fault(api="Metadata", topic="orders", stale_metadata=True):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for name in ("orders", "others"):
            admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
            assert len(admin.list_topics(name, timeout=30).topics[name].partitions) == (1 if name == "orders" else 2)


def test_full_disk_refuses_records_until_there_is_room(broker: EmbeddedBroker) -> None:
    producer = producer_of(broker, **{"enable.idempotence": True})
    assert write(producer, b"before") is None
    with broker.fault(api="Produce", full_disk=True, times=2) as fault:
        assert write(producer, b"tried again") is None
    assert len(fault.hits) == 2
    assert values(broker) == [b"before", b"tried again"]


def test_full_disk_refuses_topics_and_commits(broker: EmbeddedBroker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    with broker.fault(full_disk=True):
        with pytest.raises(KafkaException, match="KAFKA_STORAGE_ERROR"):
            create_topic(broker, "others")
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    create_topic(broker, "others")
    consumer.close()
    assert broker.group("readers").committed == {("orders", 0): 1}


def create_topic(broker: EmbeddedBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


def test_late_reply_comes_after_the_record_is_in_the_log(broker: EmbeddedBroker) -> None:
    producer = producer_of(broker)
    results: list[Any] = []
    with broker.fault(api="Produce", reply_delay_s=600, times=1):
        producer.produce("orders", b"one", on_delivery=lambda error, _: results.append(error))
        producer.poll(0)
        assert len(broker.wait_for_records("orders", 1, timeout_s=30)) == 1
        assert topics_of(broker) == {"orders": 1}, "other connections are served"
        assert results == []
    producer.purge()


def test_late_reply_is_sent_when_the_time_has_come(broker: EmbeddedBroker) -> None:
    with broker.fault(api="Produce", reply_delay_s=0.05, times=1) as fault:
        assert write(producer_of(broker), b"one") is None
    assert len(fault.hits) == 1


@pytest.mark.parametrize("move", ["moving", "loading"])
def test_consumer_waits_for_a_coordinator_that_moves(broker: EmbeddedBroker, move: str) -> None:
    assert write(producer_of(broker), b"one") is None
    with broker.fault(group="readers", coordinator=move, times=2) as fault:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, **CONSUMER})
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
    assert message is not None and message.value() == b"one"
    assert len(fault.hits) == 2
    assert ("FindCoordinator" in {hit.api for hit in fault.hits}) == (move == "moving")
    consumer.close()


def test_coordinator_that_moves_is_no_fault_of_a_producer_without_transactions(broker: EmbeddedBroker) -> None:
    with broker.fault(coordinator="moving") as fault:
        assert write(producer_of(broker, **{"enable.idempotence": True}), b"one") is None
    assert fault.hits == []


def test_fenced_producer_learns_it_at_the_end_of_its_transaction(broker: EmbeddedBroker) -> None:
    producer = producer_of(broker, **{"transactional.id": "writer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    assert write(producer, b"one") is None
    with broker.fault(api="EndTxn", error="INVALID_PRODUCER_EPOCH"), pytest.raises(KafkaException) as caught:
        producer.commit_transaction(30)
    assert caught.value.args[0].name() in ("_FENCED", "INVALID_PRODUCER_EPOCH")
    assert not broker.records("orders")[0].is_committed


def test_consumer_whose_offset_is_out_of_range_begins_where_its_policy_says(broker: EmbeddedBroker) -> None:
    producer, read = producer_of(broker), []
    for value in (b"one", b"two"):
        assert write(producer, value) is None
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **CONSUMER})
    consumer.assign([TopicPartition("orders", 0, 1)])
    with broker.fault(api="Fetch", topic="orders", error="OFFSET_OUT_OF_RANGE", times=1) as fault:
        for _ in range(2):
            message = consumer.poll(60)
            assert message is not None
            read.append(message.value())
    consumer.close()
    assert (read, len(fault.hits)) == ([b"one", b"two"], 1)


def test_consumer_with_a_fenced_leader_epoch_reads_on(broker: EmbeddedBroker) -> None:
    assert write(producer_of(broker), b"one") is None
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **CONSUMER})
    consumer.assign([TopicPartition("orders", 0, 0)])
    with broker.fault(api="Fetch", topic="orders", error="FENCED_LEADER_EPOCH", times=1) as fault:
        message = consumer.poll(60)
    consumer.close()
    assert message is not None and message.value() == b"one"
    assert len(fault.hits) == 1
