"""A partition whose high watermark moves by chance, against the list of its batches: nothing shows before its commit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.replication.partition import Partition
from wirekafka.tests.log.logs import NOW_MS, batch, transactional
from wirekafka.tests.log.logs import World as LogWorld
from wirekafka.tests.log.test_transaction_model import Appended, Walked, read_committed

PRODUCERS = (1, 2, 3)


class World:
    """A partition with a follower in sync, and what it told the fetches and requests that wait.

    Attributes:
        stable_bytes, bytes: the bytes that the last stable offset and the high watermark have passed, as the watchers are told.
        waiting: the offsets for whose commit a request waits.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = LogWorld().open_log(path)
        self.partition = Partition("t", bytes(16), 0, self.log, leader=1)
        self.partition.set_replicas((1, 2), (1, 2))
        self.partition.watchers[self] = None
        self.batches: list[Appended] = []
        self.bytes = self.stable_bytes = 0
        self.waiting: list[int] = []

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        self.bytes += size_bytes
        self.stable_bytes += stable_bytes

    def on_gone(self, partition: Partition) -> None:
        raise AssertionError("the partition stays")

    def step(self) -> None:
        acts = [self.append_plain, self.append_transactional, self.append_transactional, self.end, self.commit, self.wait]
        self.random.choice(acts)()

    def append_plain(self) -> None:
        info = self.partition.append(memoryview(batch(b"p")), now_ms=NOW_MS)
        self.batches.append(Appended(info.base_offset, info.last_offset))

    def append_transactional(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        known = self.log.reader.producers.find(producer_id)
        sequence = known.last_sequence + 1 if known is not None else 0
        info = self.partition.append(memoryview(transactional(sequence, 2, producer_id=producer_id)), now_ms=NOW_MS)
        self.batches.append(Appended(info.base_offset, info.last_offset, producer_id))

    def end(self) -> None:
        producer_id, is_commit = self.random.choice(PRODUCERS), self.random.random() < 0.5
        info = self.partition.write_marker(
            producer_id, 0, coordinator_epoch=0, is_commit=is_commit, now_ms=NOW_MS, transaction_version=1
        )
        self.batches.append(Appended(info.base_offset, info.last_offset, producer_id, is_commit))

    def commit(self) -> None:
        reader = self.log.reader
        match self.random.randrange(8):
            case 0:
                self.partition.set_replicas((1, 2), (1,))
                self.partition.set_replicas((1, 2), (1, 2))
            case _:
                self.partition.advance_high_watermark(self.random.randint(reader.high_watermark, reader.log_end_offset))

    def wait(self) -> None:
        reader = self.log.reader
        offset = self.random.randint(reader.log_start_offset, reader.log_end_offset)
        self.waiting.append(offset)

        def end(error: ErrorCode | None) -> None:
            assert error is None
            assert offset <= reader.high_watermark
            self.waiting.remove(offset)

        self.partition.on_commit(offset, end)

    def check(self) -> None:
        """Raises unless the partition shows exactly what is committed."""
        reader, high_watermark = self.log.reader, self.log.reader.high_watermark
        assert all(offset > high_watermark for offset in self.waiting)
        known = [each for each in self.batches if each.ends is None or each.last_offset < high_watermark]
        walked = Walked(known)
        stable_offset = min([*walked.open.values(), high_watermark])
        assert reader.last_stable_offset == stable_offset
        assert self.bytes == reader.size_between(0, high_watermark)
        assert self.stable_bytes == reader.size_between(0, stable_offset)
        shown = read_committed(self.log, self.random.randint(60, 500))
        assert shown == sorted(offset for offset in walked.committed if offset < stable_offset)


@pytest.mark.parametrize("seed", range(20))
def test_partition_shows_what_is_committed_and_nothing_else(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(100):
        world.step()
        world.check()
