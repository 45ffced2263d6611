"""Reassignments by the controller: begun, replaced, cancelled, completed and resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from wirekafka.controller.context import ControllerContext, Topic
from wirekafka.controller.reassignment import (
    alter_reassignments,
    fault_of_target,
    is_complete,
    is_reassigning,
    list_reassignments,
    look_at_reassignments,
    note_in_sync,
    note_returned,
    origin_of,
    reassign_to,
    removed_from,
    take_over,
    target_of,
)
from wirekafka.controller.writes import DeposedError, write_states
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.requests import read_reassignment, write_reassignment
from wirekafka.zookeeper.layout.topics import NO_LEADER, PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    Multi,
    Operation,
    SetData,
    WatchEvent,
    ZooKeeperError,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _moving(replicas: Sequence[int], adding: Sequence[int] = (), removing: Sequence[int] = ()) -> ReplicaAssignment:
    return ReplicaAssignment(tuple(replicas), tuple(adding), tuple(removing))


# Decisions


@pytest.mark.parametrize(
    ("assignment", "target", "expected"),
    [
        (_moving([1, 2, 3]), [4, 5, 6], _moving([4, 5, 6, 1, 2, 3], [4, 5, 6], [1, 2, 3])),
        (_moving([1, 2, 3]), [3, 4, 2], _moving([3, 4, 2, 1], [4], [1])),
        (_moving([1, 2, 3]), [1, 2], _moving([1, 2, 3], [], [3])),
        (_moving([1, 2]), [1, 2, 3], _moving([1, 2, 3], [3])),
        (_moving([1, 2, 3]), [3, 2, 1], _moving([3, 2, 1])),
        (_moving([4, 1, 2], [4], [2]), [5, 1], _moving([5, 1, 2], [5], [2])),
        (_moving([4, 1, 2], [4], [2]), [1, 2], _moving([1, 2])),
        (_moving([4, 1, 2], [4], [2]), [4, 5], _moving([4, 5, 1, 2], [4, 5], [1, 2])),
        (_moving([]), [1], _moving([1], [1])),
    ],
)
def test_reassign_to(assignment: ReplicaAssignment, target: list[int], expected: ReplicaAssignment) -> None:
    assert reassign_to(assignment, target) == expected
    assert target_of(expected) == tuple(target)


def test_assignment_with_very_many_replicas_is_reassigned_in_linear_time() -> None:
    class Replicas(tuple[int, ...]):
        __slots__ = ()

        def __contains__(self, value: object) -> bool:
            raise AssertionError("a sequence of replicas was searched for each of them")

    replicas = Replicas(range(10))
    moving = reassign_to(ReplicaAssignment(replicas, Replicas(), Replicas()), Replicas([4, 10]))
    assert moving == _moving([4, 10, 0, 1, 2, 3, 5, 6, 7, 8, 9], [10], [0, 1, 2, 3, 5, 6, 7, 8, 9])
    assert target_of(ReplicaAssignment(replicas, (), Replicas(range(9)))) == (9,)
    assert origin_of(ReplicaAssignment(replicas, Replicas(range(9)), ())) == (9,)


@pytest.mark.parametrize(
    ("assignment", "origin", "is_moving"),
    [
        (_moving([1, 2]), (1, 2), False),
        (_moving([3, 1, 2], [3]), (1, 2), True),
        (_moving([3, 1, 2], [3], [1]), (1, 2), True),
        (_moving([1, 2], [], [2]), (1, 2), True),
    ],
)
def test_origin_of_an_assignment(*, assignment: ReplicaAssignment, origin: tuple[int, ...], is_moving: bool) -> None:
    assert origin_of(assignment) == origin
    assert is_reassigning(assignment) is is_moving


@pytest.mark.parametrize(
    ("target", "has_fault"), [((1, 2), False), ((), True), ((1, 2, 1), True), ((1, -1), True), ((0,), False)]
)
def test_fault_of_target(*, target: tuple[int, ...], has_fault: bool) -> None:
    assert (fault_of_target(target) is not None) is has_fault


@pytest.mark.parametrize(
    ("leader", "isr", "removed", "online", "expected"),
    [
        pytest.param(1, (1, 2, 4), [4], [1, 2, 4], (1, (1, 2)), id="a follower leaves"),
        pytest.param(4, (1, 2, 4), [4], [1, 2, 4], (2, (1, 2)), id="the leader leaves, the first of the target leads"),
        pytest.param(4, (1, 2, 4), [4], [1, 4], (1, (1, 2)), id="the first of the target is offline"),
        pytest.param(4, (1, 4), [4], [1, 2, 4], (1, (1,)), id="the first of the target is not in sync"),
        pytest.param(1, (1, 2), [4], [1, 2], (1, (1, 2)), id="what leaves was not in sync"),
        pytest.param(4, (4,), [4], [1, 2, 4], None, id="none in sync would remain"),
        pytest.param(4, (1, 4), [4], [2, 4], None, id="none that remains is online, but the leader is"),
        pytest.param(NO_LEADER, (1, 4), [4], [], (NO_LEADER, (1,)), id="no leader before and after"),
        pytest.param(NO_LEADER, (1, 4), [4], [1], (1, (1,)), id="no leader before, one after"),
        pytest.param(4, (1, 4), [4], [], (NO_LEADER, (1,)), id="the leader is offline, and so is the rest"),
        pytest.param(1, (1, 2), [], [2], (2, (1, 2)), id="the leader is offline"),
    ],
)
def test_removed_from(
    leader: int, isr: tuple[int, ...], removed: list[int], online: list[int], expected: tuple[int, tuple[int, ...]] | None
) -> None:
    state = removed_from(PartitionState(leader, 7, isr, EPOCH), removed, [2, 1], online)
    assert state == (None if expected is None else PartitionState(expected[0], 8, expected[1], EPOCH))


@pytest.mark.parametrize(
    ("isr", "online", "expected"),
    [
        ((1, 2, 3, 4), [1, 2, 3, 4], True),
        ((3, 4), [3, 4], True),
        ((3, 4), [4], True),
        ((1, 2, 3, 4), [1, 2], False),
        ((1, 2, 3), [1, 2, 3, 4], False),
    ],
)
def test_is_complete(*, isr: tuple[int, ...], online: list[int], expected: bool) -> None:
    assignment = _moving([3, 4, 1, 2], [3, 4], [1, 2])
    assert is_complete(assignment, PartitionState(1, 0, isr, EPOCH), online) is expected


# A cluster


def _stage() -> Stage:
    """Returns a cluster with brokers 1 to 5 and the topic `t`, whose partition 0 is on brokers 1, 2 and 3."""
    stage = Stage()
    for broker_id in range(1, 6):
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2, 3), 1: (2, 3)})
    stage.add_state(T0, 1, (1, 2, 3), leader_epoch=7)
    stage.add_state(T1, 2, (2, 3), leader_epoch=3)
    return stage


def _alter(stage: Stage, targets: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, ErrorCode | None]:
    outcomes = stage.event(lambda context, batch: alter_reassignments(context, batch, targets))
    return {name: None if error is None else error.code for name, error in outcomes.items()}


def _stored(stage: Stage, name: TopicPartition = T0) -> ReplicaAssignment:
    data = stage.data(paths.topic(name.topic))
    assert data is not None
    assignment = TopicAssignment.read(name.topic, data.data).partitions[name.partition]
    assert assignment == stage.context.assignment(name)
    return assignment


def _grow(stage: Stage, isr: tuple[int, ...], *, leader: int | None = None, name: TopicPartition = T0) -> None:
    """The in-sync replicas grow, and perhaps an election moves the leader; reassignments are not told."""
    state = stage.state(name)
    changed = PartitionState(state.leader if leader is None else leader, state.leader_epoch, isr, EPOCH)
    assert stage.run(write_states(stage.context, {name: changed})) == {}


def _in_sync(stage: Stage, isr: tuple[int, ...]) -> None:
    """The in-sync replicas grow, as by AlterPartition."""
    _grow(stage, isr)
    stage.event(lambda context, batch: note_in_sync(context, batch, [T0]))


def _summary(stage: Stage, name: TopicPartition = T0) -> tuple[int, tuple[int, ...], int]:
    state = stage.state(name)
    assert state == stage.context.states[name].state
    return state.leader, state.isr, state.leader_epoch


def _deleted(stage: Stage) -> list[int]:
    """Returns the brokers that were told to delete their replica of partition 0."""
    return [each for each in range(1, 6) if T0 in (told := stage.stop_replica(each)) and told[T0].delete_partition]


def _next_controller(stage: Stage) -> None:
    """The next controller knows what ZooKeeper has."""
    former = stage.context
    stage.context = ControllerContext(epoch=former.epoch, epoch_version=former.epoch_version, live=former.live)
    data = stage.data(paths.topic("t"))
    assert data is not None
    stored = TopicAssignment.read("t", data.data)
    stage.context.put_topic(Topic("t", stored.topic_id, data.stat.version, dict(stored.partitions)))
    for name in (T0, T1):
        found = stage.data(paths.partition_state(name))
        assert found is not None
        former.states[name].state, former.states[name].version = stage.state(name), found.stat.version
    stage.context.states = former.states
    stage.sent.clear()


# Begin


def test_reassignment_begins_with_the_assignment_and_a_new_leader_epoch() -> None:
    stage = _stage()
    assert _alter(stage, {T0: [4, 5, 1]}) == {T0: None}

    moving = _moving([4, 5, 1, 2, 3], [4, 5], [2, 3])
    assert _stored(stage) == moving
    assert _summary(stage) == (1, (1, 2, 3), 8)
    for broker_id, is_new in {1: False, 2: False, 3: False, 4: True, 5: True}.items():
        told = stage.leader_and_isr(broker_id)[T0]
        assert (told.is_new, told.leader_epoch, told.replicas) == (is_new, 8, [4, 5, 1, 2, 3])
        assert (told.adding_replicas, told.removing_replicas) == ([4, 5], [2, 3])
    assert _deleted(stage) == []
    assert stage.run(list_reassignments(stage.context)) == {T0: moving}


def test_reassignment_writes_the_assignment_before_the_state() -> None:
    stage = _stage()
    written: list[str] = []

    def note(operation: Operation[object]) -> None:
        if isinstance(operation, Multi):
            written.extend(each.path for each in operation.operations if isinstance(each, SetData))

    stage.client.choose_fault = note
    _alter(stage, {T0: [4, 5, 1]})
    assert written == [paths.topic("t"), paths.partition_state(T0)]


def test_reassignment_of_many_partitions_writes_the_topic_once() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1], T1: [5, 2]})
    data = stage.data(paths.topic("t"))
    assert data is not None and data.stat.version == 1
    assert _stored(stage, T1) == _moving([5, 2, 3], [5], [3])


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        (T0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (TopicPartition("t", 9), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("u", 0), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("u", 0), [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicPartition("u", 0), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_reassignment_that_is_refused(name: TopicPartition, target: list[int] | None, expected: ErrorCode) -> None:
    stage = _stage()
    assert _alter(stage, {name: target}) == {name: expected}
    assert stage.sent == [] and _stored(stage) == _moving([1, 2, 3])


@pytest.mark.parametrize("target", [range(50_000), [-1] * 50_000, range(-1, 50_000)])
def test_refusal_of_a_target_with_very_many_brokers_names_the_first(target: Sequence[int]) -> None:
    stage = _stage()
    outcomes = stage.event(lambda context, batch: alter_reassignments(context, batch, {T0: target}))
    assert len(str(outcomes[T0])) < 200


def test_reassignment_to_a_broker_that_shuts_down_is_refused() -> None:
    stage = _stage()
    stage.context.shutting_down.add(4)
    assert _alter(stage, {T0: [4, 1]}) == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}


def test_reassignment_within_the_replicas_needs_no_live_broker() -> None:
    stage = _stage()
    stage.remove_broker(3)
    assert _alter(stage, {T0: [1, 3]}) == {T0: None}
    assert _stored(stage) == _moving([1, 3])


@pytest.mark.parametrize("target", [[4], None])
def test_reassignment_of_a_topic_that_is_being_deleted_is_refused(target: list[int] | None) -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    stage.context.deleting["t"] = None
    stage.sent.clear()
    assert _alter(stage, {T0: target}) == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert stage.sent == []


def test_refusals_do_not_hold_up_the_others() -> None:
    stage = _stage()
    assert _alter(stage, {T0: [], T1: [4]}) == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT, T1: None}
    assert is_reassigning(_stored(stage, T1))


def test_reassignment_of_a_topic_whose_znode_is_missing_is_refused() -> None:
    stage = _stage()
    stage.do(Delete(paths.partition_state(T0)))
    stage.do(Delete(paths.partition(T0)))
    stage.do(Delete(paths.partition_state(T1)))
    stage.do(Delete(paths.partition(T1)))
    stage.do(Delete(paths.topic_partitions("t")))
    stage.do(Delete(paths.topic("t")))
    assert _alter(stage, {T0: [4]}) == {T0: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert stage.context.reassigning == {}


def test_reassignment_of_a_partition_without_a_leader_elects_an_added_replica() -> None:
    stage = _stage()
    stage.add_topic("new", {0: (8, 9)})
    new = TopicPartition("new", 0)
    assert _alter(stage, {new: [4, 5]}) == {new: None}
    assert _stored(stage, new) == _moving([4, 5])
    assert stage.state(new).leader == 4


# Completion


def test_reassignment_is_complete_when_the_target_is_in_sync() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 2]})
    _in_sync(stage, (1, 2, 3, 4))
    assert is_reassigning(_stored(stage)) and _deleted(stage) == []

    _in_sync(stage, (1, 2, 3, 4, 5))

    assert _stored(stage) == _moving([4, 5, 2])
    assert _summary(stage) == (4, (2, 4, 5), 9)
    assert stage.leader_and_isr(2)[T0].replicas == [4, 5, 2]
    assert stage.leader_and_isr(4)[T0].leader == 4
    assert _deleted(stage) == [1, 3]
    assert stage.stop_replica(1)[T0].leader_epoch == 9
    assert stage.metadata(3)[T0].replicas == [4, 5, 2]
    assert stage.context.reassigning == {}


def test_complete_reassignment_keeps_a_leader_of_the_target() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    _in_sync(stage, (1, 2, 3, 4))
    assert _summary(stage) == (1, (1, 4), 9)


def test_reassignment_that_only_removes_is_complete_at_once() -> None:
    stage = _stage()
    _alter(stage, {T0: [2, 3]})
    assert _stored(stage) == _moving([2, 3])
    assert _summary(stage) == (2, (2, 3), 8)
    assert _deleted(stage) == [1]


def test_reassignment_that_only_reorders_is_complete_at_once() -> None:
    stage = _stage()
    _alter(stage, {T0: [3, 2, 1]})
    assert _stored(stage) == _moving([3, 2, 1])
    assert _summary(stage) == (1, (1, 2, 3), 8)
    assert _deleted(stage) == []


def test_reassignment_is_not_complete_while_the_whole_target_is_offline() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5]})
    stage.remove_broker(4)
    stage.remove_broker(5)
    _in_sync(stage, (1, 2, 3, 4, 5))
    assert is_reassigning(_stored(stage)) and _deleted(stage) == []


def test_brokers_are_stopped_before_the_assignment_forgets_them() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 2]})
    stage.sent.clear()
    told: list[list[int]] = []

    def note(operation: Operation[object]) -> None:
        if isinstance(operation, Multi) and any(each.path == paths.topic("t") for each in operation.operations):
            told.append(_deleted(stage))

    stage.client.choose_fault = note
    _in_sync(stage, (1, 2, 3, 4, 5))
    assert told == [[1, 3]]


def test_state_that_somebody_else_writes_is_read_again() -> None:
    stage = _stage()
    stage.do(SetData(paths.partition_state(T0), PartitionState(2, 20, (2, 3), EPOCH).write()))
    _alter(stage, {T0: [3]})
    assert _summary(stage) == (3, (3,), 21)


def test_change_of_a_partition_that_is_not_being_reassigned_completes_nothing() -> None:
    stage = _stage()
    _in_sync(stage, (1, 2))
    assert stage.sent == []


# Cancelling and replacing


def test_cancelled_reassignment_stops_what_it_added() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 1]})
    assert _alter(stage, {T0: None}) == {T0: None}

    assert _stored(stage) == _moving([1, 2, 3])
    assert _summary(stage) == (1, (1, 2, 3), 9)
    assert _deleted(stage) == [4, 5]
    assert stage.leader_and_isr(1)[T0].replicas == [1, 2, 3]
    assert stage.context.reassigning == {}


def test_cancelled_reassignment_leaves_no_in_sync_replica_outside_the_assignment() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 1]})
    _in_sync(stage, (1, 2, 3, 4))
    _alter(stage, {T0: None})
    assert _summary(stage) == (1, (1, 2, 3), 9)
    assert _deleted(stage) == [4, 5]


def test_cancelled_reassignment_moves_the_leader_that_leaves() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 1]})
    _grow(stage, (2, 3, 4), leader=4)
    _alter(stage, {T0: None})
    assert _summary(stage) == (2, (2, 3), 9)
    assert stage.leader_and_isr(2)[T0].leader == 2
    assert stage.stop_replica(4)[T0].leader_epoch == 9


def test_cancelling_that_would_lose_records_is_refused() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5, 1]})
    _grow(stage, (4,), leader=4)
    stage.sent.clear()
    assert _alter(stage, {T0: None}) == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert _stored(stage) == _moving([4, 5, 1, 2, 3], [4, 5], [2, 3])
    assert _summary(stage) == (4, (4,), 8) and stage.sent == []
    assert T0 in stage.context.reassigning


def test_leader_that_shuts_down_stays_if_no_other_replica_can_lead() -> None:
    stage = _stage()
    _grow(stage, (1,))
    stage.context.shutting_down.add(1)
    _alter(stage, {T0: [3, 1]})
    assert _summary(stage) == (1, (1,), 8)


def test_cancelled_reassignment_of_a_partition_that_loses_nothing_tells_the_leader() -> None:
    stage = _stage()
    stage.remove_broker(3)
    stage.context.topics["t"].assignments[0] = _moving([1, 2, 3], [], [3])
    stage.context.reassigning[T0] = None
    _alter(stage, {T0: None})
    assert _stored(stage) == _moving([1, 2, 3])
    assert stage.leader_and_isr(1)[T0].removing_replicas == []


def test_reassignment_that_replaces_another_stops_what_it_does_not_need() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    _in_sync(stage, (1, 2, 3))
    _grow(stage, (1, 2, 3, 4))
    stage.sent.clear()
    assert _alter(stage, {T0: [5, 1]}) == {T0: None}

    assert _stored(stage) == _moving([5, 1, 2, 3], [5], [2, 3])
    leader, isr, _ = _summary(stage)
    assert (leader, isr) == (1, (1, 2, 3))
    assert _deleted(stage) == [4]
    assert stage.leader_and_isr(5)[T0].is_new
    _in_sync(stage, (1, 2, 3, 5))
    assert _stored(stage) == _moving([5, 1])
    assert _deleted(stage) == [2, 3, 4]


def test_reassignment_that_extends_another_keeps_what_it_added() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    _alter(stage, {T0: [4, 5]})
    assert _stored(stage) == _moving([4, 5, 1, 2, 3], [4, 5], [1, 2, 3])
    assert _deleted(stage) == []


def test_refused_replacement_leaves_the_reassignment_as_it_was() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    assert _alter(stage, {T0: [9, 1]}) == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert _stored(stage) == _moving([4, 1, 2, 3], [4], [2, 3])


# Brokers and controllers that fail


def test_reassignment_resumes_when_a_broker_of_the_target_returns() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    stage.remove_broker(4)
    stage.sent.clear()
    stage.add_broker(4)
    stage.event(lambda context, batch: note_returned(context, batch, [4]))
    assert _summary(stage) == (1, (1, 2, 3), 9)
    assert stage.leader_and_isr(4)[T0].is_new


def test_added_replica_that_is_in_sync_is_not_new_when_its_broker_returns() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 5]})
    _grow(stage, (4,), leader=4)
    stage.sent.clear()
    stage.event(lambda context, batch: note_returned(context, batch, [4, 5]))
    assert {broker_id: stage.leader_and_isr(broker_id)[T0].is_new for broker_id in (4, 5)} == {4: False, 5: True}


def test_reassignment_does_not_resume_when_another_broker_returns() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    stage.sent.clear()
    stage.event(lambda context, batch: note_returned(context, batch, [2, 5]))
    assert stage.sent == []


def test_new_controller_resumes_a_reassignment() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    _next_controller(stage)
    assert [*stage.context.reassigning] == [T0]
    stage.event(take_over)
    assert _summary(stage) == (1, (1, 2, 3), 9)
    assert stage.leader_and_isr(4)[T0].is_new


def test_new_controller_completes_a_reassignment_whose_target_is_in_sync() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    _grow(stage, (1, 2, 3, 4))
    _next_controller(stage)
    stage.event(take_over)
    assert _stored(stage) == _moving([4, 1])
    assert _deleted(stage) == [2, 3]


def _runs_of(requests: Sequence[Mapping[TopicPartition, Sequence[int] | None]], fault: Fault) -> Iterator[tuple[Stage, int]]:
    """Runs requests in clusters whose controller loses its connection at each write of the last request in turn."""
    for count in range(1, 20):
        stage = _stage()
        for request in requests[:-1]:
            _alter(stage, request)
        _grow(stage, (1, 2, 3, 4))
        multis: list[Multi] = []

        def lose(operation: Operation[object], count: int = count, multis: list[Multi] = multis) -> Fault | None:
            if isinstance(operation, Multi):
                multis.append(operation)
                return fault if len(multis) == count else None
            return None

        stage.client.choose_fault = lose
        try:
            _alter(stage, requests[-1])
        except ZooKeeperError:
            stage.turn()
            yield stage, count
        else:
            return


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST])
@pytest.mark.parametrize(
    ("requests", "failures"),
    [
        pytest.param([{T0: [4, 5, 1]}, {T0: None}], 2, id="cancel"),
        pytest.param([{T0: [4, 5, 1]}, {T0: [5, 1]}], 3, id="replace"),
        pytest.param([{T0: [4, 5, 1]}, {T0: [4, 1]}], 4, id="replace by one that is in sync"),
    ],
)
def test_in_sync_replicas_stay_in_the_assignment_whenever_a_controller_fails(
    fault: Fault, requests: list[dict[TopicPartition, Sequence[int] | None]], failures: int
) -> None:
    runs = 0
    for stage, runs in _runs_of(requests, fault):  # noqa: B007 - the last count is asserted
        _next_controller(stage)
        assert set(stage.state(T0).isr) <= set(stage.context.replicas(T0))
        stage.event(take_over)
        assert set(stage.state(T0).isr) <= set(stage.context.replicas(T0))
        assert stage.state(T0).leader in stage.state(T0).isr
    assert runs == failures


def test_deposed_controller_changes_nothing() -> None:
    stage = _stage()
    stage.depose()
    with pytest.raises(DeposedError):
        _alter(stage, {T0: [4, 1]})
    data = stage.data(paths.topic("t"))
    assert data is not None and data.stat.version == 0 and stage.sent == []


# Requests in ZooKeeper


def _ask(stage: Stage, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    stage.do(Create(paths.REASSIGN_PARTITIONS, write_reassignment(targets)))
    stage.event(look_at_reassignments)


def _asked(stage: Stage) -> Mapping[TopicPartition, tuple[int, ...]] | None:
    data = stage.data(paths.REASSIGN_PARTITIONS)
    return None if data is None else read_reassignment(data.data)


def test_request_in_zookeeper_stays_until_its_partitions_are_complete() -> None:
    stage = _stage()
    _ask(stage, {T0: (4, 1), T1: (3, 2)})
    assert _asked(stage) == {T0: (4, 1)}
    assert _stored(stage, T1) == _moving([3, 2])
    _in_sync(stage, (1, 2, 3, 4))
    assert _asked(stage) is None


def test_request_in_zookeeper_that_is_in_progress_is_not_begun_again() -> None:
    stage = _stage()
    _ask(stage, {T0: (4, 1)})
    stage.sent.clear()
    stage.event(look_at_reassignments)
    assert stage.sent == []


def test_request_in_zookeeper_that_is_refused_is_removed() -> None:
    stage = _stage()
    _ask(stage, {T0: (), TopicPartition("unknown", 0): (1,)})
    assert _asked(stage) is None


def test_request_in_zookeeper_that_is_malformed_is_ignored() -> None:
    stage = _stage()
    stage.do(Create(paths.REASSIGN_PARTITIONS, b"[]"))
    stage.event(look_at_reassignments)
    assert stage.sent == [] and stage.data(paths.REASSIGN_PARTITIONS) is not None


def test_request_in_zookeeper_may_name_a_broker_that_is_not_live() -> None:
    stage = _stage()
    _ask(stage, {T0: (9, 1)})
    assert _stored(stage) == _moving([9, 1, 2, 3], [9], [2, 3])


def test_request_by_api_removes_the_one_in_zookeeper() -> None:
    stage = _stage()
    _ask(stage, {T0: (4, 1), T1: (5, 2)})
    _alter(stage, {T0: None})
    assert _asked(stage) == {T1: (5, 2)}
    assert _stored(stage) == _moving([1, 2, 3])


def test_look_at_reassignments_leaves_a_watch() -> None:
    stage = _stage()
    stage.event(look_at_reassignments)
    events: list[WatchEvent] = []
    stage.client.add_watch_listener(events.append)
    stage.do(Create(paths.REASSIGN_PARTITIONS, write_reassignment({T0: (4,)})))
    assert [event.path for event in events] == [paths.REASSIGN_PARTITIONS]


def test_new_controller_begins_the_requests_that_it_finds() -> None:
    stage = _stage()
    stage.do(Create(paths.REASSIGN_PARTITIONS, write_reassignment({T0: (4, 1)})))
    stage.event(take_over)
    assert _stored(stage) == _moving([4, 1, 2, 3], [4], [2, 3])


def test_list_reassignments_of_some_partitions() -> None:
    stage = _stage()
    _alter(stage, {T0: [4, 1]})
    names = [T0, T1, TopicPartition("unknown", 0)]
    assert [*stage.run(list_reassignments(stage.context, names))] == [T0]
