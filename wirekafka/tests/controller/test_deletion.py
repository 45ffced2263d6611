"""The deletion of topics by the controller."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.deletion import (
    Step,
    look_at_deletions,
    next_step,
    note_offline,
    note_returned,
    note_stopped,
    read_deletions,
    resume,
)
from wirekafka.controller.reactions import reaction_to_answer
from wirekafka.controller.requests import EPOCH_DURING_DELETE
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import Stage
from wirekafka.wire.messages.stop_replica import (
    STOP_REPLICA,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.requests import read_reassignment, write_reassignment
from wirekafka.zookeeper.layout.topics import LEADER_DURING_DELETE, ReplicaAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    Exists,
    Multi,
    Operation,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _stage(*broker_ids: int) -> Stage:
    """Returns a cluster with the topic `t`, of which partition 0 is on brokers 1 and 2, and partition 1 on broker 2."""
    stage = Stage()
    for broker_id in broker_ids:
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2), 1: (2,)})
    stage.add_state(T0, 1, (1, 2))
    stage.add_state(T1, 2, (2,))
    stage.do(Create(paths.configs("topics", "t"), b"{}"))
    return stage


def _ask(stage: Stage, *topics: str) -> None:
    for topic in topics:
        stage.do(Create(paths.deleted_topic(topic), None))
    stage.event(look_at_deletions)


def _answer(stage: Stage, broker_id: int, *names: TopicPartition, error: ErrorCode = ErrorCode.NONE) -> None:
    errors = [
        StopReplicaPartitionError(topic_name=name.topic, partition_index=name.partition, error_code=error) for name in names
    ]
    response = StopReplicaResponse(partition_errors=errors)
    stage.event(lambda context, batch: note_stopped(context, batch, broker_id, response))


def _take_answer(stage: Stage, broker_id: int, request: StopReplicaRequest, name: TopicPartition) -> None:
    """Lets the controller take the answer to a request that it has sent."""
    errors = [StopReplicaPartitionError(topic_name=name.topic, partition_index=name.partition)]
    response = StopReplicaResponse(partition_errors=errors)
    event = reaction_to_answer(stage.context.live[broker_id], STOP_REPLICA, request, response)
    assert event is not None
    stage.event(event)


def _stopped(stage: Stage, broker_id: int) -> list[TopicPartition]:
    """Returns what a broker was told to delete, and forgets all requests."""
    names = [name for name, each in stage.stop_replica(broker_id).items() if each.delete_partition]
    stage.sent.clear()
    return names


def _exist(stage: Stage, names: Iterable[str]) -> list[bool]:
    return [stage.do(Exists(name)) is not None for name in names]


def _znodes() -> tuple[str, ...]:
    return paths.topic("t"), paths.configs("topics", "t"), paths.deleted_topic("t")


@pytest.mark.parametrize(
    ("deleted", "stopping", "is_ineligible", "expected"),
    [
        (0, 0, False, Step.STOP_REPLICAS),
        (2, 0, False, Step.STOP_REPLICAS),
        (0, 3, False, Step.WAIT),
        (2, 1, False, Step.WAIT),
        (0, 0, True, Step.WAIT),
        (2, 0, True, Step.WAIT),
        (3, 0, False, Step.DELETE_ZNODES),
        (3, 0, True, Step.DELETE_ZNODES),
    ],
)
def test_next_step_of_three_replicas(*, deleted: int, stopping: int, is_ineligible: bool, expected: Step) -> None:
    step = next_step(replica_count=3, deleted_count=deleted, stopping_count=stopping, is_ineligible=is_ineligible)
    assert step is expected


def test_deletion_that_is_disabled_deletes_the_request_only() -> None:
    stage = _stage(1, 2)
    stage.settings = ControllerSettings(broker_id=1, allows_deletions=False)
    _ask(stage, "t")

    assert _exist(stage, _znodes()) == [True, True, False]
    assert stage.sent == []
    assert not stage.context.is_deleting("t")


def test_deletion_tells_all_brokers_and_stops_the_replicas() -> None:
    stage = _stage(1, 2, 3)
    _ask(stage, "t")

    assert stage.stop_replica(1).keys() == {T0} and stage.stop_replica(2).keys() == {T0, T1}
    assert stage.stop_replica(1)[T0].delete_partition
    assert stage.stop_replica(1)[T0].leader_epoch == EPOCH_DURING_DELETE
    assert {stage.metadata(broker_id)[T0].leader for broker_id in (1, 2, 3)} == {LEADER_DURING_DELETE}
    assert stage.leader_and_isr(1) == {}


def test_deletion_ends_when_all_replicas_are_deleted() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 2, T0, T1)
    assert all(_exist(stage, _znodes()))

    _answer(stage, 1, T0)

    assert not any(_exist(stage, _znodes()))
    assert stage.context.topics == {} and stage.context.states == {} and stage.context.deleting == {}


def test_deletion_of_many_partitions_deletes_the_request_in_the_last_transaction() -> None:
    stage = Stage()
    stage.add_broker(1)
    stage.add_topic("t", dict.fromkeys(range(120), (1,)))
    for name in stage.context.partitions_of("t"):
        stage.add_state(name, 1, (1,))
    stage.do(Create(paths.configs("topics", "t"), b"{}"))
    _ask(stage, "t")
    deleted: list[list[str]] = []

    def note(operation: Operation[object]) -> None:
        if isinstance(operation, Multi):
            deleted.append([each.path for each in operation.operations if isinstance(each, Delete)])

    stage.client.choose_fault = note
    _answer(stage, 1, *stage.context.partitions_of("t"))

    assert [len(each) for each in deleted] == [100, 100, 41, 3]
    assert deleted[-1] == [*_znodes()]


def test_deletion_of_a_topic_without_partitions_ends_at_once() -> None:
    stage = _stage(1)
    stage.add_topic("empty", {})
    _ask(stage, "empty")
    assert _exist(stage, [paths.topic("empty"), paths.deleted_topic("empty")]) == [False, False]


def test_request_for_an_unknown_topic_is_deleted() -> None:
    stage = _stage(1, 2)
    _ask(stage, "unknown")
    assert stage.children(paths.DELETE_TOPICS) == ()
    assert stage.context.deleting == {}


def test_request_for_a_topic_that_is_not_known_yet_stays() -> None:
    stage = _stage(1, 2)
    stage.do(Create(paths.topic("new"), b""))
    _ask(stage, "new")
    assert stage.children(paths.DELETE_TOPICS) == ("new",)
    assert stage.context.deleting == {}


def test_look_at_deletions_leaves_a_watch() -> None:
    stage = _stage(1, 2)
    stage.event(look_at_deletions)
    events: list[WatchEvent] = []
    stage.client.add_watch_listener(events.append)
    stage.do(Create(paths.deleted_topic("t"), None))
    assert [event.path for event in events] == [paths.DELETE_TOPICS]


def test_request_that_is_known_is_not_begun_twice() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _stopped(stage, 1)
    stage.event(look_at_deletions)
    assert stage.sent == []


# Waiting


def test_deletion_with_an_offline_replica_deletes_the_others_and_waits_for_the_broker() -> None:
    stage = _stage(1)
    _ask(stage, "t")
    assert _stopped(stage, 1) == [T0]
    _answer(stage, 1, T0)
    assert all(_exist(stage, _znodes())) and stage.sent == []

    stage.add_broker(2)
    stage.event(lambda context, batch: note_returned(context, batch, [2]))
    assert stage.stop_replica(1) == {} and _stopped(stage, 2) == [T0, T1]
    _answer(stage, 2, T0, T1)
    assert not any(_exist(stage, _znodes()))


def test_deletion_does_not_resume_when_another_broker_returns() -> None:
    stage = _stage(1)
    _ask(stage, "t")
    _answer(stage, 1, T0)
    stage.sent.clear()
    stage.add_broker(3)
    stage.event(lambda context, batch: note_returned(context, batch, [3]))
    assert stage.sent == []


def test_replica_that_cannot_be_deleted_is_tried_again_when_a_broker_returns() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 1, T0)
    _answer(stage, 2, T1)
    _stopped(stage, 2)
    _answer(stage, 2, T0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    assert stage.sent == [] and "t" in stage.context.ineligible

    stage.event(lambda context, batch: note_returned(context, batch, [2]))
    assert _stopped(stage, 2) == [T0]


def test_error_that_is_unknown_here_lets_the_deletion_wait() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    errors = [StopReplicaPartitionError(topic_name="t", partition_index=T0.partition, error_code=9_999)]
    stage.event(lambda context, batch: note_stopped(context, batch, 2, StopReplicaResponse(partition_errors=errors)))
    assert "t" in stage.context.ineligible


def test_broker_that_dies_before_its_answer_is_told_again_when_it_returns() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    stage.remove_broker(2)
    stage.event(lambda context, batch: note_offline(context, batch, [(T0, 2), (T1, 2)]))
    _answer(stage, 1, T0)
    _stopped(stage, 2)

    stage.add_broker(2)
    stage.event(lambda context, batch: note_returned(context, batch, [2]))

    assert stage.stop_replica(1) == {} and _stopped(stage, 2) == [T0, T1]


def test_broker_that_dies_after_its_answer_does_not_hold_up_the_deletion() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 2, T0, T1)
    stage.remove_broker(2)
    stage.event(lambda context, batch: note_offline(context, batch, [(T0, 2), (T1, 2)]))
    assert "t" not in stage.context.ineligible
    _answer(stage, 1, T0)
    assert not any(_exist(stage, _znodes()))


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH])
def test_answer_to_a_request_from_before_the_deletion_counts_nothing(error: ErrorCode) -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    stopping = {topic: {*replicas} for topic, replicas in stage.context.stopping_replicas.items()}
    stop = StopReplicaPartitionState(partition_index=0, leader_epoch=7, delete_partition=True)
    request = StopReplicaRequest(topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[stop])])
    answer = StopReplicaPartitionError(topic_name="t", partition_index=0)
    response = StopReplicaResponse(error_code=error, partition_errors=[answer])
    event = reaction_to_answer(stage.context.live[2], STOP_REPLICA, request, response)
    assert event is not None
    stage.event(event)
    assert stage.context.stopping_replicas == stopping == {"t": {(0, 1), (0, 2), (1, 2)}}
    assert not stage.context.ineligible


def test_answer_to_an_order_for_a_former_topic_of_the_same_name_counts_nothing() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    (former,) = [each.request for each in stage.sent if each.broker_id == 1 and each.kind is STOP_REPLICA]
    _answer(stage, 1, T0)
    _answer(stage, 2, T0, T1)
    stage.sent.clear()
    stage.add_topic("t", {0: (1,)}, topic_id=b"the next topic t")
    stage.add_state(T0, 1, (1,))
    _ask(stage, "t")
    (present,) = [each.request for each in stage.sent if each.broker_id == 1 and each.kind is STOP_REPLICA]

    # The former order was sent twice, because the controller had read the cluster again, and the second answer is late.
    _take_answer(stage, 1, former, T0)
    assert stage.context.stopping_replicas == {"t": {(0, 1)}}
    _take_answer(stage, 1, present, T0)
    assert "t" not in stage.context.topics


def test_answer_of_a_broker_that_was_given_up_counts_nothing() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    stage.event(lambda context, batch: note_offline(context, batch, [(T0, 2), (T1, 2)]))
    _answer(stage, 1, T0)
    _answer(stage, 2, T0, T1)
    assert all(_exist(stage, _znodes()))


def test_answer_about_a_topic_that_is_not_being_deleted_counts_nothing() -> None:
    stage = _stage(1, 2)
    _answer(stage, 2, T0, T1, TopicPartition("unknown", 3))
    assert stage.context.deleted_replicas == {} and stage.sent == []


def test_request_that_a_broker_refuses_is_tried_again_when_a_broker_returns() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    response = StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    stage.event(lambda context, batch: note_stopped(context, batch, 2, response))
    _answer(stage, 1, T0)
    _stopped(stage, 2)
    stage.event(lambda context, batch: note_returned(context, batch, [2]))
    assert _stopped(stage, 2) == [T0, T1]


def test_replica_offline_of_a_topic_that_stays_is_not_noted() -> None:
    stage = _stage(1, 2)
    stage.event(lambda context, batch: note_offline(context, batch, [(T0, 2)]))
    assert stage.context.ineligible == set()


def test_deletion_ends_the_reassignments_of_the_topic() -> None:
    stage = _stage(1, 2, 3)
    stage.context.topics["t"].assignments[0] = ReplicaAssignment((1, 3, 2), (3,))
    stage.context.reassigning[T0] = None
    other = TopicPartition("other", 0)
    stage.do(Create(paths.REASSIGN_PARTITIONS, write_reassignment({T0: (1, 3, 2), other: (1,)})))
    _ask(stage, "t")
    assert stage.context.reassigning == {}
    data = stage.data(paths.REASSIGN_PARTITIONS)
    assert data is not None and read_reassignment(data.data) == {other: (1,)}
    assert _stopped(stage, 3) == [T0]


# Failures


def _after_failover(stage: Stage) -> None:
    """The next controller knows what ZooKeeper has."""
    former = stage.context
    stage.context = ControllerContext(epoch=former.epoch, epoch_version=former.epoch_version, live=former.live)
    stage.context.topics, stage.context.states = former.topics, former.states
    stage.sent.clear()


def test_new_controller_begins_the_deletion_again() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 1, T0)
    _after_failover(stage)

    stage.run(read_deletions(stage.context, stage.settings))
    assert stage.context.is_deleting("t") and stage.sent == []
    stage.event(lambda context, batch: resume(context, batch, []))

    assert stage.stop_replica(1).keys() == {T0} and stage.stop_replica(2).keys() == {T0, T1}


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST])
@pytest.mark.parametrize("count", range(2))
def test_deletion_of_znodes_that_loses_the_connection_is_repeated_by_the_next_controller(*, fault: Fault, count: int) -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 2, T0, T1)
    multis: list[Multi] = []

    def lose(operation: Operation[object]) -> Fault | None:
        if isinstance(operation, Multi):
            multis.append(operation)
            return fault if len(multis) == count + 1 else None
        return None

    stage.client.choose_fault = lose
    with pytest.raises(ZooKeeperError) as raised:
        _answer(stage, 1, T0)
    assert raised.value.code is ZooKeeperErrorCode.CONNECTION_LOSS

    _after_failover(stage)
    if stage.data(paths.topic("t")) is None:
        stage.context.topics = {}
    stage.event(look_at_deletions)
    if stage.context.topics:
        _answer(stage, 1, T0)
        _answer(stage, 2, T0, T1)
    assert not any(_exist(stage, _znodes()))


def test_znodes_that_were_deleted_by_hand_do_not_hold_up_the_deletion() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 2, T0, T1)
    stage.do(Delete(paths.partition_state(T0)))
    stage.do(Delete(paths.deleted_topic("t")))
    _answer(stage, 1, T0)
    assert not any(_exist(stage, _znodes()))


@pytest.mark.parametrize("has_vanished", [False, True])
def test_topic_whose_znode_cannot_be_deleted_does_not_hold_up_others(*, has_vanished: bool) -> None:
    stage = _stage(1, 2)
    stage.add_topic("u", {0: (1,)})
    _ask(stage, "t", "u")
    _answer(stage, 2, T0, T1)
    if has_vanished:
        for path in (*(paths.partition_state(name) for name in (T0, T1)), *(paths.partition(name) for name in (T0, T1))):
            stage.do(Delete(path))
        for path in (paths.topic_partitions("t"), *_znodes()):
            stage.do(Delete(path))
    other = stage.connect()
    stage.turn()

    def fill(operation: Operation[object]) -> None:
        """Adds a znode below the topic before each attempt to delete it."""
        if operation == Exists(paths.topic("u")):
            other.submit(Create(f"{paths.topic('u')}/x", None), lambda result: None)

    stage.client.choose_fault = fill
    with structlog.testing.capture_logs() as lines:
        _answer(stage, 1, T0, TopicPartition("u", 0))

    assert [*stage.context.topics] == ["u"]
    assert not any(_exist(stage, _znodes()))
    assert [line["topics"] for line in lines if line["log_level"] == "error"] == [["u"]]


def test_deposed_controller_deletes_no_znode() -> None:
    stage = _stage(1, 2)
    _ask(stage, "t")
    _answer(stage, 2, T0, T1)
    stage.depose()
    with pytest.raises(DeposedError):
        _answer(stage, 1, T0)
    assert all(_exist(stage, _znodes()))
    assert stage.data(paths.partition_state(T0)) is not None


def test_deletion_of_many_topics_is_logged_in_few_lines() -> None:
    stage = _stage(1)
    names = [f"topic-{number}" for number in range(10, 40)]
    for name in names:
        stage.add_topic(name, {0: (1, 9)})
    with structlog.testing.capture_logs() as lines:
        _ask(stage, *names)
    told = {line["event"]: (line["count"], [*line["first"]]) for line in lines}
    assert len(lines) == 2
    assert told == {
        "Deleting the replicas of topics": (30, names[:10]),
        "The deletion of topics waits": (30, names[:10]),
    }
