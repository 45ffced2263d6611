"""The loading of groups and offsets from their topic."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.records import CommittedOffset, GroupRecord, OffsetRecord, encode
from wirekafka.coordinator.groups.requests import HeartbeatRequest
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.tests.coordinator.stage import Stage, run
from wirekafka.wire.batch import Record, build_batch


def test_topic_that_exists_says_how_many_partitions_there_are() -> None:
    async def play(stage: Stage) -> None:
        stage.topics.partition_count = 7
        stage.topics.create_internal(GROUP_METADATA_TOPIC)
        again = stage.restarted()
        again.commit(1, "hello")
        assert again.topics.partitions_in_use == [99162322 % 7]

    run(play)


def test_groups_and_offsets_come_back_after_a_restart() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        stage.commit(5, "simple")
        again = stage.restarted()
        assert again.offsets("simple") == {"t": {0: 5}}
        assert again.state() == "Stable"
        assert again.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1)) is ErrorCode.NONE

    run(play)


def record_of(offset: int) -> Record:
    key, value = encode(OffsetRecord("g", "t", 0, CommittedOffset(offset, None, "", 0)))
    return Record(key, value, (), 0)


def test_offsets_of_a_transaction_count_once_it_has_committed() -> None:
    def transactional(offset: int) -> bytearray:
        return build_batch([record_of(offset)], producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal(GROUP_METADATA_TOPIC).partitions[0].log
        log.append(build_batch([record_of(1)]))
        log.append(transactional(2))
        assert stage.restarted().offsets() == {"t": {0: 1}}
        log.end_transaction(9, is_commit=False)
        assert stage.restarted().offsets() == {"t": {0: 1}}
        log.append(transactional(3))
        log.end_transaction(9, is_commit=True)
        assert stage.restarted().offsets() == {"t": {0: 3}}

    run(play)


def test_last_records_of_keys_are_replayed_in_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(topic: str, offset: int) -> Record:
        return Record(*encode(OffsetRecord("g", topic, 0, CommittedOffset(offset, None, "", 0))), (), 0)

    def transactional(*records: Record) -> bytearray:
        return build_batch(list(records), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal(GROUP_METADATA_TOPIC).partitions[0].log
        log.append(build_batch([of("a", 1), of("b", 2), of("c", 3), of("a", 4)]))
        log.append(transactional(of("b", 5)))
        log.end_transaction(9, is_commit=True)
        replayed: list[int] = []
        monkeypatch.setattr(GroupCoordinator, "replay", lambda self, record, offset, producer_id: replayed.append(offset))
        stage.restarted()
        assert replayed == [2, 3, 4]

    run(play)


def test_records_that_cannot_be_read_do_not_keep_the_others_from_coming_back() -> None:
    key, _ = encode(GroupRecord("broken", None))
    unreadable = [Record(b"\0\2", b"\0\3", (), 0), Record(key, b"\0\3\0", (), 0), Record(b"\0\5\0\1g\0\1m", b"\0\0", (), 0)]

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal(GROUP_METADATA_TOPIC).partitions[0].log
        log.append(build_batch([*unreadable, record_of(7)]))
        with capture_logs() as lines:
            assert stage.restarted().offsets() == {"t": {0: 7}}
        assert [line["log_level"] for line in lines] == ["error", "error", "warning", "info"]

    run(play)


def test_partitions_are_as_many_as_configured_again_once_their_topic_is_deleted() -> None:
    async def play(stage: Stage) -> None:
        stage.topics.partition_count = 7
        stage.topics.create_internal(GROUP_METADATA_TOPIC)
        again = stage.restarted()
        again.topics.partition_count = 50
        again.topics.delete(again.topics.get(GROUP_METADATA_TOPIC))
        again.commit(1, "hello")
        assert again.topics.partitions_in_use == [99162322 % 50]

    run(play)


@pytest.mark.parametrize("is_offline", [False, True])
def test_log_that_cannot_be_read_costs_its_partition_only(monkeypatch: pytest.MonkeyPatch, is_offline: bool) -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        assert stage.topics.topic is not None
        partition = stage.topics.topic.partitions[stage.runtime.partition_of("g")]

        def break_down(from_offset: int) -> Any:
            partition.log.offline_reason = "a test" if is_offline else None
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

        monkeypatch.setattr(partition.log, "batches", break_down)
        again = stage.restarted()
        assert not again.runtime.is_available("g")
        assert again.runtime.is_available("another")

    run(play)
