from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog.testing

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.topics import check_assignment
from wirekafka.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition, new_topic_id
from wirekafka.replication.replica_manager import HostedTopic, HostedTopics
from wirekafka.tests.replication.memory_logs import FakeLog, MemoryLogs, open_topics


def found(topics: HostedTopics, name: str) -> HostedTopic:
    topic = topics.find(name)
    assert topic is not None
    return topic


def assert_refused(code: ErrorCode, function: object, *arguments: object) -> None:
    with pytest.raises(KafkaError) as caught:
        function(*arguments)  # type: ignore[operator]
    assert caught.value.code is code


def test_topics_create_opens_partitions_and_finds_them(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("b", 3, {"retention.ms": "5"})
    topics.create("a", 1)
    assert topics.find("b") is topics.find_by_id(topic.topic_id) is topic
    assert [partition.index for partition in topic.partitions] == [0, 1, 2]
    assert topic.log_config.retention_ms == 5
    assert [each.name for each in topics] == ["a", "b"]
    assert len(topics) == 2


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topic = open_topics(tmp_path, logs).create("a", 2, {"cleanup.policy": "compact"})
    topics = open_topics(tmp_path, logs)
    again = found(topics, "a")
    assert again.topic_id == topic.topic_id
    assert len(again.partitions) == 2
    assert again.overrides == {"cleanup.policy": "compact"}
    assert again.partitions[0].log.config.is_compacted


def test_topics_lost_folders_come_back_empty_and_are_named(tmp_path: Path) -> None:
    open_topics(tmp_path).create("a", 2)
    with structlog.testing.capture_logs() as logs:
        assert len(found(open_topics(tmp_path, MemoryLogs()), "a").partitions) == 2
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["topic"], line["partitions"]) for line in warnings] == [("a", [0, 1])]


def test_topics_folders_that_may_be_in_a_directory_that_failed_are_not_called_gone(tmp_path: Path) -> None:
    open_topics(tmp_path).create("a", 2)
    incomplete = MemoryLogs()
    incomplete.is_complete = False
    with structlog.testing.capture_logs() as lines:
        open_topics(tmp_path, incomplete)
    assert [line for line in lines if line["log_level"] == "warning"] == []


def test_topics_folders_that_are_all_there_are_not_spoken_of(tmp_path: Path) -> None:
    logs = MemoryLogs()
    open_topics(tmp_path, logs).create("a", 2)
    with structlog.testing.capture_logs() as lines:
        open_topics(tmp_path, logs)
    assert [line for line in lines if line["log_level"] == "warning"] == []


@pytest.mark.parametrize(
    ("name", "count", "overrides", "code"),
    [
        ("a/b", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("taken", 1, {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("x.y", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", 0, {}, ErrorCode.INVALID_PARTITIONS),
        ("a", 10_000, {}, ErrorCode.POLICY_VIOLATION),
        ("a", 1, {"segment.bytes": "1"}, ErrorCode.INVALID_CONFIG),
        ("a", 1, {"no.such": "1"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_topics_create_of_what_cannot_be_is_refused(
    tmp_path: Path, name: str, count: int, overrides: dict[str, str], code: ErrorCode
) -> None:
    topics = open_topics(tmp_path)
    topics.create("taken", 1)
    topics.create("x_y", 1)
    assert_refused(code, topics.create, name, count, overrides)
    assert len(topics) == 2


def test_topics_create_that_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    logs.left = 2
    assert_refused(ErrorCode.KAFKA_STORAGE_ERROR, topics.create, "a", 3)
    assert logs.logs == {}
    assert topics.find("a") is None
    assert len(open_topics(tmp_path, logs)) == 0
    logs.left = None
    topics.create("a", 3)


def test_topics_create_that_cannot_be_written_down_leaves_nothing(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    logs.storage.room_bytes = 5
    assert_refused(ErrorCode.KAFKA_STORAGE_ERROR, topics.create, "a", 3)
    assert logs.logs == {}
    logs.storage.room_bytes = None
    topics.create("a", 3)
    assert len(open_topics(tmp_path, logs)) == 1


def test_topics_delete_frees_the_name_at_once_and_tells_who_asked(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    deleted: list[HostedTopic] = []
    topics.on_delete.append(deleted.append)
    topic = topics.create("a.b", 2)
    topics.delete(topic)
    assert deleted == [topic]
    assert all(partition.is_gone for partition in topic.partitions)
    assert topics.find("a.b") is None
    assert topics.find_by_id(topic.topic_id) is None
    assert topics.create("a_b", 1).topic_id != topic.topic_id
    assert [each.name for each in open_topics(tmp_path, logs)] == ["a_b"]


def test_topics_deleted_just_before_a_crash_do_not_come_back_from_their_folders(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("a", 2)
    folders = dict(logs.logs)
    topics.delete(topic)
    logs.logs = folders
    assert len(open_topics(tmp_path, logs)) == 0
    assert logs.logs == {}


def test_topics_deleted_just_before_a_power_loss_do_not_come_back_from_folders_without_an_id(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("a", 2)
    folders = dict(logs.logs)
    topics.delete(topic)
    logs.logs = folders
    for folder in folders.values():
        folder.topic_id = None
    assert len(open_topics(tmp_path, logs)) == 0
    assert logs.logs == {}


def test_topics_add_partitions_opens_them_for_good(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("a", 1, {"retention.ms": "5"})
    topics.add_partitions(topic, 3)
    assert [partition.index for partition in topic.partitions] == [0, 1, 2]
    again = found(open_topics(tmp_path, logs), "a")
    assert len(again.partitions) == 3
    assert again.overrides == {"retention.ms": "5"}


def test_topics_add_partitions_that_fails_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("a", 1)
    logs.left = 1
    assert_refused(ErrorCode.KAFKA_STORAGE_ERROR, topics.add_partitions, topic, 3)
    assert len(topic.partitions) == 1
    assert set(logs.logs) == {TopicPartition("a", 0)}
    assert len(found(open_topics(tmp_path, logs), "a").partitions) == 1


@pytest.mark.parametrize("count", [2, 1, 0, -5])
def test_topics_add_partitions_that_does_not_grow_is_refused(tmp_path: Path, count: int) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("a", 2)
    assert_refused(ErrorCode.INVALID_PARTITIONS, topics.add_partitions, topic, count)


def test_topics_alter_reaches_the_logs_and_the_disk(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("a", 1, {"retention.ms": "5"})
    topics.alter(topic, {"retention.bytes": "7"})
    assert topic.log_config.retention_bytes == 7
    assert topic.log_config.retention_ms != 5
    assert topic.partitions[0].log.config is topic.log_config
    assert found(open_topics(tmp_path, logs), "a").overrides == {"retention.bytes": "7"}
    assert_refused(ErrorCode.INVALID_CONFIG, topics.alter, topic, {"retention.bytes": "much"})
    assert topic.overrides == {"retention.bytes": "7"}


def test_topics_broker_settings_reach_every_log_and_the_disk(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    plain, own = topics.create("a", 1), topics.create("b", 1, {"retention.ms": "5"})
    topics.alter_broker_configs("", {"log.retention.ms": "7"})
    assert (plain.log_config.retention_ms, own.log_config.retention_ms) == (7, 5)
    topics.alter_broker_configs("1", {"log.retention.ms": "9"})
    assert plain.partitions[0].log.config.retention_ms == 9
    again = open_topics(tmp_path, logs)
    assert found(again, "a").log_config.retention_ms == 9
    assert again.broker_configs("") == {"log.retention.ms": "7"}
    again.alter_broker_configs("1", {})
    assert found(again, "a").log_config.retention_ms == 7
    assert_refused(ErrorCode.INVALID_CONFIG, again.alter_broker_configs, "", {"log.retention.ms": "-9"})


def test_topics_that_contradict_changed_settings_of_the_broker_still_open(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topics.create("a", 1, {"min.compaction.lag.ms": "10"})
    topics.alter_broker_configs("", {"log.cleaner.max.compaction.lag.ms": "5"})
    again = open_topics(tmp_path, logs)
    assert found(again, "a").log_config.max_compaction_lag_ms == 5
    assert_refused(ErrorCode.INVALID_CONFIG, again.create, "b", 1, {"min.compaction.lag.ms": "10"})


def test_topics_folders_moved_in_are_adopted_under_their_id(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topic_id = new_topic_id()
    logs.logs = {TopicPartition("flights-2013", index): FakeLog(topic_id) for index in (0, 2)}
    topic = found(open_topics(tmp_path, logs, wirekafka_takeover_without="settings,partitions"), "flights-2013")
    assert topic.topic_id == topic_id
    assert len(topic.partitions) == 3
    assert found(open_topics(tmp_path, logs), "flights-2013").topic_id == topic_id


def test_topics_folders_moved_in_without_an_id_get_one(tmp_path: Path) -> None:
    logs = MemoryLogs()
    logs.logs = {TopicPartition("old", 0): FakeLog(None)}
    topic = found(open_topics(tmp_path, logs, wirekafka_takeover_without="settings"), "old")
    assert found(open_topics(tmp_path, logs), "old").topic_id == topic.topic_id


def test_topics_folder_of_a_further_partition_moved_in_extends_its_topic(tmp_path: Path) -> None:
    logs = MemoryLogs()
    topic = open_topics(tmp_path, logs).create("a", 1)
    logs.logs[TopicPartition("a", 1)] = FakeLog(topic.topic_id)
    assert len(found(open_topics(tmp_path, logs), "a").partitions) == 2


def test_topics_moved_in_offsets_topic_stays_compacted(tmp_path: Path) -> None:
    logs = MemoryLogs()
    logs.logs = {TopicPartition(GROUP_METADATA_TOPIC, 0): FakeLog(new_topic_id())}
    assert found(open_topics(tmp_path, logs), GROUP_METADATA_TOPIC).log_config.is_compacted


def test_topics_folder_of_another_topic_of_the_same_name_stops_the_start(tmp_path: Path) -> None:
    logs = MemoryLogs()
    open_topics(tmp_path, logs).create("a", 1)
    logs.logs = {TopicPartition("a", 0): FakeLog(new_topic_id())}
    assert_refused(ErrorCode.INCONSISTENT_TOPIC_ID, open_topics, tmp_path, logs)


def test_topics_folders_of_two_topics_moved_in_under_one_name_stop_the_start(tmp_path: Path) -> None:
    logs = MemoryLogs()
    logs.logs = {TopicPartition("a", index): FakeLog(new_topic_id()) for index in (0, 1)}
    assert_refused(ErrorCode.INCONSISTENT_TOPIC_ID, open_topics, tmp_path, logs)


def test_topics_internal_topic_is_compacted_and_flagged(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, offsets_topic_num_partitions="4", offsets_topic_segment_bytes="1000")
    topic = topics.create_internal(GROUP_METADATA_TOPIC)
    assert topic.is_internal
    assert len(topic.partitions) == 4
    assert topic.log_config.cleanup_policy == {"compact"}
    assert topic.log_config.segment_bytes == 1000
    assert_refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics.create_internal, "a")


def test_topics_topic_of_transactions_is_compacted_and_not_compressed(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, transaction_state_log_num_partitions="3", transaction_state_log_min_isr="2")
    topic = topics.create_automatically(TRANSACTION_STATE_TOPIC)
    assert topic.is_internal
    assert len(topic.partitions) == 3
    assert topic.log_config.cleanup_policy == {"compact"}
    assert topic.log_config.compression_type == "uncompressed"
    assert topic.log_config.min_insync_replicas == 2


def test_topics_close_tells_who_waits(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("a", 1)
    topics.close()
    assert topic.partitions[0].is_gone


@pytest.mark.parametrize("broker_ids", [[], [2], [1, 2], [1, 1]])
def test_assignment_to_anyone_but_this_broker_is_refused(broker_ids: list[int]) -> None:
    check_assignment([1], 1)
    assert_refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, check_assignment, broker_ids, 1)


@pytest.mark.parametrize("is_together", [True, False])
def test_topics_deleted_while_the_broker_runs_leave_no_id_in_memory(tmp_path: Path, is_together: bool) -> None:
    topics = open_topics(tmp_path)
    for number in range(10):
        topics.create(f"flights-{number}", 2)
    with topics.together() if is_together else nullcontext():
        for topic in list(topics):
            topics.delete(topic)
    assert topics._store.deleted == {}
    topics.close()
    assert len(open_topics(tmp_path)) == 0


def test_topics_of_which_a_folder_could_not_be_renamed_keep_their_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("flights", 2)

    def fail(partition: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(topics._logs, "delete", fail)
    topics.delete(topic)
    assert topics._store.deleted == {topic.topic_id: "flights"}


def test_topics_block_without_changes_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = open_topics(tmp_path)
    syncs: list[bool] = []

    def sync() -> bool:
        syncs.append(True)
        return True

    monkeypatch.setattr(topics._logs, "sync_directories", sync)
    with topics.together():
        pass
    assert not syncs
    with topics.together():
        topics.create("flights", 1)
    assert len(syncs) == 1


@pytest.mark.parametrize("is_together", [True, False])
def test_topics_whose_names_cannot_be_synced_keep_deleted_ids_until_the_next_change(tmp_path: Path, is_together: bool) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)
    topic = topics.create("flights", 2)
    logs.can_sync = False
    with topics.together() if is_together else nullcontext():
        topics.delete(topic)
    assert topics._store.deleted == {topic.topic_id: "flights"}
    logs.can_sync = True
    topics.create("trains", 1)
    with topics.together():
        pass
    assert topics._store.deleted == {}


def test_topics_whose_names_cannot_be_synced_at_the_start_keep_deleted_ids(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("flights", 1)
    topics._store.delete_topic("flights")
    topics.close()
    logs = MemoryLogs()
    logs.logs[TopicPartition("flights", 0)] = FakeLog(topic.topic_id)
    logs.can_sync = False
    assert open_topics(tmp_path, logs)._store.deleted == {topic.topic_id: "flights"}


def test_topics_deletion_that_is_cut_short_is_still_announced(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("flights", 3)
    announced: list[str] = []
    topics.on_delete.append(lambda deleted: announced.append(deleted.name))
    work = topics.deletion(topic)
    next(work)
    work.close()
    assert announced == ["flights"]
    assert all(partition.is_gone for partition in topic.partitions)


def test_topics_deletion_is_announced_to_all_though_one_listener_fails(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topic = topics.create("flights", 1)
    announced: list[str] = []

    def fail(deleted: HostedTopic) -> None:
        raise ZeroDivisionError

    topics.on_delete += [fail, lambda deleted: announced.append(deleted.name)]
    with structlog.testing.capture_logs() as lines:
        topics.delete(topic)
    assert announced == ["flights"]
    assert len([line for line in lines if line["log_level"] == "error"]) == 1


def test_topics_creation_that_fails_unexpectedly_leaves_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = MemoryLogs()
    topics = open_topics(tmp_path, logs)

    def fail(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(topics._logs, "create", fail)
        topics.create("flights", 1)
    topics.close()
    assert len(open_topics(tmp_path, logs)) == 0
