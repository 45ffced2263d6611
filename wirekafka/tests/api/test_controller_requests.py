"""LeaderAndIsr and StopReplica, as a controller sends them to a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from wirekafka.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wirekafka.errors import ErrorCode
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.fetcher import FetcherSettings
from wirekafka.replication.leader_replica import ReplicaFetch
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.slices import Slices
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, values_of
from wirekafka.tests.api.members import BROKER_EPOCH, NODE_ID, JoinedMember, id_of, join, topic, update
from wirekafka.tests.replication.test_replica_fetcher import PlayedChannel
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wirekafka.wire.messages.stop_replica import (
    STOP_REPLICA,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)

OTHER = 2
NONE = ErrorCode.NONE
TIMEOUT_MS = 500


class Settings:
    """No topic has settings of its own.

    Attributes:
        is_slow: ZooKeeper does not answer.
    """

    def __init__(self) -> None:
        self.is_slow = False
        self.reads: list[Pending[None]] = []

    def read(self, topics: object) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.reads.append(pending)
        if not self.is_slow:
            pending.complete(None)
        return pending


class Stage:
    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.broker = broker = caller.broker
        # By this clock no time passes, so all work ends in its first slice.
        broker.slices = Slices(broker.clock, lambda: 0.0)
        self.member: JoinedMember = join(caller)
        self.settings = Settings()
        self.replicas = ClusterReplicas(
            broker.config,
            broker.clock,
            broker.logs,
            self.member.topics,
            ReplicaFetchers(
                FetcherSettings(replica_id=NODE_ID, broker_epoch=lambda: BROKER_EPOCH),
                fetcher_count=1,
                connect=lambda broker_id, number: PlayedChannel(),
                timers=broker.clock,
                slices=broker.slices,
            ),
            broker.slices,
            node_id=NODE_ID,
            propose=lambda leader, change: None,
            live_brokers={NODE_ID: BROKER_EPOCH, OTHER: 20},
            configs=self.settings,
            leader_replicas=broker.leader_replicas,
        )
        cast(Any, self.member).replicas = self.replicas
        self.member.tell(topic("flights", NODE_ID))

    @property
    def partition(self) -> Partition:
        return self.broker.topics.find_partition("flights", 0)

    def elect(self, leader: int, epoch: int, version: int = 7, broker_epoch: int = BROKER_EPOCH) -> tuple[int, int]:
        """Returns the error of the response and that of the partition."""
        request = self.election(leader, epoch, version, broker_epoch)
        response = answers_of(self.caller.ask(request, version))[0]
        [error] = response.topics[0].partition_errors if version > 4 else response.partition_errors
        return response.error_code, error.error_code

    def election(self, leader: int, epoch: int, version: int = 7, broker_epoch: int = BROKER_EPOCH) -> LeaderAndIsrRequest:
        state = LeaderAndIsrPartitionState(
            topic_name="flights" if version < 2 else "",
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=epoch,
            isr=[NODE_ID, OTHER],
            replicas=[NODE_ID, OTHER],
        )
        request = LeaderAndIsrRequest(controller_epoch=1, broker_epoch=broker_epoch if version > 1 else -1)
        if version < 2:
            request.ungrouped_partition_states = [state]
        else:
            topic_id = id_of("flights") if version > 4 else ZERO_TOPIC_ID
            request.topic_states = [LeaderAndIsrTopicState(topic_name="flights", topic_id=topic_id, partition_states=[state])]
        return request

    def lead(self, *values: bytes, committed: int = 0) -> None:
        """Leads in epoch 3, with records of which some are committed."""
        assert self.elect(NODE_ID, 3) == (NONE, NONE)
        if values:
            self.partition.append(memoryview(batch(*values)), now_ms=NOW_MS)
        if committed:
            self.fetch(committed)

    def fetch(self, offset: int, log_start_offset: int = 0) -> None:
        """Fetches as the follower, which has all records before the offset."""
        epoch = self.partition.leader_epoch
        fetch = ReplicaFetch(OTHER, epoch, offset, epoch, log_start_offset, 20)
        self.broker.leader_replicas[self.partition].fetch(fetch, max_bytes=1 << 20, min_one_batch=True)

    def list_offset(self, timestamp: int, version: int = 9, replica_id: int = -1) -> tuple[int, int]:
        asked = ListOffsetsPartition(timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="flights", partitions=[asked])])
        answer = self.caller.ask(request, version).topics[0].partitions[0]
        return answer.error_code, answer.offset

    def delete(self, offset: int) -> list[Any]:
        """Deletes records; returns the answer of the partition, once there is one."""
        asked = DeleteRecordsTopic(name="flights", partitions=[DeleteRecordsPartition(offset=offset)])
        response = self.caller.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=TIMEOUT_MS), 2)
        answers: list[Any] = []
        response.map(lambda result: result.topics[0].partitions[0]).then(
            lambda answer: answers.append((answer.error_code, answer.low_watermark))
        )
        return answers


def answers_of(response: Any) -> list[Any]:
    """Returns the response, if there is one yet."""
    if not isinstance(response, Pending):
        return [response]
    answers: list[Any] = []
    response.then(answers.append)
    return answers


def on_stage(path: Path, act: Any) -> None:
    async def body(caller: Caller) -> None:
        found = act(Stage(caller))
        if found is not None:
            await found

    run(body, path, min_insync_replicas="1")


@pytest.mark.parametrize("version", LEADER_AND_ISR.versions)
def test_leader_and_isr_of_every_version_gives_the_role(tmp_path: Path, version: int) -> None:
    def act(stage: Stage) -> None:
        assert stage.elect(NODE_ID, 3, version) == (NONE, NONE)
        assert stage.broker.find_partition("flights", 0).leader_epoch == 3
        assert stage.elect(OTHER, 4, version) == (NONE, NONE)
        assert stage.partition.leader == OTHER

    on_stage(tmp_path, act)


def test_leader_and_isr_for_an_earlier_registration_changes_nothing(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stale = ErrorCode.STALE_BROKER_EPOCH
        assert stage.elect(NODE_ID, 3, broker_epoch=BROKER_EPOCH - 1) == (stale, stale)
        assert not stage.partition.is_hosted

    on_stage(tmp_path, act)


@pytest.mark.parametrize("version", STOP_REPLICA.versions)
@pytest.mark.parametrize(("broker_epoch", "is_stale"), [(BROKER_EPOCH, False), (BROKER_EPOCH - 1, True)])
def test_stop_replica_of_every_version_deletes_unless_it_is_for_an_earlier_registration(
    tmp_path: Path, version: int, broker_epoch: int, is_stale: bool
) -> None:
    def act(stage: Stage) -> None:
        stage.lead(b"a")
        request = StopReplicaRequest(controller_epoch=1)
        if version:
            request.broker_epoch = broker_epoch
        if version < 3:
            request.delete_partitions = True
        if version == 0:
            request.ungrouped_partitions = [StopReplicaPartitionV0(topic_name="flights")]
        elif version < 3:
            request.topics = [StopReplicaTopicV1(name="flights", partition_indexes=[0])]
        else:
            state = StopReplicaPartitionState(leader_epoch=3, delete_partition=True)
            request.topic_states = [StopReplicaTopicState(topic_name="flights", partition_states=[state])]
        response = stage.caller.ask(request, version)
        is_refused = is_stale and version > 0
        assert response.error_code == (ErrorCode.STALE_BROKER_EPOCH if is_refused else NONE)
        assert stage.partition.is_hosted == is_refused
        assert [error.error_code for error in response.partition_errors] == ([] if is_refused else [NONE])

    on_stage(tmp_path, act)


def deletion() -> StopReplicaRequest:
    state = StopReplicaPartitionState(leader_epoch=-2, delete_partition=True)
    topics = [StopReplicaTopicState(topic_name="flights", partition_states=[state])]
    return StopReplicaRequest(controller_epoch=1, broker_epoch=BROKER_EPOCH, topic_states=topics)


@pytest.mark.parametrize("is_connected", [True, False])
def test_replica_that_is_stopped_before_its_former_role_is_taken_stays_stopped(tmp_path: Path, is_connected: bool) -> None:
    def act(stage: Stage) -> None:
        stage.settings.is_slow = True
        election = stage.caller.ask(stage.election(NODE_ID, 3), 7)
        if not is_connected:
            election.abandon()
        stopped = answers_of(stage.caller.ask(deletion(), 3))
        assert stopped == []
        stage.settings.reads[0].complete(None)
        assert stopped[0].partition_errors[0].error_code == NONE
        assert stage.replicas.find(stage.partition.topic_partition) is None and not stage.partition.is_hosted

    on_stage(tmp_path, act)


def test_role_for_an_earlier_registration_is_not_taken_after_the_settings_are_read(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.settings.is_slow = True
        election = answers_of(stage.caller.ask(stage.election(NODE_ID, 3), 7))
        stage.member.broker_epoch += 1
        stage.settings.reads[0].complete(None)
        assert election[0].error_code == ErrorCode.STALE_BROKER_EPOCH and not stage.partition.is_hosted

    on_stage(tmp_path, act)


def test_partition_that_is_told_while_a_role_is_taken_is_taken_after_it(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.settings.is_slow = True
        election = answers_of(stage.caller.ask(stage.election(NODE_ID, 3), 7))
        told = answers_of(stage.caller.ask(update(topic("arrivals", OTHER)), 8))
        assert (election, told) == ([], []) and stage.broker.topics.find("arrivals") is None
        stage.settings.reads[0].complete(None)
        assert len(election) == len(told) == 1 and stage.broker.topics.find("arrivals") is not None

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    ("timestamp", "version", "replica_id", "expected"),
    [
        (-1, 9, -1, (ErrorCode.OFFSET_NOT_AVAILABLE, -1)),
        (-1, 4, -1, (ErrorCode.LEADER_NOT_AVAILABLE, -1)),
        (-1, 9, OTHER, (NONE, 2)),
        (-2, 9, -1, (NONE, 0)),
        (-3, 9, -1, (ErrorCode.OFFSET_NOT_AVAILABLE, -1)),
        (-5, 9, -1, (NONE, -1)),
        (NOW_MS, 9, -1, (NONE, 0)),
        (NOW_MS + 1, 9, -1, (ErrorCode.OFFSET_NOT_AVAILABLE, -1)),
        (NOW_MS + 9, 9, -1, (ErrorCode.OFFSET_NOT_AVAILABLE, -1)),
    ],
)
def test_new_leader_lists_no_offset_that_may_seem_to_go_back(
    tmp_path: Path, timestamp: int, version: int, replica_id: int, expected: tuple[int, int]
) -> None:
    def act(stage: Stage) -> None:
        stage.lead(b"a", b"b", committed=1)
        stage.elect(OTHER, 4)
        stage.elect(NODE_ID, 5)
        assert stage.list_offset(timestamp, version, replica_id) == expected
        stage.fetch(2)
        assert stage.list_offset(-1, version) == (NONE, 2)

    on_stage(tmp_path, act)


def test_records_are_deleted_once_the_follower_has_deleted_them_too(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.lead(b"a", b"b", b"c", committed=3)
        answers = stage.delete(2)
        stage.fetch(3, log_start_offset=1)
        assert answers == []
        stage.fetch(3, log_start_offset=2)
        assert answers == [(NONE, 2)]
        assert stage.delete(-1) == []

    on_stage(tmp_path, act)


def test_deletion_that_a_follower_does_not_follow_times_out_with_what_is_deleted_everywhere(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.lead(b"a", b"b", b"c", committed=3)
        stage.fetch(3, log_start_offset=1)
        answers = stage.delete(2)
        await trio.sleep(TIMEOUT_MS / 1000 + 1)
        assert answers == [(ErrorCode.REQUEST_TIMED_OUT, 1)]
        assert stage.partition.log.log_start_offset == 2

    on_stage(tmp_path, act)


def test_deletion_that_waits_when_leadership_ends_is_answered(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.lead(b"a", b"b", committed=2)
        answers = stage.delete(1)
        stage.elect(OTHER, 4)
        assert answers == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]

    on_stage(tmp_path, act)


def test_consumers_session_follows_the_partition_as_roles_change(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        def fetch(session_id: int, session_epoch: int) -> Any:
            topics = [FetchTopic(topic="flights", partitions=[FetchPartition(partition_max_bytes=1 << 20)])]
            return stage.caller.ask(
                FetchRequest(
                    session_id=session_id, session_epoch=session_epoch, topics=[] if session_epoch else topics, max_wait_ms=0
                ),
                12,
            )

        session_id = fetch(0, 0).session_id
        assert session_id
        seen = []
        for epoch, leader in enumerate([0, NODE_ID, OTHER, NODE_ID], start=1):
            if leader:
                stage.elect(leader, epoch)
            if leader == NODE_ID:
                stage.partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
                stage.fetch(stage.partition.log.log_end_offset)
            [data] = fetch(session_id, epoch).responses[0].partitions
            seen.append((data.error_code, len(values_of(data.records))))
        not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
        # The follower serves the record that it knows to be committed.
        assert seen == [(not_leader, 0), (NONE, 1), (NONE, 1), (NONE, 2)]

    on_stage(tmp_path, act)


def test_large_request_of_absent_partitions_is_answered(tmp_path: Path) -> None:
    def act(stage: Stage) -> None:
        stage.member.tell(topic("many", *[OTHER] * 600))
        asked = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(600)]
        response = stage.caller.ask(FetchRequest(topics=[FetchTopic(topic="many", partitions=asked)], max_wait_ms=500), 12)
        assert {data.error_code for data in response.responses[0].partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    on_stage(tmp_path, act)
