"""Known bugs of the controller: what it writes, whom it elects, and what it forgets."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace

from wirekafka.controller import (
    alter_partition,
    brokers,
    deletion,
    elections,
    failover,
    partition_states,
    reassignment,
    replica_states,
    writes,
)
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.deletion import Step
from wirekafka.controller.elections import Election
from wirekafka.controller.replica_states import Replica
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.names import TopicPartition
from wirekafka.simulation.planted.planting import PlantedBug, Replacement
from wirekafka.wire.messages.alter_partition import AlterPartitionPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment
from wirekafka.zookeeper.session import Check, GetChildren, Multi, Write

_note_gone = brokers._note_gone


def _check_existence(context: ControllerContext, operations: Iterable[Write]) -> Multi:
    return Multi((Check(paths.CONTROLLER_EPOCH), *operations))


def _all_topics(
    context: ControllerContext, settings: ControllerSettings, names: list[TopicPartition], election: Election
) -> Script[set[str]]:
    yield from ()
    return {name.topic for name in names}


def _prefer_any(state: PartitionState, replicas: Sequence[int], online: Container[int]) -> PartitionState | None:
    leader = replicas[0]
    if leader not in online:
        return None
    isr = state.isr if leader in state.isr else (leader, *state.isr)
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)


def _lead_in_same_epoch(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    return replace(state, leader=leader, isr=isr)


def _keep_returning(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    gone: Collection[int],
    replicas: list[Replica],
    returning: Collection[int],
) -> Script[None]:
    dead = [broker_id for broker_id in gone if broker_id not in returning]
    yield from _note_gone(context, batch, settings, dead, [each for each in replicas if each[1] in dead], ())


def _note_no_restart(restarts: failover.Restarts, context: ControllerContext, name: TopicPartition, mzxid: int) -> None:
    pass


def _keep_none(state: PartitionState, returning: Collection[int]) -> tuple[int, ...]:
    return ()


def _take_any_change(
    context: ControllerContext,
    asked: alter_partition._Request,
    name: TopicPartition | None,
    partition: AlterPartitionPartition,
) -> None:
    if name is None or name not in context.states:
        return
    isr = tuple(each.broker_id for each in partition.new_isr_with_epochs)
    asked.states[name] = replace(context.states[name].state, isr=isr)


def _is_complete_at_once(assignment: ReplicaAssignment, state: PartitionState, online: Container[int]) -> bool:
    return any(broker_id in online for broker_id in reassignment.target_of(assignment))


def _trust_target(
    state: PartitionState, removed: Container[int], target: Sequence[int], online: Container[int]
) -> PartitionState | None:
    isr = tuple(broker_id for broker_id in target if broker_id in online)
    if not isr:
        return None
    leader = state.leader if state.leader in isr else isr[0]
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)


def _delete_after_first_answer(*, replica_count: int, deleted_count: int, stopping_count: int, is_ineligible: bool) -> Step:
    return Step.DELETE_ZNODES if deleted_count else Step.WAIT if stopping_count else Step.STOP_REPLICAS


def _watch_deletions(context: ControllerContext, settings: ControllerSettings) -> Script[None]:
    yield GetChildren(paths.DELETE_TOPICS, watch=True)


def _resume_nothing(context: ControllerContext, batch: RequestBatch, topics: Iterable[str]) -> Script[None]:
    yield from ()


BUGS = (
    PlantedBug(
        "write-as-deposed-controller",
        "a controller writes states although another one has the next epoch",
        "KAFKA-6082",
        (Replacement(writes, "checked", _check_existence),),
    ),
    PlantedBug(
        "elect-uncleanly-by-mistake",
        "a replica that is not in sync becomes the leader although no setting allows it",
        "KAFKA-1028",
        (Replacement(partition_states, "_unclean_topics", _all_topics),),
    ),
    PlantedBug(
        "prefer-replica-out-of-sync",
        "a preferred election does not ask whether the replica is in sync",
        "PreferredReplicaPartitionLeaderElectionStrategy",
        (Replacement(elections, "preferred", _prefer_any),),
    ),
    PlantedBug(
        "elect-in-same-epoch",
        "an election does not begin a new leader epoch",
        "LeaderAndIsr.newLeader",
        (Replacement(elections, "_led", _lead_in_same_epoch),),
    ),
    PlantedBug(
        "keep-restarted-broker-in-sync",
        "a broker that returns with a new epoch stays in sync, and a leader leads on",
        "KAFKA-7235",
        (
            Replacement(brokers, "_note_gone", _keep_returning),
            Replacement(failover.Restarts, "note", _note_no_restart),
        ),
    ),
    PlantedBug(
        "remove-last-in-sync-replica",
        "the last in-sync replica leaves when it dies",
        "ReplicaStateMachine.removeReplicasFromIsr",
        (Replacement(replica_states, "_last", _keep_none),),
    ),
    PlantedBug(
        "take-change-of-former-leader",
        "the controller writes in-sync replicas whoever asks for them, in whichever epoch",
        "KafkaController.tryProcessAlterPartition",
        (Replacement(alter_partition, "_consider", _take_any_change),),
    ),
    PlantedBug(
        "reassign-before-in-sync",
        "a reassignment is complete, and removes replicas, before those that it adds are in sync",
        "KafkaController.isReassignmentComplete",
        (
            Replacement(reassignment, "is_complete", _is_complete_at_once),
            Replacement(reassignment, "removed_from", _trust_target),
        ),
    ),
    PlantedBug(
        "delete-znodes-before-logs",
        "the znodes of a topic are deleted when the first broker has deleted its log; the logs of the others come back",
        "KAFKA-330",
        (Replacement(deletion, "next_step", _delete_after_first_answer),),
    ),
    PlantedBug(
        "forget-deletions",
        "a new controller does not go on with deletions, so that the topics come back",
        "KafkaController.fetchTopicDeletionsInProgress",
        (Replacement(failover, "deletion", SimpleNamespace(read_deletions=_watch_deletions, resume=_resume_nothing)),),
    ),
)
"""The bugs, the switches of which are their names."""
