"""Replicas that go offline and come online."""

from __future__ import annotations

import pytest

from wirekafka.controller.replica_states import bring_online, take_offline, without
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import NO_LEADER, RECOVERING, PartitionState
from wirekafka.zookeeper.session import SetData

NAME = TopicPartition("t", 0)


def _stage(*brokers: int) -> Stage:
    stage = Stage()
    for broker_id in brokers:
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2, 3)})
    return stage


@pytest.mark.parametrize(
    ("leader", "isr", "removed", "returning", "expected"),
    [
        (1, (1, 2, 3), {2}, (), (1, (1, 3))),
        (1, (1, 2, 3), {1}, (), (NO_LEADER, (2, 3))),
        (1, (1, 2, 3), {4}, (), None),
        (1, (1,), {1}, (), (NO_LEADER, (1,))),  # The last one stays.
        (NO_LEADER, (1,), {1}, (), None),
        (2, (1, 2), {1, 2}, (), (NO_LEADER, (2,))),
        (NO_LEADER, (1, 2), {1, 2}, (), (NO_LEADER, (1,))),
        (1, (1, 2), {1, 2}, (2,), (NO_LEADER, (2,))),  # Broker 2 is back at once, and broker 1 is not.
        (1, (1, 2), {1, 2}, (1, 2), (NO_LEADER, (1,))),
    ],
)
def test_without_removed_brokers(
    leader: int, isr: tuple[int, ...], removed: set[int], returning: tuple[int, ...], expected: tuple[int, tuple[int, ...]] | None
) -> None:
    state = PartitionState(leader, 4, isr, EPOCH, RECOVERING)
    adjusted = None if expected is None else PartitionState(expected[0], 5, expected[1], EPOCH, RECOVERING)
    assert without(state, removed, returning) == adjusted


def test_offline_follower_leaves_the_in_sync_replicas_and_the_leader_learns_it() -> None:
    stage = _stage(1, 3)
    stage.add_state(NAME, 1, (1, 2, 3))

    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 2)]))

    assert stage.state(NAME) == PartitionState(1, 1, (1, 3), EPOCH)
    assert stage.leader_and_isr(1)[NAME].isr == [1, 3]
    assert stage.metadata(3)[NAME].offline_replicas == [2]
    assert stage.stop_replica(2) == {}


def test_live_broker_stops_its_offline_replica_with_the_former_epoch() -> None:
    stage = _stage(1, 2, 3)
    stage.add_state(NAME, 1, (1, 2, 3), leader_epoch=4)

    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 2)]))

    stop = stage.stop_replica(2)[NAME]
    assert (stop.leader_epoch, stop.delete_partition) == (4, False)
    assert NAME not in stage.leader_and_isr(2)


def test_several_offline_replicas_of_a_partition_are_removed_in_one_write() -> None:
    stage = _stage(1)
    stage.add_state(NAME, 1, (1, 2, 3))

    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 2), (NAME, 3)]))

    assert stage.state(NAME) == PartitionState(1, 1, (1,), EPOCH)
    assert stage.context.states[NAME].version == 1


def test_offline_replica_that_is_not_in_sync_changes_the_metadata_only() -> None:
    stage = _stage(1, 2)
    stage.add_state(NAME, 1, (1, 2))

    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 3)]))

    assert stage.context.states[NAME].version == 0
    assert stage.leader_and_isr(1) == {}
    assert stage.metadata(1)[NAME].offline_replicas == [3]


def test_removal_from_a_state_that_changed_elsewhere_is_repeated() -> None:
    stage = _stage(1, 3)
    stage.add_state(NAME, 1, (1, 2))
    stage.do(SetData(paths.partition_state(NAME), PartitionState(1, 6, (1, 2, 3), 2).write()))

    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 2)]))

    assert stage.state(NAME) == PartitionState(1, 7, (1, 3), EPOCH)


def test_replica_of_a_new_partition_goes_offline_without_a_write() -> None:
    stage = _stage(1)
    stage.event(lambda context, batch: take_offline(context, batch, [(NAME, 2)]))
    assert stage.context.states == {}


def test_replica_that_comes_online_learns_its_leader() -> None:
    stage = _stage(1, 2)
    stage.add_state(NAME, 1, (1,), leader_epoch=4)

    stage.event(lambda context, batch: bring_online(context, batch, [(NAME, 2)]))

    assert stage.leader_and_isr(2)[NAME].leader_epoch == 4
    assert stage.leader_and_isr(1) == {}
    assert not stage.leader_and_isr(2)[NAME].is_new


def test_replica_of_a_deleted_topic_is_not_brought_online() -> None:
    stage = _stage(1, 2)
    stage.add_state(NAME, 1, (1,))
    stage.context.deleting["t"] = None

    stage.event(lambda context, batch: bring_online(context, batch, [(NAME, 2)]))

    assert stage.sent == []
