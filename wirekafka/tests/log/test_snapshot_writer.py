from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirekafka.log import snapshot_writer
from wirekafka.log.log import Log
from wirekafka.log.producer import Producer
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.logs import World, append, close, end_transaction, idempotent, transactional

SLICE = 10
COUNT = 35


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "SLICE_PRODUCERS", SLICE)
    monkeypatch.setattr("wirekafka.log.snapshots.SLICE_PRODUCERS", SLICE)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def log(world: World, tmp_path: Path) -> Log:
    """Makes a log with more producers than a slice holds, one of them in a transaction."""
    log = world.open_log(tmp_path)
    for producer_id in range(1, COUNT):
        append(log, idempotent(0, producer_id=producer_id))
    append(log, transactional(0, producer_id=COUNT))
    return log


def snapshots(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if ".snapshot" in name)


def states(log: Log) -> list[tuple[object, ...]]:
    def state(producer: Producer) -> tuple[object, ...]:
        return (
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.last_offset,
            producer.coordinator_epoch,
            producer.transaction_first_offset,
        )

    return sorted(map(state, log.reader.producers))


def finish(world: World) -> int:
    """Fires all timers; returns the number of turns."""
    turns = 0
    while world.later:
        world.pass_delays()
        turns += 1
    return turns


def test_roll_with_many_producers_writes_their_state_at_the_roll_in_slices(log: Log, world: World, tmp_path: Path) -> None:
    expected = log.reader.producers.write_snapshot()

    log.roll()
    assert snapshots(tmp_path) == []
    append(log, idempotent(1, producer_id=COUNT - 1))
    world.pass_delays()
    append(log, idempotent(1, producer_id=1))
    end_transaction(log, COUNT, is_commit=False)
    append(log, idempotent(0, producer_id=COUNT + 1))
    assert snapshots(tmp_path) == [f"{COUNT:020d}.snapshot.tmp"]
    turns = finish(world)

    assert turns == -(-COUNT // SLICE)
    assert snapshots(tmp_path) == [f"{COUNT:020d}.snapshot"]
    assert (tmp_path / f"{COUNT:020d}.snapshot").read_bytes() == expected


def test_log_that_ends_before_its_snapshot_is_complete_knows_all_producers_again(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()
    append(log, idempotent(1, producer_id=5))
    world.pass_delays()
    world.pass_delays()
    expected = states(log)

    again = World().open_log(tmp_path)

    assert states(again) == expected
    assert snapshots(tmp_path) == []


def test_snapshot_in_slices_counts_after_a_crash(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()
    append(log, idempotent(1, producer_id=5))
    finish(world)
    append(log, idempotent(2, producer_id=5))
    expected = states(log)

    again = World().open_log(tmp_path, recovery_point=COUNT)

    assert again.reader.producers.snapshot_offset == COUNT
    assert states(again) == expected


def test_roll_during_a_snapshot_begins_no_other_one(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()
    append(log, idempotent(1, producer_id=5))
    log.roll()
    finish(world)
    assert snapshots(tmp_path) == [f"{COUNT:020d}.snapshot"]

    append(log, idempotent(2, producer_id=5))
    log.roll()
    finish(world)

    assert snapshots(tmp_path) == [f"{COUNT:020d}.snapshot", f"{COUNT + 2:020d}.snapshot"]


def test_close_during_a_snapshot_writes_a_whole_one(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()
    append(log, idempotent(1, producer_id=5))
    world.pass_delays()
    expected = states(log)

    close(log)
    finish(world)

    assert snapshots(tmp_path) == [f"{COUNT + 1:020d}.snapshot"]
    assert states(World().open_log(tmp_path, is_clean=True)) == expected


def test_truncation_abandons_the_snapshot_that_is_being_written(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()
    world.pass_delays()

    log.truncate_to(20)
    finish(world)

    assert snapshots(tmp_path) == []
    assert [producer.producer_id for producer in log.reader.producers] == list(range(1, 21))


def test_failing_disk_abandons_the_snapshot_and_not_the_log(tmp_path: Path) -> None:
    storage = FaultyStorage()
    world = World(storage=storage)
    log = world.open_log(tmp_path)
    for producer_id in range(COUNT):
        append(log, idempotent(0, producer_id=producer_id))
    log.roll()
    world.pass_delays()

    storage.is_failing = True
    world.pass_delays()
    storage.is_failing = False

    assert finish(world) == 0
    append(log, idempotent(1, producer_id=5))
    log.roll()
    finish(world)
    assert f"{COUNT + 1:020d}.snapshot" in snapshots(tmp_path)


def test_closed_log_writes_no_more_of_its_snapshot(log: Log, world: World, tmp_path: Path) -> None:
    log.roll()

    log.reader.close()
    finish(world)

    assert snapshots(tmp_path) == []
