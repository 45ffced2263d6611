from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.cluster.topics import Topics
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.coordinator import GroupCoordinator
from wirekafka.coordinator.effects import Effects, SessionExpired, WritingProducer, session_timer
from wirekafka.coordinator.records import CommittedOffset, GroupRecord, OffsetRecord, encode
from wirekafka.coordinator.requests import (
    CommitRequest,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    PartitionCommit,
    SyncRequest,
)
from wirekafka.coordinator.runtime import GroupRuntime, java_string_hash
from wirekafka.coordinator.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.memory_topics import MemoryTopics
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.compression import Compression

WALL_SECONDS = 1_700_000_000


class Stage:
    """A runtime over a topic in memory, whose wall clock goes with trio's."""

    def __init__(self, topics: MemoryTopics | None = None, **settings: str) -> None:
        self.topics = topics or MemoryTopics()
        self.clock = Clock(wall=lambda: WALL_SECONDS + trio.current_time())
        overrides = {"group.initial.rebalance.delay.ms": "0", **settings}
        self.runtime = GroupRuntime(BrokerConfig(overrides), self.clock, cast(Topics, self.topics))
        self.runtime.load()

    def join(self, group: str = "g", member: str = "", instance: str | None = None) -> Pending[JoinResult]:
        request = JoinRequest(group, member, "client", "/host", 10_000, 20_000, "consumer", [("range", b"m")], instance)
        request.is_member_id_required = False
        return self.runtime.join(request)

    async def join_alone(self, group: str = "g") -> JoinResult:
        """A member that leads a stable group."""
        result = await wait_for(self.join(group))
        await wait_for(self.runtime.sync(SyncRequest(group, result.member_id, result.generation_id)))
        return result

    def commit(self, offset: int, group: str = "g") -> list[ErrorCode]:
        return self.runtime.commit_offsets(CommitRequest(group, [PartitionCommit("t", 0, offset)]))

    def offsets(self, group: str = "g") -> dict[str, dict[int, int]]:
        committed = self.runtime.fetch_offsets(group)
        return {topic: {index: offset.offset for index, offset in found.items()} for topic, found in committed.items()}

    def state(self, group: str = "g") -> str | None:
        described = self.runtime.describe(group)
        return described and described.state

    def restarted(self) -> Stage:
        return Stage(self.topics)


async def wait_for(pending: Pending[Any]) -> Any:
    done = trio.Event()
    found: list[Any] = []
    pending.then(lambda result: (found.append(result), done.set()))
    with trio.fail_after(1_000_000):
        await done.wait()
    return found[0]


def run(play: Callable[..., Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        stage = Stage(**settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.clock.run)
            await play(stage)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


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


def test_topic_that_exists_says_how_many_partitions_there_are() -> None:
    async def play(stage: Stage) -> None:
        stage.topics.partition_count = 7
        stage.topics.create_internal("")
        again = stage.restarted()
        again.commit(1, "hello")
        assert again.topics.partitions_in_use == [99162322 % 7]

    run(play)


def test_join_is_answered_once_the_initial_delay_is_over() -> None:
    async def play(stage: Stage) -> None:
        start = trio.current_time()
        result = await wait_for(stage.join())
        assert result.error is ErrorCode.NONE
        assert trio.current_time() - start == pytest.approx(3)

    run(play, **{"group.initial.rebalance.delay.ms": "3000"})


def test_member_lives_as_long_as_its_heartbeats_come() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        for _ in range(20):
            await trio.sleep(9)
            assert stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1)) is ErrorCode.NONE
        await trio.sleep(9.9)
        assert stage.state() == "Stable"
        await trio.sleep(0.2)
        assert stage.state() == "Empty"

    run(play)


def test_member_whose_heartbeat_waited_while_the_broker_stood_still_lives_on() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        mock_clock = trio.lowlevel.current_clock()
        assert isinstance(mock_clock, trio.testing.MockClock)
        mock_clock.jump(60)
        await trio.sleep(0.5)
        assert stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1)) is ErrorCode.NONE
        await trio.sleep(9.9)
        assert stage.state() == "Stable"
        await trio.sleep(0.2)
        assert stage.state() == "Empty"

    run(play)


def test_first_members_of_a_group_do_not_wait_longer_because_the_broker_stood_still() -> None:
    async def play(stage: Stage) -> None:
        joining = stage.join()
        mock_clock = trio.lowlevel.current_clock()
        assert isinstance(mock_clock, trio.testing.MockClock)
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        assert joining.is_done

    run(play, **{"group.initial.rebalance.delay.ms": "3000"})


def test_heartbeats_leave_one_timer_each_member() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        before = len(stage.clock._timers)
        for _ in range(1000):
            stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1))
        assert len(stage.clock._timers) == before

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


def test_member_found_in_the_log_has_one_session_to_show_up() -> None:
    async def play(stage: Stage) -> None:
        await stage.join_alone()
        again = stage.restarted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.clock.run)
            await trio.sleep(9.9)
            assert again.state() == "Stable"
            await trio.sleep(0.2)
            assert again.state() == "Empty"
            nursery.cancel_scope.cancel()

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
            "Groups and offsets cannot be stored",
            "Groups and offsets can be stored again",
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
        assert stage.runtime.list_groups() == []

    run(play)


def test_offsets_expire_when_they_are_looked_for() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        await trio.sleep(61)
        stage.commit(5, "other")
        await trio.sleep(598)
        assert stage.offsets() == {"t": {0: 5}}
        await trio.sleep(2)
        assert stage.offsets() == {}
        assert stage.offsets("other") == {"t": {0: 5}}
        assert [group.group_id for group in stage.runtime.list_groups()] == ["other"]
        await trio.sleep(660)
        assert stage.restarted().runtime.list_groups() == []

    run(play, **{"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "660000"})


def test_offsets_expire_again_after_something_has_gone_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        with monkeypatch.context() as broken, capture_logs() as lines:
            broken.setattr(stage.runtime.coordinator, "expire", lambda now_ms: 1 // 0)
            await trio.sleep(601)
        assert [line["event"] for line in lines] == ["a timer failed"]
        await trio.sleep(601)
        assert stage.offsets() == {}

    run(play, **{"offsets.retention.minutes": "1"})


def test_group_whose_members_have_all_got_their_assignment_waits_for_nothing_but_their_sessions() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        assert [(key.purpose, key.member_id) for key in stage.runtime._timers] == [("session", joined.member_id)]

    run(play)


def test_offsets_of_a_deleted_topic_are_gone_for_good() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        stage.topics.delete("other")
        assert stage.offsets() == {"t": {0: 5}}
        stage.topics.delete("t")
        assert stage.offsets() == {}
        assert stage.restarted().offsets() == {}

    run(play)


def test_many_offsets_of_a_deleted_topic_go_in_batches() -> None:
    async def play(stage: Stage) -> None:
        stage.runtime.commit_offsets(CommitRequest("hello", [PartitionCommit("t", index, 5) for index in range(2500)]))
        stage.topics.delete("t")
        assert stage.topics.topic is not None
        log = stage.topics.topic.partitions[99162322 % 50].log
        assert len(log.appended) == 1 + 3

    run(play)


def test_members_are_told_when_the_topic_of_groups_is_deleted() -> None:
    async def play(stage: Stage) -> None:
        await stage.join_alone()
        stage.commit(5, "simple")
        joining = stage.join()
        stage.topics.delete("__consumer_offsets")
        assert (await wait_for(joining)).error is ErrorCode.NOT_COORDINATOR
        assert stage.runtime.list_groups() == []
        stage.commit(6, "simple")
        assert stage.restarted().offsets("simple") == {"t": {0: 6}}

    run(play)


def test_group_is_deleted_with_its_offsets() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        stage.runtime.delete_group("g")
        assert stage.restarted().runtime.list_groups() == []
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            stage.runtime.delete_group("g")

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


def record_of(offset: int) -> Record:
    key, value = encode(OffsetRecord("g", "t", 0, CommittedOffset(offset, None, "", 0)))
    return Record(key, value, (), 0)


def test_offsets_of_a_transaction_count_once_it_has_committed() -> None:
    def transactional(offset: int) -> bytearray:
        return build_batch([record_of(offset)], producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal("").partitions[0].log
        log.append(build_batch([record_of(1)]))
        log.append(transactional(2))
        assert stage.restarted().offsets() == {"t": {0: 1}}
        log.append_marker(9, 0, is_commit=False)
        assert stage.restarted().offsets() == {"t": {0: 1}}
        log.append(transactional(3))
        log.append_marker(9, 0, is_commit=True)
        assert stage.restarted().offsets() == {"t": {0: 3}}

    run(play)


def test_last_records_of_keys_are_replayed_in_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(topic: str, offset: int) -> Record:
        return Record(*encode(OffsetRecord("g", topic, 0, CommittedOffset(offset, None, "", 0))), (), 0)

    def transactional(*records: Record) -> bytearray:
        return build_batch(list(records), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal("").partitions[0].log
        log.append(build_batch([of("a", 1), of("b", 2), of("c", 3), of("a", 4)]))
        log.append(transactional(of("b", 5)))
        log.append_marker(9, 0, is_commit=True)
        replayed: list[int] = []
        monkeypatch.setattr(GroupCoordinator, "replay", lambda self, record, offset, producer_id: replayed.append(offset))
        stage.restarted()
        assert replayed == [2, 3, 4]

    run(play)


def test_records_that_cannot_be_read_do_not_keep_the_others_from_coming_back() -> None:
    key, _ = encode(GroupRecord("broken", None))
    unreadable = [Record(b"\0\2", b"\0\3", (), 0), Record(key, b"\0\3\0", (), 0), Record(b"\0\5\0\1g\0\1m", b"\0\0", (), 0)]

    async def play(stage: Stage) -> None:
        log = stage.topics.create_internal("").partitions[0].log
        log.append(build_batch([*unreadable, record_of(7)]))
        with capture_logs() as lines:
            assert stage.restarted().offsets() == {"t": {0: 7}}
        assert [line["log_level"] for line in lines] == ["error", "error", "warning", "info"]

    run(play)


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
                stage.topics.create_internal("")

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
        stage.topics.delete(GROUP_METADATA_TOPIC)
        assert not stage.runtime.is_unstable("g", "t", 0)
        assert not stage.runtime.list_groups()

    run(play)


def test_group_whose_name_no_record_can_hold_does_not_come_to_be() -> None:
    async def play(stage: Stage) -> None:
        name = "ü" * 16_384
        with capture_logs() as lines:
            assert (await wait_for(stage.join(name))).error is ErrorCode.UNKNOWN_SERVER_ERROR
            with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
                stage.commit(1, name)
        assert not stage.runtime.list_groups()
        assert "Groups and offsets cannot be stored" not in [line["event"] for line in lines]
        stage.commit(1)
        assert stage.offsets() == {"t": {0: 1}}

    run(play)


def test_timer_that_is_set_again_fires_once_at_its_last_time() -> None:
    key, event = session_timer("g", "m"), SessionExpired("g", "m")

    async def play(stage: Stage) -> None:
        expired: list[float] = []
        stage.runtime.coordinator._on_timer[SessionExpired] = lambda event, now_ms, out: expired.append(trio.current_time())
        start = trio.current_time()
        effects = Effects()
        for delay_ms in (10_000, 20_000, 5000):
            effects.set_timer(key, delay_ms, event)
        effects.set_timer_if_absent(key, 1000, event)
        stage.runtime.run("g", effects)
        with capture_logs() as lines:
            await trio.sleep(30)
        assert [time - start for time in expired] == pytest.approx([5])
        assert not lines
        assert not stage.runtime._timers

    run(play)


def test_partitions_are_as_many_as_configured_again_once_their_topic_is_deleted() -> None:
    async def play(stage: Stage) -> None:
        stage.topics.partition_count = 7
        stage.topics.create_internal(GROUP_METADATA_TOPIC)
        again = stage.restarted()
        again.topics.partition_count = 50
        again.topics.delete(GROUP_METADATA_TOPIC)
        again.commit(1, "hello")
        assert again.topics.partitions_in_use == [99162322 % 50]

    run(play)


def test_log_that_cannot_be_read_keeps_the_broker_from_starting_but_an_offline_partition_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        assert stage.topics.topic is not None
        partition = stage.topics.topic.partitions[stage.runtime.partition_of("g")]

        def break_down(from_offset: int) -> Any:
            partition.is_offline = is_offline
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

        monkeypatch.setattr(partition.log, "batches", break_down)
        is_offline = False
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            stage.restarted()
        is_offline = True
        again = stage.restarted()
        assert not again.runtime.is_available("g")
        assert again.runtime.is_available("another")

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
