"""wirekafka and Apache Kafka compact the same committed and aborted transactions to the same batches.

Two real producers take turns, so that their transactions overlap. After each of four parts the cleaner runs once: the first run
drops aborted records, the second gives their markers a delete horizon, and the third drops the markers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.test_files import data_files, faults
from compat_tests.test_kafka_reads_our_files import active_base, batches_of, place_files, set_topic_config, unexpected
from wirekafka.log.checkpoint import CLEANER_OFFSETS, read_offsets
from wirekafka.names import TopicPartition as Partition
from wirekafka.wire.batch import BatchHeader, iterate_records
from wirekafka.wire.control import read_end_marker

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

OURS, THEIRS = "wirekafka", "kafka"
TOPIC = "transacted"
SETTINGS = {"log.cleaner.backoff.ms": "50"}
CONFIGS = {
    "segment.bytes": "1048576",
    "index.interval.bytes": "512",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1",
    "delete.retention.ms": "0",
}
PARTS, TURNS, RECORDS, KEYS = 4, 80, 25, 400
_INDEX_ENTRY = struct.Struct(">hqqqq")


class Found(NamedTuple):
    """One batch in the files.

    Attributes:
        records: offset, key and value of each; of a marker, whether it commits.
    """

    base_offset: int
    last_offset: int
    is_transactional: bool
    has_date: bool
    records: tuple[tuple[int, bytes | None, bytes | None], ...] | bool


def transact(broker: Broker, part: int) -> None:
    """Writes one part: in each turn one of two producers writes one batch, and sometimes ends its transaction."""
    chance = random.Random(part)
    settings = {"linger.ms": 2000, "batch.num.messages": RECORDS, "bootstrap.servers": broker.bootstrap}
    producers = [Producer({**settings, "transactional.id": f"{TOPIC}-{number}"}) for number in range(2)]
    for producer in producers:
        producer.init_transactions(30)
    open_ones: set[int] = set()
    for turn in range(TURNS):
        number = chance.randrange(2)
        producer = producers[number]
        if number not in open_ones:
            producer.begin_transaction()
            open_ones.add(number)
        for _ in range(RECORDS):
            value = None if chance.random() < 0.1 else b"%d.%d " % (part, turn) + bytes(chance.randrange(800, 1200))
            producer.produce(TOPIC, key=b"%d" % chance.randrange(KEYS), value=value)
        assert producer.flush(30) == 0
        if chance.random() < 0.4:
            _end(broker, producer, is_commit=chance.random() < 0.6)
            open_ones.discard(number)
    for number in open_ones:
        _end(broker, producers[number], is_commit=number == 0)


def _end(broker: Broker, producer: Producer, *, is_commit: bool) -> None:
    """Ends a transaction and waits for its marker, which Apache Kafka writes after its response."""
    settings = {"group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})

    def end_offset() -> int:
        offset: int = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)[1]
        return offset

    before = end_offset()
    if is_commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    wait_until(lambda: end_offset() > before, timeout_s=60, what="its marker is there")
    consumer.close()


def clean(broker: Broker) -> int:
    """Waits until all compactable segments were compacted once; returns the end of the compacted part."""
    clean_offset = active_base(broker.data_dir / f"{TOPIC}-0")
    set_topic_config(broker, TOPIC, "min.cleanable.dirty.ratio", "0.0001")
    checkpoint = broker.data_dir / CLEANER_OFFSETS

    def is_clean() -> bool:
        offsets = read_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
        return offsets.get(Partition(TOPIC, 0)) == clean_offset

    wait_until(is_clean, timeout_s=60, what=f"it has compacted up to {clean_offset}")
    set_topic_config(broker, TOPIC, "min.cleanable.dirty.ratio", "1")
    return clean_offset


def found_in(folder: Path, before: int) -> list[Found]:
    found = []
    for batch in batches_of(folder):
        header = BatchHeader(batch)
        if header.base_offset < before:
            flags = header.is_transactional, header.delete_horizon_ms is not None
            found.append(Found(header.base_offset, header.last_offset, *flags, _records_of(batch, header)))
    return found


def _records_of(batch: memoryview, header: BatchHeader) -> tuple[tuple[int, bytes | None, bytes | None], ...] | bool:
    marker = read_end_marker(batch) if header.is_control else None
    if marker is not None:
        return marker.is_commit
    return tuple((record.offset, record.key, record.value) for record in iterate_records(batch))


def aborted_in(folder: Path, before: int) -> list[tuple[int, int]]:
    """Returns the first and last offsets in the transaction indexes, of transactions whose markers are compacted."""
    entries = [
        (first, last)
        for path in sorted(folder.glob("*.txnindex"))
        for _, _, first, last, _ in _INDEX_ENTRY.iter_unpack(path.read_bytes())
    ]
    return [entry for entry in entries if entry[1] < before]


def read_committed(broker: Broker) -> list[tuple[int, bytes | None, bytes | None]]:
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed", **settings})
    found: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(30)
            assert message is not None, "it has no end"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


@dataclass
class Cleaned:
    """The result of a broker: the batches and aborted transactions after each part, and the records of a consumer at the end."""

    found: list[list[Found]]
    aborted: list[list[tuple[int, int]]]
    committed: list[tuple[int, bytes | None, bytes | None]]


@dataclass
class Both:
    cleaned: Mapping[str, Cleaned]
    wirekafka: Broker
    kafka: Broker


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("transacted")
    wirekafka = Wirekafka(directory / OURS, SETTINGS)
    kafka = ApacheKafka(directory / THEIRS, {**SETTINGS, "transaction.state.log.num.partitions": "1"})
    cleaned = {}
    with ExitStack() as stack:
        for broker, name in ((wirekafka, OURS), (kafka, THEIRS)):
            broker.directory.mkdir()
            stack.enter_context(brokers.running(broker))
            cleaned[name] = _fill_and_clean(broker)
        yield Both(cleaned, wirekafka, kafka)


def _fill_and_clean(broker: Broker) -> Cleaned:
    create_topic(broker.bootstrap, TOPIC, 1, CONFIGS)
    folder = broker.data_dir / f"{TOPIC}-0"
    found, aborted = [], []
    for part in range(PARTS):
        transact(broker, part)
        before = clean(broker)
        found.append(found_in(folder, before))
        aborted.append(aborted_in(folder, before))
    return Cleaned(found, aborted, read_committed(broker))


@pytest.mark.parametrize("part", range(PARTS))
def test_the_same_transactions_leave_the_same_batches(both: Both, part: int) -> None:
    ours, theirs = both.cleaned[OURS], both.cleaned[THEIRS]
    assert [batch.base_offset for batch in ours.found[part]] == [batch.base_offset for batch in theirs.found[part]]
    assert ours.found[part] == theirs.found[part]
    assert ours.aborted[part] == theirs.aborted[part]


def test_everything_that_compaction_does_has_happened(both: Both) -> None:
    found = both.cleaned[OURS].found
    first_end = found[0][-1].last_offset
    early = [[batch for batch in part if batch.last_offset <= first_end] for part in found]
    markers = [[batch for batch in part if isinstance(batch.records, bool)] for part in early]
    assert {batch.records for batch in markers[0]} == {True, False}
    assert not any(batch.has_date for batch in markers[0])
    assert any(batch.has_date for batch in markers[1])
    assert len(markers[2]) < len(markers[1])
    assert len(both.cleaned[OURS].aborted[0]) > 5
    assert not [entry for entry in both.cleaned[OURS].aborted[1] if entry[1] <= first_end]


def test_consumers_of_committed_records_get_the_same(both: Both) -> None:
    ours, theirs = both.cleaned[OURS].committed, both.cleaned[THEIRS].committed
    assert len(ours) > KEYS / 2
    assert ours == theirs


def test_kafka_serves_committed_records_from_our_files(both: Both, tools_jvm: Tools) -> None:
    folder = both.wirekafka.data_dir / f"{TOPIC}-0"
    both.wirekafka.terminate()
    both.kafka.terminate()
    assert unexpected(faults(tools_jvm, data_files(folder))) == []
    place_files(folder, both.kafka.data_dir / folder.name)
    both.kafka.start()
    assert read_committed(both.kafka) == both.cleaned[OURS].committed
