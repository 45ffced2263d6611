"""The logs of a member of a cluster: the owner of its directories, stored high watermarks, and stray partitions."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.inspection.verification import verify
from wirekafka.log.checkpoint import HIGH_WATERMARKS, META_PROPERTIES, read_offsets
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import Storage
from wirekafka.log.strays import find_strays
from wirekafka.names import TopicPartition
from wirekafka.pending import finish
from wirekafka.tests.log.logs import NOW_MS, all_records, append, batch, idempotent
from wirekafka.tests.waiting import until

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
TOPIC_ID, OTHER_ID = bytes(range(16)), bytes(range(1, 17))
NAME, OTHER = TopicPartition("topic", 0), TopicPartition("topic", 1)


class RenameStorage(Storage):
    """A disk that may refuse to rename folders to stray ones."""

    __slots__ = ("is_refusing",)

    def __init__(self) -> None:
        self.is_refusing = False

    def rename(self, path: str, new_path: str) -> None:
        if self.is_refusing and new_path.endswith("-stray"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().rename(path, new_path)


class Member:
    """A broker's data directory, opened as a member of a cluster or not."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        self.config = BrokerConfig({"log.dirs": str(path)} | {name.replace("_", "."): each for name, each in settings.items()})
        self.storage = RenameStorage()
        self.clock = Clock(wall=lambda: NOW_MS / 1000)

    async def open(self, cluster_id: str | None = CLUSTER_ID) -> LogManager:
        return await LogManager.open(self.config, self.clock, storage=self.storage, cluster_id=cluster_id)

    def create(self, logs: LogManager, name: TopicPartition = NAME, topic_id: bytes = TOPIC_ID) -> Log:
        return logs.create(name, topic_id, LogConfig.of(self.config, {}))

    def folders(self) -> list[str]:
        """Returns the names of the folders, without what is unique."""
        return sorted(path.name.partition(".")[0] + path.suffix[33:] for path in self.path.iterdir() if path.is_dir())

    def stray_folder(self) -> Path:
        [folder] = self.path.glob("*-stray")
        return folder


def run(main: Callable[[], Awaitable[Any]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# The owner


def test_member_writes_version_0_with_the_id_of_its_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path, node_id="2")
        logs = await member.open()
        assert logs.cluster_id == CLUSTER_ID
        await logs.close()

        assert (tmp_path / META_PROPERTIES).read_text() == f"cluster.id={CLUSTER_ID}\nbroker.id=2\nversion=0\n"
        await (await member.open()).close()

    run(main)


def test_member_keeps_the_meta_properties_of_apache_kafka_as_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        content = f"#\n#Mon Nov 23 00:00:00 UTC 2026\ncluster.id={CLUSTER_ID}\nversion=0\nbroker.id=2\n"
        (tmp_path / META_PROPERTIES).write_text(content)

        await (await Member(tmp_path, node_id="2").open()).close()

        assert (tmp_path / META_PROPERTIES).read_text() == content

    run(main)


def test_member_refuses_the_directory_of_a_broker_without_zookeeper(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        await (await member.open(cluster_id=None)).close()

        with pytest.raises(KafkaError, match="meta.properties has version 1") as caught:
            await member.open()
        assert caught.value.code is ErrorCode.INVALID_CONFIG

    run(main)


def test_member_refuses_directories_of_which_one_has_version_1(tmp_path: Path) -> None:
    async def main() -> None:
        await (await Member(tmp_path / "a").open()).close()
        await (await Member(tmp_path / "b").open(cluster_id=None)).close()

        with pytest.raises(KafkaError, match=r"/b belongs to a broker without ZooKeeper"):
            await Member(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b").open()

    run(main)


def test_member_refuses_the_directory_of_another_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        await (await member.open()).close()

        with pytest.raises(KafkaError, match="zookeeper.connect leads to cluster another"):
            await member.open(cluster_id="another")

    run(main)


# High watermarks


@pytest.mark.parametrize(("cluster_id", "expected"), [(CLUSTER_ID, 1), (None, 3)])
def test_high_watermark_after_a_start_is_the_stored_one_for_a_member_and_the_end_for_a_sole_replica(
    tmp_path: Path, cluster_id: str | None, expected: int
) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open(cluster_id)
        log = member.create(logs)
        log.append(batch(b"a", b"b", b"c"), leader_epoch=0, now_ms=NOW_MS)
        log.reader.advance_high_watermark(1)
        await logs.close()
        assert read_offsets((tmp_path / HIGH_WATERMARKS).read_bytes()) == {NAME: 1}

        logs = await member.open(cluster_id)

        found = logs.get(NAME)
        assert found is not None
        assert found.reader.high_watermark == expected
        await logs.close()

    run(main)


def test_member_without_a_stored_high_watermark_knows_of_no_committed_record(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        append(member.create(logs), batch(b"a"))
        await logs.close()
        (tmp_path / HIGH_WATERMARKS).unlink()

        logs = await member.open()

        found = logs.get(NAME)
        assert found is not None
        assert (found.reader.high_watermark, found.reader.log_end_offset) == (0, 1)
        await logs.close()

    run(main)


def test_high_watermarks_are_stored_while_the_broker_runs(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path, log_initial_task_delay_ms="0", replica_high_watermark_checkpoint_interval_ms="5000")
        logs = await member.open()
        append(member.create(logs), batch(b"a", b"b"))
        async with trio.open_nursery() as nursery:
            logs.start(nursery)
            await until((tmp_path / HIGH_WATERMARKS).exists, poll_seconds=1)
            assert read_offsets((tmp_path / HIGH_WATERMARKS).read_bytes()) == {NAME: 2}
            nursery.cancel_scope.cancel()
        await logs.close()

    run(main)


# Strays


@pytest.mark.parametrize(
    ("topic_id", "assigned", "reason"),
    [
        (TOPIC_ID, {NAME: TOPIC_ID}, None),
        (None, {NAME: TOPIC_ID}, None),
        (TOPIC_ID, {NAME: OTHER_ID}, "the folder has topic id"),
        (TOPIC_ID, {OTHER: TOPIC_ID}, "the cluster does not assign the partition to this broker"),
        (None, {}, "the cluster does not assign the partition to this broker"),
    ],
)
def test_stray_is_a_partition_that_is_not_assigned_or_of_another_topic(
    topic_id: bytes | None, assigned: dict[TopicPartition, bytes], reason: str | None
) -> None:
    strays = find_strays([(NAME, topic_id)], assigned)

    assert bool(strays) is bool(reason)
    assert reason is None or strays[NAME].startswith(reason)


def test_stray_folder_is_renamed_and_its_name_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        append(member.create(logs), batch(b"old"))
        append(member.create(logs, OTHER), batch(b"kept"))

        with capture_logs() as lines:
            assert finish(logs.rename_strays({NAME: OTHER_ID, OTHER: TOPIC_ID})) == [NAME]

        assert member.folders() == ["topic-0-stray", "topic-1"]
        [line] = [line for line in lines if line["event"] == "Renamed the folder of a stray partition"]
        assert line["new_path"].endswith("-stray")
        assert "Delete the folder" in line["remedy"]
        assert logs.get(NAME) is None
        assert append(member.create(logs, topic_id=OTHER_ID), batch(b"new")).base_offset == 0
        await logs.close()

    run(main)


def test_start_neither_opens_nor_deletes_a_stray_folder(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        append(member.create(logs), batch(b"old"))
        finish(logs.rename_strays({}))
        await logs.close()

        with capture_logs() as lines:
            logs = await member.open()

        assert (logs.discover(), member.folders()) == ([], ["topic-0-stray"])
        assert [line["remedy"] for line in lines if line["event"] == "A folder is that of a stray partition"]
        await logs.close()
        assert not list(verify(str(tmp_path), advance=lambda _: None).damages())

    run(main)


def test_stray_folder_that_gets_its_name_back_has_its_records_and_producers(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        append(member.create(logs), idempotent(0))
        finish(logs.rename_strays({}))
        await logs.close()
        assert sorted(path.suffix for path in member.stray_folder().iterdir() if path.name.startswith("0")) == [
            ".index",
            ".log",
            ".snapshot",
            ".timeindex",
        ]
        member.stray_folder().rename(tmp_path / str(NAME))

        logs = await member.open()

        found = logs.get(NAME)
        assert found is not None
        assert [record.offset for record in all_records(found)] == [0]
        assert append(found, idempotent(0)).is_duplicate
        await logs.close()

    run(main)


def test_stray_folder_that_cannot_be_renamed_is_offline_so_that_no_new_log_gets_its_files(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        log = member.create(logs)
        member.storage.is_refusing = True

        assert finish(logs.rename_strays({})) == []

        assert logs.get(NAME) is log
        assert "cannot be renamed" in str(log.reader.offline_reason)
        await logs.close()

    run(main)


def test_stray_of_a_topic_with_the_longest_name_fits_into_a_file_name(tmp_path: Path) -> None:
    async def main() -> None:
        member = Member(tmp_path)
        logs = await member.open()
        member.create(logs, TopicPartition("t" * 249, 10))

        finish(logs.rename_strays({}))

        assert len(member.stray_folder().name) == 255
        await logs.close()

    run(main)
