"""Moves between data directories: while the log is used, through crashes, and when a disk refuses."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log import moves as moves_module
from wirekafka.log.checkpoint import RECOVERY_POINTS
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.moves import Move
from wirekafka.log.storage import Storage
from wirekafka.names import TopicPartition
from wirekafka.testing.faulty_storage import Crash, FaultyStorage, LostDirectoryStorage
from wirekafka.tests.log.logs import (
    NOW_MS,
    all_records,
    append,
    batch,
    check_indexes,
    end_transaction,
    fill,
    idempotent,
    records_of,
    transactional,
)
from wirekafka.tests.waiting import until

TOPIC_ID = bytes(range(16))
NAME = TopicPartition("topic", 0)
SETTINGS = {"internal.segment.bytes": "2000", "index.interval.bytes": "200", "file.delete.delay.ms": "1000"}


class Setting:
    """Two data directories."""

    def __init__(self, tmp_path: Path, storage: Storage | None = None) -> None:
        self.first, self.second = tmp_path / "1", tmp_path / "2"
        self.config = BrokerConfig(
            {
                "log.dirs": f"{self.first},{self.second}",
                "log.initial.task.delay.ms": "0",
                "log.flush.offset.checkpoint.interval.ms": "1000000000",
            }
        )
        self.log_config = LogConfig.of(self.config, SETTINGS)
        self.storage = storage or Storage()

    async def open(self) -> LogManager:
        clock = Clock(wall=lambda: NOW_MS / 1000)
        return await LogManager.open(self.config, clock, storage=self.storage, config_of=lambda topic: self.log_config)

    def create(self, logs: LogManager, name: TopicPartition = NAME) -> Log:
        return logs.create(name, TOPIC_ID, self.log_config)

    def folders(self) -> list[str]:
        """Returns the partitions by the number of their directory."""
        found = [path for top in (self.first, self.second) for path in top.iterdir() if path.is_dir()]
        return sorted(f"{path.parent.name}/{path.name.partition('.')[0]}{path.name.rpartition('-')[2]}" for path in found)


def run(main: Callable[[], Awaitable[Any]]) -> None:
    # Not autojump: the jumping clock takes a loop that waits for a thread for an idle one, and hours pass meanwhile.
    trio.run(main, clock=trio.testing.MockClock(rate=50))


async def until_moved(logs: LogManager) -> None:
    await until(lambda: not logs.mover.moves, poll_seconds=0.1)


def found(logs: LogManager) -> Log:
    log = logs.get(NAME)
    assert log is not None
    return log


def check(log: Log, count: int) -> None:
    assert [record.offset for record in all_records(log)] == list(range(log.reader.log_start_offset, count))
    check_indexes(log)


def test_move_brings_a_log_to_another_directory(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 50)
        append(log, idempotent(0, 3))
        log.retention.delete_records(5)
        log.flusher.flush()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            region = log.reader.read(20, max_bytes=1000, end_offset=log.reader.log_end_offset, min_one_batch=True)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            assert logs.home_of(log).path == str(setting.second)
            assert log.reader.folder.path == str(setting.second / "topic-0")
            check(log, 53)
            assert records_of(region.read())[0].offset == 20  # type: ignore[union-attr]
            assert append(log, idempotent(0, 3)).is_duplicate
            fill(log, 30)
            check(log, 83)
            nursery.cancel_scope.cancel()
        await logs.close()
        assert not (setting.first / "topic-0").exists()

        logs = await setting.open()
        log = found(logs)
        assert (log.reader.log_start_offset, log.reader.topic_id) == (5, TOPIC_ID)
        check(log, 83)
        assert setting.folders() == ["2/topic-00"]
        await logs.close()

    run(main)


def test_move_takes_the_partition_out_of_the_checkpoints_of_the_former_directory(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 5)
        log.flusher.flush()
        former = logs.home_of(log)
        former.write_checkpoint(RECOVERY_POINTS, {NAME: 5})
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            await until(lambda: former.read_checkpoint(RECOVERY_POINTS) == {}, poll_seconds=0.1)
            assert logs.home_of(log).read_checkpoint(RECOVERY_POINTS) == {NAME: 5}
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_move_takes_transactions_along(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        for number in range(40):
            append(log, transactional(number))
            end_transaction(log, is_commit=bool(number % 3))
        append(log, transactional(0, producer_id=8))
        aborted = log.reader.aborted_transactions(0, log.reader.log_end_offset)
        assert len(aborted) == 14
        assert log.reader.segments.items[0].transaction_index.count
        assert log.reader.segments.active.transaction_index.count
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == aborted
            append(log, transactional(40))
            end_transaction(log, is_commit=False)
            nursery.cancel_scope.cancel()
        await logs.close()

        logs = await setting.open()
        log = found(logs)
        assert log.reader.aborted_transactions(0, log.reader.log_end_offset)[:-1] == aborted
        assert log.reader.last_stable_offset == 80
        await logs.close()

    run(main)


def test_move_keeps_up_with_a_log_that_grows_rolls_shrinks_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves_module, "_LAST_BYTES", 500)
    original = Move.copy
    passes = 0

    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 40)

        def copy(self: Move, parts: Any, end_offset: int) -> None:
            nonlocal passes
            passes += 1
            if passes == 2:
                trio.from_thread.run_sync(log.retention.delete_records, 15)
            original(self, parts, end_offset)
            if passes == 3:
                trio.from_thread.run_sync(swap_a_segment, log)
            if passes < 6:
                trio.from_thread.run_sync(fill, log, 10)

        monkeypatch.setattr(Move, "copy", copy)
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            nursery.cancel_scope.cancel()
        assert passes >= 6
        check(log, 90)
        assert log.reader.log_start_offset == 15
        names = {path.name for path in (setting.second / "topic-0").glob("*.log")}
        assert names == {segment.log_name for segment in log.reader.segments}
        await logs.close()
        logs = await setting.open()
        check(found(logs), 90)
        await logs.close()

    run(main)


@pytest.mark.parametrize(("truncated_in", "offset", "count"), [(1, 5, 50), (2, 5, 50), (1, 39, 2)])
def test_move_of_a_log_that_is_truncated_copies_what_the_log_holds_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncated_in: int, offset: int, count: int
) -> None:
    """The copy would otherwise keep bytes that the log has replaced."""
    original = Move.copy
    passes = 0

    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 40)

        def truncate_and_grow() -> None:
            log.truncate_to(offset)
            fill(log, count, size=110)

        def copy(self: Move, parts: Any, end_offset: int) -> None:
            nonlocal passes
            passes += 1
            original(self, parts, end_offset)
            if passes == truncated_in:
                trio.from_thread.run_sync(truncate_and_grow)
            elif passes < truncated_in:
                trio.from_thread.run_sync(fill, log, 100)

        monkeypatch.setattr(moves_module, "_LAST_BYTES", 500)
        monkeypatch.setattr(Move, "copy", copy)
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            nursery.cancel_scope.cancel()
        assert logs.home_of(log).path == str(setting.second)
        check(log, offset + count)
        assert [len(record.value or b"") for record in all_records(log)[offset : offset + 2]] == [112, 112]
        await logs.close()

    run(main)


def swap_a_segment(log: Log) -> None:
    """Replaces a segment as compaction does: another object and another file of the same name."""
    segment = log.reader.segments.items[1]
    twin = segment.in_folder(log.reader.folder)
    path = Path(log.reader.folder.path_of(segment.log_name))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    log.reader.segments.items[1] = twin


def test_rest_of_a_move_is_as_durable_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        storage = FaultyStorage()
        setting = Setting(tmp_path, storage)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 40)
        original = Move.copy

        def copy(self: Move, parts: Any, end_offset: int) -> None:
            original(self, parts, end_offset)
            trio.from_thread.run_sync(fill, log, 1)
            trio.from_thread.run_sync(log.flusher.flush)

        monkeypatch.setattr(Move, "copy", copy)
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            nursery.cancel_scope.cancel()
        assert log.flusher.recovery_point == log.reader.log_end_offset == 41
        storage.lose_power(log.reader.folder.path)
        sizes = {name: info.st_size for name, info in Storage().files(log.reader.folder.path).items()}
        assert all(sizes[segment.log_name] == segment.size for segment in log.reader.segments)
        logs._unlock()

    run(main)


def crashes(tmp_path: Path) -> Iterator[tuple[Setting, bool]]:
    """Interrupts a move at one call after the other; returns whether the move was complete by then."""
    for call in range(1, 1000):
        folder = tmp_path / str(call)
        storage = FaultyStorage()
        setting = Setting(folder, storage)
        is_done = False

        async def main(setting: Setting = setting, storage: FaultyStorage = storage, call: int = call) -> None:
            nonlocal is_done
            logs = await setting.open()
            log = setting.create(logs)
            fill(log, 25)
            log.flusher.flush()
            logs.mover.begin(NAME, str(setting.second))
            move = logs.mover.moves[NAME]
            storage.crash_at = storage.calls + call
            try:
                await trio.to_thread.run_sync(move.copy, *move.plan())
                fill(log, 1)
                logs.mover.complete(move, move.finish())
                is_done = not storage.is_dead
            except Crash:
                pass
            storage.crash_at = None
            logs._unlock()

        run(main)
        yield setting, is_done
        shutil.rmtree(folder)
        if is_done:
            return


def test_crash_at_any_call_of_a_move_leaves_one_whole_log(tmp_path: Path) -> None:
    places = set()
    for setting, is_done in crashes(tmp_path):

        async def main(setting: Setting = setting, is_done: bool = is_done) -> None:
            logs = await setting.open()
            log = found(logs)
            assert log.reader.log_end_offset in ((26,) if is_done else (25, 26))
            check(log, log.reader.log_end_offset)
            places.add(Path(log.reader.folder.path).parent.name)
            # The interrupted move continues.
            async with trio.open_nursery() as nursery:
                logs.start(nursery)
                await until_moved(logs)
                nursery.cancel_scope.cancel()
            fill(log, 5)
            check(log, log.reader.log_end_offset)
            await logs.close()
            assert [name for name in setting.folders() if "future" in name] == []

        run(main)
    assert places == {"1", "2"}


def test_two_copies_of_a_log_are_resolved_for_the_one_that_went_on(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 20)
        await logs.close()
        shutil.copytree(setting.first / "topic-0", setting.second / "topic-0")
        logs = await setting.open()
        home = logs.home_of(found(logs)).path
        fill(found(logs), 5)
        await logs.close()
        other = setting.first if home == str(setting.second) else setting.second
        assert not (other / "topic-0").exists()
        check_path = Path(home) / "topic-0"
        assert check_path.exists()

    run(main)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_move_that_fails_leaves_the_log_where_it_is(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        storage = LostDirectoryStorage()
        setting = Setting(tmp_path, storage)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 20)
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            storage.lost, storage.error_number = str(setting.second), number
            logs.mover.begin(NAME, str(setting.second))
            await until_moved(logs)
            nursery.cancel_scope.cancel()
        assert logs.home_of(log).path == str(setting.first)
        assert [directory.offline_reason is None for directory in logs.directories] == [True, number == errno.ENOSPC]
        fill(log, 5)
        check(log, 25)
        storage.lost = None
        await logs.close()

    run(main)


def test_move_is_given_up_for_another_and_for_a_deletion(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 20)
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            logs.mover.begin(NAME, str(setting.second))
            logs.mover.begin(NAME, str(setting.first))
            assert not logs.mover.moves
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert logs.home_of(log).path == str(setting.first)
            logs.mover.begin(NAME, str(setting.second))
            logs.delete(NAME)
            again = setting.create(logs)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert again.reader.log_end_offset == 0
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_move_to_nowhere_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        append(log, batch(b"a"))
        for path in ("/nowhere", "2", str(tmp_path)):
            with pytest.raises(KafkaError) as caught:
                logs.mover.begin(NAME, path)
            assert caught.value.code == ErrorCode.LOG_DIR_NOT_FOUND
        long = TopicPartition("x" * 240, 0)
        setting.create(logs, long)
        target = next(each for each in logs.directories if each is not logs.home_of(logs.catalog._logs[long]))
        with pytest.raises(KafkaError) as caught:
            logs.mover.begin(long, target.path)
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        logs.directories[1].offline_reason = "gone"
        with pytest.raises(KafkaError) as caught:
            logs.mover.begin(NAME, str(setting.second))
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        logs.directories[1].offline_reason = None
        await logs.close()

    run(main)
