"""What the known bugs of logs and partitions do, beside what the product does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wirekafka.log.log import Log
from wirekafka.log.producer_state import Ending
from wirekafka.log.storage import Storage
from wirekafka.pending import finish
from wirekafka.replication.partition import Partition
from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.planting import plant
from wirekafka.tests.log.logs import NOW_MS, World, batch, idempotent, transactional
from wirekafka.wire.control import EndMarker


class CountingStorage(Storage):
    """Counts the syncs of files."""

    def __init__(self) -> None:
        self.count = 0

    def sync(self, fd: int) -> None:
        self.count += 1


def lead(log: Log) -> Partition:
    """Returns the partition of a leader that has followers, so that nothing is committed by the append."""
    return Partition("t", b"the topic's id..", 0, log, leader=1, is_sole_replica=False)


def answer_before_commit(path: Path) -> object:
    """Returns whether a producer with acks=all is answered although nothing is committed."""
    partition = lead(World().open_log(path))
    partition.append(batch(b"a"), now_ms=NOW_MS)
    answers: list[object] = []
    partition.on_commit(1, answers.append)
    return answers != []


def read_uncommitted(path: Path) -> object:
    """Returns whether a consumer gets records that are not committed."""
    partition = lead(World().open_log(path))
    partition.append(batch(b"a"), now_ms=NOW_MS)
    return len(partition.read(0, max_bytes=1_000, min_one_batch=True)) > 0


def compare_epochs(path: Path) -> object:
    """Returns where the leader says that a follower diverges that has another epoch at offset 1."""
    log = World().open_log(path)
    for epoch in (0, 2):
        log.append(batch(b"a"), leader_epoch=epoch, now_ms=NOW_MS)
    return lead(log).find_divergence(1, 2)


def end_transaction_before_commit(path: Path) -> object:
    """Returns the last stable offset after a marker that is not committed, of a transaction that is."""
    log = World().open_log(path)
    log.append(transactional(0), leader_epoch=0, now_ms=NOW_MS)
    log.reader.advance_high_watermark(1)
    log.append_marker(7, 0, Ending(EndMarker(True, 0), 1), leader_epoch=0, now_ms=NOW_MS)
    return log.reader.last_stable_offset


def follow_producer(path: Path) -> object:
    """Returns whether a follower knows the producer of a batch that it has appended."""
    log = World().open_log(path)
    finish(log.append_as_follower(idempotent(0), leader_epoch=0))
    return log.reader.producers.find(7) is not None


def flush(path: Path) -> object:
    """Returns the recovery point after a flush, and whether anything was synced."""
    storage = CountingStorage()
    log = World(storage).open_log(path)
    log.append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
    storage.count = 0
    log.flusher.flush()
    return log.flusher.recovery_point, storage.count > 0


EFFECTS: dict[str, tuple[Callable[[Path], object], object, object]] = {
    "acknowledge-before-commit": (answer_before_commit, False, True),
    "read-past-high-watermark": (read_uncommitted, False, True),
    "diverge-unnoticed": (compare_epochs, (0, 1), None),
    "last-stable-offset-past-marker": (end_transaction_before_commit, 0, 1),
    "followers-forget-producers": (follow_producer, True, False),
    "recovery-point-without-sync": (flush, (1, True), (1, False)),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_planted_bug_does_what_its_summary_says(name: str, tmp_path: Path) -> None:
    act, right, wrong = EFFECTS[name]

    assert act(tmp_path / "right") == right
    with plant(PLANTED[name]):
        assert act(tmp_path / "wrong") == wrong
