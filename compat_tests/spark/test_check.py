"""`check` proves a lake that has each record once, says why offsets are missing, and finds planted losses and duplicates."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from confluent_kafka import Producer, TopicPartition

from compat_tests.harness.broker import CLASSES, Broker, running
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.log.checkpoint import CLEANER_OFFSETS, read_offsets
from wirekafka.names import TopicPartition as Partition
from wirekafka.pipelines.check import run
from wirekafka.pipelines.check.options import CheckOptions
from wirekafka.pipelines.check.report import CheckReport, PartitionReport
from wirekafka.pipelines.check.run import describe, run_check
from wirekafka.pipelines.check.sources import Segments, Spans
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.batches import BatchWriter
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.ingest.query import start_ingest
from wirekafka.pipelines.kafka import Cluster, TopicSelection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-lake"),
    pytest.mark.timeout(300),
]

SETTINGS = {"log.cleaner.backoff.ms": "50", "transaction.state.log.num.partitions": "1"}
COMPACTED = {
    "segment.bytes": str(1 << 20),
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0001",
    "min.compaction.lag.ms": "0",
}
COMPACTED_COUNT, KEYS = 800, 10

Check = Callable[..., CheckReport]


def transaction(producer: Producer, topic: str, values: list[bytes], *, aborts: bool = False) -> None:
    """Writes a transaction to partition 0, which has an offset for each value and one for the marker."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if aborts:
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)


def fill(broker: Broker) -> None:
    """Fills `orders`, whose partition 0 has transactions and a value that is no JSON, `short`, `kept` and `compacted`."""
    create_topic(broker.bootstrap, "orders", 2)
    create_topic(broker.bootstrap, "short")
    create_topic(broker.bootstrap, "kept", 1)
    create_topic(broker.bootstrap, "compacted", 1, COMPACTED)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        plain.produce("orders", b'{"id": %d}' % number, partition=1)
        plain.produce("kept", b'{"id": %d}' % number)
    for number in range(COMPACTED_COUNT):
        plain.produce("compacted", b"%d " % number + bytes(3000), key=b"%d" % (number % KEYS))
    assert plain.flush(30) == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "check"})
    producer.init_transactions(30)
    rows = [b'{"id": %d}' % number for number in range(5)]
    transaction(producer, "orders", rows)
    transaction(producer, "orders", rows[:3], aborts=True)
    transaction(producer, "orders", [*rows[:2], b"no JSON", *rows[:2]])
    for _ in range(2):
        transaction(producer, "short", rows[:3])
    wait_until(lambda: clean_offset(broker) > COMPACTED_COUNT // 4, timeout_s=60, what="the topic is compacted")


def clean_offset(broker: Broker) -> int:
    path = broker.data_dir / CLEANER_OFFSETS
    offsets = read_offsets(path.read_bytes()) if path.exists() else {}
    return offsets.get(Partition("compacted", 0), 0)


@pytest.fixture(scope="module")
def filled(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Returns a broker whose topics are filled."""
    with running(CLASSES[broker_kind](tmp_path_factory.mktemp("check"), SETTINGS)) as broker:
        fill(broker)
        yield broker


def ingest(spark: SparkSession, broker: Broker, lake: Path, topic: str, **options: Any) -> Path:
    settings = IngestOptions(Cluster(broker.bootstrap), str(lake), TopicSelection((topic,)), once=True, **options)
    query = start_ingest(spark, settings)
    try:
        assert query.awaitTermination(240), "the ingest did not end"
    finally:
        query.stop()
    return lake


@pytest.fixture(scope="module")
def orders(spark: SparkSession, filled: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a Parquet lake of decoded records; tests change copies of it."""
    return ingest(spark, filled, tmp_path_factory.mktemp("orders") / "lake", "orders", record_format="json")


@pytest.fixture
def copy(orders: Path, tmp_path: Path) -> Path:
    """Returns a copy of the lake that the test may damage."""
    return Path(shutil.copytree(orders, tmp_path / "copy"))


@pytest.fixture
def asked(spark: SparkSession, filled: Broker) -> Check:
    """Checks a lake by asking the broker."""
    return lambda lake, **options: run_check(spark, CheckOptions(str(lake), Cluster(filled.bootstrap), **options))


@pytest.fixture
def read(spark: SparkSession, filled: Broker) -> Check:
    """Checks a lake by reading the broker's files."""
    return lambda lake, **options: run_check(spark, CheckOptions(str(lake), data_dirs=(filled.data_dir,), **options))


def remove(lake: Path, offset: int, partition: int = 0) -> None:
    """Removes a record from a Parquet lake."""
    for path in lake.glob("topic=*/date=*/part-*.parquet"):
        table = pyarrow.parquet.ParquetFile(path).read()
        kept = [row["offset"] != offset or row["partition"] != partition for row in table.to_pylist()]
        if not all(kept):
            pyarrow.parquet.write_table(table.filter(pyarrow.array(kept)), path)
            return
    raise AssertionError(f"{lake} has no record {offset} in the partition {partition}")


class CountedSegments(Segments):
    """Segment files that count how many records are read from them."""

    count: Any

    def records(self, spans: Spans) -> DataFrame:
        records, count = super().records(spans), self.count

        def counted(row: Any) -> Any:
            count.add(1)
            return row

        return records.sparkSession.createDataFrame(records.rdd.map(counted), records.schema)


def test_a_check_of_files_reads_each_record_of_them_once(
    read: Check, filled: Broker, orders: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    CountedSegments.count = spark.sparkContext.accumulator(0)
    monkeypatch.setattr(run, "Segments", CountedSegments)
    data_source = spark.read.format("wirekafka-log").option("topic", "orders")

    report = read(orders)

    assert report.is_proven
    assert CountedSegments.count.value == data_source.load(str(filled.data_dir)).count()


def test_check_with_a_broker_proves_a_lake_and_counts_dead_letters(asked: Check, orders: Path) -> None:
    report = asked(orders)
    first, second = report.partitions
    assert first == PartitionReport("orders", 0, 0, 16, row_count=9, dead_letter_count=1, unread_count=6)
    assert second == PartitionReport("orders", 1, 0, 10, row_count=10)
    assert report.is_proven


def test_check_proves_a_compacted_lake_whose_path_has_characters_of_patterns(
    spark: SparkSession, filled: Broker, asked: Check, tmp_path: Path
) -> None:
    options = {"max_offsets_per_batch": 4, "compact_every": 2}
    report = asked(ingest(spark, filled, tmp_path / "a [1] {b,c} *?", "kept", **options))
    assert [each.row_count for each in report.partitions] == [10]
    assert report.is_proven


def test_check_with_segment_files_tells_control_and_aborted_records_apart(read: Check, orders: Path) -> None:
    report = read(orders)
    expected = PartitionReport("orders", 0, 0, 16, row_count=9, dead_letter_count=1, control_count=3, aborted_count=3)
    assert report.partitions[0] == expected
    assert report.is_proven


def test_check_without_a_broker_does_not_prove_missing_offsets(spark: SparkSession, orders: Path) -> None:
    report = run_check(spark, CheckOptions(str(orders)))
    assert [each.unexplained_count for each in report.partitions] == [7, 0]
    assert list(report.problems()) == ["orders 0: 7 offsets missing; --bootstrap or --data-dir tells whether records are lost"]


def test_lost_records_are_named_at_the_beginning_in_the_middle_and_at_the_end(asked: Check, read: Check, copy: Path) -> None:
    for partition, offset in ((0, 0), (0, 13), (1, 9)):
        remove(copy, offset, partition)
    for report in (asked(copy), read(copy)):
        assert list(report.problems()) == ["orders 0: 2 records lost: 0, 13", "orders 1: 1 record lost: 9"]


def test_lost_table_is_named(asked: Check, copy: Path) -> None:
    shutil.rmtree(copy / "topic=orders")
    assert [(each.lost.count, list(each.lost.first)) for each in asked(copy).partitions] == [
        (9, [0, 1, 2, 3, 4, 10, 11, 13, 14]),
        (10, list(range(10))),
    ]


def test_doubled_record_is_named(asked: Check, spark: SparkSession, copy: Path) -> None:
    path = next(path for path in copy.glob("topic=*/date=*/part-*.parquet"))
    (offset, *_), (partition, *_) = pyarrow.parquet.ParquetFile(path).read(["offset", "partition"]).columns
    table = pyarrow.parquet.ParquetFile(path).read().slice(0, 1)
    pyarrow.parquet.write_table(table, path.with_name("part-planted.parquet"))
    expected = f"orders {partition}: 1 record more than once in the lake and the dead letters: {offset}"
    assert list(asked(copy).problems()) == [expected]
    assert expected in run_check(spark, CheckOptions(str(copy))).problems()


def test_dead_letter_that_is_in_the_lake_too_is_named(asked: Check, copy: Path) -> None:
    path = next(path for path in copy.glob("topic=*/date=*/part-*.parquet"))
    table = pyarrow.parquet.ParquetFile(path).read().slice(0, 1)
    for name, value in (("offset", 12), ("partition", 0)):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(name), pyarrow.array([value], table.schema.field(name).type))
    pyarrow.parquet.write_table(table, path.with_name("part-planted.parquet"))
    expected = "orders 0: 1 record more than once in the lake and the dead letters: 12"
    assert list(asked(copy).problems()) == [expected]


def test_delta_lake_is_proven_until_records_are_lost_and_doubled(
    spark: SparkSession, filled: Broker, asked: Check, tmp_path: Path
) -> None:
    lake = ingest(spark, filled, tmp_path / "lake", "orders", sink="delta")
    report = asked(lake)
    assert report.is_proven and [each.row_count for each in report.partitions] == [10, 10]
    table = f"{lake}/topic=orders"
    spark.sql(f"DELETE FROM delta.`{table}` WHERE partition = 1 AND offset = 3")
    again = spark.read.format("delta").load(table).where("partition = 0 AND offset = 4").collect()
    schema = spark.read.format("delta").load(table).schema
    spark.createDataFrame(again, schema).write.format("delta").mode("append").save(table)
    assert list(asked(lake).problems()) == [
        "orders 0: 1 record more than once in the lake and the dead letters: 4",
        "orders 1: 1 record lost: 3",
    ]


def test_records_that_compaction_removed_are_explained(
    spark: SparkSession, filled: Broker, asked: Check, read: Check, tmp_path: Path
) -> None:
    lake = ingest(spark, filled, tmp_path / "lake", "compacted")
    (by_broker,), (by_files,) = asked(lake).partitions, read(lake).partitions
    missing = COMPACTED_COUNT - by_broker.row_count
    assert missing > 0
    assert by_broker == PartitionReport("compacted", 0, 0, COMPACTED_COUNT, row_count=by_broker.row_count, unread_count=missing)
    assert by_files == PartitionReport("compacted", 0, 0, COMPACTED_COUNT, row_count=by_broker.row_count, compacted_count=missing)


def test_missing_offsets_before_the_log_start_are_proven_only_if_they_are_accepted(
    spark: SparkSession, filled: Broker, asked: Check, read: Check, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient

    lake = ingest(spark, filled, tmp_path / "lake", "short")
    assert asked(lake).is_proven
    admin = AdminClient({"bootstrap.servers": filled.bootstrap})
    for future in admin.delete_records([TopicPartition("short", 0, 5)]).values():
        future.result(60)
    (partition,) = asked(lake).partitions
    assert partition == PartitionReport("short", 0, 0, 8, row_count=6, deleted_count=1, unread_count=1)
    assert not asked(lake).is_proven
    assert asked(lake, accept_deleted=True).is_proven
    (partition,) = read(lake, accept_deleted=True).partitions
    assert (partition.deleted_count, partition.control_count) == (1, 1)


def test_check_beside_an_ingest_covers_the_batches_that_are_finished(
    spark: SparkSession, filled: Broker, asked: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    write_dead_letters = BatchWriter._write_dead_letters

    def check_before_the_dead_letters(*arguments: Any) -> None:
        reports.append(asked(tmp_path / "lake"))
        write_dead_letters(*arguments)

    monkeypatch.setattr(BatchWriter, "_write_dead_letters", check_before_the_dead_letters)
    ingest(spark, filled, tmp_path / "lake", "orders", record_format="json", max_offsets_per_batch=14)
    counts = [[(each.row_count, each.later_count) for each in report.partitions] for report in reports]
    assert counts == [[(0, 5), (0, 5)], [(5, 4), (5, 5)]], "the rows of the running batch are not covered"
    assert [list(report.problems()) for report in reports] == [[], []]
    assert asked(tmp_path / "lake").is_proven


@pytest.mark.parametrize("act", [run_check, describe])
def test_brokers_and_directories_of_something_else_are_refused(
    spark: SparkSession, broker: Broker, orders: Path, tmp_path: Path, act: Callable[[SparkSession, CheckOptions], object]
) -> None:
    with pytest.raises(PipelineError, match="is no lake"):
        act(spark, CheckOptions(str(tmp_path / "nowhere")))
    with pytest.raises(PipelineError, match="and the records of the lake .* came from"):
        act(spark, CheckOptions(str(orders), Cluster(broker.bootstrap)))
    with pytest.raises(PipelineError, match="is no data directory of a broker"):
        act(spark, CheckOptions(str(orders), data_dirs=(tmp_path,)))
    with pytest.raises(PipelineError, match="the topic orders of the lake is not in"):
        act(spark, CheckOptions(str(orders), data_dirs=(broker.data_dir,)))
