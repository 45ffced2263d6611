"""The data source `wirekafka-log` in Spark returns what a consumer returns, from directories of wirekafka and of Apache Kafka."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import wirekafka.pipelines
from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker, running
from compat_tests.harness.clients import NONE, Agent, Client
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.test_kafka_reads_our_files import (
    SETTINGS,
    START_MS,
    TOPICS,
    Found,
    compact,
    fill,
    fill_transactions,
    read_all,
)
from wirekafka.log.checkpoint import CLEANER_OFFSETS, read_offsets
from wirekafka.names import TopicPartition
from wirekafka.wire.batch import CRC_OFFSET, Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-log-source"),
    pytest.mark.wirekafka_only("the brokers are part of the test"),
    pytest.mark.timeout(300),
]

Agents = Callable[[Client], Agent]
Load = Callable[..., "DataFrame"]

OLD_CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
UPDATES = slice(0, 70)


@pytest.fixture(scope="module")
def load(spark: SparkSession) -> Load:
    """Reads a data directory with options of the data source."""
    wirekafka.pipelines.register(spark)
    return lambda path, **options: spark.read.format("wirekafka-log").options(**options).load(str(path))


def found_in(frame: DataFrame) -> list[Found]:
    """Returns the rows of a data directory, without control records, as a consumer receives records."""
    rows = (
        frame.where("NOT is_control")
        .selectExpr(
            "partition",
            "offset",
            "COALESCE(timestamp_type = 'LogAppendTime', false) AS is_append_time",
            "UNIX_MILLIS(timestamp) AS timestamp_ms",
            "key",
            "value",
            "headers",
        )
        .collect()
    )
    found = [
        Found(
            row.partition,
            row.offset,
            row.is_append_time,
            row.timestamp_ms,
            _bytes(row.key),
            _bytes(row.value),
            tuple((name, _bytes(value)) for name, value in row.headers or ()),
        )
        for row in rows
    ]
    return sorted(found, key=lambda record: record[:2])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


@dataclass
class Filled:
    """A broker that has written every kind of record, and what a consumer has read from it while it ran.

    Attributes:
        records: by topic; `committed` under this name are those that a read_committed consumer gets of `transactions`.
    """

    broker: Broker
    records: Mapping[str, list[Found]]


@pytest.fixture(scope="module", params=[WIREKAFKA, jars.KAFKA, jars.OLDER_KAFKA])
def filled(request: pytest.FixtureRequest, agent: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    broker = CLASSES[request.param](tmp_path_factory.mktemp(request.param), SETTINGS)
    with running(broker):
        for name, configs in TOPICS.items():
            create_topic(broker.bootstrap, f"all-{name}", 5 if name == "codecs" else 1, configs)
        fill(broker, "all", agent)
        compact(broker, "all", UPDATES)
        fill_transactions(broker, "all-transactions")
        records = {name: read_all(broker, f"all-{name}") for name in TOPICS}
        records["committed"] = read_all(broker, "all-transactions", "read_committed")
        yield Filled(broker, records)


@pytest.mark.parametrize("name", [*TOPICS, "committed"])
def test_rows_beside_a_broker_equal_the_records_of_a_consumer(filled: Filled, load: Load, name: str) -> None:
    assert filled.records[name], "the consumer has read something"
    check_rows(filled, load, name)


def check_rows(filled: Filled, load: Load, name: str) -> None:
    options = {"topic": "all-transactions", "isolation": "committed"} if name == "committed" else {"topic": f"all-{name}"}
    assert found_in(load(filled.broker.data_dir, splitBytes="300000", **options)) == filled.records[name]


def test_rows_of_every_codec_name_the_codec(filled: Filled, load: Load) -> None:
    frame = load(filled.broker.data_dir, topic="all-codecs")

    found = {(row.partition, row.compression) for row in frame.select("partition", "compression").distinct().collect()}

    # librdkafka does not compress a batch that compression would not make smaller.
    names = [codec.name.lower() for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)]
    assert found - {(partition, NONE) for partition in range(5)} == {
        *((partition, name) for partition, name in enumerate(names) if name != NONE),
        (4, "zstd"),
    }


def test_control_rows_are_the_markers_of_the_transactions(filled: Filled, load: Load) -> None:
    rows = load(filled.broker.data_dir, topic="all-transactions").where("is_control").orderBy("offset").collect()

    kinds = [struct.unpack(">hh", row.key)[1] for row in rows]
    transactions = 40
    assert len(kinds) == transactions + 2
    assert kinds.count(0) == len([turn for turn in range(transactions) if turn % 3 == 0]) + 1
    assert all(row.is_transactional and row.producer_id is not None and row.sequence is None for row in rows)


def test_rows_of_a_stopped_broker_equal_the_records_of_a_consumer(filled: Filled, load: Load) -> None:
    if filled.broker.is_running():
        filled.broker.terminate()

    for name in filled.records:
        check_rows(filled, load, name)


@pytest.mark.parametrize("magic", [0, 1])
def test_rows_of_old_message_formats_equal_the_records_of_a_consumer(
    make_broker: Callable[..., Broker], load: Load, topic: str, magic: int
) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic, len(OLD_CODECS))
    broker.terminate()
    for partition, compression in enumerate(OLD_CODECS):
        records = [Record(b"k%d" % n if n % 3 else None, b"v" * n if n % 5 else None, timestamp=START_MS + n) for n in range(60)]
        old = down_convert(build_batch(records[:40], compression=compression), magic, 0)
        new = bytes(build_batch(records[40:], base_offset=40, compression=compression))
        (path,) = (broker.data_dir / f"{topic}-{partition}").glob("*.log")
        path.write_bytes(old + new)
    broker.start()
    expected = read_all(broker, topic)

    rows = found_in(load(broker.data_dir, topic=topic))

    assert len(rows) == 60 * len(OLD_CODECS)
    if magic == 0:
        assert all(row.timestamp_ms is None for row in rows if row.offset < 40)
        rows, expected = ([record._replace(timestamp_ms=0) for record in records] for records in (rows, expected))
    assert rows == expected


@pytest.mark.parametrize("kind", [WIREKAFKA, jars.KAFKA])
def test_rows_before_a_torn_tail_equal_the_records_of_a_consumer(load: Load, topic: str, tmp_path: Path, kind: str) -> None:
    broker = CLASSES[kind](tmp_path / kind, SETTINGS)
    broker.directory.mkdir()
    with running(broker):
        create_topic(broker.bootstrap, topic)
        produce(broker, topic, range(500))
        broker.kill()
        path = max((broker.data_dir / f"{topic}-0").glob("*.log"))
        batch = bytes(build_batch([Record(value=b"torn")] * 9, base_offset=500))
        path.write_bytes(path.read_bytes() + batch[:-7])

        torn = found_in(load(broker.data_dir, topic=topic))
        broker.start()

        assert [record.offset for record in torn] == list(range(500))
        assert torn == read_all(broker, topic) == found_in(load(broker.data_dir, topic=topic))


def produce(broker: Broker, topic: str, numbers: range, size: int = 100) -> None:
    """Writes records that name their numbers, and waits for all."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "batch.num.messages": 50})
    for number in numbers:
        producer.produce(topic, b"%d " % number + bytes(size), b"%d" % (number % 50), partition=0, timestamp=START_MS + number)
    assert producer.flush(30) == 0


# Beside a broker that writes, rolls and compacts


LIVE_TOPICS = {
    "kept": {"segment.bytes": str(1 << 20), "index.interval.bytes": "512"},
    "compacted": {
        "segment.bytes": str(1 << 20),
        "index.interval.bytes": "512",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0001",
        "min.compaction.lag.ms": "0",
    },
    "transacted": {"segment.bytes": str(1 << 20), "index.interval.bytes": "512"},
}
LIVE_BATCH, LIVE_BYTES, KEYS = 20, 3000, 30
READS = 4
PAUSE_S = 0.1
"""Between two batches, so that a segment is rolled every second or two and not many times during each read. It is doubled after
each read that compaction has overtaken, because a read takes much longer on a busy machine."""


class Writer:
    """Writes to all topics until it is stopped, and says what was acknowledged.

    A record's key is its number modulo `KEYS`, and its value begins with the number. In `kept` and `compacted` the number is the
    offset too. In `transacted` each batch is a transaction, of which every third is aborted.

    Attributes:
        acknowledged: the first number that was not acknowledged yet.
        pause_s: the pause between two batches.
    """

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self.pause_s = PAUSE_S
        self.is_over = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True, "log_level": 0}
        self.plain = Producer(settings)
        self.transactional = Producer({**settings, "transactional.id": "live"})
        self.transactional.init_transactions(30)

    def run(self) -> None:
        """Writes batch after batch."""
        while not self.is_over.is_set():
            numbers = range(self.acknowledged, self.acknowledged + LIVE_BATCH)
            self.transactional.begin_transaction()
            for number in numbers:
                record = {"value": b"%d " % number + bytes(LIVE_BYTES), "key": b"%d" % (number % KEYS)}
                self.plain.produce("kept", **record)
                self.plain.produce("compacted", **record)
                self.transactional.produce("transacted", **record)
            assert self.plain.flush(30) == self.transactional.flush(30) == 0
            if self.acknowledged // LIVE_BATCH % 3:
                self.transactional.commit_transaction(30)
            else:
                self.transactional.abort_transaction(30)
            self.acknowledged = numbers.stop
            self.is_over.wait(self.pause_s)


@contextmanager
def writing(broker: Broker) -> Iterator[Writer]:
    writer = Writer(broker.bootstrap)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.is_over.set()
        thread.join(60)


def numbers_in(frame: DataFrame) -> list[tuple[int, int]]:
    """Returns the offset and the number of each record, in the order of the offsets."""
    rows = frame.where("NOT is_control").selectExpr("offset", "CAST(SPLIT(CAST(value AS STRING), ' ')[0] AS BIGINT) AS number")
    return sorted((row.offset, row.number) for row in rows.collect())


@pytest.mark.parametrize("kind", [WIREKAFKA, jars.KAFKA])
def test_rows_beside_a_broker_that_rolls_and_compacts_are_a_prefix_of_the_log(load: Load, tmp_path: Path, kind: str) -> None:
    broker = CLASSES[kind](tmp_path / kind, {**SETTINGS, "log.cleaner.backoff.ms": "20", "log.segment.delete.delay.ms": "50"})
    broker.directory.mkdir()
    with running(broker):
        for name, configs in LIVE_TOPICS.items():
            create_topic(broker.bootstrap, name, 1, configs)
        with writing(broker) as writer:
            wait_until(lambda: clean_offset(broker) > 0, timeout_s=60, what="a segment is compacted")
            reads = 0
            for turn in range(READS * 5):
                if check_compacted(load, broker, writer):
                    reads += 1
                else:
                    writer.pause_s *= 2
                if turn < READS:
                    check_kept(load, broker, writer)
                    check_transacted(load, broker, writer)
                elif reads >= READS:
                    break
            assert reads >= READS, "compaction overtook nearly every read"
        assert len(list((broker.data_dir / "kept-0").glob("*.log"))) > 2


def clean_offset(broker: Broker) -> int:
    """Returns the end of the compacted part of the topic `compacted`."""
    checkpoint = broker.data_dir / CLEANER_OFFSETS
    offsets = read_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
    return offsets.get(TopicPartition("compacted", 0), 0)


def check_kept(load: Load, broker: Broker, writer: Writer) -> None:
    before = writer.acknowledged

    found = numbers_in(load(broker.data_dir, topic="kept", splitBytes="500000"))

    assert found == [(number, number) for number in range(len(found))]
    assert len(found) >= before


def check_compacted(load: Load, broker: Broker, writer: Writer) -> bool:
    """Returns whether compaction stayed behind the end of the log at the beginning of the read, so that all could be checked."""
    before = writer.acknowledged

    found = numbers_in(load(broker.data_dir, topic="compacted", splitBytes="500000"))

    numbers = [number for _, number in found]
    assert [offset for offset, _ in found] == numbers, "each record is at its own offset"
    assert len(set(numbers)) == len(numbers)
    clean = clean_offset(broker)
    if clean >= before:
        return False
    assert numbers[-1] >= before - 1
    assert [number for number in numbers if number >= clean] == list(range(clean, numbers[-1] + 1))
    assert {number % KEYS for number in numbers} == set(range(KEYS)), "each key has its last record"
    return True


def check_transacted(load: Load, broker: Broker, writer: Writer) -> None:
    before = writer.acknowledged // LIVE_BATCH

    frame = load(broker.data_dir, topic="transacted", isolation="committed", splitBytes="500000")

    numbers = [number for _, number in numbers_in(frame)]
    transactions = sorted({number // LIVE_BATCH for number in numbers})
    # The last commit may be acknowledged before its marker is written.
    assert transactions == [turn for turn in range(max([before - 1, *[turn + 1 for turn in transactions]])) if turn % 3]
    assert numbers == [number for turn in transactions for number in range(turn * LIVE_BATCH, (turn + 1) * LIVE_BATCH)]


def test_records_written_after_the_first_query_are_rows_of_the_next_load(
    load: Load, make_broker: Callable[..., Broker], topic: str
) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, range(30))
    before = load(broker.data_dir, topic=topic).count()
    produce(broker, topic, range(30, 50))

    assert (before, load(broker.data_dir, topic=topic).count()) == (30, 50)


# Options, filters and errors


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Returns a stopped broker with 3,000 records in one partition of the topic `numbered`; a second apart, and 100 B each."""
    broker = CLASSES[WIREKAFKA](tmp_path_factory.mktemp("numbered"), SETTINGS)
    with running(broker):
        create_topic(broker.bootstrap, "numbered", 2, {"segment.bytes": str(1 << 20), "index.interval.bytes": "500"})
        produce(broker, "numbered", range(3000))
        broker.terminate()
        yield broker


def time_of(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=START_MS + number)


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"startingOffset": "700", "endingOffset": "1300"}, "offset >= 700 AND offset < 1300"),
        ({"partition": "1"}, "partition = 1"),
        ({"startingTimestamp": str(START_MS + 2500)}, f"UNIX_MILLIS(timestamp) >= {START_MS + 2500}"),
        (
            {"startingTimestamp": time_of(90).isoformat(), "endingTimestamp": time_of(2000).isoformat()},
            f"UNIX_MILLIS(timestamp) >= {START_MS + 90} AND UNIX_MILLIS(timestamp) < {START_MS + 2000}",
        ),
        ({"topicPattern": "num.*", "endingOffset": "5", "checkCrcs": "false"}, "offset < 5"),
    ],
    ids=["offsets", "partition", "since", "between", "pattern"],
)
def test_options_select_the_rows_that_a_filter_keeps(
    numbered: Broker, load: Load, options: dict[str, str], condition: str
) -> None:
    selected = found_in(load(numbered.data_dir, topic="numbered", splitBytes="50000", **options))

    assert selected == found_in(load(numbered.data_dir, topic="numbered").where(condition))


def test_records_are_counted_in_sql_over_many_tasks(numbered: Broker, load: Load, spark: SparkSession) -> None:
    frame = load(numbered.data_dir, topic="numbered", splitBytes="20000")
    frame.createOrReplaceTempView("numbered")

    (row,) = spark.sql("SELECT COUNT(*) AS count, COUNT(DISTINCT key) AS keys, MAX(offset) AS last FROM numbered").collect()

    assert frame.rdd.getNumPartitions() > 10
    assert (row["count"], row["keys"], row["last"]) == (3000, 50, 2999)


def refusal(frame: Callable[[], Any]) -> str:
    """Returns the error of a read."""
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        frame()
    return str(caught.value)


def test_errors_at_load_say_what_is_accepted(numbered: Broker, load: Load, tmp_path: Path) -> None:
    # Spark passes the names of options in lower case.
    assert "has no option startingoffsets; it accepts:" in refusal(lambda: load(numbered.data_dir, startingOffsets="earliest"))
    assert f"there is no directory {tmp_path / 'none'}" in refusal(lambda: load(tmp_path / "none"))
    assert "it has the topics: numbered" in refusal(lambda: load(numbered.data_dir, topic="other"))


def test_a_damaged_batch_fails_the_query_with_its_place(load: Load, make_broker: Callable[..., Broker], topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, range(200))
    broker.terminate()
    (path,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[CRC_OFFSET] ^= 1
    path.write_bytes(data)

    text = refusal(lambda: load(broker.data_dir, topic=topic).collect())

    assert f"{path}, at byte 0, offset 0: the checksum is wrong" in text
