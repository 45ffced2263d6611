"""A crash at every single write, sync and rename: afterwards the indexes of aborted transactions agree with the batches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from wirekafka.log.directory import LOCK_FILE
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.remembering_storage import Fate, Image, Link, RememberingStorage
from wirekafka.tests.log.logs import NOW_MS, transactional
from wirekafka.tests.log.test_crashes import (
    Life,
    Living,
    Unsynced,
    config_at,
    images_of_ended_process,
    images_of_lost_power,
    partition_of,
    place,
)
from wirekafka.wire.batch import BatchHeader
from wirekafka.wire.control import read_end_marker

__all__ = ["place"]

FLUSHED, UNFLUSHED = "flushed", "unflushed"
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "200"}
SETTINGS = {FLUSHED: {"flush.messages": "1"}, UNFLUSHED: {}}
LONG, SHORT = 1, 2
"""One producer whose transactions span several segments, and one whose transactions have two batches."""


class TransactionalLife(Life):
    """The history of a data directory."""

    async def live_on(self) -> None:
        config = config_at(self.path)
        async with Living(config, self.storage, is_killed=True) as (logs, topics):
            for topic in SETTINGS:
                topics.create(topic, 1, {**SMALL, **SETTINGS[topic]})
            self._transact(logs, topics, 4)
        async with Living(config, self.storage) as (logs, topics):
            self._transact(logs, topics, 5)
            partition_of(topics, UNFLUSHED).writable_log.flusher.flush()
            self._write_checkpoints(logs)
            self._transact(logs, topics, 2)
        async with Living(config, self.storage) as (logs, topics):
            self._transact(logs, topics, 2)

    def _transact(self, logs: LogManager, topics: HostedTopics, count: int) -> None:
        for number in range(count):
            for topic in SETTINGS:
                partition = partition_of(topics, topic)
                if number % 4 == 0:
                    write(partition, LONG)
                write(partition, SHORT)
                end(partition, SHORT, is_commit=number % 3 == 0)
                if number % 4 == 3:
                    end(partition, LONG, is_commit=False)
        self._write_checkpoints(logs)


def write(partition: Partition, producer_id: int) -> None:
    known = partition.log.producers.find(producer_id)
    sequence = known.last_sequence + 1 if known is not None else 0
    partition.append(transactional(sequence, 2, producer_id=producer_id), now_ms=NOW_MS)


def end(partition: Partition, producer_id: int, *, is_commit: bool) -> None:
    partition.write_marker(producer_id, 0, coordinator_epoch=0, is_commit=is_commit, now_ms=NOW_MS, transaction_version=1)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> TransactionalLife:
    path = tmp_path_factory.mktemp("life") / "data"
    life = TransactionalLife(RememberingStorage(path), path)
    trio.run(life.live_on, clock=trio.testing.MockClock(autojump_threshold=0))
    return life


def check_log(log: Log) -> None:
    """Raises unless the open and aborted transactions are those of the batches."""
    begun: dict[int, int] = {}
    aborted = []
    for batch in log.reader.batches():
        header = BatchHeader(batch)
        marker = read_end_marker(batch) if header.is_control else None
        if marker is None:
            begun.setdefault(header.producer_id, header.base_offset)
            continue
        first_offset = begun.pop(header.producer_id, None)
        if first_offset is not None and not marker.is_commit:
            stable_offset = min(begun.values(), default=header.next_offset)
            aborted.append(AbortedTransaction(0, header.producer_id, first_offset, header.last_offset, stable_offset))
    assert log.reader.producers.open_transactions == begun
    assert log.reader.last_stable_offset == min(begun.values(), default=log.reader.log_end_offset)
    # A power failure may remove the segment in which a transaction began, and not the one in which it was aborted.
    found = log.reader.aborted_transactions(log.reader.log_start_offset, log.reader.log_end_offset)
    assert [each for each in found if each.first_offset >= log.reader.log_start_offset] == aborted


async def check_and_go_on(path: Path) -> None:
    """A second start finds nothing more to repair."""
    for _ in range(2):
        async with Living(config_at(path), Unsynced()) as (_, topics):
            for topic in topics:
                partition = topic.partitions[0]
                check_log(partition.writable_log)
                write(partition, SHORT)
                end(partition, LONG, is_commit=False)
                end(partition, SHORT, is_commit=False)
                check_log(partition.writable_log)


def test_life_has_indexes_of_aborted_transactions(life: TransactionalLife) -> None:
    names = {operation.name for operation in life.storage.operations if isinstance(operation, Link)}
    assert sum(name.endswith(".txnindex") for name in names) >= 3
    assert sum(name.endswith(".log") for name in names) >= 3


def check_all(images: Iterator[tuple[int, Image]], life: Life, path: Path, lock: bytes) -> None:
    seen = set()
    for calls, image in images:
        if image.digest() in seen:
            continue
        seen.add(image.digest())
        image.put(path)
        (path / LOCK_FILE).write_bytes(lock)
        try:
            trio.run(check_and_go_on, path)
        except BaseException as error:
            error.add_note(f"after {calls} operations, the next ones: {life.storage.operations[calls : calls + 2]}")
            raise
        shutil.rmtree(path)
    assert len(seen) > 50


def test_end_of_the_process_leaves_transactions_as_the_batches_say(life: TransactionalLife, place: Path) -> None:
    check_all(images_of_ended_process(life), life, place, (life.path / LOCK_FILE).read_bytes())


@pytest.mark.parametrize(
    ("contents", "names"),
    [(Fate.LOST, Fate.LOST), (Fate.LOST, Fate.KEPT), (Fate.TORN, Fate.TORN), (Fate.REORDERED, Fate.REORDERED)],
    ids=lambda fate: fate.name.lower(),
)
def test_end_of_power_leaves_transactions_as_the_batches_say(
    life: TransactionalLife, place: Path, contents: Fate, names: Fate
) -> None:
    check_all(images_of_lost_power(life, contents, names), life, place, b"")
