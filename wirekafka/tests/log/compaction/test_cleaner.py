from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.compaction.cleaner import Dirt, ThreadPace, measure_dirt
from wirekafka.log.compaction.offset_map import OffsetMap
from wirekafka.log.compaction.passes import Compaction
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.positions import BadBatchError
from wirekafka.names import TopicPartition
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.compaction.test_compaction import content, put
from wirekafka.tests.log.logs import NOW_MS, World, append, config_with, end_transaction, transactional
from wirekafka.tests.log.test_manager import NAME, Setting, found
from wirekafka.tests.waiting import until
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader, write_timestamp

COMPACT = config_with(cleanup_policy=frozenset({"compact"}))


def rolled(path: Path, count: int, **changes: Any) -> Log:
    """Makes a log of this many sealed segments of the same size; record `n` has the timestamp NOW_MS + n."""
    log = World().open_log(path, config_with(cleanup_policy=frozenset({"compact"}), **changes))
    for number in range(count):
        put(log, (f"{number}", "v"), timestamp=NOW_MS + number)
        log.roll()
    return log


def test_dirt_is_the_share_that_was_not_compacted(tmp_path: Path) -> None:
    log = rolled(tmp_path, 4)

    assert measure_dirt(log.reader, None, NOW_MS) == Dirt(0, 4, 1.0, is_overdue=False)
    assert measure_dirt(log.reader, 3, NOW_MS) == Dirt(3, 4, 0.25, is_overdue=False)
    assert measure_dirt(log.reader, 4, NOW_MS) is None


@pytest.mark.parametrize("clean_offset", [-5, 99])
def test_dirt_with_an_impossible_checkpoint_is_the_whole_log(tmp_path: Path, clean_offset: int) -> None:
    log = rolled(tmp_path, 2)

    assert measure_dirt(log.reader, clean_offset, NOW_MS) == Dirt(0, 2, 1.0, is_overdue=False)


def test_dirt_leaves_out_the_active_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    append(log, b"a")

    assert measure_dirt(log.reader, None, NOW_MS) is None


def test_dirt_leaves_out_what_is_not_committed(tmp_path: Path) -> None:
    log = rolled(tmp_path, 4)
    log.reader.high_watermark = 2

    assert measure_dirt(log.reader, None, NOW_MS) == Dirt(0, 2, 1.0, is_overdue=False)


def test_dirt_leaves_out_what_is_behind_the_beginning_of_an_open_transaction(tmp_path: Path) -> None:
    log = rolled(tmp_path, 2)
    append(log, transactional(0))
    log.roll()
    put(log, ("a", "1"))
    log.roll()

    assert measure_dirt(log.reader, None, NOW_MS) == Dirt(0, 2, 1.0, is_overdue=False)
    end_transaction(log)
    dirt = measure_dirt(log.reader, None, NOW_MS)
    assert dirt is not None
    assert dirt.end_offset == 4


def test_dirt_leaves_out_what_is_younger_than_the_min_compaction_lag(tmp_path: Path) -> None:
    log = rolled(tmp_path, 4, min_compaction_lag_ms=1000)

    dirt = measure_dirt(log.reader, None, NOW_MS + 1001)
    assert dirt is not None
    assert (dirt.dirty_offset, dirt.end_offset) == (0, 2)


def test_dirt_is_overdue_once_it_is_older_than_the_max_compaction_lag(tmp_path: Path) -> None:
    log = rolled(tmp_path, 2, max_compaction_lag_ms=1000)

    dirt = [measure_dirt(log.reader, None, NOW_MS + passed) for passed in (1000, 1001)]
    assert [each is not None and each.is_overdue for each in dirt] == [False, True]


def test_active_segment_of_a_compacted_topic_is_rolled_by_the_max_compaction_lag(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=1000))
    put(log, ("a", "1"), timestamp=NOW_MS)

    put(log, ("a", "2"), timestamp=NOW_MS + 1001)

    assert len(log.reader.segments) == 2


def test_pace_keeps_to_so_many_bytes_a_second() -> None:
    rests: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += seconds

    pace = ThreadPace(1000.0, clock=lambda: now[0], sleep=sleep, check=lambda: None)
    for _ in range(10):
        pace.step(100)

    assert sum(rests) == pytest.approx(1.0, abs=0.11)


def test_pace_rests_as_long_as_it_works() -> None:
    rests: list[float] = []
    now = [0.0]

    def work() -> float:
        now[0] += 0.0001
        return now[0]

    pace = ThreadPace(1e12, clock=work, sleep=rests.append, check=lambda: None)
    for _ in range(1000):
        pace.step()

    assert sum(rests) == pytest.approx(now[0], rel=0.3)


@asynccontextmanager
async def running(setting: Setting) -> AsyncIterator[LogManager]:
    logs = await setting.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.clock.run)
        logs.start(nursery)
        yield logs
        nursery.cancel_scope.cancel()
    await logs.close()


GIVEN_UP = "A log is not compacted any more"


def events(lines: list[MutableMapping[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def run(main: Callable[[], Awaitable[Any]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def compacted(setting: Setting) -> LogConfig:
    return LogConfig.of(setting.config, {"cleanup.policy": "compact"})


def test_cleaner_compacts_a_dirty_log_and_remembers_how_far(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        checkpoint = setting.path / "cleaner-offset-checkpoint"
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(20):
                put(log, (f"{number % 3}", f"{number}"))
            log.roll()
            put(log, ("0", "active"))
            await until(checkpoint.exists)
            assert content(log) == [(17, "2", "17"), (18, "0", "18"), (19, "1", "19"), (20, "0", "active")]
        assert checkpoint.read_text() == f"0\n1\n{NAME.topic} 3 20\n"
        async with running(setting) as logs:
            assert logs.catalog.cleaner_offsets == {NAME: 20}
            assert [offset for offset, _, _ in content(found(logs))] == [17, 18, 19, 20]

    run(main)


def test_cleaner_leaves_logs_alone_that_are_not_dirty_enough(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, log_cleaner_min_cleanable_ratio="0.9")
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            logs.catalog.cleaner_offsets[NAME] = 5
            for number in range(10):
                put(log, ("k", f"{number}"))
                log.roll()
            await trio.sleep(100)
            assert len(content(log)) == 10

    run(main)


def test_cleaner_that_is_off_compacts_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, log_cleaner_enable="false")
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            put(log, ("k", "1"))
            put(log, ("k", "2"))
            log.roll()
            await trio.sleep(100)
            assert len(content(log)) == 2

    run(main)


def test_cleaner_takes_the_memory_for_keys_that_was_set_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            setting.config.set_dynamic(
                {}, {"log.cleaner.dedupe.buffer.size": "1048577", "log.cleaner.io.buffer.load.factor": "1e-5"}
            )
            log = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(10):
                put(log, ("k", f"{number}"))
                put(log, ("l", f"{number}"))
            log.roll()
            with structlog.testing.capture_logs() as lines:
                await until(lambda: logs.catalog.cleaner_offsets.get(NAME, 0) > 5)
            assert len([line for line in lines if line["event"] == "Compacted a log"]) > 5

    run(main)


def test_cleaner_on_a_full_disk_tries_again(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(10):
                put(log, ("k", f"{number}"))
            log.roll()
            setting.storage.room_bytes = 10
            await until(lambda: setting.storage.room_bytes == 0)
            assert len(content(log)) == 10
            setting.storage.room_bytes = None
            await until(lambda: len(content(log)) == 1)
            assert not list((setting.path / str(NAME)).glob("*.cleaned"))

    run(main)


class HoldingStorage(FaultyStorage):
    """Holds the cleaner's thread at the creation of the first file of a new segment, until `go_on` is set.

    Attributes:
        error: the error that the held call raises; None if it succeeds.
    """

    __slots__ = ("error", "go_on", "is_held")

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.go_on = threading.Event()
        self.error: OSError | None = None

    def open(self, path: str, *, create: bool = False) -> int:
        if create and path.endswith(".cleaned") and not self.go_on.is_set():
            self.is_held = True
            assert self.go_on.wait(20)
            if self.error is not None:
                raise self.error
        return super().open(path, create=create)


def test_cleaner_survives_the_deletion_of_the_log_it_compacts(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        setting.file_system = storage = HoldingStorage()
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(50):
                put(log, ("k", f"{number}"))
                log.roll()
            await until(lambda: storage.is_held)
            logs.delete(NAME)
            again = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(5):
                put(again, ("k", f"{number}"))
            again.roll()
            with structlog.testing.capture_logs() as lines:
                storage.go_on.set()
                await until(lambda: len(content(again)) == 1)
                await until(lambda: NAME in logs.catalog.cleaner_offsets)
            assert logs.catalog.cleaner_offsets[NAME] == 5
            reports = [line for line in lines if line["event"] == "Compacted a log"]
            assert [line["clean_offset"] for line in reports] == [5], "only the log that is there counts"
            assert not [line for line in lines if line["log_level"] == "error"]

    run(main)


def test_cleaner_that_misses_the_files_of_a_deleted_log_reports_no_error(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        setting.file_system = storage = HoldingStorage()
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            for number in range(2):
                put(log, ("k", f"{number}"))
                log.roll()
            await until(lambda: storage.is_held)
            logs.delete(NAME)
            again = logs.create(NAME, bytes(16), compacted(setting))
            put(again, ("k", "1"), ("k", "2"))
            again.roll()
            with structlog.testing.capture_logs() as lines:
                storage.error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                storage.go_on.set()
                await until(lambda: len(content(again)) == 1)
            assert not [line for line in lines if line["log_level"] == "error"]

    run(main)


def test_cleaner_whose_log_is_truncated_meanwhile_takes_nothing_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Compaction.build_map
    is_truncated = False

    def build_map(self: Compaction) -> OffsetMap:
        nonlocal is_truncated
        if not is_truncated:
            trio.from_thread.run_sync(logs_of_test[0].truncate_to, 1)
            is_truncated = True
            raise BadBatchError("the file has no batch at byte 70")
        return original(self)

    logs_of_test: list[Log] = []
    monkeypatch.setattr(Compaction, "build_map", build_map)

    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            logs_of_test.append(log)
            for number in range(3):
                put(log, ("k", f"{number}"))
            log.roll()
            await until(lambda: is_truncated, poll_seconds=1)
            assert log.reader.log_end_offset == 1
            put(log, ("k", "4"))
            log.roll()
            await until(lambda: content(log) == [(1, "k", "4")], poll_seconds=1)
            assert log.reader.offline_reason is None

    run(main)


def test_truncation_counts_the_records_after_it_as_not_compacted(tmp_path: Path) -> None:
    async def main() -> None:
        logs = await Setting(tmp_path).open()
        log = logs.create(NAME, bytes(16), COMPACT)
        for number in range(4):
            put(log, ("k", f"{number}"))
            log.roll()
        logs.catalog.cleaner_offsets[NAME] = 4

        log.truncate_to(2)

        assert logs.catalog.cleaner_offsets[NAME] == log.reader.segments.active.base_offset < 2
        await logs.close()

    run(main)


@pytest.mark.parametrize("place", [8, 61, 5 * 70, 5 * 70 + 61], ids=["length", "record", "offset", "later record"])
def test_cleaner_that_meets_damage_takes_the_partition_offline(tmp_path: Path, place: int) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            other = logs.create(TopicPartition("other", 0), bytes(range(16)), compacted(setting))
            log = logs.create(NAME, bytes(16), compacted(setting))
            for each in (log, other):
                for number in range(10):
                    put(each, ("k", f"{number}"))
            file = setting.path / str(NAME) / log.reader.segments.items[0].log_name
            with file.open("r+b") as opened:
                assert log.reader.segments.items[0].size == 10 * 70
                opened.seek(place)
                opened.write(b"\xff\xff\xff")
            with structlog.testing.capture_logs() as lines:
                log.roll()
                other.roll()
                with trio.fail_after(100):
                    await until(lambda: log.reader.offline_reason is not None)
                await until(lambda: len(content(other)) == 1)
            (line,) = [line for line in lines if line["event"] == "A partition is offline: it is damaged"]
            assert line["partition"] == str(NAME)
            assert str(file) in line["error"]
            with pytest.raises(KafkaError) as caught:
                log.reader.read(0, max_bytes=100, end_offset=10, min_one_batch=True)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert not list(file.parent.glob("*.cleaned"))

    run(main)


def test_cleaner_leaves_alone_what_is_sound_and_cannot_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            put(log, ("k", "1"))
            log.roll()
            put(log, ("k", "2"))
            # A record whose length is greater than its batch, with a valid CRC.
            file = setting.path / str(NAME) / log.reader.segments.items[0].log_name
            batch = bytearray(file.read_bytes())
            batch[HEADER_SIZE] += 2
            header = BatchHeader(batch)
            write_timestamp(batch, 0, header, header.timestamp_type, header.max_timestamp)
            file.write_bytes(batch)
            with structlog.testing.capture_logs() as lines:
                await until(lambda: GIVEN_UP in events(lines))
                await trio.sleep(100)
            assert events(lines).count(GIVEN_UP) == 1
            assert log.reader.offline_reason is None

    run(main)


def test_cleaner_finds_aborted_transactions_wherever_they_end(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            log = logs.create(NAME, bytes(16), compacted(setting))
            put(log, ("a", "1"), ("b", "1"))
            for producer_id, keys in ((5, "a"), (6, "b")):
                fields = {"is_transactional": True, "producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
                put(log, (keys, "aborted"), **fields)
            log.reader.high_watermark = 2
            log.roll()
            end_transaction(log, 5, is_commit=False)
            log.roll()
            end_transaction(log, 6, is_commit=False)
            await until(lambda: logs.catalog.cleaner_offsets.get(NAME) == 5)
            kept = [(record[0], record[1]) for record in content(log) if record[1] in "ab"]
            assert kept == [(0, "a"), (1, "b")]

    run(main)


def test_cleaner_compacts_a_batch_with_more_keys_than_fit_into_its_memory(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        async with running(setting) as logs:
            setting.config.set_dynamic(
                {}, {"log.cleaner.dedupe.buffer.size": "1048577", "log.cleaner.io.buffer.load.factor": "1e-5"}
            )
            log = logs.create(NAME, bytes(16), compacted(setting))
            put(log, ("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"))
            with structlog.testing.capture_logs() as lines:
                log.roll()
                await until(lambda: logs.catalog.cleaner_offsets.get(NAME) == 4)
            assert GIVEN_UP not in events(lines)
            assert [record[:2] for record in content(log)] == [(1, "b"), (2, "c"), (3, "a")]

    run(main)
