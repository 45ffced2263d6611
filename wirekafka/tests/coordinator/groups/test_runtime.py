from __future__ import annotations

from typing import cast

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.config import BrokerConfig
from wirekafka.coordinator.effects import Effects, WritingProducer
from wirekafka.coordinator.groups.records import OffsetRecord
from wirekafka.coordinator.groups.requests import CommitRequest, LeavingMember, PartitionCommit, SyncRequest, SyncResult
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.hashing import java_string_hash
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending, finish
from wirekafka.replication.partition import Partition
from wirekafka.tests.coordinator.stage import Stage, run, run_work, wait_for
from wirekafka.wire.compression import Compression


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("hello", 99162322), ("polygenelubricants", -0x80000000), ("ü", 252), ("😀", 1772899)],
)
def test_hash_of_a_string_is_javas(text: str, number: int) -> None:
    assert java_string_hash(text) == number


def test_group_is_kept_in_the_partition_that_kafka_looks_in() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(1, "hello")
        stage.commit(1, "polygenelubricants")
        assert stage.topics.partitions_in_use == [0, 99162322 % 50]

    run(play)


def test_commit_on_a_full_disk_is_refused_and_changes_nothing() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
                    stage.commit(6)
            assert stage.offsets() == {"t": {0: 5}}
            stage.topics.error = None
            stage.commit(7)
        assert stage.offsets() == {"t": {0: 7}}
        assert [line["event"] for line in lines] == [
            "State cannot be stored",
            "State can be stored again",
        ]

    run(play)


@pytest.mark.parametrize(
    ("appended", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_FETCH_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_error_of_an_append_is_told_in_the_coordinators_terms(appended: ErrorCode, told: ErrorCode) -> None:
    async def play(stage: Stage) -> None:
        stage.topics.error = appended
        with pytest.raises(KafkaError) as refused:
            stage.commit(5)
        assert refused.value.code is told

    run(play)


def test_topic_that_cannot_be_created_is_told_to_the_client() -> None:
    async def play(stage: Stage) -> None:
        stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
        result = await wait_for(stage.join())
        assert result.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert finish(stage.runtime.list_groups()) == []

    run(play)


def test_offsets_of_a_deleted_topic_are_gone_for_good() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        stage.topics.delete(stage.topics.create("other", 1))
        assert stage.offsets() == {"t": {0: 5}}
        stage.topics.delete(stage.topics.get("t"))
        assert stage.offsets() == {}
        assert stage.restarted().offsets() == {}

    run(play)


def test_many_offsets_of_a_deleted_topic_go_in_batches() -> None:
    async def play(stage: Stage) -> None:
        stage.runtime.commit_offsets(CommitRequest("hello", [PartitionCommit("t", index, 5) for index in range(2500)]))
        stage.topics.delete(stage.topics.get("t"))
        assert stage.topics.topic is not None
        log = stage.topics.topic.partitions[99162322 % 50].log
        assert len(log.appended) == 1 + 3

    run(play)


def test_members_are_told_when_the_topic_of_groups_is_deleted() -> None:
    async def play(stage: Stage) -> None:
        await stage.join_alone()
        stage.commit(5, "simple")
        joining = stage.join()
        stage.topics.delete(stage.topics.get("__consumer_offsets"))
        assert (await wait_for(joining)).error is ErrorCode.NOT_COORDINATOR
        assert finish(stage.runtime.list_groups()) == []
        stage.commit(6, "simple")
        assert stage.restarted().offsets("simple") == {"t": {0: 6}}

    run(play)


def test_group_is_deleted_with_its_offsets() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        run_work(stage.runtime.delete_group("g"))
        assert finish(stage.restarted().runtime.list_groups()) == []
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            run_work(stage.runtime.delete_group("g"))

    run(play)


def test_leave_on_a_full_disk_says_so() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
        assert stage.runtime.leave("g", [LeavingMember(joined.member_id)]).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert stage.state() == "Empty"

    run(play)


def test_records_are_compressed_as_configured() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        assert stage.topics.topic is not None
        (batch,) = [batch for partition in stage.topics.topic.partitions for batch in partition.log.appended]
        assert batch[22] & 7 == Compression.ZSTD
        assert stage.restarted().offsets() == {"t": {0: 5}}

    run(play, **{"offsets.topic.compression.codec": "4"})


def commit_in_transaction(stage: Stage, offset: int, group: str = "g") -> list[ErrorCode]:
    request = CommitRequest(group, [PartitionCommit("t", 0, offset)])
    return stage.runtime.commit_offsets_in_transaction(request, WritingProducer(9, 0))


def end_transaction(stage: Stage, group: str = "g", *, is_commit: bool = True, index: int | None = None) -> None:
    stage.runtime.complete_transaction(
        stage.runtime.partition_of(group) if index is None else index,
        9,
        0,
        coordinator_epoch=0,
        is_commit=is_commit,
        transaction_version=2,
    )


def test_transaction_ends_in_the_partition_of_its_marker_only() -> None:
    async def play(stage: Stage) -> None:
        for group in ("hello", "world"):
            commit_in_transaction(stage, 5, group)
        end_transaction(stage, "hello")
        for now in (stage, stage.restarted()):
            assert (now.offsets("hello"), now.offsets("world")) == ({"t": {0: 5}}, {})
            assert now.runtime.is_unstable("world", "t", 0)
        end_transaction(stage, "world", is_commit=False)
        assert not stage.runtime.is_unstable("world", "t", 0)

    run(play)


def test_transaction_whose_marker_cannot_be_written_stays_open() -> None:
    async def play(stage: Stage) -> None:
        commit_in_transaction(stage, 5)
        stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            end_transaction(stage)
        assert stage.runtime.is_unstable("g", "t", 0)
        stage.topics.error = None
        end_transaction(stage)
        assert stage.offsets() == {"t": {0: 5}}

    run(play)


def test_transaction_cannot_end_where_there_is_no_partition() -> None:
    async def play(stage: Stage) -> None:
        for index in (0, 50, -1):
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                end_transaction(stage, index=index)
            if index == 0:
                stage.topics.create_internal(GROUP_METADATA_TOPIC)

    run(play)


def test_fenced_producer_is_told_so_and_nobody_else() -> None:
    async def play(stage: Stage) -> None:
        commit_in_transaction(stage, 5)
        stage.topics.error = ErrorCode.INVALID_PRODUCER_EPOCH
        with capture_logs() as lines, pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
            commit_in_transaction(stage, 6)
        assert not lines

    run(play)


def test_pending_offsets_go_with_the_topic_that_holds_them() -> None:
    async def play(stage: Stage) -> None:
        commit_in_transaction(stage, 5)
        stage.topics.delete(stage.topics.get(GROUP_METADATA_TOPIC))
        assert not stage.runtime.is_unstable("g", "t", 0)
        assert not finish(stage.runtime.list_groups())

    run(play)


def test_group_whose_name_no_record_can_hold_does_not_come_to_be() -> None:
    async def play(stage: Stage) -> None:
        name = "ü" * 16_384
        with capture_logs() as lines:
            assert (await wait_for(stage.join(name))).error is ErrorCode.UNKNOWN_SERVER_ERROR
            with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
                stage.commit(1, name)
        assert not finish(stage.runtime.list_groups())
        assert "State cannot be stored" not in [line["event"] for line in lines]
        stage.commit(1)
        assert stage.offsets() == {"t": {0: 1}}

    run(play)


def test_settings_are_the_brokers() -> None:
    settings = {
        "group.initial.rebalance.delay.ms": 1,
        "group.min.session.timeout.ms": 2,
        "group.max.session.timeout.ms": 3,
        "group.max.size": 4,
        "offset.metadata.max.bytes": 5,
        "offsets.retention.minutes": 6,
    }
    config = BrokerConfig({name: str(value) for name, value in settings.items()})
    assert GroupSettings.of(config) == GroupSettings(1, 2, 3, 4, 5, 360_000)


def test_group_whose_tombstones_do_not_fit_into_one_batch_is_deleted() -> None:
    async def play(stage: Stage) -> None:
        group = "g" * 30_000
        for start in range(0, 50, 10):
            commits = [PartitionCommit("t", index, 5) for index in range(start, start + 10)]
            stage.runtime.commit_offsets(CommitRequest(group, commits))
        run_work(stage.runtime.delete_group(group))
        assert finish(stage.restarted().runtime.list_groups()) == []

    run(play)


def test_group_with_many_offsets_is_deleted_in_steps_and_stays_if_a_member_joins_meanwhile() -> None:
    async def play(stage: Stage) -> None:
        for group in ("g", "h"):
            commits = [PartitionCommit("t", index, 5) for index in range(2500)]
            stage.runtime.commit_offsets(CommitRequest(group, commits))
        counts = [len(stage.offsets("g").get("t", ())) for _ in stage.runtime.delete_group("g")]
        assert counts == [1500, 500, 0]
        assert not stage.runtime.has_group("g")
        steps = stage.runtime.delete_group("h")
        next(steps)
        await wait_for(stage.join("h"))
        with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
            next(steps)
        assert len(stage.offsets("h")["t"]) == 1500

    run(play)


def test_offsets_of_a_group_with_a_long_name_expire_and_so_do_those_of_others() -> None:
    async def play(stage: Stage) -> None:
        groups = ["g" * 30_000, *(f"g{number}" for number in range(20))]
        for group in groups:
            for start in range(0, 50, 10):
                commits = [PartitionCommit("t", index, 5) for index in range(start, start + 10)]
                stage.runtime.commit_offsets(CommitRequest(group, commits))
        await trio.sleep(2000)
        assert finish(stage.runtime.list_groups()) == []

    run(play, **{"offsets.retention.minutes": "1", "offsets.topic.num.partitions": "1"})


def test_offsets_of_a_deleted_topic_that_could_not_be_forgotten_are_forgotten_later() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        stage.commit(5, "other")
        stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
        stage.topics.delete(stage.topics.get("t"))
        stage.topics.error = None
        stage.commit(6, "other")
        assert stage.offsets() == {"t": {0: 5}}
        await trio.sleep(601)
        assert stage.offsets() == {}
        assert stage.offsets("other") == {"t": {0: 6}}, "it was committed for a new topic of that name"

    run(play)


def test_offsets_whose_partition_was_offline_at_the_start_are_not_available() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        assert stage.topics.topic is not None
        stage.topics.topic.partitions[stage.runtime.partition_of("g")].log.offline_reason = "a test"
        again = stage.restarted()
        delete_group = lambda group_id: run_work(again.runtime.delete_group(group_id))  # noqa: E731
        for ask in (again.runtime.fetch_offsets, delete_group, again.runtime.describe):
            with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
                ask("g")

    run(play)


def partition_of(stage: Stage) -> Partition:
    """Returns the partition that holds the group `g`."""
    assert stage.topics.topic is not None
    return cast(Partition, stage.topics.topic.partitions[stage.runtime.partition_of("g")])


async def sync_in_replicated_partition(stage: Stage) -> Pending[SyncResult]:
    """Sends the SyncGroup of the only member of a group, whose partition has a follower in sync."""
    joined = await wait_for(stage.join())
    partition = partition_of(stage)
    partition.set_replicas((partition.leader, 99), (partition.leader, 99))
    return stage.runtime.sync(SyncRequest("g", joined.member_id, joined.generation_id))


def test_fetch_that_waits_for_records_of_a_group_is_answered_once_the_step_is_complete() -> None:
    events: list[str] = []

    async def play(stage: Stage) -> None:
        class WaitingFetch:
            def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
                stage.purgatory.answer(self)

            def on_gone(self, partition: Partition) -> None:
                pass

            def finish(self) -> None:
                events.append("fetch")

        def complete(error: ErrorCode | None, now_ms: int) -> Effects:
            events.append("step")
            return Effects()

        stage.commit(1)
        partition_of(stage).watchers[WaitingFetch()] = None
        stage.runtime.run("g", Effects(records=[OffsetRecord("g", "t", 0, None)], then=complete))

    run(play)
    assert events == ["step", "fetch"]


def test_reply_to_a_member_waits_for_the_commit_of_its_group() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(1)
        syncing = await sync_in_replicated_partition(stage)
        assert not syncing.is_done
        partition = partition_of(stage)
        partition.advance_high_watermark(partition.log.log_end_offset)
        assert (await wait_for(syncing)).error is ErrorCode.NONE

    run(play)


def test_reply_to_a_member_of_a_group_that_is_lost_before_the_commit_says_so() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(1)
        syncing = await sync_in_replicated_partition(stage)
        partition_of(stage).close()
        assert (await wait_for(syncing)).error is ErrorCode.NOT_COORDINATOR
        assert not stage.runtime._timers

    run(play)
