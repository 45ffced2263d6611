from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log import closing
from wirekafka.log.checkpoint import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from wirekafka.log.directory import DirectoryLockedError
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import FileRegion, Storage
from wirekafka.names import TopicPartition
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.logs import NOW_MS, all_records, append, fill, idempotent
from wirekafka.tests.waiting import until

TOPIC_ID = bytes(range(16))
NAME = TopicPartition("my-topic.x", 3)
CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)


class Setting:
    """A data directory, and the settings of the broker on it."""

    def __init__(self, tmp_path: Path, **settings: str) -> None:
        self.path = tmp_path / "data"
        settings = {"log.dirs": str(self.path)} | {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig(settings)
        self.clock = Clock(wall=lambda: NOW_MS / 1000 + trio.current_time() - self.began)
        self.began = 0.0
        self.storage = FaultyStorage()
        self.file_system: Storage = self.storage

    async def open(self) -> LogManager:
        self.began = self.began or trio.current_time()
        return await LogManager.open(self.config, self.clock, storage=self.file_system)

    def create(self, logs: LogManager, name: TopicPartition = NAME, **overrides: str) -> Log:
        return logs.create(name, TOPIC_ID, LogConfig.of(self.config, {n.replace("_", "."): v for n, v in overrides.items()}))


def run(main: Callable[[], Awaitable[Any]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def found(logs: LogManager, name: TopicPartition = NAME) -> Log:
    log = logs.get(name)
    assert log is not None
    return log


def test_log_comes_back_after_a_clean_restart_without_recovery(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        append(log, idempotent(0, 3))
        await logs.close()
        assert (setting.path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'

        logs = await setting.open()
        assert logs.directories[0].is_clean
        assert not (setting.path / ".kafka_cleanshutdown").exists()
        assert logs.discover() == [(NAME, TOPIC_ID)]
        log = found(logs)
        assert (log.reader.log_end_offset, log.flusher.recovery_point) == (3, 3)
        assert append(log, idempotent(0, 3)).is_duplicate
        await logs.close()

    run(main)


def test_close_that_is_cancelled_writes_no_more_logs_and_leaves_no_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        for index in range(200):
            append(setting.create(logs, TopicPartition("t", index)), idempotent(0, 1))
        written: list[Log] = []
        write_for_restart = Log.write_for_restart

        def write(log: Log) -> Flush:
            written.append(log)
            trio.from_thread.run_sync(scope.cancel)
            return write_for_restart(log)

        monkeypatch.setattr(Log, "write_for_restart", write)
        with trio.CancelScope() as scope:
            await logs.close()
        assert scope.cancelled_caught
        assert 0 < len(written) <= closing.MOST_THREADS
        assert not (setting.path / ".kafka_cleanshutdown").exists()
        logs = await setting.open()
        assert all(log.reader.log_end_offset == 1 for log in logs)
        logs._unlock()

    run(main)


def test_log_that_was_not_closed_is_recovered(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        fill(setting.create(logs), 5)
        logs._unlock()

        logs = await setting.open()
        assert not logs.directories[0].is_clean
        assert [record.offset for record in all_records(found(logs))] == [0, 1, 2, 3, 4]
        await logs.close()

    run(main)


def test_second_broker_on_a_directory_is_told_who_holds_it(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        logs.announce("127.0.0.1:9092, [::1]:9092")

        with pytest.raises(DirectoryLockedError) as caught:
            await setting.open()

        assert str(os.getpid()) in str(caught.value)
        assert "127.0.0.1:9092, [::1]:9092" in str(caught.value)
        await logs.close()
        await (await setting.open()).close()

    run(main)


def test_cluster_id_and_directory_id_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        meta = logs.directories[0].meta
        await logs.close()

        logs = await setting.open()

        assert (logs.cluster_id, logs.directories[0].meta) == (meta.cluster_id, meta)
        assert meta.cluster_id is not None
        assert meta.directory_id is not None
        assert len(meta.cluster_id) == len(meta.directory_id) == 22
        await logs.close()

    run(main)


def test_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        await (await Setting(tmp_path, node_id="1").open()).close()

        with pytest.raises(KafkaError) as caught:
            await Setting(tmp_path, node_id="2").open()

        assert caught.value.code == ErrorCode.INVALID_CONFIG
        assert "belongs to broker 1: set node.id=1" in str(caught.value)

    run(main)


def test_directory_that_is_named_twice_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")

    async def main() -> None:
        with pytest.raises(ConfigError, match="no two are the same"):
            await Setting(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b").open()

    run(main)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("a", "b"):
            await (await Setting(tmp_path, log_dirs=str(tmp_path / name)).open()).close()
        with pytest.raises(KafkaError) as caught:
            await Setting(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b").open()

        assert caught.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID

    run(main)


def test_create_spreads_logs_over_the_directories(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b")
        logs = await setting.open()
        for partition in range(4):
            setting.create(logs, TopicPartition("t", partition))
        await logs.close()

        logs = await setting.open()

        assert len(logs) == 4
        assert [len(logs.catalog.in_directory(directory)) for directory in logs.directories] == [2, 2]
        await logs.close()

    run(main)


def test_partition_in_two_directories_stops_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("a", "b"):
            (tmp_path / name / "t-0").mkdir(parents=True)
        with pytest.raises(KafkaError, match="and in"):
            await Setting(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b").open()

    run(main)


def test_create_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        setting.storage.room_bytes = 10
        with pytest.raises(KafkaError) as caught:
            setting.create(logs)

        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert logs.get(NAME) is None
        assert not (setting.path / str(NAME)).exists()
        setting.storage.room_bytes = None
        append(setting.create(logs), b"a")
        await logs.close()

    run(main)


def test_delete_frees_the_name_at_once_and_the_files_later(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.clock.run)
            log = setting.create(logs, file_delete_delay_ms="5000")
            fill(log, 3)
            region = log.reader.read(0, max_bytes=100, end_offset=3, min_one_batch=True)

            logs.delete(NAME)
            again = setting.create(logs)
            assert again.reader.log_end_offset == 0
            [deleted] = setting.path.glob("*-delete")
            await trio.sleep(4.9)
            assert deleted.exists()
            await trio.sleep(0.2)
            assert not deleted.exists()
            assert isinstance(region, FileRegion)
            assert len(region.read()) == len(region)
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


class FixedNames(Storage):
    """A disk that renames nothing as long as a test says so.

    Attributes:
        refused_count: how many renames it has refused.
    """

    def __init__(self, error: int = errno.ENOSPC) -> None:
        super().__init__()
        self.is_refusing = False
        self.refused_count = 0
        self._error = error

    def rename(self, path: str, new_path: str) -> None:
        if self.is_refusing and new_path.endswith("-delete"):
            self.refused_count += 1
            raise OSError(self._error, os.strerror(self._error))
        super().rename(path, new_path)


def test_deleted_log_in_a_directory_that_fails_leaves_its_name_to_the_other_directory(tmp_path: Path) -> None:
    async def main() -> None:
        setting, storage = Setting(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b"), FixedNames(error=errno.EIO)
        logs = await LogManager.open(setting.config, setting.clock, storage=storage)
        failing = logs.home_of(setting.create(logs))
        storage.is_refusing = True
        with pytest.raises(KafkaError):
            logs.delete(NAME)

        created = setting.create(logs)
        assert failing.offline_reason is not None
        assert logs.home_of(created).offline_reason is None
        assert storage.refused_count == 1  # a directory that is offline is left alone
        append(created, b"new")
        await logs.close()

    run(main)


def test_log_gets_no_records_of_a_deleted_one_whose_folder_could_not_be_renamed(tmp_path: Path) -> None:
    async def main() -> None:
        setting, storage = Setting(tmp_path), FixedNames()
        logs = await LogManager.open(setting.config, setting.clock, storage=storage)
        log = setting.create(logs)
        for number in range(3):
            append(log, b"old %d" % number)
            log.roll()
        storage.is_refusing = True
        with pytest.raises(KafkaError):
            logs.delete(NAME)

        with pytest.raises(KafkaError) as caught:
            setting.create(logs)
        assert (caught.value.code, logs.get(NAME)) == (ErrorCode.KAFKA_STORAGE_ERROR, None)

        storage.is_refusing = False
        append(setting.create(logs), b"new")
        logs._unlock()  # as after a crash

        logs = await setting.open()
        assert [record.value for record in all_records(found(logs))] == [b"new"]
        await logs.close()

    run(main)


def test_delete_of_a_long_name_keeps_within_what_a_file_system_takes(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        name = TopicPartition("x" * 249, 12)
        setting.create(logs, name)

        logs.delete(name)

        [deleted] = setting.path.glob("*-delete")
        assert len(deleted.name) == 255
        await logs.close()
        await (await setting.open()).close()
        assert not deleted.exists()

    run(main)


def test_recreated_log_does_not_inherit_the_checkpoints_of_the_deleted_one(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs)
        fill(log, 10)
        log.retention.delete_records(8)
        await logs.close()
        logs = await setting.open()
        assert found(logs).reader.log_start_offset == 8

        logs.delete(NAME)
        fill(setting.create(logs), 3)
        logs._unlock()

        logs = await setting.open()
        assert (found(logs).reader.log_start_offset, found(logs).reader.log_end_offset) == (0, 3)
        await logs.close()

    run(main)


@pytest.mark.parametrize("file", CHECKPOINTS)
def test_created_log_does_not_inherit_a_checkpoint_that_a_crash_left_without_its_log(tmp_path: Path, file: str) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        logs.directories[0].write_checkpoint(file, {NAME: 7})
        logs._unlock()

        logs = await setting.open()
        fill(setting.create(logs), 3)

        assert read_offsets((setting.path / file).read_bytes()) == {}
        assert NAME not in logs.catalog.cleaner_offsets
        await logs.close()

    run(main)


def test_close_with_a_failing_disk_does_not_mark_the_directory_clean(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        append(setting.create(logs), b"a")
        setting.storage.is_failing = True
        await logs.close()
        setting.storage.is_failing = False

        logs = await setting.open()

        assert not logs.directories[0].is_clean
        assert found(logs).reader.log_end_offset == 1
        await logs.close()

    run(main)


class FewDescriptors(Storage):
    """The real file system for a process with a low limit of open files."""

    __slots__ = ("_open",)

    MOST = 24

    def __init__(self) -> None:
        self._open: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        if len(self._open) >= self.MOST:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fd = super().open(path, create=create)
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._open.discard(fd)
        super().close(fd)


@pytest.fixture
def few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (FewDescriptors.MOST, FewDescriptors.MOST))
    setting = Setting(tmp_path)
    setting.file_system = FewDescriptors()
    return setting


def test_close_of_more_logs_than_descriptors_is_clean(few_descriptors: Setting) -> None:
    async def main() -> None:
        logs = await few_descriptors.open()
        for partition in range(100):
            append(few_descriptors.create(logs, TopicPartition("t", partition)), b"a")

        await logs.close()

        logs = await few_descriptors.open()
        assert logs.directories[0].is_clean
        assert [each.reader.log_end_offset for each in logs] == [1] * 100
        await logs.close()

    run(main)


def test_flush_of_more_logs_than_descriptors_reaches_the_disk(few_descriptors: Setting) -> None:
    async def main() -> None:
        logs = await few_descriptors.open()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            for partition in range(100):
                log = few_descriptors.create(logs, TopicPartition("t", partition))
                append(log, b"a")
                log.roll()
            await until(lambda: all(each.flusher.recovery_point == 1 for each in logs))
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_close_that_the_disk_delays_is_clean_until_the_machine_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "FLUSH_SECONDS", 0)

    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        append(setting.create(logs), b"a")
        await logs.close()

        logs = await setting.open()

        assert logs.directories[0].is_clean
        assert not logs.directories[0].is_on_disk
        logs._unlock()

    run(main)


def test_close_writes_many_logs_in_a_few_threads(tmp_path: Path) -> None:
    class Watched(Storage):
        """Records the threads in which files are created."""

        __slots__ = ("threads",)

        def __init__(self) -> None:
            self.threads: set[int] = set()

        def rewrite_file(self, path: str, data: bytes) -> None:
            self.threads.add(threading.get_ident())
            super().rewrite_file(path, data)

    async def main() -> None:
        setting = Setting(tmp_path)
        setting.file_system = watched = Watched()
        logs = await setting.open()
        for partition in range(300):
            append(setting.create(logs, TopicPartition("t", partition)), b"a")
        watched.threads.clear()

        await logs.close()

        assert threading.get_ident() not in watched.threads
        assert 1 <= len(watched.threads) <= closing.MOST_THREADS

    run(main)


def test_log_start_is_written_down_soon_after_delete_records(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            log = setting.create(logs)
            fill(log, 5)
            log.retention.delete_records(4)
            path = setting.path / "log-start-offset-checkpoint"
            await until(lambda: path.exists() and path.read_text() == f"0\n1\n{NAME.topic} 3 4\n")
            nursery.cancel_scope.cancel()
        logs._unlock()

        logs = await setting.open()

        assert found(logs).reader.log_start_offset == 4
        await logs.close()

    run(main)


def test_upkeep_flushes_a_rolled_log_and_writes_its_recovery_point(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            log = setting.create(logs)
            fill(log, 5)
            log.roll()
            for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
                path = setting.path / name
                await until(lambda path=path: path.exists() and path.read_text() == f"0\n1\n{NAME.topic} 3 5\n")
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_upkeep_flushes_within_flush_ms(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.clock.run)
            logs.start(nursery)
            log = setting.create(logs, flush_ms="300")
            append(log, b"a")
            await trio.sleep(0.29)
            assert log.flusher.recovery_point == 0
            await until(lambda: log.flusher.recovery_point == 1)
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_upkeep_deletes_what_is_past_its_retention(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, log_retention_check_interval_ms="1000")
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.clock.run)
            logs.start(nursery)
            log = setting.create(logs, retention_ms="60000")
            fill(log, 5)
            await trio.sleep(59)
            assert log.reader.log_start_offset == 0
            await trio.sleep(3)
            assert log.reader.log_start_offset == log.reader.log_end_offset == 5
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_upkeep_forgets_producers_that_do_not_write_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, producer_id_expiration_ms="60000", producer_id_expiration_check_interval_ms="1000")
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            log = setting.create(logs)
            append(log, idempotent(0))
            await trio.sleep(59)
            assert [producer.producer_id for producer in log.reader.producers] == [7]
            await trio.sleep(3)
            assert not len(log.reader.producers)
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_upkeep_forgets_producers_after_the_time_that_was_set_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, producer_id_expiration_check_interval_ms="1000")
        logs = await setting.open()
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            log = setting.create(logs)
            append(log, idempotent(0))
            setting.config.set_dynamic({}, {"producer.id.expiration.ms": "5000"})
            await trio.sleep(32)
            assert not len(log.reader.producers)
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


def test_folders_that_are_no_partitions_are_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        for name in ("lost+found", "t-01", "t-x", ".snapshot"):
            (setting.path / name).mkdir(parents=True)
        logs = await setting.open()
        assert len(logs) == 0
        await logs.close()

    run(main)


def test_start_leaves_no_files_open(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        for partition in range(20):
            append(setting.create(logs, TopicPartition("t", partition)), b"a")
        await logs.close()
        before = len(os.listdir("/proc/self/fd"))

        logs = await setting.open()

        assert len(os.listdir("/proc/self/fd")) <= before + 1
        await logs.close()

    run(main)


def test_new_log_chooses_its_directory_without_counting_all_logs(tmp_path: Path) -> None:
    class Unread(dict[TopicPartition, Any]):
        """A mapping that must not be iterated."""

        def __iter__(self) -> Any:
            raise AssertionError("a new log costs more with each log that is there")

        keys = values = items = __iter__

    async def main() -> None:
        setting = Setting(tmp_path, log_dirs=f"{tmp_path}/1,{tmp_path}/2")
        logs = await setting.open()
        for number in range(3):
            setting.create(logs, TopicPartition("there", number))
        catalog = logs.catalog
        homes, entered = catalog._home, catalog._logs
        catalog._home, catalog._logs = Unread(homes), Unread(entered)
        created = setting.create(logs, TopicPartition("new", 0))
        home = logs.home_of(created)
        catalog._home, catalog._logs = homes, entered
        catalog._home[created.topic_partition] = home
        catalog._logs[created.topic_partition] = created
        assert sorted(len(catalog.in_directory(directory)) for directory in catalog.directories) == [2, 2]
        await logs.close()

    run(main)


def test_new_log_inherits_nothing_from_checkpoints_that_an_earlier_broker_left(tmp_path: Path) -> None:
    """A broker has deleted the partition, and was killed before it wrote its checkpoints again."""

    async def main() -> None:
        setting = Setting(tmp_path)
        await (await setting.open()).close()
        for file in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
            (setting.path / file).write_text(f"0\n1\n{NAME.topic} {NAME.partition} 5000\n")
        logs = await setting.open()
        fill(setting.create(logs), 3)
        logs._unlock()

        logs = await setting.open()

        assert found(logs).reader.offline_reason is None
        assert [record.offset for record in all_records(found(logs))] == [0, 1, 2]
        await logs.close()

    run(main)


def test_checkpoints_of_a_clean_stop_name_no_partition_that_was_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        fill(setting.create(logs), 3)
        [directory] = logs.directories
        for file in CHECKPOINTS:
            directory.write_checkpoint(file, {NAME: 3})
        logs.delete(NAME)
        await logs.close()
        assert [read_offsets((setting.path / file).read_bytes()) for file in CHECKPOINTS] == [{}] * len(CHECKPOINTS)

    run(main)


def test_checkpoints_of_a_clean_stop_name_no_partition_that_is_on_its_way(tmp_path: Path) -> None:
    async def main() -> None:
        second = tmp_path / "second"
        setting = Setting(tmp_path, log_dirs=f"{tmp_path / 'data'},{second}")
        logs = await setting.open()
        fill(setting.create(logs), 3)
        logs.mover.begin(NAME, str(second))
        await logs.close()
        assert read_offsets((setting.path / RECOVERY_POINTS).read_bytes()) == {NAME: 3}
        assert read_offsets((second / RECOVERY_POINTS).read_bytes()) == {}

    run(main)
