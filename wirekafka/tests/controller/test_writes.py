"""The writes of the controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wirekafka.controller.writes import DeposedError, create_states, multi, write_states
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Multi, Operation, SetData, ZooKeeperError, ZooKeeperErrorCode

COUNT = 250


def _stage_with_states(count: int) -> tuple[Stage, list[TopicPartition]]:
    stage = Stage()
    stage.add_topic("t", dict.fromkeys(range(count), (1, 2)))
    names = stage.context.partitions_of("t")
    for name in names:
        stage.add_state(name, 1, (1, 2))
    return stage, names


def _count_multis(stage: Stage) -> list[int]:
    sizes: list[int] = []

    def note(operation: Operation[object]) -> Fault | None:
        if isinstance(operation, Multi):
            sizes.append(len(operation.operations))
        return None

    stage.client.choose_fault = note
    return sizes


def test_write_states_of_many_partitions_takes_one_multi_for_a_hundred() -> None:
    stage, names = _stage_with_states(COUNT)
    sizes = _count_multis(stage)
    states = {name: replace(stage.context.states[name].state, leader=2, controller_epoch=0) for name in names}

    assert stage.run(write_states(stage.context, states)) == {}

    assert sizes == [101, 101, 51]
    assert stage.state(names[-1]) == PartitionState(2, 0, (1, 2), EPOCH)
    assert stage.context.states[names[-1]].state == stage.state(names[-1])
    assert stage.context.states[names[-1]].version == 1


def test_write_states_with_one_changed_elsewhere_writes_the_others() -> None:
    stage, names = _stage_with_states(3)
    stage.do(SetData(paths.partition_state(names[1]), stage.context.states[names[1]].state.write()))
    states = {name: replace(stage.context.states[name].state, leader=2) for name in names}

    failures = stage.run(write_states(stage.context, states))

    assert failures == {names[1]: ZooKeeperErrorCode.BAD_VERSION}
    assert [stage.state(name).leader for name in names] == [2, 1, 2]
    assert [stage.context.states[name].state.leader for name in names] == [2, 1, 2]


def test_write_states_of_a_deposed_controller_changes_nothing() -> None:
    stage, names = _stage_with_states(2)
    stage.depose()
    states = {name: replace(stage.context.states[name].state, leader=2) for name in names}

    with pytest.raises(DeposedError):
        stage.run(write_states(stage.context, states))

    assert [stage.state(name).leader for name in names] == [1, 1]
    assert [stage.context.states[name].state.leader for name in names] == [1, 1]


def test_write_states_whose_reply_is_lost_raises() -> None:
    stage, names = _stage_with_states(1)
    stage.client.choose_fault = lambda operation: Fault.REPLY_LOST if isinstance(operation, Multi) else None
    states = {name: replace(stage.context.states[name].state, leader=2) for name in names}

    with pytest.raises(ZooKeeperError, match="CONNECTION_LOSS"):
        stage.run(write_states(stage.context, states))


def test_create_states_of_a_new_topic_creates_the_parents() -> None:
    stage = Stage()
    stage.add_topic("t", dict.fromkeys(range(COUNT), (1, 2)))
    names = stage.context.partitions_of("t")

    assert stage.run(create_states(stage.context, dict.fromkeys(names, PartitionState(1, 0, (1, 2), 0)))) == {}

    assert len(stage.children(paths.topic_partitions("t"))) == COUNT
    assert stage.state(names[-1]) == PartitionState(1, 0, (1, 2), EPOCH)
    assert stage.context.states[names[-1]].version == 0


def test_create_states_of_added_partitions_keeps_the_others() -> None:
    stage, names = _stage_with_states(2)
    new = TopicPartition("t", 2)
    stage.do(Create(paths.partition(new), None))

    failures = stage.run(create_states(stage.context, dict.fromkeys([names[0], new], PartitionState(2, 0, (2,), 0))))

    assert failures == {names[0]: ZooKeeperErrorCode.NODE_EXISTS}
    assert stage.state(names[0]).leader == 1
    assert stage.state(new).leader == 2


def test_multi_returns_the_results_without_that_of_the_check() -> None:
    stage = Stage()

    (created,) = stage.run(multi(stage.context, [Create("/x", b"1")]))

    assert created is not None
    assert stage.data("/x") is not None


def test_multi_of_a_deposed_controller_changes_nothing() -> None:
    stage = Stage()
    stage.depose()

    with pytest.raises(DeposedError):
        stage.run(multi(stage.context, [Create("/x", b"1")]))

    assert stage.data("/x") is None


def test_multi_that_is_refused_raises_the_error_of_its_operation() -> None:
    stage = Stage()

    with pytest.raises(ZooKeeperError) as caught:
        stage.run(multi(stage.context, [Create(paths.TOPICS, b"")]))

    assert caught.value.code is ZooKeeperErrorCode.NODE_EXISTS
