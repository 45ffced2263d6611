"""The states of replicas: a replica that goes offline leaves the in-sync replicas, and one that comes online learns its leader.

Rules of this file:
    The last in-sync replica stays in sync, even while it is offline: nobody else has all acknowledged records.
    A partition whose leader goes offline has no leader until an election.
    A replica of a topic that is being deleted gets no LeaderAndIsr.

Source: kafka.controller.ZkReplicaStateMachine of Kafka 3.9.
Differs from Apache Kafka: Kafka removes the replicas of one broker after those of another. wirekafka removes all offline
replicas of a partition from the in-sync replicas in one write. If all in-sync replicas are offline, one of them stays, if
possible one whose broker is returning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.partition_states import read_states
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.writes import write_states
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout.topics import NO_LEADER, PartitionState
from wirekafka.zookeeper.session import ZooKeeperErrorCode

Replica = tuple[TopicPartition, int]
"""A partition, and the broker that has the replica."""


def without(state: PartitionState, removed: Collection[int], returning: Collection[int] = ()) -> PartitionState | None:
    """Returns the state without brokers among its in-sync replicas; None if it stays as it is.

    Args:
        returning: the brokers that are coming back; the last in-sync replica is one of these, if it can.
    """
    isr = tuple(broker_id for broker_id in state.isr if broker_id not in removed) or _last(state, returning)
    leader = NO_LEADER if state.leader in removed else state.leader
    if isr == state.isr and leader == state.leader:
        return None
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)


def _last(state: PartitionState, returning: Collection[int]) -> tuple[int, ...]:
    """Returns the one in-sync replica that stays when all are offline."""
    candidates = [broker_id for broker_id in state.isr if broker_id in returning] or state.isr
    return (state.leader,) if state.leader in candidates else tuple(candidates[:1])


def remove_from_isr(
    context: ControllerContext,
    batch: RequestBatch,
    removals: Mapping[TopicPartition, Collection[int]],
    *,
    returning: Collection[int] = (),
) -> Script[None]:
    """Removes brokers from in-sync replicas, and tells the other replicas and the metadata of all brokers.

    A partition without a state stays without.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    remaining = {name: removed for name, removed in removals.items() if name in context.states}
    while remaining:
        states: dict[TopicPartition, PartitionState] = {}
        for count, (name, removed) in enumerate(remaining.items(), 1):
            adjusted = without(context.states[name].state, removed, returning)
            if adjusted is not None:
                states[name] = adjusted
            if count % SLICE == 0:
                yield PAUSE
        refused = yield from write_states(context, states)
        for count, (name, removed) in enumerate(remaining.items(), 1):
            if name not in refused:
                _announce(context, batch, name, removed, is_changed=name in states)
            if count % SLICE == 0:
                yield PAUSE
        changed = [name for name, code in refused.items() if code is ZooKeeperErrorCode.BAD_VERSION]
        yield from read_states(context, changed)
        remaining = {name: remaining[name] for name in changed if name in context.states}


def _announce(
    context: ControllerContext, batch: RequestBatch, name: TopicPartition, removed: Collection[int], *, is_changed: bool
) -> None:
    if is_changed and not context.is_deleting(name.topic):
        others = [broker_id for broker_id in context.replicas(name) if broker_id not in removed]
        batch.leader_and_isr([broker_id for broker_id in others if context.is_online(broker_id, name)], name)
    else:
        batch.update_metadata(context.live, [name])


def take_offline(
    context: ControllerContext, batch: RequestBatch, replicas: Iterable[Replica], *, returning: Collection[int] = ()
) -> Script[None]:
    """Stops replicas whose brokers are live, and removes all of them from the in-sync replicas.

    Raises:
        as `remove_from_isr`.

    Source: ZkReplicaStateMachine.doHandleStateChanges, OfflineReplica.
    """
    removals: dict[TopicPartition, set[int]] = {}
    for count, (name, broker_id) in enumerate(replicas, 1):
        if broker_id in context.live:
            batch.stop_replica([broker_id], name, deletes=False)
        removals.setdefault(name, set()).add(broker_id)
        if count % SLICE == 0:
            yield PAUSE
    yield from remove_from_isr(context, batch, removals, returning=returning)


def bring_online(
    context: ControllerContext, batch: RequestBatch, replicas: Iterable[Replica], *, is_new: bool = False
) -> Script[None]:
    """Tells brokers the leaders of their replicas. A partition without a state is told when its first leader is elected.

    Args:
        is_new: the replicas are added by a reassignment, so their logs may be created although a directory has failed.

    Source: ZkReplicaStateMachine.doHandleStateChanges, OnlineReplica and NewReplica.
    """
    told: dict[TopicPartition, list[int]] = {}
    for name, broker_id in replicas:
        if name in context.states and not context.is_deleting(name.topic):
            told.setdefault(name, []).append(broker_id)
    for count, (name, broker_ids) in enumerate(told.items(), 1):
        batch.leader_and_isr(broker_ids, name, is_new=is_new)
        if count % SLICE == 0:
            yield PAUSE
