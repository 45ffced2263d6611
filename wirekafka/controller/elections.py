"""Elections: which replica leads a partition, which replicas stay in sync, and whether the leader may lack records.

Rules of this file:
    The functions are pure, and know one partition.
    Only `unclean` chooses a replica that is not in sync, and only if no replica in sync is online.
    Every election begins a new leader epoch, even if the leader stays.

Source: kafka.controller.{Election, PartitionLeaderElectionAlgorithms} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from enum import Enum

from wirekafka.zookeeper.layout.topics import RECOVERING, PartitionState


class Election(Enum):
    """Why a leader is elected. Source: kafka.controller.PartitionLeaderElectionStrategy."""

    OFFLINE = "offline"
    """The partition has no leader that is online. Its topic says whether the election may be unclean."""
    UNCLEAN = "unclean"
    """The same, and an operator allows an unclean election."""
    REASSIGN = "reassign"
    """The leader is not among the replicas that the partition shall have."""
    PREFERRED = "preferred"
    """The first replica shall lead."""
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    """The leader is about to stop."""


def first_state(replicas: Sequence[int], online: Container[int]) -> PartitionState | None:
    """Returns the first state of a new partition: all replicas that are online are in sync; None if no replica is online.

    The controller epoch is set when the state is written.

    Source: ZkPartitionStateMachine.initializeLeaderAndIsrForPartitions.
    """
    isr = tuple(broker_id for broker_id in replicas if broker_id in online)
    return PartitionState(leader=isr[0], leader_epoch=0, isr=isr, controller_epoch=0) if isr else None


def offline(state: PartitionState, replicas: Sequence[int], online: Container[int]) -> PartitionState | None:
    """Elects the first replica that is online and in sync; None if there is none. The other replicas are not in sync any more.

    Args:
        replicas: those of the partition, in the order of its assignment.
        online: the brokers on which the replica can serve.
    """
    leader = next((broker_id for broker_id in replicas if broker_id in online and broker_id in state.isr), None)
    if leader is None:
        return None
    return _led(state, leader, tuple(broker_id for broker_id in state.isr if broker_id in online))


def unclean(
    state: PartitionState, replicas: Sequence[int], online: Container[int], *, marks_recovery: bool = True
) -> PartitionState | None:
    """Elects a replica that is in sync if one is online, and otherwise the first that is online; None if none is online.

    Args:
        marks_recovery: whether the state says that the leader may lack records, as since the release 3.2 (KIP-704).
    """
    clean = offline(state, replicas, online)
    leader = next((broker_id for broker_id in replicas if broker_id in online), None)
    if clean is not None or leader is None:
        return clean
    elected = _led(state, leader, (leader,))
    return replace(elected, leader_recovery_state=RECOVERING) if marks_recovery else elected


def reassign(state: PartitionState, target_replicas: Sequence[int], online: Container[int]) -> PartitionState | None:
    """Elects the first of the replicas that the partition shall have that is online and in sync; None if there is none."""
    leader = next((broker_id for broker_id in target_replicas if broker_id in online and broker_id in state.isr), None)
    return None if leader is None else _led(state, leader, state.isr)


def preferred(state: PartitionState, replicas: Sequence[int], online: Container[int]) -> PartitionState | None:
    """Elects the first replica; None unless it is online and in sync."""
    return reassign(state, replicas[:1], online)


def controlled_shutdown(
    state: PartitionState, replicas: Sequence[int], online: Container[int], shutting_down: Container[int]
) -> PartitionState | None:
    """Elects the first in-sync replica that is online and does not shut down; None if there is none.

    The brokers that shut down are not in sync any more.

    Args:
        online: the brokers on which the replica can serve; those that shut down may be among them.
    """
    staying = tuple(broker_id for broker_id in state.isr if broker_id not in shutting_down)
    leader = next((broker_id for broker_id in replicas if broker_id in online and broker_id in staying), None)
    return None if leader is None else _led(state, leader, staying)


def _led(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    assert leader in isr, "a leader is in sync with itself"
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)
