"""The transactional sink: each record of a frame reaches its topic once, whatever is killed, and with all that it consists of."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CONFLUENT, Agent, Client
from compat_tests.harness.pipelines import START_MS, arrow_batch
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.transactional_sink import SinkInterrupted, SinkOptions, read_progress, read_runs, write
from wirekafka.pipelines.transactional_sink.delivery import Plan, SourcePartitionWriter, write_partitions
from wirekafka.pipelines.transactional_sink.topics import prepare_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-backfill")]

SCHEMA = (
    "source_topic string, source_partition int, source_offset bigint, topic string, partition int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, timestamp_ms bigint"
)
Agents = Callable[[Client], Agent]


def numbers(agent: Agents, broker: Broker, topic: str, count: int) -> list[int]:
    """Returns the values of the committed records, which are numbers, in the order of the log."""
    return [
        int(record.value or b"-1") for record in agent(CONFLUENT).read(broker.bootstrap, topic, count, isolation="read_committed")
    ]


@pytest.fixture
def sink(broker: Broker, topic: str) -> Callable[..., SinkOptions]:
    """Makes a sink with a name of its own into the shared broker; the target is the topic of the test unless others are given."""
    return lambda **options: SinkOptions(Cluster(broker.bootstrap), "test", topic, **{"targets": {topic: 2}, **options})


def plan(options: SinkOptions) -> Plan:
    return Plan(options, prepare_topics(options))


def test_records_that_are_written_have_all_that_the_rows_have(
    spark: SparkSession, agent: Agents, broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    headers = [("a", bytearray(b"1")), ("b", None), ("a", bytearray(b""))]
    rows = [
        ("s", 0, 5, topic, 1, bytearray(b"k"), bytearray(b"v"), headers, START_MS),
        ("s", 0, 6, topic, 1, bytearray(b""), None, [], START_MS + 1),
        ("s", 0, 9, topic, 1, None, bytearray(b""), None, 1),
    ]
    result = write(spark.createDataFrame(rows, SCHEMA), sink())
    assert (result.written, result.skipped) == (3, 0)
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 3)
    assert [(r.key, r.value, r.headers, r.timestamp_ms, r.partition) for r in found] == [
        (b"k", b"v", (("a", b"1"), ("b", None), ("a", b"")), START_MS, 1),
        (b"", None, (), START_MS + 1, 1),
        (None, b"", (), 1, 1),
    ]


def test_rows_without_a_partition_go_where_the_java_client_puts_their_keys(
    spark: SparkSession, agent: Agents, broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    from kafka.partitioner.default import murmur2

    rows = [("s", 0, n, topic, None, bytearray(b"key-%d" % n), None, None, START_MS) for n in range(60)]
    write(spark.createDataFrame(rows, SCHEMA), sink(targets={topic: 3}))
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 60)
    assert len(found) == 60
    assert all(record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 3 for record in found)


def test_frames_that_overlap_are_written_once_and_in_order(
    spark: SparkSession, agent: Agents, broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    options = sink(maps_offsets=True, chunk_records=1_500, targets={topic: 2, f"{topic}-b": 2})

    def frame(first: int, end: int) -> DataFrame:
        return spark.range(first, end).selectExpr(
            "IF(id % 4 < 2, 'a', 'b') AS source_topic",
            "CAST(id % 2 AS INT) AS source_partition",
            "id AS source_offset",
            f"IF(id % 4 < 2, '{topic}', '{topic}-b') AS topic",
            "CAST(id % 2 AS INT) AS partition",
            "CAST('k' AS BINARY) AS key",
            "CAST(CAST(id AS STRING) AS BINARY) AS value",
            "CAST(NULL AS ARRAY<STRUCT<key:STRING,value:BINARY>>) AS headers",
            f"{START_MS} AS timestamp_ms",
        )

    assert write(frame(0, 12_000), options).written == 12_000
    again = write(frame(6_000, 14_000), options)
    assert (again.written, again.skipped) == (2_000, 6_000)
    assert write(frame(0, 14_000), options).written == 0
    expected = {("a", 0): 13_997, ("a", 1): 13_998, ("b", 0): 13_999, ("b", 1): 14_000}
    assert read_progress(options) == expected

    mapped = {}
    for each in read_runs(options):
        for n in range(each.run.count):
            mapped[each.topic, each.partition, each.run.target_offset + n] = each.run.source_offset + n
    for target, residues in ((topic, (0, 1)), (f"{topic}-b", (2, 3))):
        found = agent(CONFLUENT).read(broker.bootstrap, target, 7_000, isolation="read_committed")
        for partition, residue in enumerate(residues):
            values = [int(r.value or b"") for r in found if r.partition == partition]
            assert values == list(range(residue, 14_000, 4))
        assert all(mapped.get((target, r.partition, r.offset)) == int(r.value or b"") for r in found)


@pytest.mark.parametrize("linger_ms", [20, 3000], ids=["records were sent", "records wait"])
def test_a_writer_that_was_replaced_cannot_commit(
    broker: Broker,
    agent: Agents,
    sink: Callable[..., SinkOptions],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    linger_ms: int,
) -> None:
    producer = confluent_kafka.Producer
    monkeypatch.setattr(confluent_kafka, "Producer", lambda settings: producer({**settings, "linger.ms": linger_ms}))
    made = plan(sink())
    zombie = SourcePartitionWriter(made, ("s", 0))
    zombie.write(arrow_batch(0, 10, topic))
    zombie.commit()
    zombie.write(arrow_batch(10, 10, topic))
    heir = SourcePartitionWriter(made, ("s", 0))
    with pytest.raises(SinkInterrupted):
        zombie.commit()
    zombie.close()
    heir.write(arrow_batch(0, 25, topic))
    heir.commit()
    assert (heir.written, heir.skipped) == (15, 10)
    heir.close()
    assert numbers(agent, broker, topic, 25) == list(range(25))


def test_a_client_that_loses_the_error_of_a_replaced_writer_is_asked_again(
    broker: Broker, sink: Callable[..., SinkOptions], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LosesErrors(confluent_kafka.Producer):
        def flush(self, *args: Any) -> int:
            try:
                return super().flush(*args)
            except (confluent_kafka.KafkaException, SystemError):
                raise SystemError("returned NULL without setting an exception") from None

    # The records wait for the flush, which then finds that the producer is fenced.
    monkeypatch.setattr(confluent_kafka, "Producer", lambda settings: LosesErrors({**settings, "linger.ms": 3000}))
    made = plan(sink())
    zombie = SourcePartitionWriter(made, ("s", 0))
    zombie.write(arrow_batch(0, 10, topic))
    heir = SourcePartitionWriter(made, ("s", 0))
    with pytest.raises(SinkInterrupted, match="FENCED|INVALID_PRODUCER_EPOCH"):
        zombie.commit()
    zombie.close()
    heir.close()


def test_progress_whose_group_offset_has_expired_is_read_from_the_topic(
    broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    from confluent_kafka.admin import AdminClient

    options = sink()
    list(write_partitions(plan(options), [arrow_batch(0, 10, topic), arrow_batch(0, 5, topic, source=("s", 1))]))
    group = options.identity("s", 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([group])[group].result(60)
    writer = SourcePartitionWriter(plan(options), ("s", 0))
    assert writer.next_offset == 10
    writer.close()


def test_a_source_topic_that_was_created_again_is_refused(sink: Callable[..., SinkOptions], topic: str) -> None:
    list(write_partitions(plan(sink(source_ids={"s": "first"})), [arrow_batch(0, 10, topic)]))
    with pytest.raises(PipelineError, match=r"10 offsets of partition 0 .* created again .*Use another name"):
        list(write_partitions(plan(sink(source_ids={"s": "second"})), [arrow_batch(0, 10, topic)]))


def test_a_sink_whose_progress_topic_was_deleted_begins_again(
    broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    from confluent_kafka.admin import AdminClient

    options = sink()
    list(write_partitions(plan(options), [arrow_batch(0, 10, topic)]))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([options.progress_topic])[options.progress_topic].result(60)
    wait_until(
        lambda: options.progress_topic not in admin.list_topics(timeout=60).topics, timeout_s=60, what="the topic was deleted"
    )
    writer = SourcePartitionWriter(plan(options), ("s", 0))
    assert writer.next_offset == 0
    writer.close()


def test_a_record_that_the_target_refuses_is_named(
    spark: SparkSession, broker: Broker, sink: Callable[..., SinkOptions], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 1, {"max.message.bytes": "20000"})
    rows = [("s", 3, n, topic, 0, None, bytearray(30_000 if n == 7 else 15_000), None, START_MS) for n in range(12)]
    with pytest.raises(PipelineError, match=r"s partition 3 offset 7 has 30000 bytes, and .* takes 20000.*max.message.bytes"):
        write(spark.createDataFrame(rows, SCHEMA), sink())
    assert read_progress(sink()) == {}
    kept = spark.createDataFrame([row for row in rows if row[2] != 7], SCHEMA)
    assert write(kept, sink()).written == 11


@pytest.mark.parametrize(
    ("targets", "partition", "text"),
    [({}, 0, "none of the sink's targets"), ({"missing": None}, 0, "does not exist"), ({"t": 2}, 2, "has no partition 2")],
)
def test_a_target_that_cannot_be_written_is_refused(
    sink: Callable[..., SinkOptions], topic: str, targets: dict[str, int | None], partition: int, text: str
) -> None:
    named = {topic if name == "t" else f"{topic}-{name}": count for name, count in targets.items()}
    with pytest.raises(PipelineError, match=text):
        list(write_partitions(plan(sink(targets=named)), [arrow_batch(0, 1, topic, source=("s", partition))]))


@pytest.mark.parametrize("seed", [1, 2])
def test_writers_and_a_broker_that_are_killed_at_random_write_each_record_once(
    make_broker: Callable[..., Broker], agent: Agents, topic: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    broker = make_broker(keeps_address=True)
    options = SinkOptions(Cluster(broker.bootstrap), "test", topic, {topic: 1}, maps_offsets=True, chunk_records=2_000)
    prepared, count, kills, is_complete = plan(options), 60_000, 0, False
    while not is_complete:
        # Spark runs a task that was interrupted again.
        with contextlib.suppress(SinkInterrupted):
            writer = SourcePartitionWriter(prepared, ("s", 0))
            end = count if kills == 2 else min(count, writer.next_offset + chance.randrange(3_000, 15_000))
            for first in range(max(0, writer.next_offset - 1_000), end, 1_000):
                writer.write(arrow_batch(first, 1_000, topic))
            if kills == 2:
                writer.commit()
                is_complete = True
            elif chance.random() < 0.5:
                broker.kill()
                broker.start()
                kills += 1
    assert numbers(agent, broker, topic, count) == list(range(count))
