"""Apache Kafka opens wirekafka's directories, wirekafka opens those of Kafka, and both compact them to the same records.

Both brokers get the same records. Then their directories change places: wirekafka opens Kafka's data directory as it is, and
Kafka, whose controller has the list of topics, gets wirekafka's files in the directories of topics created beforehand.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.clients import ALL_CODECS, CONFLUENT, Agent, Client
from compat_tests.harness.clients import Record as Sent
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.test_files import data_files, faults
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.log.checkpoint import CLEANER_OFFSETS, PARTITION_METADATA, read_offsets
from wirekafka.log.positions import batches_in
from wirekafka.log.storage import FileHandle, Storage
from wirekafka.log.transaction_index import ENTRY as TRANSACTION_ENTRY
from wirekafka.names import TopicPartition as Partition
from wirekafka.wire.batch import BatchHeader, Record, build_batch, iterate_records
from wirekafka.wire.compression import Compression

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

Agents = Callable[[Client], Agent]

OURS, THEIRS = "wirekafka", "kafka"
SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
TOPICS = {
    "codecs": SEGMENTS,
    "rolled": SEGMENTS,
    "transactions": SEGMENTS,
    "append-time": {**SEGMENTS, "message.timestamp.type": "LogAppendTime"},
    "kept": {**SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"},
    "dropped": {**SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1", "delete.retention.ms": "0"},
}
COMPACTED = ("kept", "dropped")
TRANSACTIONS = 40
SETTINGS = {"log.cleaner.backoff.ms": "50", "transaction.state.log.num.partitions": "1"}
START_MS = int(time.time() * 1000) - 3_600_000
"""The timestamp of the first records: Apache Kafka forgets producers whose last record is older than a day."""

UPDATES, KEYS, BATCH, FIRST_PART = 200_000, 20_000, 1000, 150_000
PRODUCER = 4242


class Found(NamedTuple):
    """A record as a consumer receives it."""

    partition: int
    offset: int
    is_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Update(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


@cache
def updates() -> list[Update]:
    """Makes keyed updates, every tenth a tombstone; a few keys get most of them."""
    chance = random.Random(20240)
    return [
        Update(
            offset,
            b"key %d" % min(chance.randrange(KEYS), chance.randrange(KEYS)),
            None if chance.random() < 0.1 else b"value %d %s" % (offset, b"x" * chance.randrange(60)),
        )
        for offset in range(UPDATES)
    ]


@cache
def update_batches() -> list[bytes]:
    """Makes the same batches for both brokers, of all codecs in turn, so that their segments begin at the same offsets."""
    batches = []
    for number, first in enumerate(range(0, UPDATES, BATCH)):
        some = updates()[first : first + BATCH]
        records = [Record(key=key, value=value, timestamp=START_MS + offset) for offset, key, value in some]
        codec = Compression(number % len(Compression))
        batches.append(
            bytes(build_batch(records, compression=codec, producer_id=PRODUCER, producer_epoch=0, base_sequence=first))
        )
    return batches


def produce_raw(connection: RawConnection, topic: str, batch: bytes) -> tuple[int, int]:
    """Sends a batch unchanged; returns the error and the base offset of the answer."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=memoryview(bytearray(batch)))])
    answer = connection.ask(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data]), 9)
    ((partition,),) = [topic.partition_responses for topic in answer.responses]
    return partition.error_code, partition.base_offset


def set_topic_config(broker: Broker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def read_all(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> list[Found]:
    """Returns every record that a consumer gets, up to the end of every partition or up to an open transaction."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 50}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "isolation.level": isolation, **settings})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        found: list[Found] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 30
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} has no end"
            for message in consumer.consume(num_messages=1000, timeout=0.05):
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
                    continue
                kind, timestamp = message.timestamp()
                headers = tuple(message.headers() or ())
                place = message.partition(), message.offset(), kind == TIMESTAMP_LOG_APPEND_TIME, timestamp
                found.append(Found(*place, message.key(), message.value(), headers))
        return sorted(found, key=lambda record: record[:2])
    finally:
        consumer.close()


def varied(count: int, partition: int = 0, size: int = 40) -> list[Sent]:
    """Makes records with and without keys, values and headers, whose timestamps rise and fall."""
    return [
        Sent(
            None if n % 4 == 0 else b"key %d" % (n % 9),
            None if n % 7 == 3 else (b"value %d " % n) * (n % size),
            headers=(("größe", b"%d" % n), ("leer", None), ("größe", b"")) if n % 3 == 0 else (),
            timestamp_ms=START_MS + (n * 7919) % 5000,
            partition=partition,
        )
        for n in range(count)
    ]


def fill(broker: Broker, prefix: str, agent: Agents) -> None:
    """Writes with every codec, into several segments, with idempotent producers."""
    for index, codec in enumerate(ALL_CODECS):
        for _ in range(2):
            agent(CONFLUENT).produce(broker.bootstrap, f"{prefix}-codecs", varied(300, index), codec=codec, idempotent=1)
    big = [Sent(b"k%d" % n, random.Random(n).randbytes(30_000), timestamp_ms=START_MS + n) for n in range(120)]
    agent(CONFLUENT).produce(broker.bootstrap, f"{prefix}-rolled", big, idempotent=1)
    agent(CONFLUENT).produce(broker.bootstrap, f"{prefix}-append-time", varied(300), codec="lz4", idempotent=1)


def fill_transactions(broker: Broker, topic: str) -> None:
    """Writes transactions over several segments, every third aborted, a plain batch after each; two stay open meanwhile.

    One of these two is aborted at the end; the other one stays open, with committed records after its first offset.
    """

    def transactor(name: str) -> Producer:
        settings = {"transactional.id": f"{topic}-{name}", "transaction.timeout.ms": 900_000}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def send(producer: Producer, turn: int, name: bytes) -> None:
        for n in range(20):
            value = b"%d of %s in transaction %d " % (n, name, turn) + random.Random(turn * 100 + n).randbytes(3000)
            producer.produce(topic, key=b"%d" % n, value=value, timestamp=START_MS + n)
        assert producer.flush(30) == 0

    producer, long = transactor("short"), transactor("long")
    for turn in range(TRANSACTIONS):
        if turn % 8 == 0:
            send(long, turn, b"long")
        send(producer, turn, b"short")
        end = producer.commit_transaction if turn % 3 else producer.abort_transaction
        end(30)
        producer.begin_transaction()
        with RawConnection(broker.address) as connection:
            plain = build_batch([Record(key=b"plain", value=b"%d" % turn, timestamp=START_MS)])
            assert produce_raw(connection, topic, bytes(plain))[0] == 0
    long.abort_transaction(30)
    send(producer, TRANSACTIONS, b"open")
    send_committed = transactor("last")
    send(send_committed, TRANSACTIONS + 1, b"last")
    send_committed.commit_transaction(30)


def active_base(folder: Path) -> int:
    return max(int(path.name[:20]) for path in folder.glob("*.log"))


def compact(broker: Broker, prefix: str, part: slice) -> dict[str, int]:
    """Appends updates to the compacted topics and waits for compaction; returns the end of the compacted part."""
    clean_offsets = {}
    for kind in COMPACTED:
        topic = f"{prefix}-{kind}"
        with RawConnection(broker.address) as connection:
            for number, batch in list(enumerate(update_batches()))[part]:
                assert produce_raw(connection, topic, batch) == (0, number * BATCH)
        clean_offsets[kind] = active_base(broker.data_dir / f"{topic}-0")
        set_topic_config(broker, topic, "min.cleanable.dirty.ratio", "0.0001")
    checkpoint = broker.data_dir / CLEANER_OFFSETS

    def is_clean() -> bool:
        offsets = read_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
        return all(offsets.get(Partition(f"{prefix}-{kind}", 0)) == clean_offsets[kind] for kind in COMPACTED)

    wait_until(is_clean, timeout_s=90, what=f"{prefix} has compacted up to {clean_offsets}")
    for kind in COMPACTED:
        set_topic_config(broker, f"{prefix}-{kind}", "min.cleanable.dirty.ratio", "1")
    return clean_offsets


def batches_of(folder: Path) -> Iterator[memoryview]:
    """Returns the batches in the files of a partition."""
    storage = Storage()
    for path in sorted(folder.glob("*.log")):
        file = FileHandle(storage.open(str(path)))
        yield from batches_in(storage, file, 0, path.stat().st_size)


def updates_in(folder: Path, before: int) -> list[Update]:
    """Returns the records in the files of a partition before an offset."""
    records = (record for batch in batches_of(folder) for record in iterate_records(batch))
    return [Update(record.offset, record.key or b"", record.value) for record in records if record.offset < before]


@dataclass
class Exchange:
    """The result of the exchange.

    Attributes:
        written: the records that the writing broker served of a topic; `committed` under this name those of its committed reader.
        served: the records that the other broker serves of the topic.
        compacted: by broker and topic, the surviving records, and the compacted offset after the first and the second run.
        kafka, wirekafka: the brokers that run now, each with the directories of both.
    """

    written: Mapping[str, list[Found]]
    served: Mapping[str, list[Found]]
    compacted: Mapping[tuple[str, str], tuple[list[Update], int, int]]
    kafka: Broker
    wirekafka: Broker


@pytest.fixture(scope="module")
def exchange(agent: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchange]:
    directory = tmp_path_factory.mktemp("exchange")
    wirekafka = Wirekafka(directory / "wirekafka", SETTINGS)
    kafka = ApacheKafka(directory / "kafka", SETTINGS)
    adopting = Wirekafka(directory / "adopting", SETTINGS)
    written: dict[str, list[Found]] = {}
    compacted: dict[tuple[str, str], tuple[list[Update], int, int]] = {}
    with ExitStack() as stack:
        for broker, prefix in ((wirekafka, OURS), (kafka, THEIRS)):
            broker.directory.mkdir()
            stack.enter_context(brokers.running(broker))
            for each in {prefix, OURS}:
                for name, configs in TOPICS.items():
                    create_topic(broker.bootstrap, f"{each}-{name}", 5 if name == "codecs" else 1, configs)
            fill(broker, prefix, agent)
            first = compact(broker, prefix, slice(0, FIRST_PART // BATCH))
            second = compact(broker, prefix, slice(FIRST_PART // BATCH, None))
            fill_transactions(broker, f"{prefix}-transactions")
            written |= {topic: read_all(broker, topic) for topic in (f"{prefix}-{name}" for name in TOPICS)}
            written[f"{prefix}-committed"] = read_all(broker, f"{prefix}-transactions", "read_committed")
            assert broker.terminate() in (0, 143)
            for kind in COMPACTED:
                survivors = updates_in(broker.data_dir / f"{prefix}-{kind}-0", second[kind])
                compacted[prefix, kind] = survivors, first[kind], second[kind]

        adopting.directory.mkdir()
        shutil.copytree(kafka.data_dir, adopting.data_dir)
        stack.enter_context(brokers.running(adopting))
        for folder in wirekafka.data_dir.glob(f"{OURS}-*"):
            place_files(folder, kafka.data_dir / folder.name)
        stack.enter_context(brokers.running(kafka))
        served: dict[str, list[Found]] = {}
        for prefix, broker in ((THEIRS, adopting), (OURS, kafka)):
            served |= {topic: read_all(broker, topic) for topic in (f"{prefix}-{name}" for name in TOPICS)}
            served[f"{prefix}-committed"] = read_all(broker, f"{prefix}-transactions", "read_committed")
        yield Exchange(written, served, compacted, kafka, adopting)


def place_files(source: Path, target: Path) -> None:
    """Replaces the files of a partition by those of another partition; the topic keeps its name and id."""
    for path in target.iterdir():
        if path.name != PARTITION_METADATA:
            path.unlink()
    for path in source.iterdir():
        if path.name != PARTITION_METADATA:
            shutil.copy2(path, target)


@pytest.mark.parametrize("topic", [*TOPICS, "committed"])
def test_kafka_serves_the_same_records_at_the_same_offsets(exchange: Exchange, topic: str) -> None:
    check_served(exchange, f"{OURS}-{topic}")


@pytest.mark.parametrize("topic", [*TOPICS, "committed"])
def test_wirekafka_serves_the_same_records_at_the_same_offsets(exchange: Exchange, topic: str) -> None:
    check_served(exchange, f"{THEIRS}-{topic}")


def check_served(exchange: Exchange, topic: str) -> None:
    assert len(exchange.written[topic]) >= 120
    assert exchange.served[topic] == exchange.written[topic]


def test_what_was_written_is_what_was_sent(exchange: Exchange) -> None:
    for prefix in (OURS, THEIRS):
        for index in range(len(ALL_CODECS)):
            found = [record for record in exchange.written[f"{prefix}-codecs"] if record.partition == index]
            sent = varied(300) * 2
            assert [record[1:] for record in found] == [
                (offset, False, each.timestamp_ms, each.key, each.value, each.headers) for offset, each in enumerate(sent)
            ]
        assert all(record.is_append_time for record in exchange.written[f"{prefix}-append-time"])


@pytest.mark.parametrize("prefix", [OURS, THEIRS])
def test_committed_transactions_are_those_that_were_committed(exchange: Exchange, prefix: str) -> None:
    everything, committed = exchange.written[f"{prefix}-transactions"], exchange.written[f"{prefix}-committed"]
    turns = [turn for turn in range(TRANSACTIONS) if turn % 3]
    short = [b"%d of short in transaction %d " % (n, turn) for turn in turns for n in range(20)]
    plain = [b"%d" % turn for turn in range(TRANSACTIONS)]
    assert sorted((record.value or b"").split(b" ")[:6][-1] for record in committed if record.key == b"plain") == sorted(plain)
    assert [b" ".join((record.value or b"").split(b" ")[:6]) + b" " for record in committed if record.key != b"plain"] == short
    assert len(everything) == 20 * (TRANSACTIONS + TRANSACTIONS // 8 + 2) + TRANSACTIONS
    assert everything[-1].offset >= len(everything) + TRANSACTIONS, "markers take offsets"
    broker = exchange.wirekafka if prefix == THEIRS else exchange.kafka
    assert len(list((broker.data_dir / f"{prefix}-transactions-0").glob("*.txnindex"))) >= 3


def test_both_have_written_the_same_index_of_aborted_transactions(exchange: Exchange) -> None:
    """Apart from the positions of markers: Apache Kafka answers before it has written them, so other records may come first."""
    aborted = {}
    for prefix, broker in ((OURS, exchange.kafka), (THEIRS, exchange.wirekafka)):
        files = sorted((broker.data_dir / f"{prefix}-transactions-0").glob("*.txnindex"))
        entries = [each for file in files for each in TRANSACTION_ENTRY.iter_unpack(file.read_bytes())]
        assert all(version == 0 and first < last and stable == 0 for version, _, first, last, stable in entries[:-1])
        aborted[prefix] = [first for _, _, first, _, _ in entries]
    assert len(aborted[OURS]) == (TRANSACTIONS + 2) // 3 + 1
    assert aborted[OURS] == aborted[THEIRS]


@pytest.mark.parametrize("kind", COMPACTED)
def test_the_same_updates_leave_the_same_records(exchange: Exchange, kind: str) -> None:
    ours, theirs = exchange.compacted[OURS, kind], exchange.compacted[THEIRS, kind]
    assert ours == theirs
    survivors, first_end, end = ours
    assert first_end + 10_000 < end < UPDATES
    last_offsets = {update.key: update.offset for update in updates()[:end]}
    expected = [update for update in updates()[:end] if last_offsets[update.key] == update.offset]
    if kind == "dropped":
        # The first compaction gave these records their delete horizon, and the second ran after it.
        expected = [update for update in expected if update.value is not None or update.offset >= first_end]
    assert survivors == expected


@pytest.mark.parametrize("prefix", [OURS, THEIRS])
def test_a_producer_is_remembered_by_the_other_broker(exchange: Exchange, prefix: str) -> None:
    broker = exchange.kafka if prefix == OURS else exchange.wirekafka
    for name in ("rolled", "kept"):
        topic = f"{prefix}-{name}"
        *_, last = (bytes(batch) for batch in batches_of(broker.data_dir / f"{topic}-0"))
        header = BatchHeader(last)
        assert header.producer_id >= 0
        with RawConnection(broker.address) as connection:
            assert produce_raw(connection, topic, bytes(8) + last[8:]) == (0, header.base_offset), "it is there already"
            following = build_batch(
                [Record(key=b"k", value=b"next", timestamp=START_MS)],
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence + header.last_offset_delta + 1,
            )
            assert produce_raw(connection, topic, bytes(following)) == (0, header.last_offset + 1)


@pytest.mark.parametrize("prefix", [OURS, THEIRS])
def test_a_timestamp_is_found_where_it_was(exchange: Exchange, prefix: str) -> None:
    broker = exchange.kafka if prefix == OURS else exchange.wirekafka
    records = exchange.written[f"{prefix}-rolled"]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        for record in records[::17]:
            (found,) = consumer.offsets_for_times([TopicPartition(f"{prefix}-rolled", 0, record.timestamp_ms)], timeout=20)
            assert found.offset == record.offset
    finally:
        consumer.close()


def test_nothing_is_wrong_with_files_that_both_have_written(exchange: Exchange, tools_jvm: Tools) -> None:
    for broker in (exchange.kafka, exchange.wirekafka):
        broker.terminate()
        try:
            folders = [path for path in broker.data_dir.iterdir() if re.match(f"({OURS}|{THEIRS})-", path.name)]
            assert len(folders) >= 10
            assert unexpected(faults(tools_jvm, data_files(*folders))) == []
        finally:
            broker.start()


def unexpected(found: Iterable[str]) -> list[str]:
    """Compaction leaves gaps between offsets, which the tool reports."""
    return [
        line for line in found if "Non-consecutive offsets" not in line and not re.fullmatch(r"\s*-?\d+ is followed by \d+", line)
    ]
