"""The state of share partitions in the log of a real broker, with a wall clock that follows trio's."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange
from wirekafka.coordinator.share_state.records import ShareKey, ShareSnapshotValue, ShareStateRecord, encode
from wirekafka.coordinator.share_state.state_log import ShareStateLog
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import SHARE_STATE_TOPIC
from wirekafka.pending import finish
from wirekafka.slices import SLICE_SECONDS, Slices
from wirekafka.wire.batch import LENGTH_OFFSET, Record, build_batch

WALL_SECONDS = 1_700_000_000
PRUNE_SECONDS, COLD_SECONDS = 300, 300


class Stage:
    """A broker with a topic `flights` of three partitions; the state of all its share partitions is in one partition."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        topic = broker.topics.find("flights") or broker.topics.create("flights", 3)
        self.keys = [ShareKey("g", topic.topic_id, index) for index in range(3)]
        self.states: ShareStateLog = broker.share_groups.states

    def write(self, index: int, start_offset: int) -> None:
        batches = [StateBatch(start_offset + 2, start_offset + 3, RecordState.ACKNOWLEDGED, 1)]
        self.states.write(self.keys[index], StateChange(start_offset, 2, batches), 0)

    @property
    def known(self) -> dict[int, tuple[int | None, list[StateBatch]]]:
        """Returns the stored state of each share partition."""
        found = {key.partition: self.states.get(key) for key in self.keys}
        return {index: (state.start_offset, state.batches) for index, state in found.items() if state is not None}

    @property
    def partition(self) -> Any:
        topic = self.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        return topic.partitions[0]

    @property
    def log(self) -> Any:
        return self.partition.log


def run(body: Callable[[Stage], Awaitable[None]], path: Path, **settings: str) -> None:
    overrides = {"log.dirs": str(path), "share.coordinator.state.topic.num.partitions": "1"}
    config = BrokerConfig(overrides | {name.replace("_", "."): value for name, value in settings.items()})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            broker = await Broker.open(config, Clock(wall=lambda: WALL_SECONDS + trio.current_time()))
            broker.start(nursery)
            try:
                await body(Stage(broker))
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await broker.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_state_outlives_the_broker(tmp_path: Path) -> None:
    live: dict[int, Any] = {}

    async def before(stage: Stage) -> None:
        finish(stage.states.initialize({key: 5 if key.partition else None for key in stage.keys}, state_epoch=1))
        stage.write(1, 7)
        stage.write(1, 9)
        finish(stage.states.delete([stage.keys[2]]))
        live.update(stage.known)
        assert live == {0: (None, []), 1: (9, [StateBatch(9, 12, RecordState.ACKNOWLEDGED, 1)])}

    async def after(stage: Stage) -> None:
        assert stage.known == live

    run(before, tmp_path)
    run(after, tmp_path)


def test_snapshot_after_many_updates_says_what_they_said(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 0}, state_epoch=1))
        for offset in range(10):
            stage.write(0, offset)
        state = stage.states.get(stage.keys[0])
        assert state is not None
        assert (state.snapshot_epoch, state.update_count, state.start_offset) == (2, 2, 9)

    async def after(stage: Stage) -> None:
        assert stage.known == {0: (9, [StateBatch(9, 12, RecordState.ACKNOWLEDGED, 1)])}

    run(before, tmp_path, share_coordinator_snapshot_update_records_per_snapshot="3")
    run(after, tmp_path)


def test_what_newer_snapshots_have_made_worthless_is_cut_off(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        finish(stage.states.initialize(dict.fromkeys(stage.keys[:2], 0), state_epoch=1))
        stage.write(0, 1)
        stage.write(0, 2)
        await trio.sleep(PRUNE_SECONDS - 1)
        finish(stage.states.initialize({stage.keys[0]: 3}, state_epoch=1))
        await trio.sleep(2)
        assert stage.log.log_start_offset == 1
        finish(stage.states.initialize({stage.keys[1]: 4}, state_epoch=1))
        await trio.sleep(PRUNE_SECONDS)
        assert (stage.log.log_start_offset, stage.log.log_end_offset) == (4, 6)

    async def after(stage: Stage) -> None:
        assert stage.known == {0: (3, []), 1: (4, [])}
        await trio.sleep(PRUNE_SECONDS + 1)
        finish(stage.states.delete(stage.keys))
        await trio.sleep(PRUNE_SECONDS)
        assert stage.log.log_start_offset == stage.log.log_end_offset == 8

    settings = {"share_coordinator_cold_partition_snapshot_interval_ms": "86400000"}
    run(body, tmp_path, **settings)
    run(after, tmp_path, **settings)


def test_what_has_not_changed_for_long_does_not_hold_the_log(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))
        finish(stage.states.initialize({stage.keys[1]: 0}, state_epoch=1))
        for round_number in range(4 * COLD_SECONDS + 2):
            stage.write(1, round_number)
            await trio.sleep(1)
        assert stage.log.log_start_offset > 500
        assert stage.known[0] == (5, [])

    run(body, tmp_path)


def test_disk_that_is_full_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            patch.setattr(os, "pwritev", fail)
            patch.setattr(os, "write", fail)
            for _ in range(2):
                with pytest.raises(KafkaError) as raised:
                    stage.write(0, 7)
                assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            await trio.sleep(COLD_SECONDS + 1)
        assert stage.known == {0: (5, [])}

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run(body, tmp_path)


def test_state_of_many_cold_share_partitions_and_of_deleted_topics_is_written_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirekafka.coordinator.share_state.state_log.CHANGED_AT_ONCE", 2)
    numbers = count()

    async def body(stage: Stage) -> None:
        stage.broker.slices = Slices(stage.broker.clock, seconds=lambda: next(numbers) * SLICE_SECONDS)
        keys: dict[ShareKey, int | None] = {ShareKey("g", b"?" * 16, number): number for number in range(9)}
        finish(stage.states.initialize(keys, state_epoch=1))
        await trio.sleep(2 * COLD_SECONDS + 1)
        states = [stage.states.get(key) for key in keys]
        assert [state is not None and (state.snapshot_epoch > 0, state.start_offset) for state in states] == [
            (True, number) for number in range(9)
        ]
        stage.broker.slices.run(stage.states._deletion(list(keys)))
        assert stage.states.get([*keys][-1]) is not None
        await trio.sleep(0.01)
        assert not any(stage.states.get(key) for key in keys)

    run(body, tmp_path)


def test_state_of_topics_that_are_gone_is_dropped(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        finish(stage.states.initialize(dict.fromkeys(stage.keys, 0), state_epoch=1))
        gone = ShareKey("g", b"?" * 16, 0)
        finish(stage.states.initialize({gone: 0}, state_epoch=1))
        assert stage.states.get(gone) is not None

    async def after(stage: Stage) -> None:
        assert stage.states.get(ShareKey("g", b"?" * 16, 0)) is None
        topic = stage.broker.topics.find("flights")
        assert topic is not None
        stage.broker.topics.delete(topic)
        assert stage.known == {}

    run(before, tmp_path)
    run(after, tmp_path)


def test_state_of_a_deleted_topic_is_looked_for_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.coordinator.share_state.state_log.EXAMINED_AT_ONCE", 2)
    numbers = count()

    async def body(stage: Stage) -> None:
        finish(stage.states.initialize(dict.fromkeys(stage.keys, 0), state_epoch=1))
        stage.broker.slices = Slices(stage.broker.clock, seconds=lambda: next(numbers) * SLICE_SECONDS)
        topic = stage.broker.topics.find("flights")
        assert topic is not None
        stage.broker.topics.delete(topic)
        assert len(stage.known) == 3
        await trio.sleep(0.01)
        assert stage.known == {}

    run(body, tmp_path)


def test_old_state_is_pruned_in_one_partition_at_a_step(tmp_path: Path) -> None:
    numbers = count()

    async def body(stage: Stage) -> None:
        keys: dict[ShareKey, int | None] = {ShareKey("g", b"?" * 16, number): number for number in range(20)}
        for _ in range(2):
            finish(stage.states.initialize(keys, state_epoch=1))
        topic = stage.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        stage.broker.slices = Slices(stage.broker.clock, seconds=lambda: next(numbers) * SLICE_SECONDS)
        stage.states._prune()
        assert [partition.log.log_start_offset > 0 for partition in topic.partitions] == [True, False]
        await trio.sleep(0.01)
        assert [partition.log.log_start_offset > 0 for partition in topic.partitions] == [True, True]

    run(body, tmp_path, share_coordinator_state_topic_num_partitions="2")


def test_state_before_a_snapshot_that_is_not_committed_is_not_pruned(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        for _ in range(2):
            finish(stage.states.initialize({stage.keys[0]: 0}, state_epoch=1))
        deleted: list[int] = []
        for high_watermark in (1, 2):
            log = SimpleNamespace(high_watermark=high_watermark, log_start_offset=0)
            partition: Any = SimpleNamespace(index=0, log=log, is_offline=False, delete_records=deleted.append)
            stage.states._prune_partition(partition)
            assert deleted == ([] if high_watermark == 1 else [1])

    run(body, tmp_path)


def test_state_before_a_deletion_that_is_not_committed_is_not_pruned(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        for key in stage.keys[:2]:
            finish(stage.states.initialize({key: 0}, state_epoch=1))
        finish(stage.states.delete(stage.keys[:1]))
        deleted: list[int] = []
        for high_watermark in (2, 3):
            log = SimpleNamespace(high_watermark=high_watermark, log_start_offset=0)
            partition: Any = SimpleNamespace(index=0, log=log, is_offline=False, delete_records=deleted.append)
            stage.states._prune_partition(partition)
            assert deleted == ([] if high_watermark == 2 else [1])

    run(body, tmp_path)


def test_topic_of_the_state_that_is_deleted_takes_it_along(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        finish(stage.states.initialize(dict.fromkeys(stage.keys, 0), state_epoch=1))
        topic = stage.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        stage.broker.topics.delete(topic)
        assert stage.known == {}
        finish(stage.states.initialize({stage.keys[0]: 3}, state_epoch=1))
        assert stage.known == {0: (3, [])}
        await trio.sleep(PRUNE_SECONDS + 1)
        assert stage.log.log_start_offset == 0

    run(body, tmp_path)


def test_records_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))
        key, value = encode(ShareStateRecord(stage.keys[1], ShareSnapshotValue()))
        assert value is not None
        torn = [
            Record(b"\0\0\0\5g", value),
            Record(key, value[:7]),
            Record(key, b"\0\x07"),
            Record(None, value),
            Record(b"\0\7", b""),
        ]
        topic = stage.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        topic.partitions[0].append(memoryview(build_batch(torn)), now_ms=0)

    async def after(stage: Stage) -> None:
        assert stage.known == {0: (5, [])}

    run(before, tmp_path)
    run(after, tmp_path)


def test_markers_among_the_states_mean_nothing(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))
        topic = stage.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        topic.partitions[0].write_marker(7, 0, coordinator_epoch=0, is_commit=True, now_ms=0, transaction_version=0)

    async def after(stage: Stage) -> None:
        assert stage.known == {0: (5, [])}

    run(before, tmp_path)
    with capture_logs() as logs:
        run(after, tmp_path)
    assert not [entry for entry in logs if entry["log_level"] == "error"]


def test_a_log_that_turns_out_to_be_damaged_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))
        stage.partition.writable_log.roll()
        stage.write(0, 7)
        stage.partition.writable_log.roll()

    async def after(stage: Stage) -> None:
        assert stage.known == {}
        with pytest.raises(KafkaError):
            finish(stage.states.initialize({stage.keys[0]: 5}, state_epoch=1))

    run(before, tmp_path)
    second = sorted((tmp_path / f"{SHARE_STATE_TOPIC}-0").glob("*.log"))[1]
    with second.open("r+b") as file:
        file.seek(LENGTH_OFFSET)
        file.write(b"\0\0\0\1")
    run(after, tmp_path)


def test_state_is_in_the_partition_in_which_apache_kafka_looks_for_it(tmp_path: Path) -> None:
    async def body(stage: Stage) -> None:
        keys = [ShareKey("g", bytes(range(16)), index) for index in range(3)]
        assert [str(key) for key in keys][:1] == ["g:AAECAwQFBgcICQoLDA0ODw:0"]
        assert [stage.states.partition_of(key) for key in keys] == [19, 18, 17], "by String.hashCode, which is below 0 here"

    run(body, tmp_path, share_coordinator_state_topic_num_partitions="50")
