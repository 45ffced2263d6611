"""What is done with the mirror of a topic."""

from __future__ import annotations

from wirekafka.pipelines.mirror.topic_plan import Topic, TopicChange, copied_configs, plan_topic

DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "1000",
}


def topic(partition_count: int = 1, /, **own: str) -> Topic:
    configs = {name.replace("_", "."): value for name, value in own.items()}
    return Topic(partition_count, "id", DEFAULTS | configs, configs)


BASE = copied_configs(topic())


def test_a_new_mirror_has_the_partitions_and_the_own_settings_of_its_topic() -> None:
    change = plan_topic(topic(3, retention_ms="5", compression_type="zstd"), "copy", None, None)
    assert (change.create, change.target, change.partition_count) == (True, "copy", 3)
    assert change.set_configs["retention.ms"] == "5"
    assert change.set_configs["compression.type"] == "zstd"


def test_a_new_mirror_keeps_the_timestamps_of_a_topic_with_log_append_time() -> None:
    change = plan_topic(topic(message_timestamp_type="LogAppendTime"), "copy", None, None)
    assert change.set_configs["message.timestamp.type"] == "CreateTime"


def test_settings_of_the_source_broker_are_not_copied_but_the_policy_and_the_largest_record_are() -> None:
    source = topic()
    source.configs = DEFAULTS | {"cleanup.policy": "compact", "max.message.bytes": "5", "retention.ms": "7"}
    assert copied_configs(source) == {"cleanup.policy": "compact", "max.message.bytes": "5"}


def test_settings_that_belong_to_a_cluster_are_not_copied() -> None:
    own = {
        "min_insync_replicas": "2",
        "unclean_leader_election_enable": "true",
        "leader_replication_throttled_replicas": "*",
        "message_timestamp_before_max_ms": "1",
        "remote_storage_enable": "true",
        "local_retention_ms": "1",
    }
    assert copied_configs(topic(1, **own)) == BASE


def test_a_mirror_that_has_everything_needs_no_change() -> None:
    source = topic(2, retention_ms="5")
    assert not plan_topic(source, "copy", topic(2, retention_ms="5"), copied_configs(source)).is_needed()


def test_a_mirror_gets_the_partitions_that_were_added_and_keeps_more() -> None:
    assert plan_topic(topic(4), "copy", topic(2), BASE) == TopicChange("copy", partition_count=4)
    assert not plan_topic(topic(2), "copy", topic(4), BASE).is_needed()


def test_a_setting_that_changed_at_the_source_is_set() -> None:
    change = plan_topic(topic(retention_ms="9"), "copy", topic(retention_ms="5"), BASE | {"retention.ms": "5"})
    assert change.set_configs == {"retention.ms": "9"}


def test_a_setting_that_was_changed_at_the_target_alone_stays() -> None:
    change = plan_topic(topic(retention_ms="5"), "copy", topic(retention_ms="777"), BASE | {"retention.ms": "5"})
    assert not change.is_needed()


def test_a_setting_that_was_removed_at_the_source_is_removed() -> None:
    change = plan_topic(topic(), "copy", topic(retention_ms="5"), BASE | {"retention.ms": "5"})
    assert change.delete_configs == {"retention.ms"}


def test_a_mirror_that_sets_its_own_timestamps_is_changed() -> None:
    change = plan_topic(topic(), "copy", topic(message_timestamp_type="LogAppendTime"), BASE)
    assert change.set_configs == {"message.timestamp.type": "CreateTime"}
