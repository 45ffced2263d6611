"""The reader of KRaft's metadata log."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.kraft_log import FOLDER, TOPIC_RESOURCE, KraftImage, read_kraft_log
from wirekafka.metadata.kraft_records import RecordType
from wirekafka.names import new_topic_id
from wirekafka.tests.metadata.kraft_logs import (
    batch_of,
    feature,
    other,
    producer_ids,
    reassignment,
    removal,
    setting,
    topic,
    write_log,
    write_snapshot,
)

A, B = new_topic_id(), new_topic_id()


def read(data: Path) -> KraftImage:
    return read_kraft_log(str(data / FOLDER), Storage())


def names(image: KraftImage) -> list[str]:
    return sorted(topic.name for topic in image.topics.values())


def test_kraft_log_gives_topics_settings_features_and_producer_ids(tmp_path: Path) -> None:
    records = [feature("transaction.version", 2), *topic("a", A, 2, cleanup_policy="compact"), producer_ids(3000)]
    write_log(tmp_path, [*records, setting(4, "", "log.retention.ms", "7")])
    image = read(tmp_path)
    assert image.topics[A].replicas == {0: [1], 1: [1]}
    assert image.configs[TOPIC_RESOURCE, "a"] == {"cleanup.policy": "compact"}
    assert image.configs[4, ""] == {"log.retention.ms": "7"}
    assert image.feature_levels == {"transaction.version": 2}
    assert (image.next_producer_id, image.end_offset) == (3000, 7)


def test_kraft_log_later_records_change_and_remove(tmp_path: Path) -> None:
    records = [*topic("a", A, retention_ms="5", segment_ms="9"), *topic("b", B, retention_ms="1"), removal(B)]
    write_log(tmp_path, [*records, setting(2, "a", "retention.ms", None), reassignment(A, 0, [2])])
    image = read(tmp_path)
    assert names(image) == ["a"]
    assert image.configs[TOPIC_RESOURCE, "a"] == {"segment.ms": "9"}
    assert image.topics[A].replicas == {0: [2]}
    assert (TOPIC_RESOURCE, "b") not in image.configs


def test_kraft_log_topic_created_again_has_none_of_the_former_settings(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("a", A, retention_ms="5"), removal(A), *topic("a", B)])
    assert read(tmp_path).configs[TOPIC_RESOURCE, "a"] == {}


def test_kraft_log_newest_snapshot_goes_before_the_log_after_it(tmp_path: Path) -> None:
    write_snapshot(tmp_path, topic("former", B), end_offset=3)
    write_snapshot(tmp_path, topic("a", A, retention_ms="1"), end_offset=10)
    # The segment begins before the end of the snapshot: its first record is in the snapshot and is not applied again.
    write_log(tmp_path, [setting(2, "a", "retention.ms", "0"), setting(2, "a", "segment.ms", "2")], first_offset=9)
    image = read(tmp_path)
    assert names(image) == ["a"]
    assert image.configs[TOPIC_RESOURCE, "a"] == {"retention.ms": "1", "segment.ms": "2"}
    assert image.end_offset == 11


@pytest.mark.parametrize(("end", "is_applied"), [(RecordType.END_TRANSACTION, True), (RecordType.ABORT_TRANSACTION, False)])
def test_kraft_log_metadata_transaction_counts_once_it_has_ended(tmp_path: Path, end: RecordType, *, is_applied: bool) -> None:
    write_log(tmp_path, [other(RecordType.BEGIN_TRANSACTION), *topic("a", A), other(end), *topic("b", B)])
    assert names(read(tmp_path)) == (["a", "b"] if is_applied else ["b"])


def test_kraft_log_open_metadata_transaction_does_not_count(tmp_path: Path) -> None:
    write_log(tmp_path, [*topic("b", B), other(RecordType.BEGIN_TRANSACTION), *topic("a", A)])
    assert names(read(tmp_path)) == ["b"]


def test_kraft_log_torn_last_batch_is_ignored(tmp_path: Path) -> None:
    path = write_log(tmp_path, topic("a", A))
    path.write_bytes(path.read_bytes() + batch_of(topic("b", B), 2)[:-1])
    assert names(read(tmp_path)) == ["a"]


def test_kraft_log_zeros_at_the_end_are_ignored(tmp_path: Path) -> None:
    path = write_log(tmp_path, topic("a", A))
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert names(read(tmp_path)) == ["a"]


def refused(data: Path) -> str:
    with pytest.raises(KafkaError) as caught:
        read(data)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert caught.value.message is not None
    return caught.value.message


@pytest.mark.parametrize("at", [0, 30, 70])
def test_kraft_log_damage_before_a_sound_batch_is_refused(tmp_path: Path, at: int) -> None:
    path = write_log(tmp_path, topic("a", A, 3))
    data = bytearray(path.read_bytes())
    data[at + 8 if at == 0 else at] ^= 0xFF
    path.write_bytes(data)
    assert str(path) in refused(tmp_path)


def test_kraft_log_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, topic("a", A), end_offset=3)
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refused(tmp_path)


def test_kraft_log_missing_records_are_refused(tmp_path: Path) -> None:
    write_snapshot(tmp_path, topic("a", A), end_offset=3)
    write_log(tmp_path, topic("b", B), first_offset=5)
    assert "records from offset 3 to 5 are missing" in refused(tmp_path)


def test_kraft_log_record_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, [b"\x01\x02\x01" + topic("a", A)[0][3:]])
    assert "version 1 of TopicRecord is not known" in refused(tmp_path)
