"""Spark's Kafka source and sink, batch and streaming, with nothing configured but the bootstrap address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat_tests.harness.broker import VERSIONS_OF_2019, Broker
from compat_tests.harness.clients import CONFLUENT, Agent, Client, Member, Record
from compat_tests.harness.spark import Stream
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

Agents = Callable[[Client], Agent]

START_MS = 1_700_000_000_000


def numbered(partition: int, first: int, count: int) -> list[Record]:
    """Makes records whose values name their partition and offset, a second apart."""
    return [
        Record(f"k{n}".encode(), f"{partition}:{n}".encode(), (("n", str(n).encode()),), START_MS + n * 1000, partition)
        for n in range(first, first + count)
    ]


def values(frame: DataFrame) -> list[str]:
    """Returns the values of a frame read from Kafka, sorted."""
    return sorted(row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


def names(*places: tuple[int, range]) -> list[str]:
    """Returns the values of `numbered` records, sorted."""
    return sorted(f"{partition}:{n}" for partition, numbers in places for n in numbers)


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    """Reads a batch with these options of the source."""

    def load(**options: str) -> DataFrame:
        return spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).options(**options).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Callable[..., Stream]:
    """Reads a stream from the shared broker with these options of the source."""
    return lambda **options: Stream(spark, broker.bootstrap, tmp_path, **options)


def test_a_batch_has_every_column_of_the_records(
    broker: Broker, writer: Agent, read: Callable[..., DataFrame], topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    writer.produce(broker.bootstrap, topic, [*numbered(0, 0, 2), Record(b"tombstone", None, timestamp_ms=START_MS)], codec="zstd")
    rows = read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(bytes(row.key), row.value and bytes(row.value)) for row in rows] == [
        (b"k0", b"0:0"),
        (b"k1", b"0:1"),
        (b"tombstone", None),
    ]
    assert [(row.topic, row.partition, row.offset) for row in rows] == [(topic, 0, offset) for offset in range(3)]
    assert [row.timestampType for row in rows] == [0, 0, 0]
    assert rows[1].timestamp.timestamp() * 1000 == pytest.approx(START_MS + 1000)
    assert [(header.key, bytes(header.value)) for header in rows[1].headers] == [("n", b"1")]
    assert rows[2].headers is None


def test_a_batch_goes_from_the_earliest_to_the_latest_or_given_offsets(
    broker: Broker, writer: Agent, read: Callable[..., DataFrame], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50) + numbered(1, 0, 30))
    assert values(read(subscribe=topic)) == names((0, range(50)), (1, range(30)))
    assert values(read(subscribe=topic, startingOffsets="earliest", endingOffsets="latest")) == names(
        (0, range(50)), (1, range(30))
    )
    starting, ending = json.dumps({topic: {"0": 10, "1": -2}}), json.dumps({topic: {"0": 20, "1": -1}})
    given = read(subscribe=topic, startingOffsets=starting, endingOffsets=ending)
    assert values(given) == names((0, range(10, 20)), (1, range(30)))
    assigned = read(assign=json.dumps({topic: [1]}), startingOffsets=json.dumps({topic: {"1": 25}}))
    assert values(assigned) == names((1, range(25, 30)))


def test_a_batch_goes_from_one_time_to_another(broker: Broker, writer: Agent, read: Callable[..., DataFrame], topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50) + numbered(1, 0, 30))
    between = read(subscribe=topic, startingTimestamp=str(START_MS + 9_500), endingTimestamp=str(START_MS + 20_000))
    assert values(between) == names((0, range(10, 20)), (1, range(10, 20)))
    starting = json.dumps({topic: {"0": START_MS + 40_000, "1": START_MS + 28_000}})
    ending = json.dumps({topic: {"0": START_MS + 45_000, "1": START_MS + 10_000_000}})
    each = read(subscribe=topic, startingOffsetsByTimestamp=starting, endingOffsetsByTimestamp=ending)
    assert values(each) == names((0, range(40, 45)), (1, range(28, 30)))


def test_a_batch_begins_where_deleted_records_end(
    broker: Broker, writer: Agent, read: Callable[..., DataFrame], topic: str
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(broker.bootstrap, topic)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    place = TopicPartition(topic, 0, 33)
    assert admin.delete_records([place])[place].result(60).low_watermark == 33
    assert values(read(subscribe=topic)) == names((0, range(33, 50)))


def test_a_stream_takes_no_more_a_batch_than_it_is_told_and_goes_on_from_its_checkpoint(
    broker: Broker, writer: Agent, stream: Callable[..., Stream], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50) + numbered(1, 0, 50))
    query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert query.run_available() == [40, 40, 20]
    assert query.rows() == names((0, range(50)), (1, range(50)))
    assert query.run_available() == []
    writer.produce(broker.bootstrap, topic, numbered(0, 50, 30))
    assert query.run_available() == [30]
    assert query.rows() == names((0, range(80)), (1, range(50)))


def test_a_running_stream_sees_new_records_and_new_partitions(
    broker: Broker, writer: Agent, stream: Callable[..., Stream], topic: str
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    create_topic(broker.bootstrap, topic)
    running = stream(subscribe=topic, startingOffsets="earliest")
    query = running.start()
    try:
        writer.produce(broker.bootstrap, topic, numbered(0, 0, 1200))
        wait_until(lambda: running.rows() == names((0, range(1200))), timeout_s=60, what="the records are read", poll_s=0.3)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        writer.produce(broker.bootstrap, topic, numbered(1, 0, 20))
        expected = names((0, range(1200)), (1, range(20)))
        wait_until(lambda: running.rows() == expected, timeout_s=60, what="the new partition is read", poll_s=0.3)
        assert query.exception() is None
    finally:
        query.stop()


def test_a_pattern_finds_topics_but_no_internal_ones(
    broker: Broker, writer: Agent, join: Callable[..., Member], stream: Callable[..., Stream], topic: str
) -> None:
    for index in range(2):
        create_topic(broker.bootstrap, f"{topic}-{index}")
        writer.produce(broker.bootstrap, f"{topic}-{index}", numbered(index, 0, 10) if index == 0 else numbered(0, 10, 10))
    member = join(CONFLUENT, topic, f"{topic}-0", limit=10, max_poll=10)
    member.wait_until_left(40)
    assert list(broker.data_dir.glob("__consumer_offsets-*")), "the internal topic is there"
    query = stream(subscribePattern=f"__.*|{topic}-.*", startingOffsets="earliest")
    query.run_available()
    assert query.rows() == names((0, range(20)))


def test_a_stream_of_assigned_partitions_reads_these_alone(
    broker: Broker, writer: Agent, stream: Callable[..., Stream], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 3)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 10) + numbered(1, 0, 10) + numbered(2, 0, 10))
    query = stream(assign=json.dumps({topic: [0, 2]}), startingOffsets=json.dumps({topic: {"0": 5, "2": -2}}))
    query.run_available()
    assert query.rows() == names((0, range(5, 10)), (2, range(10)))


def test_a_stream_begins_at_a_time(broker: Broker, writer: Agent, stream: Callable[..., Stream], topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50))
    query = stream(subscribe=topic, startingTimestamp=str(START_MS + 44_001))
    query.run_available()
    assert query.rows() == names((0, range(45, 50)))


def test_a_batch_is_written_to_kafka(spark: SparkSession, broker: Broker, agent: Agents, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    frame = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS key",
        "CASE WHEN id % 10 = 0 THEN NULL ELSE CONCAT('v', id) END AS value",
        "CAST(id % 2 AS INT) AS partition",
        "ARRAY(NAMED_STRUCT('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("topic", topic).option("includeHeaders", "true").save()
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 100)
    assert sorted((int(r.key or 0), r.value, r.partition, r.headers) for r in found) == [
        (n, None if n % 10 == 0 else b"v%d" % n, n % 2, (("n", b"%d" % n),)) for n in range(100)
    ]


def test_committed_rows_are_read_and_aborted_ones_are_not(
    broker: Broker, agent: Agents, read: Callable[..., DataFrame], stream: Callable[..., Stream], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    producer = agent(CONFLUENT).open_transactions(broker.bootstrap, topic)
    for number in range(6):
        is_commit = number % 3 != 1
        producer.begin()
        for partition in range(2):
            word = "committed" if is_commit else "aborted"
            producer.send(topic, *(f"{word} {partition} {number} {n}" for n in range(5)), partition=partition)
        producer.flush()
        (producer.commit if is_commit else producer.abort)()
    committed = sorted(
        f"committed {partition} {number} {n}" for partition in range(2) for number in (0, 2, 3, 5) for n in range(5)
    )
    aborted = sorted(f"aborted {partition} {number} {n}" for partition in range(2) for number in (1, 4) for n in range(5))
    isolation = {"kafka.isolation.level": "read_committed"}
    assert values(read(subscribe=topic, **isolation)) == committed
    assert values(read(subscribe=topic)) == aborted + committed
    query = stream(subscribe=topic, startingOffsets="earliest", **isolation)
    query.run_available()
    assert query.rows() == committed

    producer.begin()
    producer.send(topic, "open", partition=0)
    producer.flush()
    assert values(read(subscribe=topic, **isolation)) == committed, "and nothing of a transaction that is open"
    query.run_available()
    assert query.rows() == committed
    producer.commit()
    query.run_available()
    assert query.rows() == [*committed, "open"]
    producer.close()


def copy_stream(spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: Path) -> None:
    """Reads one topic and writes its records to another, through Structured Streaming."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    changed = records.selectExpr("key", "CAST(CONCAT('seen ', CAST(value AS STRING)) AS BINARY) AS value")
    writer = changed.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90), "the stream did not end"
        assert query.exception() is None
    finally:
        query.stop()


def test_a_stream_is_written_to_kafka(
    spark: SparkSession, broker: Broker, writer: Agent, agent: Agents, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-copy"
    for name in (topic, target):
        create_topic(broker.bootstrap, name)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 100))
    copy_stream(spark, broker.bootstrap, topic, target, tmp_path / "checkpoint")
    writer.produce(broker.bootstrap, topic, numbered(0, 100, 50))
    copy_stream(spark, broker.bootstrap, topic, target, tmp_path / "checkpoint")
    found = agent(CONFLUENT).read(broker.bootstrap, target, 150)
    assert sorted((r.key, r.value) for r in found) == sorted((b"k%d" % n, b"seen 0:%d" % n) for n in range(150))


@pytest.mark.wirekafka_only("hides the newer versions of its APIs")
def test_spark_works_without_the_newer_versions_of_the_apis(
    spark: SparkSession, make_broker: Callable[..., Broker], writer: Agent, agent: Agents, topic: str, tmp_path: Path
) -> None:
    broker = make_broker({"wirekafka.api.versions.max": VERSIONS_OF_2019})
    target = f"{topic}-copy"
    create_topic(broker.bootstrap, topic, 2)
    create_topic(broker.bootstrap, target)
    writer.produce(broker.bootstrap, topic, numbered(0, 0, 50) + numbered(1, 0, 30))
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    assert values(frame.load()) == names((0, range(50)), (1, range(30)))
    assert values(frame.option("startingTimestamp", str(START_MS + 25_000)).load()) == names(
        (0, range(25, 50)), (1, range(25, 30))
    )
    query = Stream(
        spark, broker.bootstrap, tmp_path, subscribePattern=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    assert query.run_available() == [40, 40]
    assert query.rows() == names((0, range(50)), (1, range(30)))
    copy_stream(spark, broker.bootstrap, topic, target, tmp_path / "copy-checkpoint")
    assert len(agent(CONFLUENT).read(broker.bootstrap, target, 80)) == 80
