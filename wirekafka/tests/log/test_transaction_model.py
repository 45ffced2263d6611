"""Transactions compared with a list: for any interleaving and any stop of the broker, stable and aborted records are the same.

The model is the list of appended batches; the test walks the list to find the open and the aborted transactions. A consumer that
reads committed records, as clients do, finds exactly those of the list. The steps are drawn at random, most often an append, so
that there are many transactions between two starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from wirekafka.log.log import Log
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.testing.faulty_storage import Crash, FaultyStorage
from wirekafka.tests.log import logs
from wirekafka.tests.log.logs import append, batch, close, config_with, end_transaction, read, transactional
from wirekafka.wire.batch import BatchHeader, iterate_records
from wirekafka.wire.control import end_marker_of

PRODUCERS = (1, 2, 3)
V2_PRODUCERS = {3}
"""The producers whose markers have the next epoch."""


class Appended(NamedTuple):
    """One batch; `ends` is None for data, otherwise whether the marker commits; producer 0 is none."""

    base_offset: int
    last_offset: int
    producer_id: int = 0
    ends: bool | None = None


class Walked:
    """The transactions in a list of batches.

    Attributes:
        open: first offsets by producer.
        aborted: in the order of their ends.
        committed: the offsets of records outside of transactions, and of those in committed ones.
    """

    def __init__(self, batches: list[Appended]) -> None:
        self.open: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []
        self.committed: set[int] = set()
        pending: dict[int, set[int]] = {}
        for each in batches:
            offsets = set(range(each.base_offset, each.last_offset + 1))
            if not each.producer_id:
                self.committed |= offsets
            elif each.ends is None:
                self.open.setdefault(each.producer_id, each.base_offset)
                pending.setdefault(each.producer_id, set()).update(offsets)
            elif each.producer_id in self.open:
                self._end(each, pending.pop(each.producer_id))
        self.end_offset = batches[-1].last_offset + 1 if batches else 0
        self.stable_offset = min(self.open.values(), default=self.end_offset)

    def _end(self, marker: Appended, offsets: set[int]) -> None:
        first_offset = self.open.pop(marker.producer_id)
        if marker.ends:
            self.committed |= offsets
            return
        stable = min(self.open.values(), default=marker.last_offset + 1)
        self.aborted.append(AbortedTransaction(0, marker.producer_id, first_offset, marker.last_offset, stable))


class World:
    """A log, and the list of its batches."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.storage = FaultyStorage()
        self.world = logs.World(storage=self.storage)
        self.config = config_with(
            segment_bytes=self.random.choice([300, 700, 5000]), index_interval_bytes=self.random.choice([0, 150, 4096])
        )
        self.log: Log = self.world.open_log(path, self.config)
        self.batches: list[Appended] = []
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.start_offset = 0

    @property
    def end_offset(self) -> int:
        # A truncation keeps the log start offset, even if it is within the dropped batch.
        return max(self.batches[-1].last_offset + 1 if self.batches else 0, self.start_offset)

    def step(self) -> None:
        """Does one random step."""
        [act] = self.random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        act(self)

    # What is appended

    def append_plain(self) -> None:
        info = append(self.log, batch(*[b"p"] * self.random.randint(1, 3)))
        self.batches.append(Appended(info.base_offset, info.last_offset))

    def append_transactional(self, producer_id: int | None = None, count: int | None = None) -> None:
        producer_id = producer_id or self.random.choice(PRODUCERS)
        known, epoch = self.log.reader.producers.find(producer_id), self.epochs[producer_id]
        sequence = known.last_sequence + 1 if known is not None and known.epoch == epoch else 0
        records = transactional(sequence, count or self.random.randint(1, 3), producer_id=producer_id, epoch=epoch)
        info = append(self.log, records)
        assert not info.is_duplicate
        self.batches.append(Appended(info.base_offset, info.last_offset, producer_id))

    def end(self, producer_id: int | None = None, is_commit: bool | None = None) -> None:
        producer_id = producer_id or self.random.choice(PRODUCERS)
        is_commit = self.random.random() < 0.5 if is_commit is None else is_commit
        epoch = self.epochs[producer_id] + (producer_id in V2_PRODUCERS)
        version = 2 if producer_id in V2_PRODUCERS else 1
        info = end_transaction(self.log, producer_id, epoch, is_commit=is_commit, transaction_version=version)
        self.epochs[producer_id] = epoch
        self.batches.append(Appended(info.base_offset, info.last_offset, producer_id, is_commit))

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flusher.flush()

    # What is taken away

    def delete_records(self) -> None:
        # Not beyond the stable offset: a start may or may not know transactions whose records were deleted.
        before = self.random.randint(self.start_offset, max(Walked(self.batches).stable_offset, self.start_offset))
        self.log.retention.delete_records(before)
        self.start_offset = max(self.start_offset, before)
        self.world.pass_delays()

    def truncate(self) -> None:
        offset = self.random.randint(self.start_offset, self.end_offset)
        self.log.truncate_to(offset)
        self.batches = [each for each in self.batches if each.last_offset < offset]
        self.log.reader.advance_high_watermark(self.log.reader.log_end_offset)
        self.world.pass_delays()
        # A start forgets transactions without records, so that they are not open for ever.
        for producer_id in Walked(self.batches).open:
            if not any(each.producer_id == producer_id and each.last_offset >= self.start_offset for each in self.batches):
                self.end(producer_id)

    # How it comes back

    def restart(self) -> None:
        close(self.log)
        self._open(is_clean=True)

    def restart_with_damaged_indexes(self) -> None:
        close(self.log)
        is_clean = self.random.random() < 0.5
        damage = self.random.choice(["torn", "scrambled", "torn" if is_clean else "missing"])
        for file in self.path.glob("*.txnindex"):
            data = file.read_bytes()
            match damage:
                case "missing":
                    file.unlink()
                case "torn":
                    file.write_bytes(data[:-3])
                case _:
                    file.write_bytes(data[17:] + data[:17])
        self._open(is_clean=is_clean)

    def be_killed(self) -> None:
        name, point = self.log.reader.segments.active.log_name, self.log.flusher.recovery_point
        self.log.reader.close()
        with (self.path / name).open("ab") as file:
            file.write(self.random.randbytes(self.random.randint(0, 80)))
        self._open(recovery_point=point)

    def crash_in_a_transaction(self) -> None:
        self.storage.crash_at = self.storage.calls + self.random.randint(1, 6)
        self.storage.torn_bytes = self.random.randint(0, 100)
        producer_id, is_commit = self.random.choice(PRODUCERS), self.random.random() < 0.3
        point, epoch, last = self.log.flusher.recovery_point, self.epochs[producer_id], Appended(0, 0)
        try:
            while True:
                last = Appended(self.end_offset, self.end_offset, producer_id)
                self.append_transactional(producer_id, 1)
                epoch = self.epochs[producer_id] + (producer_id in V2_PRODUCERS)
                last = Appended(self.end_offset, self.end_offset, producer_id, is_commit)
                self.end(producer_id, is_commit)
        except Crash:
            pass
        self.storage.crash_at = None
        self.log.reader.close()
        self._open(recovery_point=point)
        if self.log.reader.log_end_offset == self.end_offset + 1:
            # The batch was written completely; the crash came before the answer.
            self.batches.append(last)
            if last.ends is not None:
                self.epochs[producer_id] = epoch

    def _open(self, *, is_clean: bool = False, recovery_point: int = 0) -> None:
        self.log = self.world.open_log(
            self.path,
            self.config,
            is_clean=is_clean,
            recovery_point=self.end_offset if is_clean else recovery_point,
            log_start_offset=self.start_offset,
        )

    # What must hold

    def check(self) -> None:
        """Raises unless the log and the list agree."""
        log, walked = self.log, Walked(self.batches)
        stable_offset = max(walked.stable_offset, self.start_offset)
        assert (log.reader.log_end_offset, log.reader.last_stable_offset) == (self.end_offset, stable_offset)
        for producer_id in PRODUCERS:
            producer = log.reader.producers.find(producer_id)
            first_offset = producer.transaction_first_offset if producer is not None else None
            assert first_offset == walked.open.get(producer_id)
        self._check_range(walked, self.start_offset, self.end_offset)
        start = self.random.randint(self.start_offset, self.end_offset)
        self._check_range(walked, start, self.random.randint(start, self.end_offset))
        for segment in log.reader.segments:
            file = self.path / segment.transaction_index.name
            assert (file.stat().st_size if file.exists() else 0) == segment.transaction_index.size_bytes
        expected = sorted(offset for offset in walked.committed if self.start_offset <= offset < stable_offset)
        assert read_committed(log, self.random.randint(60, 500)) == expected

    def _check_range(self, walked: Walked, start: int, end: int) -> None:
        # Of a transaction that began before the log start offset, a start knows only the remaining part, which reads the same.
        found = [each for each in self.log.reader.aborted_transactions(start, end) if each.first_offset >= self.start_offset]
        assert found == [
            each
            for each in walked.aborted
            if each.first_offset >= self.start_offset and each.last_offset >= start and each.first_offset < end
        ]


WEIGHTS: dict[Callable[[World], None], int] = {
    World.append_transactional: 40,
    World.end: 25,
    World.append_plain: 10,
    World.roll: 5,
    World.flush: 3,
    World.delete_records: 2,
    World.truncate: 2,
    World.restart: 4,
    World.restart_with_damaged_indexes: 4,
    World.be_killed: 4,
    World.crash_in_a_transaction: 4,
}


@pytest.mark.parametrize("seed", range(12))
def test_log_says_of_transactions_what_the_list_comes_to(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(80):
        world.step()
        world.check()


def read_committed(log: Log, max_bytes: int) -> list[int]:
    """Returns the offsets that a consumer shows by the aborted transactions of each answer.

    Source: org.apache.kafka.clients.consumer.internals.CompletedFetch.
    """
    shown = []
    offset, end_offset = log.reader.log_start_offset, log.reader.last_stable_offset
    while offset < end_offset:
        data = read(log, offset, max_bytes, end_offset=end_offset)
        aborted = sorted(log.reader.aborted_in_read(offset, len(data), end_offset), key=lambda each: each.first_offset)
        skipped: set[int] = set()
        position = 0
        while len(data) - position >= 61:
            header = BatchHeader(data, position)
            if header.size_bytes > len(data) - position:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            records = list(iterate_records(memoryview(data)[position : position + header.size_bytes]))
            if header.is_control:
                marker = end_marker_of(records)
                if marker is not None and not marker.is_commit:
                    skipped.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in skipped:
                shown += [record.offset for record in records if record.offset >= offset]
            position += header.size_bytes
            following = header.next_offset
        assert following > offset, f"nothing to read at {offset} of {log}"
        offset = following
    return shown
