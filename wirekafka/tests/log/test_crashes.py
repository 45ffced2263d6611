"""A crash at every single write, sync and rename in the life of a data directory: acknowledged records survive it.

One life is recorded on a disk that remembers every operation (`disk`): topics are created and deleted, segments roll and are
deleted, a log is compacted, checkpoints are written, the broker stops and starts again. Then the test opens every state in which
a crash of the process or a power failure could leave the disk, and compares it with what was acknowledged by then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.log import directory
from wirekafka.log.checkpoint import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from wirekafka.log.directory import LOCK_FILE
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import Storage
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics
from wirekafka.testing.remembering_storage import Fate, Image, Link, RememberingStorage
from wirekafka.tests.log.logs import NOW_MS, check_indexes
from wirekafka.wire.batch import Record, build_batch, iterate_records

SYNCED, UNSYNCED, COMPACTED, DELETED = TOPICS = ("synced", "unsynced", "compacted", "deleted")
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "200", "file.delete.delay.ms": "1000"}
SETTINGS = {
    SYNCED: {"flush.messages": "1"},
    UNSYNCED: {},
    COMPACTED: {"flush.messages": "1", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    DELETED: {},
}
PRODUCER = 7


class Place(NamedTuple):
    topic: str
    offset: int


class Content(NamedTuple):
    key: bytes | None
    value: bytes | None


@dataclass
class Life:
    """The history of a data directory, and the answers to the clients; numbers count the disk's operations.

    Attributes:
        appended: all records.
        acknowledged, flushed: when a record's append was answered; when the record was known to be on the disk.
        started: when each log start offset was requested, and when it was stored.
        created, deleted: when the creation or deletion was answered.
    """

    storage: RememberingStorage
    path: Path
    appended: dict[Place, Content] = field(default_factory=dict)
    acknowledged: dict[Place, int] = field(default_factory=dict)
    flushed: dict[Place, int] = field(default_factory=dict)
    started: list[tuple[Place, int]] = field(default_factory=list)
    start_written: list[tuple[Place, int]] = field(default_factory=list)
    created: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    @property
    def now(self) -> int:
        return len(self.storage.operations)

    async def live(self, config: BrokerConfig) -> None:
        async with Living(config, self.storage, is_killed=True) as (_, topics):
            for topic in TOPICS:
                topics.create(topic, 1, {**SMALL, **SETTINGS[topic]})
                self.created[topic] = self.now
            self._append(topics, UNSYNCED, 1)
        async with Living(config, self.storage) as (logs, topics):
            for _ in range(9):
                for topic in TOPICS:
                    self._append(topics, topic, 2)
            self._write_checkpoints(logs)
            self._delete_records(logs, topics, SYNCED, 5)
            self._delete_records(logs, topics, UNSYNCED, 9)
            await trio.sleep(2)
            await self._compact(logs)
            self._flush(topics, UNSYNCED)
            self._write_checkpoints(logs)
            found = topics.find(DELETED)
            assert found is not None
            topics.delete(found)
            self.deleted[DELETED] = self.now
            for _ in range(4):
                self._append(topics, UNSYNCED, 1)
                self._append(topics, COMPACTED, 2)
                self._append(topics, COMPACTED, 1, value=None)
            await trio.sleep(70)
            partition_of(topics, SYNCED).writable_log.roll()
        async with Living(config, self.storage) as (logs, topics):
            self._append(topics, SYNCED, 3)
            self._append(topics, COMPACTED, 3)
            await self._compact(logs)
            self._append(topics, UNSYNCED, 3)
            await trio.sleep(2)

    def _append(self, topics: HostedTopics, topic: str, count: int, value: bytes | None = b"value") -> None:
        partition = partition_of(topics, topic)
        first = partition.log.log_end_offset
        for number in range(count):
            content = Content(b"key %d" % ((first + number) % 5), value and value + b" %d" % (first + number))
            self.appended[Place(topic, first + number)] = content
        contents = [self.appended[Place(topic, first + number)] for number in range(count)]
        info = partition.append(batch_of(first, contents), now_ms=NOW_MS)
        assert info.base_offset == first
        for number in range(count):
            self.acknowledged[Place(topic, first + number)] = self.now
            if "flush.messages" in SETTINGS[topic]:
                self.flushed[Place(topic, first + number)] = self.now

    def _flush(self, topics: HostedTopics, topic: str) -> None:
        partition_of(topics, topic).writable_log.flusher.flush()
        for place in self.acknowledged:
            if place.topic == topic:
                self.flushed.setdefault(place, self.now)

    def _delete_records(self, logs: LogManager, topics: HostedTopics, topic: str, offset: int) -> None:
        self.started.append((Place(topic, offset), self.now))
        partition_of(topics, topic).writable_log.retention.delete_records(offset)
        self._write_checkpoints(logs)
        self.start_written.append((Place(topic, offset), self.now))

    def _write_checkpoints(self, logs: LogManager) -> None:
        for each in logs.directories:
            for file in (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS):
                each.write_checkpoint(file, logs.catalog.offsets_of(each, file))

    async def _compact(self, logs: LogManager) -> None:
        chosen = logs._cleaner._choose()
        assert chosen is not None
        before = chosen[0].reader.size_bytes
        assert await logs._cleaner._clean(*chosen)
        assert chosen[0].reader.size_bytes < before


class Unsynced(Storage):
    """The real file system without syncs: the test simulates every loss itself."""

    __slots__ = ()

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


class Living:
    """A broker's logs and topics, from start to stop.

    Args:
        is_killed: the broker is killed at the end; otherwise its shutdown is clean.
    """

    def __init__(self, config: BrokerConfig, storage: Storage, *, is_killed: bool = False) -> None:
        self._config = config
        self._storage = storage
        self._is_killed = is_killed

    async def __aenter__(self) -> tuple[LogManager, HostedTopics]:
        clock = Clock(wall=lambda: NOW_MS / 1000)
        self._logs = await LogManager.open(self._config, clock, storage=self._storage)
        self._topics = open_hosted_topics(self._config, self._logs)
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(clock.run)
        return self._logs, self._topics

    async def __aexit__(self, *error: object) -> None:
        self._nursery.cancel_scope.cancel()
        await self._nursery_manager.__aexit__(None, None, None)
        self._topics.close()
        if self._is_killed:
            self._logs._unlock()
        else:
            await self._logs.close()


GOES_ON = Content(b"k", b"goes on")


def config_at(path: Path) -> BrokerConfig:
    return BrokerConfig({"log.dirs": str(path), "log.index.interval.bytes": "200"})


def partition_of(topics: HostedTopics, topic: str) -> Partition:
    found = topics.find(topic)
    assert found is not None
    return found.partitions[0]


def batch_of(sequence: int, contents: list[Content]) -> memoryview:
    records = [Record(key=key, value=value, timestamp=NOW_MS + sequence) for key, value in contents]
    return memoryview(build_batch(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence))


def records_in(log: Log) -> dict[int, Content]:
    found: dict[int, Content] = {}
    for batch in log.reader.batches():
        for record in iterate_records(batch):
            assert record.offset > max(found, default=-1)
            if record.offset >= log.reader.log_start_offset:
                found[record.offset] = Content(record.key, record.value)
    return found


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    path = tmp_path_factory.mktemp("life") / "data"
    life = Life(RememberingStorage(path), path)
    trio.run(life.live, config_at(path), clock=trio.testing.MockClock(autojump_threshold=0))
    return life


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The place of the many directories: in memory if the machine has such a file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder) / "data"


@dataclass
class Crash:
    """A life that ended after this many operations, opened again.

    Attributes:
        survivors: when a record became safe from this kind of crash.
        has_lost_power: the crash was a power failure: bytes that were not synced may be lost, and later ones may survive.
    """

    life: Life
    calls: int
    survivors: dict[Place, int]
    has_lost_power: bool

    async def check(self, config: BrokerConfig) -> None:
        async with Living(config, Unsynced()) as (_, topics):
            for topic in TOPICS:
                if self.life.created[topic] <= self.calls and topic != DELETED:
                    assert topics.find(topic) is not None, topic
            if self.life.deleted[DELETED] <= self.calls:
                assert topics.find(DELETED) is None
            for found in topics:
                self._check_log(found.name, found.partitions[0])

    async def check_again(self, config: BrokerConfig) -> None:
        """A second start finds nothing more to repair."""
        async with Living(config, Unsynced()) as (_, topics):
            for topic in topics:
                log = topic.partitions[0].writable_log
                check_indexes(log)
                assert records_in(log)[log.reader.log_end_offset - 1] == GOES_ON

    def _check_log(self, topic: str, partition: Partition) -> None:
        log = partition.writable_log
        check_indexes(log)
        found = records_in(log)
        for offset, content in found.items():
            assert self.life.appended[Place(topic, offset)] == content
        safe = {place.offset for place, when in self.survivors.items() if place.topic == topic and when <= self.calls}
        assert log.reader.log_end_offset > max(safe, default=-1)
        is_whole = not self.has_lost_power or "flush.messages" in SETTINGS[topic]
        self._check_start(topic, log, is_whole)
        if topic == COMPACTED:
            self._check_keys(found, safe)
        elif is_whole:
            assert list(found) == list(range(log.reader.log_start_offset, log.reader.log_end_offset))
        assert topic == COMPACTED or {offset for offset in safe if offset >= log.reader.log_start_offset} <= found.keys()
        last = log.reader.log_end_offset - 1
        if last in found:
            self._check_producer(partition, last, found[last])
        partition.append(batch_of(log.reader.log_end_offset, [GOES_ON]), now_ms=NOW_MS)

    def _check_start(self, topic: str, log: Log, is_whole: bool) -> None:
        asked = [place.offset for place, when in self.life.started if place.topic == topic and when <= self.calls]
        written = [place.offset for place, when in self.life.start_written if place.topic == topic and when <= self.calls]
        assert max(written, default=0) <= log.reader.log_start_offset
        assert log.reader.log_start_offset <= max(asked, default=0) or not is_whole

    def _check_keys(self, found: dict[int, Content], safe: set[int]) -> None:
        last_offsets = {self.life.appended[Place(COMPACTED, offset)].key: offset for offset in sorted(safe)}
        for key, offset in last_offsets.items():
            assert max(number for number, content in found.items() if content.key == key) >= offset

    def _check_producer(self, partition: Partition, last: int, content: Content) -> None:
        known = partition.log.producers.find(PRODUCER)
        assert known is not None
        assert (known.last_sequence, known.last_offset) == (last, last)


def images_of_ended_process(life: Life) -> Iterator[tuple[int, Image]]:
    for calls in range(len(life.storage.operations) + 1):
        yield calls, life.storage.crash(calls)
        yield calls, life.storage.crash(calls, torn_bytes=75 if calls % 2 else 20)


def images_of_lost_power(life: Life, contents: Fate, names: Fate) -> Iterator[tuple[int, Image]]:
    for calls in range(len(life.storage.operations) + 1):
        yield calls, life.storage.lose_power(calls, contents=contents, names=names)


def check_all(
    images: Iterator[tuple[int, Image]], life: Life, survivors: dict[Place, int], path: Path, *, has_lost_power: bool
) -> None:
    config = config_at(path)
    lock = (life.path / LOCK_FILE).read_bytes()
    seen: set[tuple[int, int]] = set()
    for calls, image in images:
        safe_count = sum(when <= calls for when in survivors.values())
        identity = image.digest(), safe_count
        if identity in seen:
            continue
        seen.add(identity)
        image.put(path)
        (path / LOCK_FILE).write_bytes(lock)
        crash = Crash(life, calls, survivors, has_lost_power=has_lost_power)
        try:
            trio.run(crash.check, config)
            if len(seen) % 5 == 0:
                trio.run(crash.check_again, config)
        except BaseException as error:
            error.add_note(f"after {calls} operations, the next ones: {life.storage.operations[calls : calls + 2]}")
            raise
        shutil.rmtree(path)
    assert len(seen) > 50


def test_life_has_everything_that_can_be_interrupted(life: Life) -> None:
    names = {operation.name for operation in life.storage.operations if isinstance(operation, Link)}
    suffixes = (
        ".log",
        ".index",
        ".timeindex",
        ".snapshot",
        ".cleaned",
        ".swap",
        ".deleted",
        "-checkpoint",
        "-delete",
        "shutdown",
    )
    assert [suffix for suffix in suffixes if not any(name.endswith(suffix) for name in names)] == []
    assert life.now > 400


def test_end_of_the_process_loses_nothing_acknowledged(life: Life, place: Path) -> None:
    check_all(images_of_ended_process(life), life, life.acknowledged, place, has_lost_power=False)


@pytest.mark.parametrize(
    ("contents", "names"),
    [
        (Fate.LOST, Fate.LOST),
        (Fate.LOST, Fate.KEPT),
        (Fate.KEPT, Fate.LOST),
        (Fate.TORN, Fate.TORN),
        (Fate.REORDERED, Fate.KEPT),
        (Fate.REORDERED, Fate.REORDERED),
    ],
    ids=lambda fate: fate.name.lower(),
)
def test_end_of_power_loses_nothing_that_was_flushed(
    life: Life, place: Path, contents: Fate, names: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "read_boot_id", lambda: "the machine has started again")
    check_all(images_of_lost_power(life, contents, names), life, life.flushed, place, has_lost_power=True)
