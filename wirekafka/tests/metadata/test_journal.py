from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.journal import FILE_NAME, Journal, has_journal, rename_migrated, restore_migrated
from wirekafka.metadata.store import StoredTopic
from wirekafka.names import new_topic_id
from wirekafka.tests.replication.memory_logs import FullDisk


class CountingDisk(Storage):
    """A disk without delays."""

    __slots__ = ("sync_count", "written_bytes")

    def __init__(self) -> None:
        self.sync_count = 0
        self.written_bytes = 0

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self.written_bytes += len(data)
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        self.sync_count += 1

    def sync_folder(self, path: str) -> None:
        pass


ID = new_topic_id()
OTHER_ID = new_topic_id()


def reopen(path: Path) -> Journal:
    return Journal.open(str(path), Storage())


def test_store_has_after_reopening_what_was_put(tmp_path: Path) -> None:
    store = reopen(tmp_path)
    store.put_topic("a", ID, 3, {"retention.ms": "5"})
    store.put_topic("b", OTHER_ID, 1, {})
    store.put_topic("b", OTHER_ID, 2, {})
    store.put_broker_configs("", {"log.retention.ms": "7"})
    store.delete_topic("a")
    again = reopen(tmp_path)
    assert again.topics == {"b": StoredTopic(OTHER_ID, 2, {})}
    assert again.deleted == {ID: "a"}
    assert again.broker_configs == {"": {"log.retention.ms": "7"}}


def test_topic_keeps_the_leader_epoch_with_which_it_was_written_until_it_is_deleted(tmp_path: Path) -> None:
    topics = {"a": StoredTopic(ID, 1, {}, leader_epoch=7), "b": StoredTopic(OTHER_ID, 1, {}, leader_epoch=8)}
    Journal.write(str(tmp_path), Storage(), topics=topics, broker_configs={}, group_configs={}, feature_levels={})
    store = reopen(tmp_path)
    assert store.topics == topics
    store.put_topic("a", ID, 2, {"retention.ms": "5"})
    store.delete_topic("b")
    store.put_topic("b", b"0123456789abcdef", 1, {})
    assert {name: topic.leader_epoch for name, topic in reopen(tmp_path).topics.items()} == {"a": 7, "b": 0}


def test_journal_that_has_moved_to_zookeeper_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    reopen(tmp_path).close()
    rename_migrated(str(tmp_path), Storage())
    with pytest.raises(KafkaError, match="have moved to a cluster with ZooKeeper"):
        reopen(tmp_path)
    assert not has_journal(str(tmp_path))
    restore_migrated(str(tmp_path), Storage())
    reopen(tmp_path).close()


def test_store_has_the_latest_levels_of_features(tmp_path: Path) -> None:
    store = reopen(tmp_path)
    assert (store.feature_levels, store.features_epoch) == ({}, 0)
    store.put_features({"transaction.version": 1}, 1)
    store.put_features({"transaction.version": 0, "group.version": 1}, 2)
    again = reopen(tmp_path)
    assert (again.feature_levels, again.features_epoch) == ({"transaction.version": 0, "group.version": 1}, 2)
    again.put_topic("a", ID, 3, {})
    again.delete_topic("a")
    again.forget_deleted()
    rewritten = reopen(tmp_path)
    assert (rewritten.feature_levels, rewritten.features_epoch) == (again.feature_levels, 2)


def test_store_forgets_deleted_topics_for_good(tmp_path: Path) -> None:
    store = reopen(tmp_path)
    store.put_topic("a", ID, 3, {})
    store.delete_topic("a")
    store.forget_deleted()
    assert reopen(tmp_path).deleted == {}


@pytest.mark.parametrize("kept", range(1, 12))
def test_store_with_a_torn_last_line_drops_it_and_takes_more(tmp_path: Path, kept: int) -> None:
    reopen(tmp_path).put_topic("a", ID, 1, {})
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    store = reopen(tmp_path)
    assert set(store.topics) == {"a"}
    store.put_topic("b", OTHER_ID, 1, {})
    assert set(reopen(tmp_path).topics) == {"a", "b"}


def test_store_with_a_broken_line_refuses_to_guess(tmp_path: Path) -> None:
    reopen(tmp_path).put_topic("a", ID, 1, {})
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b'"topic"', b'"tropic"') + b"{}\n")
    with pytest.raises(KafkaError, match="line 2") as caught:
        reopen(tmp_path)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_store_on_a_full_disk_keeps_what_it_had_and_goes_on_with_room(tmp_path: Path) -> None:
    disk = FullDisk()
    store = Journal.open(str(tmp_path), disk)
    store.put_topic("a", ID, 1, {})
    disk.room_bytes = 10
    with pytest.raises(KafkaError) as caught:
        store.put_topic("b", OTHER_ID, 1, {})
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert set(store.topics) == set(reopen(tmp_path).topics) == {"a"}
    disk.room_bytes = None
    store.put_topic("b", OTHER_ID, 1, {})
    assert set(reopen(tmp_path).topics) == {"a", "b"}


def test_store_file_does_not_grow_with_changes_of_one_topic(tmp_path: Path) -> None:
    store = Journal.open(str(tmp_path), CountingDisk())
    for count in range(1, 3000):
        store.put_topic("a", ID, count, {})
    assert (tmp_path / FILE_NAME).read_bytes().count(b"\n") < 1100
    assert reopen(tmp_path).topics["a"].partition_count == 2999


def test_store_cost_of_a_topic_does_not_depend_on_their_number(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = Journal.open(str(tmp_path), disk)
    for number in range(1000):
        store.put_topic(f"topic-{number}", ID, 1, {})
    assert disk.written_bytes < 1000 * 120


def test_store_changes_made_together_wait_for_the_disk_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = Journal.open(str(tmp_path), disk)
    before = disk.sync_count
    with store.together():
        for number in range(10):
            store.put_topic(f"topic-{number}", ID, 1, {})
        assert disk.sync_count == before
    assert disk.sync_count == before + 1
    with store.together():
        pass
    assert disk.sync_count == before + 1
    store.delete_topic("topic-0")
    assert disk.sync_count == before + 2


def test_store_that_a_newer_version_wrote_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"format":2}\n{"quota":"x"}\n')
    with pytest.raises(KafkaError, match="format 2, written by a newer version of wirekafka; this version reads format 1"):
        reopen(tmp_path)


def test_store_with_a_change_of_an_unknown_kind_names_the_line_and_the_kind(tmp_path: Path) -> None:
    reopen(tmp_path)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"quota":"x","bytes":1}\n')
    with pytest.raises(KafkaError, match=r"line 2 .* a change of an unknown kind \(bytes, quota\)"):
        reopen(tmp_path)


def test_store_writes_its_format_first_and_reads_journals_that_have_none(tmp_path: Path) -> None:
    reopen(tmp_path).put_topic("a", ID, 1, {})
    path = tmp_path / FILE_NAME
    first, rest = path.read_bytes().split(b"\n", 1)
    assert first == b'{"format":1}'
    path.write_bytes(rest)
    store = reopen(tmp_path)
    assert set(store.topics) == {"a"}
    store.delete_topic("a")
    store.forget_deleted()
    assert path.read_bytes() == b'{"format":1}\n'
