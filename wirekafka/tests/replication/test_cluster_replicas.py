"""The replicas of a member, with logs on disk; the test is the controller, and no leader answers a fetch."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import Storage
from wirekafka.metadata.image import MOST_REPLICAS
from wirekafka.names import ZERO_TOPIC_ID, TopicPartition
from wirekafka.pending import Pending, Work, finish
from wirekafka.replication.cluster_replicas import LAG_FAILURE, ClusterReplicas
from wirekafka.replication.controller_requests import FULL, STATES_AT_ONCE, is_broker_epoch_stale
from wirekafka.replication.fetcher import FetcherSettings
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch
from wirekafka.replication.leadership import IsrChange
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.tests.log.logs import NOW_MS, batch
from wirekafka.tests.replication.test_replica_fetcher import PlayedChannel, PlayedTimers
from wirekafka.wire.messages.fetch import FETCH, PartitionData
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)

ME, OTHER = 1, 2
TOPIC_ID, OTHER_ID = b"t" * 16, b"u" * 16
NAME = TopicPartition("flights", 0)
NONE = ErrorCode.NONE


class PlayedTopics:
    """The table of topics, and the settings in ZooKeeper."""

    def __init__(self, config: BrokerConfig) -> None:
        self.hosted: dict[tuple[str, int], Partition] = {}
        self.configs: dict[str, LogConfig] = {}
        self.default = LogConfig.of(config, {})
        self.reads: list[tuple[list[str], Pending[Any]]] = []
        self.is_slow = False

    def put_hosted(self, partition: Partition) -> None:
        self.hosted[partition.topic, partition.index] = partition

    def remove_hosted(self, name: str, index: int) -> None:
        del self.hosted[name, index]

    def log_config_of(self, topic: str) -> LogConfig:
        return self.configs.get(topic, self.default)

    def read(self, topics: Collection[str]) -> Pending[None]:
        pending: Pending[Any] = Pending()
        self.reads.append((list(topics), pending))
        if not self.is_slow:
            pending.complete(None)
        return pending


class Runner:
    def run(self, work: Work[Any]) -> Any:
        return finish(work)


class Stage:
    def __init__(self, config: BrokerConfig, logs: LogManager, clock: Clock | None = None) -> None:
        self.logs = logs
        self.timers = PlayedTimers()
        self.topics = PlayedTopics(config)
        self.channels: dict[int, PlayedChannel] = {}
        self.changes: list[tuple[LeaderReplica, IsrChange]] = []
        self.leaders: dict[Partition, LeaderReplica] = {}
        self.told: list[tuple[object, ...]] = []
        self.runner = Runner()
        self.replicas = ClusterReplicas(
            config,
            clock or self.timers,
            logs,
            self.topics,
            ReplicaFetchers(
                FetcherSettings(replica_id=ME, broker_epoch=lambda: 10),
                fetcher_count=1,
                connect=self.connect,
                timers=self.timers,
                slices=self.runner,
            ),
            self.runner,
            node_id=ME,
            propose=lambda leader, change: self.changes.append((leader, change)),
            live_brokers={ME: 10, OTHER: 20},
            configs=self.topics,
            leader_replicas=self.leaders,
        )
        self.replicas.on_leader.append(lambda partition: self.told.append(("leader", partition.leader_epoch)))
        self.replicas.on_follower.append(lambda partition, epoch: self.told.append(("follower", epoch)))
        self.replicas.on_stopped.append(lambda partition, epoch: self.told.append(("stopped", epoch)))

    def connect(self, broker_id: int, number: int) -> PlayedChannel:
        channel = self.channels[broker_id] = PlayedChannel()
        return channel

    @property
    def partition(self) -> Partition:
        return self.topics.hosted[NAME]

    def apply(self, request: LeaderAndIsrRequest) -> list[int]:
        """Applies the request; returns the error of the whole, and those of the partitions."""
        result: Any = finish(self.replicas.apply(request))
        if isinstance(result, Pending):
            answers: list[Any] = []
            result.then(answers.append)
            [result] = answers
        errors = [error.error_code for topic in result.topics for error in topic.partition_errors]
        assert errors == [error.error_code for error in result.partition_errors]
        return [result.error_code, *errors]

    def elect(self, leader: int, epoch: int, **fields: Any) -> int:
        """Sends the state of the partition; returns its error."""
        whole, error = self.apply(leader_and_isr(leader, epoch, **fields))
        assert whole == NONE
        return error

    def stop(self, epoch: int, *, deletes: bool, controller_epoch: int = 1) -> int:
        state = StopReplicaPartitionState(partition_index=0, leader_epoch=epoch, delete_partition=deletes)
        request = StopReplicaRequest(
            controller_epoch=controller_epoch,
            topic_states=[StopReplicaTopicState(topic_name="flights", partition_states=[state])],
        )
        response = finish(self.replicas.stop(request))
        return response.error_code or response.partition_errors[0].error_code

    def append(self, *values: bytes) -> None:
        self.partition.append(memoryview(batch(*values)), now_ms=NOW_MS)

    def fetches(self, broker_id: int) -> list[int]:
        """Returns the offsets of the fetches from a broker, and forgets them."""
        self.timers.pass_time(0)
        sent, self.channels[broker_id].sent = self.channels[broker_id].sent, []
        return [
            asked.fetch_offset
            for kind, request, _ in sent
            if kind is FETCH
            for topic in request.topics  # type: ignore[attr-defined]
            for asked in topic.partitions
        ]


def leader_and_isr(
    leader: int,
    epoch: int,
    *,
    partition_epoch: int | None = None,
    isr: tuple[int, ...] = (ME, OTHER),
    replicas: tuple[int, ...] = (ME, OTHER),
    topic_id: bytes = TOPIC_ID,
    controller_epoch: int = 1,
    indexes: tuple[int, ...] = (0,),
    is_new: bool = False,
    **fields: Any,
) -> LeaderAndIsrRequest:
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            leader=leader,
            leader_epoch=epoch,
            isr=[*isr],
            partition_epoch=epoch if partition_epoch is None else partition_epoch,
            replicas=[*replicas],
            is_new=is_new,
        )
        for index in indexes
    ]
    topic = LeaderAndIsrTopicState(topic_name="flights", topic_id=topic_id, partition_states=states)
    return LeaderAndIsrRequest(controller_epoch=controller_epoch, topic_states=[topic], **fields)


def on_stage(path: Path, act: Callable[[Stage], object], storage: Storage | None = None) -> None:
    async def main() -> None:
        config = BrokerConfig({"log.dirs": str(path), "broker.id": str(ME), "min.insync.replicas": "1"})
        clock = Clock(wall=lambda: NOW_MS / 1000)
        logs = await LogManager.open(config, clock, storage=storage, cluster_id="4L6g3nShT-eMCtK--X86sw")
        try:
            act(Stage(config, logs))
        finally:
            await logs.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_new_leader_has_a_log_and_takes_records_in_its_epoch(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        assert stage.elect(ME, 3) == NONE
        stage.append(b"a")
        partition = stage.partition
        assert (partition.leader, partition.leader_epoch, partition.replicas) == (ME, 3, (ME, OTHER))
        assert partition.log.epochs.latest == 3 and partition.log.topic_id == TOPIC_ID
        assert list(stage.leaders) == [partition] and stage.told == [("leader", 3)]

    on_stage(tmp_path, act)


def test_new_follower_fetches_from_its_leader_and_leads_nothing(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        assert stage.elect(OTHER, 3) == NONE
        assert stage.fetches(OTHER) == [0]
        assert (stage.partition.leader, stage.partition.leader_epoch, stage.leaders) == (OTHER, 3, {})
        assert stage.told == [("follower", 3)]

    on_stage(tmp_path, act)


class WaitingConsumer:
    def __init__(self) -> None:
        self.committed: list[tuple[int, int]] = []

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        self.committed.append((partition.log.high_watermark, size_bytes - stable_bytes))

    def on_gone(self, partition: Partition) -> None:
        raise AssertionError("the role has not changed")


def test_high_watermark_that_a_follower_learns_wakes_the_consumers_that_wait(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.append(b"a")
        stage.elect(OTHER, 4)
        stage.partition.watchers[consumer := WaitingConsumer()] = None
        stage.timers.pass_time(0)
        stage.channels[OTHER].answer(PartitionData(partition_index=0, high_watermark=1, log_start_offset=0, records=b""))
        assert consumer.committed == [(1, 0)]

    on_stage(tmp_path, act)


def test_leader_that_becomes_follower_ends_the_waits_and_refuses_appends(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.append(b"a")
        former = stage.partition
        told: list[ErrorCode | None] = []
        former.on_commit(1, told.append)
        assert stage.elect(OTHER, 4) == NONE
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and former.is_gone and stage.leaders == {}
        with pytest.raises(KafkaError, match="no replica"):
            former.append(memoryview(batch(b"b")), now_ms=NOW_MS)
        assert stage.fetches(OTHER) == [1]

    on_stage(tmp_path, act)


def test_follower_that_becomes_leader_stops_fetching(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(OTHER, 3)
        channel = stage.channels[OTHER]
        assert stage.elect(ME, 4) == NONE
        assert channel.is_closed and stage.partition.leader == ME
        stage.append(b"a")
        assert stage.partition.log.log_end_offset == 1

    on_stage(tmp_path, act)


def test_leader_that_is_elected_again_keeps_its_partition_and_its_waits(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.append(b"a")
        former = stage.partition
        told: list[ErrorCode | None] = []
        former.on_commit(1, told.append)
        assert stage.elect(ME, 4, isr=(ME,)) == NONE
        assert stage.partition is former and former.leader_epoch == 4
        assert told == [None], "the leader alone is in sync now"
        assert stage.told == [("leader", 3)]

    on_stage(tmp_path, act)


def test_follower_of_another_leader_fetches_from_that_one(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(OTHER, 3)
        assert stage.elect(3, 4, replicas=(ME, OTHER, 3), isr=(3,)) == NONE
        assert stage.channels[OTHER].is_closed and stage.fetches(3) == [0]

    on_stage(tmp_path, act)


@pytest.mark.parametrize("leader_id", [-1, -2])
def test_follower_without_a_leader_sends_no_fetch(tmp_path: Path, leader_id: int) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        assert stage.elect(leader_id, 4) == NONE
        assert stage.channels == {} and stage.leaders == {} and stage.partition.leader == leader_id

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    ("epoch", "fields", "error"),
    [
        (2, {}, ErrorCode.STALE_CONTROLLER_EPOCH),
        (3, {}, ErrorCode.STALE_CONTROLLER_EPOCH),
        (3, {"partition_epoch": 4}, NONE),
        (3, {"is_kraft_controller": True}, NONE),
        (4, {"topic_id": OTHER_ID}, ErrorCode.INCONSISTENT_TOPIC_ID),
        (4, {"topic_id": ZERO_TOPIC_ID}, NONE),
        (4, {"replicas": (OTHER, 3)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_leader_and_isr_after_leader_epoch_3(tmp_path: Path, epoch: int, fields: dict[str, Any], error: ErrorCode) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        assert stage.elect(ME, epoch, **fields) == error
        assert stage.partition.leader == ME and not stage.partition.is_gone

    on_stage(tmp_path, act)


STALE = ErrorCode.STALE_CONTROLLER_EPOCH


@pytest.mark.parametrize("leader", [ME, OTHER])
@pytest.mark.parametrize(
    ("epoch", "fields", "error"),
    [
        (-1, {"partition_epoch": 0}, STALE),
        (-2, {"partition_epoch": 0}, STALE),
        (3, {"partition_epoch": -1}, STALE),
        (3, {"replicas": ()}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (3, {"replicas": tuple(range(MOST_REPLICAS + 1))}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (3, {"isr": tuple(range(MOST_REPLICAS + 1))}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
    ids=["no leader epoch", "that of a deletion", "no partition epoch", "no replicas", "too many replicas", "too many in sync"],
)
def test_state_that_no_partition_can_have_gives_no_role(
    tmp_path: Path, leader: int, epoch: int, fields: dict[str, Any], error: ErrorCode
) -> None:
    def act(stage: Stage) -> None:
        assert stage.elect(leader, epoch, **fields) == error
        assert len(stage.replicas) == 0 and stage.topics.hosted == {} and stage.logs.get(NAME) is None

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    "fields",
    [{"isr": ()}, {"isr": (OTHER,)}, {"isr": (7, 7)}, {"replicas": (ME, ME, OTHER, OTHER)}, {"indexes": (2**31 - 1,)}],
    ids=["nobody in sync", "the leader not in sync", "in sync without a replica", "repeated replicas", "the last index"],
)
def test_odd_state_gives_a_role_that_can_be_changed(tmp_path: Path, fields: dict[str, Any]) -> None:
    def act(stage: Stage) -> None:
        assert stage.apply(leader_and_isr(ME, 3, **fields)) == [NONE, NONE]
        [replica] = stage.replicas
        replica.partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
        stage.replicas.start()
        stage.timers.pass_time(31_000)
        assert stage.apply(leader_and_isr(OTHER, 4, **fields)) == [NONE, NONE]
        assert replica.is_following and stage.leaders == {}

    on_stage(tmp_path, act)


def test_topic_with_the_id_of_another_one_gets_no_role_until_that_one_is_gone(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        other = leader_and_isr(OTHER, 3)
        other.topic_states[0].topic_name = "arrivals"
        both = leader_and_isr(OTHER, 3, indexes=(0, 1))
        both.topic_states += other.topic_states
        inconsistent = ErrorCode.INCONSISTENT_TOPIC_ID
        assert stage.apply(both) == [NONE, NONE, NONE, inconsistent]
        assert stage.stop(-2, deletes=True) == NONE
        assert stage.apply(other) == [NONE, inconsistent]
        deletion = StopReplicaPartitionState(partition_index=1, leader_epoch=-2, delete_partition=True)
        topics = [StopReplicaTopicState(topic_name="flights", partition_states=[deletion])]
        finish(stage.replicas.stop(StopReplicaRequest(controller_epoch=1, topic_states=topics)))
        assert stage.apply(other) == [NONE, NONE]
        assert stage.elect(OTHER, 3, topic_id=ZERO_TOPIC_ID) == NONE
        assert stage.elect(OTHER, 4) == inconsistent

    on_stage(tmp_path, act)


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_older_partition_epoch_changes_nothing(tmp_path: Path, leader: int) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3, partition_epoch=8)
        former = stage.partition
        assert stage.elect(leader, 4, partition_epoch=7) == STALE
        assert stage.partition is former and former.leader_epoch == 3
        assert stage.elect(leader, 4, partition_epoch=8) == NONE
        assert (stage.partition.leader, stage.partition.leader_epoch) == (leader, 4)

    on_stage(tmp_path, act)


def test_settings_are_read_only_for_topics_that_may_get_a_replica(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        request = leader_and_isr(ME, 3)
        odd = leader_and_isr(ME, 3).topic_states[0]
        odd.topic_name = "a/b"
        absent = leader_and_isr(OTHER, 3, replicas=(OTHER,)).topic_states[0]
        absent.topic_name = "arrivals"
        request.topic_states += [odd, absent]
        stage.apply(request)
        assert [names for names, _ in stage.topics.reads] == [["flights"]]

    on_stage(tmp_path, act)


def test_newer_partition_epoch_of_the_same_leader_epoch_gives_a_leader_its_in_sync_replicas(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.elect(ME, 3, partition_epoch=4, isr=(ME,))
        assert stage.partition.in_sync_replicas == (ME,)

    on_stage(tmp_path, act)


def test_request_of_an_old_controller_changes_nothing(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3, controller_epoch=5)
        stale = ErrorCode.STALE_CONTROLLER_EPOCH
        assert stage.apply(leader_and_isr(OTHER, 4, controller_epoch=4)) == [stale, stale]
        assert stage.stop(4, deletes=True, controller_epoch=4) == stale
        assert stage.partition.leader == ME and stage.replicas.controller_epoch == 5

    on_stage(tmp_path, act)


def test_controller_that_is_deposed_between_two_steps_changes_no_more(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.apply(leader_and_isr(ME, 3, indexes=(0, 1)))
        work = stage.replicas.apply(leader_and_isr(OTHER, 4, indexes=(0, 1)))
        next(work)
        next(work)
        stage.apply(leader_and_isr(ME, 5, controller_epoch=2))
        response: Any = finish(work)
        assert [error.error_code for error in response.partition_errors] == [NONE, ErrorCode.STALE_CONTROLLER_EPOCH]
        assert stage.topics.hosted["flights", 1].leader == ME and stage.partition.leader == ME

    on_stage(tmp_path, act)


def test_settings_of_a_new_topic_are_read_before_its_log_is_created(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.topics.is_slow = True
        result: Any = finish(stage.replicas.apply(leader_and_isr(ME, 3)))
        [(names, read)] = stage.topics.reads
        assert names == ["flights"] and stage.logs.get(NAME) is None
        stage.topics.configs["flights"] = LogConfig.of(BrokerConfig({}), {"segment.bytes": "7777777"})
        read.complete(None)
        assert result.is_done and stage.partition.log.config.segment_bytes == 7_777_777
        stage.elect(ME, 4)
        assert len(stage.topics.reads) == 1

    on_stage(tmp_path, act)


def test_settings_that_cannot_be_read_leave_the_topic_without_a_replica(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.topics.is_slow = True
        result: Any = finish(stage.replicas.apply(leader_and_isr(ME, 3)))
        answers: list[Any] = []
        result.then(answers.append)
        stage.topics.reads[0][1].complete(OSError("no ZooKeeper"))
        assert [answer.error_code for answer in answers] == [ErrorCode.UNKNOWN_SERVER_ERROR] and stage.topics.hosted == {}

    on_stage(tmp_path, act)


def test_followers_that_lag_are_proposed_for_removal_again_and_again(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.replicas.start()
        stage.append(b"a")
        stage.timers.pass_time(15_000)
        assert stage.changes == []
        stage.timers.pass_time(16_000)
        assert [change.in_sync_replicas for _, change in stage.changes] == [((ME, 10),)]

    on_stage(tmp_path, act)


def test_lag_after_a_pause_of_the_process_is_checked_once_the_waiting_fetches_were_read(tmp_path: Path) -> None:
    async def main() -> None:
        config = BrokerConfig({"log.dirs": str(tmp_path), "broker.id": str(ME), "min.insync.replicas": "1"})
        clock = Clock()
        logs = await LogManager.open(config, clock, cluster_id="4L6g3nShT-eMCtK--X86sw")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run)
            await trio.lowlevel.checkpoint()
            stage = Stage(config, logs, clock)
            stage.elect(ME, 3)
            stage.replicas.start()
            stage.append(b"a")
            mock_clock = trio.lowlevel.current_clock()
            assert isinstance(mock_clock, trio.testing.MockClock)
            mock_clock.jump(100)
            await trio.sleep(0.5)
            [leader] = stage.leaders.values()
            leader.fetch(ReplicaFetch(OTHER, 3, 1, 3, 0, 20), max_bytes=1000, min_one_batch=True)
            await trio.sleep(10)
            assert stage.changes == []
            stage.append(b"b")
            await trio.sleep(60)
            assert len(stage.changes) == 1
            stage.replicas.close()
            nursery.cancel_scope.cancel()
        await logs.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_partition_whose_lag_cannot_be_checked_does_not_stop_the_check(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.apply(leader_and_isr(ME, 3, indexes=(0, 1)))
        stage.replicas.start()
        failing, checked = stage.leaders.values()
        failing.check_lag = lambda: 1 // 0  # type: ignore[assignment]
        checked.partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
        stage.timers.pass_time(31_000)
        stage.timers.pass_time(31_000)
        assert [leader for leader, _ in stage.changes] == [checked]

    with structlog.testing.capture_logs() as lines:
        on_stage(tmp_path, act)
    assert {line["event"] for line in lines if line["log_level"] == "error"} == {LAG_FAILURE}


def test_lag_is_checked_again_after_a_check_that_could_not_run(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.replicas.start()
        stage.append(b"a")
        run = stage.runner.run
        failures = iter([lambda work: 1 // 0, failed_later])
        stage.runner.run = lambda work: next(failures, run)(work)  # type: ignore[method-assign]
        for _ in range(2):
            stage.timers.pass_time(15_000)
            assert stage.changes == []
        stage.timers.pass_time(31_000)
        assert len(stage.changes) == 1

    with structlog.testing.capture_logs() as lines:
        on_stage(tmp_path, act)
    assert {line["event"] for line in lines if line["log_level"] == "error"} == {LAG_FAILURE}


def failed_later(work: Work[Any]) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.complete(ValueError("a step has failed"))
    return pending


def test_replica_of_a_log_without_a_topic_id_gets_it(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        assert stage.elect(OTHER, 3, topic_id=ZERO_TOPIC_ID) == NONE
        assert not (tmp_path / "flights-0" / "partition.metadata").exists()
        assert stage.elect(OTHER, 3) == NONE
        assert stage.partition.topic_id == stage.partition.log.topic_id == TOPIC_ID
        assert (tmp_path / "flights-0" / "partition.metadata").exists()
        stage.fetches(OTHER)
        assert stage.elect(OTHER, 3) == ErrorCode.STALE_CONTROLLER_EPOCH

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (-3, ErrorCode.FENCED_LEADER_EPOCH), (3, NONE), (4, NONE), (-1, NONE), (-2, NONE)],
)
def test_replica_that_is_deleted_frees_its_name(tmp_path: Path, epoch: int, error: ErrorCode) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        former = stage.partition
        assert stage.stop(epoch, deletes=True) == error
        assert former.is_gone == (not error) and (stage.logs.get(NAME) is None) == (not error)
        assert (len(stage.replicas), len(stage.topics.hosted)) == ((1, 1) if error else (0, 0))
        if not error:
            assert stage.told[-1] == ("stopped", epoch if epoch >= 0 else None)
            assert stage.elect(ME, 0, topic_id=OTHER_ID) == NONE

    on_stage(tmp_path, act)


def test_replica_that_is_stopped_keeps_its_log_and_takes_a_role_again(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(OTHER, 3)
        assert stage.stop(3, deletes=False) == NONE
        assert stage.channels[OTHER].is_closed and stage.partition.leader == -1
        assert stage.elect(ME, 3) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert stage.elect(ME, 4) == NONE
        assert stage.partition.leader == ME

    on_stage(tmp_path, act)


class StuckNames(Storage):
    """A disk that renames nothing."""

    is_stuck = True

    def rename(self, path: str, new_path: str) -> None:
        if self.is_stuck and new_path.endswith("-delete"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().rename(path, new_path)


def test_deletion_is_not_reported_as_done_while_the_folder_has_its_name(tmp_path: Path) -> None:
    storage = StuckNames()

    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        assert stage.stop(-2, deletes=True) == ErrorCode.KAFKA_STORAGE_ERROR
        assert stage.stop(-2, deletes=True) == ErrorCode.KAFKA_STORAGE_ERROR
        storage.is_stuck = False
        assert stage.stop(-2, deletes=True) == NONE
        assert not (tmp_path / "flights-0").exists()

    on_stage(tmp_path, act, storage)


def test_stop_replica_deletes_a_log_without_a_role(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.logs.create(NAME, TOPIC_ID, stage.topics.default)
        assert stage.stop(-2, deletes=True) == NONE
        assert stage.logs.get(NAME) is None

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    "request_of",
    [
        StopReplicaRequest(
            controller_epoch=1,
            delete_partitions=True,
            ungrouped_partitions=[StopReplicaPartitionV0(topic_name="flights", partition_index=0)],
        ),
        StopReplicaRequest(
            controller_epoch=1,
            delete_partitions=True,
            topics=[StopReplicaTopicV1(name="flights", partition_indexes=[0])],
        ),
    ],
)
def test_stop_replica_of_old_versions_deletes(tmp_path: Path, request_of: StopReplicaRequest) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        response = finish(stage.replicas.stop(request_of))
        assert [error.error_code for error in response.partition_errors] == [NONE] and stage.logs.get(NAME) is None

    on_stage(tmp_path, act)


def test_full_leader_and_isr_makes_partitions_that_it_does_not_name_strays(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.apply(leader_and_isr(ME, 3, indexes=(0, 1)))
        stage.logs.create(TopicPartition("old", 0), OTHER_ID, stage.topics.default)
        stage.apply(leader_and_isr(ME, 4, type=FULL))
        assert list(stage.topics.hosted) == [NAME] and len(stage.replicas) == 1
        assert sorted(path.name[-6:] for path in tmp_path.glob("*-stray")) == ["-stray", "-stray"]

    on_stage(tmp_path, act)


def test_full_request_with_another_topic_of_that_name_makes_room_for_it(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.append(b"a")
        assert stage.elect(ME, 0, topic_id=OTHER_ID, type=FULL) == NONE
        assert stage.partition.topic_id == OTHER_ID and stage.partition.log.log_end_offset == 0

    on_stage(tmp_path, act)


def test_replica_whose_disk_has_failed_has_no_role(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.append(b"a")
        told: list[ErrorCode | None] = []
        stage.partition.on_commit(1, told.append)
        lost = stage.partition.writable_log
        lost.reader.take_offline("the disk has failed")
        for callback in stage.logs.on_offline:
            callback([lost])
        assert told == [ErrorCode.KAFKA_STORAGE_ERROR] and stage.leaders == {}
        assert stage.told == [("leader", 3)], "a coordinator may be in the middle of the append in which the disk has failed"
        stage.timers.pass_time(1)
        assert stage.told == [("leader", 3), ("stopped", None)]
        assert stage.elect(ME, 4) == ErrorCode.KAFKA_STORAGE_ERROR
        assert stage.stop(4, deletes=True) == ErrorCode.KAFKA_STORAGE_ERROR

    on_stage(tmp_path, act)


def test_broker_that_stops_takes_no_role_and_checks_no_lag(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.elect(ME, 3)
        stage.replicas.start()
        stage.replicas.close()
        assert stage.elect(OTHER, 4) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert stage.channels == {}
        stage.append(b"a")
        stage.timers.pass_time(100_000)
        assert stage.changes == []

    on_stage(tmp_path, act)


@pytest.mark.parametrize("is_full", [False, True])
def test_request_is_looked_through_in_short_steps(tmp_path: Path, is_full: bool) -> None:
    def act(stage: Stage) -> None:
        request = leader_and_isr(OTHER, 1, replicas=(OTHER,), indexes=tuple(range(10 * STATES_AT_ONCE)))
        passes = 1
        if is_full:
            request.type, passes = FULL, 2
        stage.replicas.controller_epoch = 2
        assert sum(1 for _ in stage.replicas.apply(request)) == 10
        stage.replicas.controller_epoch = 1
        assert sum(1 for _ in stage.replicas.apply(request)) == 10 * passes + 10 * STATES_AT_ONCE

    on_stage(tmp_path, act)


def test_each_step_takes_or_ends_one_role(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        indexes = tuple(range(20))
        stage.apply(leader_and_isr(ME, 3, indexes=indexes))
        work = stage.replicas.apply(leader_and_isr(OTHER, 4, indexes=indexes))
        assert [len(stage.leaders) for _ in work] == [20, *range(19, -1, -1)]
        states = [StopReplicaPartitionState(partition_index=index, delete_partition=True) for index in indexes]
        topics = [StopReplicaTopicState(topic_name="flights", partition_states=states)]
        stop = stage.replicas.stop(StopReplicaRequest(controller_epoch=1, topic_states=topics))
        assert [len(stage.topics.hosted) for _ in stop] == [*range(19, -1, -1)]

    on_stage(tmp_path, act)


@pytest.mark.parametrize("version", LEADER_AND_ISR.versions)
def test_answer_of_every_version_names_the_partition(tmp_path: Path, version: int) -> None:
    def act(stage: Stage) -> None:
        state = LeaderAndIsrPartitionState(
            topic_name="flights", partition_index=0, leader=ME, leader_epoch=1, isr=[ME], partition_epoch=1, replicas=[ME]
        )
        by_topic = LeaderAndIsrTopicState(topic_name="flights", topic_id=TOPIC_ID if version > 4 else ZERO_TOPIC_ID)
        by_topic.partition_states = [state]
        request = LeaderAndIsrRequest(controller_epoch=1)
        if version < 2:
            request.ungrouped_partition_states = [state]
        else:
            request.topic_states = [by_topic]
        assert stage.apply(request) == [NONE, NONE] and stage.partition.leader == ME

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    ("epoch", "is_kraft", "is_stale"),
    [(9, False, True), (9, True, False), (10, False, False), (11, False, False), (-1, False, False)],
)
def test_broker_epoch_of_an_earlier_registration_is_stale(epoch: int, is_kraft: bool, is_stale: bool) -> None:
    assert is_broker_epoch_stale(epoch, 10, is_kraft_controller=is_kraft) == is_stale


def test_roles_that_cannot_be_taken_are_logged_in_one_line(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        request = leader_and_isr(ME, 3, indexes=tuple(range(-1, -31, -1)), is_new=True)
        assert stage.apply(request)[0] == NONE

    with structlog.testing.capture_logs() as lines:
        on_stage(tmp_path, act)
    (warning,) = (line for line in lines if line["log_level"] == "warning")
    assert (warning["count"], len(warning["first"])) == (30, 10)


@pytest.mark.parametrize(("topic", "index"), [("a/b", 0), ("é", 0), ("x" * 250, 0), ("", 0), ("flights", -1)])
def test_partition_whose_name_is_not_allowed_gets_no_folder(tmp_path: Path, topic: str, index: int) -> None:
    def act(stage: Stage) -> None:
        before = {*tmp_path.rglob("*")}
        request = leader_and_isr(ME, 3, indexes=(index,), is_new=True)
        request.topic_states[0].topic_name = topic
        error = ErrorCode.INVALID_TOPIC_EXCEPTION if index == 0 else ErrorCode.INVALID_PARTITIONS
        assert stage.apply(request) == [NONE, error]
        assert stage.leaders == {} and {*tmp_path.rglob("*")} == before

    on_stage(tmp_path, act)
