"""Topics of Apache Kafka whose directories were moved in: they are taken over with their settings, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata import producer_ids as producer_id_blocks
from wirekafka.metadata.kraft_records import RecordType
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition, new_topic_id
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.tests.metadata.kraft_logs import feature, other, producer_ids, setting, topic, write_log
from wirekafka.tests.replication.memory_logs import FakeLog, MemoryLogs, open_topics

A, B = new_topic_id(), new_topic_id()

DESCRIBED = """\
Dynamic configs for topic a are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, DEFAULT_CONFIG:x=delete}
  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}
Dynamic configs for topic b are:
"""


def logs_of(**topics: tuple[bytes | None, int]) -> MemoryLogs:
    logs = MemoryLogs()
    for name, (topic_id, count) in topics.items():
        logs.logs |= {TopicPartition(name, index): FakeLog(topic_id) for index in range(count)}
    return logs


def refusal(path: Path, logs: MemoryLogs, **settings: str) -> str:
    with pytest.raises(KafkaError) as caught:
        open_topics(path, logs, **settings)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message is not None
    return caught.value.message


def overrides(topics: HostedTopics, name: str) -> dict[str, str]:
    found = topics.find(name)
    assert found is not None
    return found.overrides


def test_takeover_keeps_the_settings_that_the_metadata_log_names(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("a", A, 2, cleanup_policy="compact"), *topic("b", B), setting(4, "", "log.retention.ms", "77")])
    logs = logs_of(a=(A, 2), b=(B, 1))
    topics = open_topics(tmp_path, logs)
    assert overrides(topics, "a") == {"cleanup.policy": "compact"}
    assert overrides(topics, "b") == {}
    assert topics.broker_configs("") == {"log.retention.ms": "77"}
    found = topics.find("b")
    assert found is not None
    assert found.log_config.retention_ms == 77
    # The settings are in the journal after the first start: the metadata log is not needed again.
    (tmp_path / "__cluster_metadata-0" / f"{0:020}.log").unlink()
    assert overrides(open_topics(tmp_path, logs), "a") == {"cleanup.policy": "compact"}


def test_directory_of_a_member_is_refused_and_unchanged_unless_a_takeover_is_asked_for(tmp_path: Path) -> None:
    owner = tmp_path / "meta.properties"
    owner.write_text("version=0\nbroker.id=2\ncluster.id=4L6g3nShT-eMCtK--X86sw\n")
    before = owner.read_text()
    settings = {"log.dirs": str(tmp_path), "node.id": "2"}

    async def start(more: dict[str, str]) -> None:
        broker = await Broker.open(BrokerConfig(settings | more), Clock())
        await broker.logs.close()

    with pytest.raises(KafkaError, match="start the broker with zookeeper.connect") as caught:
        trio.run(start, {})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]
    assert owner.read_text() == before
    trio.run(start, {"wirekafka.takeover.without": "settings"})
    assert owner.read_text() != before


def test_takeover_finds_the_metadata_log_in_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    write_log(tmp_path / "metadata", topic("a", A, retention_ms="5"))
    topics = open_topics(tmp_path, logs_of(a=(A, 1)), metadata_log_dir=str(tmp_path / "metadata"))
    assert overrides(topics, "a") == {"retention.ms": "5"}


def test_takeover_keeps_features_and_group_settings(tmp_path: Path) -> None:
    group = setting(32, "readers", "consumer.session.timeout.ms", "50000")
    write_log(tmp_path, [feature("transaction.version", 1), feature("group.version", 99), group, *topic("a", A)])
    topics = open_topics(tmp_path, logs_of(a=(A, 1)))
    assert topics.group_configs.own("readers") == {"consumer.session.timeout.ms": "50000"}
    levels = {name: topics.features.level(name) for name in ("transaction.version", "group.version", "share.version")}
    assert levels == {"transaction.version": 1, "group.version": 1, "share.version": 0}


def test_takeover_gives_no_producer_id_twice(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("a", A), producer_ids(4000)])
    logs = logs_of(a=(A, 1))
    open_topics(tmp_path, logs)
    path = str(tmp_path / producer_id_blocks.FILE_NAME)
    ids = producer_id_blocks.ProducerIds(path, logs.storage, node_id=1, greatest_known=lambda: -1)
    assert ids.take() == 4000


@pytest.mark.parametrize(
    ("records", "kind", "what"),
    [
        ([setting(2, "a", "remote.storage.enable", "true")], "settings", "remote.storage.enable=true of topic a"),
        ([setting(4, "1", "ssl.keystore.location", "x")], "settings", "ssl.keystore.location of broker 1"),
        ([setting(32, "g", "streams.num.standby.replicas", "1")], "settings", "the settings of group g"),
        ([setting(16, "m", "interval.ms", "1")], "settings", "resource type 16"),
        ([other(RecordType.ACCESS_CONTROL_ENTRY)], "acls", "1 access control entries"),
        ([other(RecordType.USER_SCRAM_CREDENTIAL)], "users", "1 SCRAM credentials"),
        ([other(RecordType.DELEGATION_TOKEN)], "users", "1 delegation tokens"),
        ([other(RecordType.CLIENT_QUOTA)], "quotas", "1 client quotas"),
        (topic("b", B, replicas=[2]), "partitions", "the topics b, of which no partition is on broker 1"),
    ],
)
def test_takeover_that_would_lose_something_is_refused_unless_that_is_accepted(
    tmp_path: Path, records: list[bytes], kind: str, what: str
) -> None:
    write_log(tmp_path, [*topic("a", A, retention_ms="5"), *records])
    logs = logs_of(a=(A, 1))
    message = refusal(tmp_path, logs)
    assert f"  {kind}: " in message
    assert what in message
    assert f"--set wirekafka.takeover.without={kind}." in message
    others = ",".join(each for each in ("settings", "partitions", "acls", "users", "quotas") if each != kind)
    refusal(tmp_path, logs, wirekafka_takeover_without=others)
    assert overrides(open_topics(tmp_path, logs, wirekafka_takeover_without=kind), "a") == {"retention.ms": "5"}


def test_takeover_what_was_removed_is_no_loss(tmp_path: Path) -> None:
    records = [other(RecordType.ACCESS_CONTROL_ENTRY), other(RecordType.REMOVE_ACCESS_CONTROL_ENTRY)]
    write_log(tmp_path, [*topic("a", A), *records])
    assert overrides(open_topics(tmp_path, logs_of(a=(A, 1))), "a") == {}


def test_takeover_missing_partitions_are_a_loss_and_begin_empty_if_accepted(tmp_path: Path) -> None:
    write_log(tmp_path, topic("a", A, 3))
    logs = logs_of(a=(A, 1))
    assert "the records of a in partitions 1, 2" in refusal(tmp_path, logs)
    found = open_topics(tmp_path, logs, wirekafka_takeover_without="partitions").find("a")
    assert found is not None
    assert len(found.partitions) == 3


def test_takeover_refused_changes_nothing(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("a", A), other(RecordType.ACCESS_CONTROL_ENTRY)])
    logs = logs_of(a=(A, 1))
    refusal(tmp_path, logs)
    assert not (tmp_path / producer_id_blocks.FILE_NAME).exists()
    assert len(open_topics(tmp_path, MemoryLogs())) == 0


def test_takeover_without_any_metadata_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, logs_of(a=(None, 1)))
    assert "the settings of a, which are neither in a metadata log nor in a file" in message


def test_lost_journal_beside_topics_is_refused_although_an_old_metadata_log_is_there(tmp_path: Path) -> None:
    write_log(tmp_path, topic("a", A))
    logs = logs_of(a=(A, 1))
    open_topics(tmp_path, logs)
    (tmp_path / "wirekafka.metadata").unlink()
    message = refusal(tmp_path, logs)
    assert "the settings of a" in message
    assert f"{tmp_path}/__cluster_metadata-0 is not read" in message


def test_takeover_interrupted_before_its_end_is_done_again(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("a", A, retention_ms="5"), *topic("b", B, retention_ms="6")])
    open_topics(tmp_path, logs_of(a=(A, 1)), wirekafka_takeover_without="partitions")
    (tmp_path / producer_id_blocks.FILE_NAME).unlink()
    topics = open_topics(tmp_path, logs_of(a=(A, 1), b=(B, 1)))
    assert (overrides(topics, "a"), overrides(topics, "b")) == ({"retention.ms": "5"}, {"retention.ms": "6"})


def test_takeover_reads_settings_as_kafka_configs_prints_them(tmp_path: Path) -> None:
    file = tmp_path / "settings.txt"
    file.write_text(DESCRIBED)
    topics = open_topics(tmp_path, logs_of(a=(None, 1), b=(None, 1)), wirekafka_takeover_settings=str(file))
    assert overrides(topics, "a") == {"cleanup.policy": "compact", "retention.ms": "5"}
    assert overrides(topics, "b") == {}


def test_takeover_topic_that_the_settings_file_does_not_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.txt"
    file.write_text(DESCRIBED)
    message = refusal(tmp_path, logs_of(a=(None, 1), c=(None, 1)), wirekafka_takeover_settings=str(file))
    assert "the settings of c" in message
    assert "the settings of a" not in message


@pytest.mark.parametrize(("text", "reason"), [("nonsense\n", "line 1"), (None, "cannot read")])
def test_takeover_settings_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "settings.txt"
    if text is not None:
        file.write_text(text)
    assert reason in refusal(tmp_path, logs_of(a=(None, 1)), wirekafka_takeover_settings=str(file))


def test_takeover_offsets_topic_without_metadata_stays_compacted(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, logs_of(**{GROUP_METADATA_TOPIC: (None, 1)}))
    assert overrides(topics, GROUP_METADATA_TOPIC) == {"cleanup.policy": "compact"}


def test_takeover_folder_of_another_topic_of_the_same_name_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, topic("a", A))
    with pytest.raises(KafkaError) as caught:
        open_topics(tmp_path, logs_of(a=(B, 1)))
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_takeover_writes_a_block_that_is_json(tmp_path: Path) -> None:
    write_log(tmp_path, topic("a", A))
    open_topics(tmp_path, logs_of(a=(A, 1)))
    block = json.loads((tmp_path / producer_id_blocks.FILE_NAME).read_text())
    assert (block["block_start"], block["block_end"]) == ("0", "-1")
