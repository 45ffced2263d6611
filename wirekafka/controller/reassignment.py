"""Reassignments: the replicas of a partition move to other brokers while it is in use.

How it works: a reassignment has a target. Phase U writes to the znode of the topic what is added and what is removed. Phase A
begins a new leader epoch, so that the leader knows the added replicas, and starts them. When the whole target is in sync, phase B
removes the other replicas from the in-sync replicas and moves the leader in one write, stops them, and writes the assignment that
remains. A new controller resumes from the znodes. To cancel a reassignment is to reassign to the replicas that it began with.

Rules of this file:
    A broker that leaves the assignment leaves the in-sync replicas first, in the write that begins the next leader epoch. So
    in-sync replicas that its leader has proposed before are refused, and no in-sync replica is outside the assignment.
    The last in-sync replica is not removed, and a partition with a leader does not lose it for want of another that is online.

Invariant: replicas of an assignment = those of its target, then those that are removed.

Limit: a broker that is removed while it is down, or whose StopReplica is lost with the controller, keeps its log, as with Apache
Kafka.

Source: kafka.controller.KafkaController (onPartitionReassignment, processZkPartitionReassignment,
processApiPartitionReassignment, processListPartitionReassignments), kafka.controller.ReplicaAssignment of Kafka 3.9; KIP-455.
Differs from Apache Kafka:
    One write removes replicas and moves the leader; Kafka writes once for each.
    A reassignment that would remove all in-sync replicas is refused, as Kafka does with KRaft; Kafka with ZooKeeper stops them.
    A reassignment of a partition that has no leader yet elects one among the replicas that are added.
    A change of the content of `/admin/reassign_partitions` begins the reassignments in the new content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect, read_states
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.topics import write_assignments
from wirekafka.controller.writes import multi, write_states
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.requests import reading_reassignment, writing_reassignment
from wirekafka.zookeeper.layout.topics import NO_LEADER, PartitionState, ReplicaAssignment
from wirekafka.zookeeper.session import (
    Data,
    Delete,
    Exists,
    GetData,
    SetData,
    Stat,
    Write,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

MOST_LOGGED = 10
"""The most partitions in one line of the log."""

Outcomes = dict[TopicPartition, KafkaError | None]
"""For each partition, why its reassignment was refused; None if it began."""


# Decisions


def is_reassigning(assignment: ReplicaAssignment) -> bool:
    """Whether replicas are being added or removed."""
    return bool(assignment.adding_replicas or assignment.removing_replicas)


def origin_of(assignment: ReplicaAssignment) -> tuple[int, ...]:
    """Returns the replicas from before the reassignment. Their order may be that of the target."""
    return _difference(assignment.replicas, assignment.adding_replicas)


def target_of(assignment: ReplicaAssignment) -> tuple[int, ...]:
    """Returns the replicas that remain when the reassignment is complete."""
    return _difference(assignment.replicas, assignment.removing_replicas)


def reassign_to(assignment: ReplicaAssignment, target: Sequence[int]) -> ReplicaAssignment:
    """Returns the assignment while the replicas move to a target.

    A reassignment in progress is replaced: what it was adding is not among the replicas any more, unless the target has it.
    """
    origin = origin_of(assignment)
    replicas = tuple(dict.fromkeys((*target, *origin)))
    return ReplicaAssignment(replicas, _difference(replicas, origin), _difference(replicas, target))


def fault_of_target(target: Sequence[int]) -> str | None:
    """Returns what is wrong with a target whatever it is for; None if nothing is."""
    if not target:
        return "The replicas of a partition cannot be none."
    if len(target) != len(set(target)):
        return f"The replicas {_shown(target)} name a broker twice."
    if min(target) < 0:
        return f"The replicas {_shown(target)} have an id that no broker has."
    return None


def _shown(broker_ids: Sequence[int]) -> str:
    """Returns a text with the first ids: a request may have tens of thousands."""
    more = f" and {len(broker_ids) - MOST_LOGGED} more" if len(broker_ids) > MOST_LOGGED else ""
    return f"{[*broker_ids[:MOST_LOGGED]]}{more}"


def removed_from(
    state: PartitionState, removed: Container[int], target: Sequence[int], online: Container[int]
) -> PartitionState | None:
    """Returns the state after brokers leave the assignment, with the next leader epoch.

    The leader stays if it can, and otherwise the first of the target leads that is online and in sync.

    Returns:
        None if no in-sync replica would remain, or if none that remains is online although the leader is.
    """
    isr = tuple(broker_id for broker_id in state.isr if broker_id not in removed)
    leader = state.leader
    if leader not in isr or leader not in online:
        leader = next((broker_id for broker_id in target if broker_id in online and broker_id in isr), NO_LEADER)
    if not isr or (leader == NO_LEADER and state.leader in online):
        return None
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)


def is_complete(assignment: ReplicaAssignment, state: PartitionState, online: Container[int]) -> bool:
    """Whether the whole target is in sync, and one of it is online and can lead.

    Source: KafkaController.isReassignmentComplete.
    """
    target = target_of(assignment)
    return {*target} <= {*state.isr} and any(broker_id in online for broker_id in target)


def _difference(replicas: Iterable[int], removed: Iterable[int]) -> tuple[int, ...]:
    """Returns the replicas that are not removed.

    A client can give a partition as many replicas as fit into its znode, so a set is looked into, not a sequence.
    """
    gone = frozenset(removed)
    return tuple(broker_id for broker_id in replicas if broker_id not in gone)


# Requests of clients


def alter_reassignments(
    context: ControllerContext, batch: RequestBatch, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> Script[Outcomes]:
    """Begins, replaces and cancels reassignments, for AlterPartitionReassignments.

    Args:
        targets: the replicas that partitions shall have; None cancels.

    Returns:
        the outcomes: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION, POLICY_VIOLATION if
        ZooKeeper does not take so much content, and UNKNOWN_SERVER_ERROR if the znode of the topic is damaged.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    outcomes: Outcomes = {}
    begun: dict[TopicPartition, ReplicaAssignment] = {}
    for count, (name, target) in enumerate(targets.items(), 1):
        assignment = context.assignment(name) or ReplicaAssignment(())
        refusal = _refusal(context, name, assignment, target)
        outcomes[name] = refusal
        if refusal is None:
            begun[name] = reassign_to(assignment, origin_of(assignment) if target is None else target)
        if count % SLICE == 0:
            yield PAUSE
    if begun:
        # The newest request counts, whether it is in the znode or not.
        yield from remove_requests(context, lambda name, target: name in begun)
        outcomes.update((yield from _begin(context, batch, begun)))
    return outcomes


def _refusal(
    context: ControllerContext, name: TopicPartition, assignment: ReplicaAssignment, target: Sequence[int] | None
) -> KafkaError | None:
    """Source: KafkaController.validateReplicas, maybeBuildReassignment, maybeTriggerPartitionReassignment."""
    if target is None and not is_reassigning(assignment):
        return KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    fault = None if target is None else _fault_of_request(context, assignment, target)
    if fault is not None:
        return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    if not assignment.replicas or context.is_deleting(name.topic):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    return None


def _fault_of_request(context: ControllerContext, assignment: ReplicaAssignment, target: Sequence[int]) -> str | None:
    fault = fault_of_target(target)
    if fault is not None:
        return fault
    available = frozenset(context.available)
    missing = [each for each in reassign_to(assignment, target).adding_replicas if each not in available]
    return f"The brokers {_shown(missing)} are not alive." if missing else None


def list_reassignments(
    context: ControllerContext, names: Iterable[TopicPartition] | None = None
) -> Script[dict[TopicPartition, ReplicaAssignment]]:
    """Returns the reassignments in progress, for ListPartitionReassignments; all of them if no names are given."""
    listed: dict[TopicPartition, ReplicaAssignment] = {}
    for count, name in enumerate(list(context.reassigning if names is None else names), 1):
        assignment = context.assignment(name)
        if assignment is not None and is_reassigning(assignment) and not context.is_deleting(name.topic):
            listed[name] = assignment
        if count % SLICE == 0:
            yield PAUSE
    return listed


# Requests in ZooKeeper


def look_at_reassignments(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Begins what `/admin/reassign_partitions` asks for, unless it is in progress.

    Source: KafkaController.processZkPartitionReassignment.
    """
    requested = yield from _read_requests()
    begun: dict[TopicPartition, ReplicaAssignment] = {}
    refused: dict[TopicPartition, str] = {}
    for count, (name, target) in enumerate(requested.items(), 1):
        assignment = context.assignment(name)
        fault = fault_of_target(target)
        if fault is not None:
            refused[name] = fault
        elif assignment is None or context.is_deleting(name.topic):
            refused[name] = "The partition does not exist."
        elif not (is_reassigning(assignment) and target_of(assignment) == target):
            begun[name] = reassign_to(assignment, target)
        if count % SLICE == 0:
            yield PAUSE
    outcomes = yield from _begin(context, batch, begun)
    refused.update({name: str(error) for name, error in outcomes.items() if error is not None})
    if refused:
        first = {str(name): reason for name, reason in islice(refused.items(), MOST_LOGGED)}
        log.warning("Requests to reassign partitions in ZooKeeper are refused", count=len(refused), first=first)
        yield from remove_requests(context, lambda name, target: name in refused)


def _read_requests() -> Script[dict[TopicPartition, tuple[int, ...]]]:
    """Reads the znode, and leaves a watch on it."""
    stat: Stat | None = yield Exists(paths.REASSIGN_PARTITIONS, watch=True)
    if stat is None:
        return {}
    requested, _ = yield from _requests()
    return requested


def _requests() -> Script[tuple[dict[TopicPartition, tuple[int, ...]], int]]:
    """Reads the znode; returns what it asks for and its version. One that does not exist or is malformed asks for nothing."""
    try:
        found: Data = yield GetData(paths.REASSIGN_PARTITIONS)
        requested = yield from reading_reassignment(found.data)
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
    except MalformedZnodeError as error:
        log.warning("Reassignments in ZooKeeper are ignored", reason=str(error))
    else:
        return requested, found.stat.version
    return {}, 0


def remove_requests(context: ControllerContext, is_done: Callable[[TopicPartition, tuple[int, ...]], bool]) -> Script[None]:
    """Removes requests from the znode, and the znode with the last one.

    Args:
        is_done: whether the request to move a partition to a target is removed.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown.

    Source: KafkaController.maybeRemoveFromZkReassignment.
    """
    while True:
        requested, version = yield from _requests()
        kept = yield from in_slices(requested.items(), lambda request: not is_done(*request))
        if len(kept) == len(requested):
            return
        path = paths.REASSIGN_PARTITIONS
        write: Write = Delete(path, version)
        if kept:
            write = SetData(path, (yield from writing_reassignment(dict(kept))), version)
        try:
            yield from multi(context, [write])
            return
        except ZooKeeperError as error:
            if error.code not in (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE):
                raise


# Progress


def take_over(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Resumes all reassignments as a new controller, and begins those that the znode asks for.

    Source: KafkaController.initializePartitionReassignments.
    """
    in_progress = dict.fromkeys(context.reassigning)
    yield from look_at_reassignments(context, batch)
    yield from _advance(context, batch, [name for name in in_progress if name in context.reassigning])


def note_returned(context: ControllerContext, batch: RequestBatch, broker_ids: Collection[int]) -> Script[None]:
    """Resumes the reassignments to brokers that have arrived. Source: KafkaController.onBrokerStartup."""
    arrived = frozenset(broker_ids)
    names = yield from in_slices(context.reassigning, lambda name: not arrived.isdisjoint(target_of(_assignment(context, name))))
    yield from _advance(context, batch, names)


def note_in_sync(context: ControllerContext, batch: RequestBatch, names: Iterable[TopicPartition]) -> Script[None]:
    """Completes the reassignments among partitions whose in-sync replicas have changed.

    Source: KafkaController.maybeCompleteReassignment.
    """
    complete = yield from in_slices(names, lambda name: name in context.reassigning and _is_complete(context, name))
    yield from _complete(context, batch, complete)


def _assignment(context: ControllerContext, name: TopicPartition) -> ReplicaAssignment:
    assignment = context.assignment(name)
    assert assignment is not None, "a partition that is being reassigned exists"
    return assignment


def _is_complete(context: ControllerContext, name: TopicPartition) -> bool:
    assignment, stored = _assignment(context, name), context.states.get(name)
    if not is_reassigning(assignment):
        return True
    return stored is not None and is_complete(assignment, stored.state, _online(context, name))


def _online(context: ControllerContext, name: TopicPartition) -> list[int]:
    """Returns the replicas that can serve. A leader that shuts down does until another replica can."""
    leader = context.states[name].state.leader
    return [
        broker_id
        for broker_id in context.replicas(name)
        if context.is_online(broker_id, name, includes_shutting_down=broker_id == leader)
    ]


def _begin(
    context: ControllerContext, batch: RequestBatch, assignments: Mapping[TopicPartition, ReplicaAssignment]
) -> Script[Outcomes]:
    """Phase U, and then A or B: begins reassignments of partitions that exist, or replaces those in progress.

    Source: KafkaController.onPartitionReassignment, updateCurrentReassignment.
    """
    outcomes: Outcomes = dict.fromkeys(assignments)
    # U3 comes first: the brokers that the former reassignment was adding, and that this one does not need.
    stopped = yield from _stop_unneeded(context, batch, assignments, outcomes)
    # U1, U2.
    begun = {name: each for name, each in assignments.items() if outcomes[name] is None}
    yield PAUSE
    changed = {name: each for name, each in begun.items() if name in stopped or context.assignment(name) != each}
    yield PAUSE
    failed = yield from write_assignments(context, changed)
    for name in [name for name in changed if name.topic in failed]:
        outcomes[name] = failed[name.topic]
        del begun[name]
    context.reassigning.update(dict.fromkeys(begun))
    _log("Reassigning partitions", begun)
    yield PAUSE
    without_leader = [name for name in begun if name not in context.states]
    yield from elect(context, batch, batch.settings, without_leader, Election.OFFLINE)
    yield from _advance(context, batch, list(begun), stopped)
    return outcomes


def _stop_unneeded(
    context: ControllerContext,
    batch: RequestBatch,
    assignments: Mapping[TopicPartition, ReplicaAssignment],
    outcomes: Outcomes,
) -> Script[set[TopicPartition]]:
    """U3: removes replicas that are not in the next assignments; returns the partitions whose other replicas were told.

    A partition that would lose all in-sync replicas gets its refusal in `outcomes`.
    """
    unneeded: dict[TopicPartition, tuple[int, ...]] = {}
    for count, (name, assignment) in enumerate(assignments.items(), 1):
        if gone := _difference(context.replicas(name), assignment.replicas):
            unneeded[name] = gone
        if count % SLICE == 0:
            yield PAUSE

    def decide(name: TopicPartition) -> PartitionState | None:
        target = target_of(assignments[name])
        return removed_from(context.states[name].state, unneeded[name], target, _online(context, name))

    with_state = [name for name in unneeded if name in context.states]
    written = yield from _change_states(context, with_state, decide)
    for name in with_state:
        if name not in written:
            message = "The replicas that would remain are not in sync, so records would be lost."
            outcomes[name] = KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            del unneeded[name]
    for count, (name, gone) in enumerate(unneeded.items(), 1):
        former, following = _assignment(context, name), assignments[name]
        remaining = _difference(former.replicas, gone)
        _put(context, name, replace(following, replicas=remaining, adding_replicas=_difference(former.adding_replicas, gone)))
        _tell(context, batch, name, gone)
        if count % SLICE == 0:
            yield PAUSE
    # The brokers learn it before the assignment says so: a controller that takes over tells the assigned brokers alone.
    if unneeded:
        yield from batch.send()
    return written


def _advance(
    context: ControllerContext, batch: RequestBatch, names: list[TopicPartition], told: Collection[TopicPartition] = ()
) -> Script[None]:
    """Phase A or B, by the in-sync replicas.

    Args:
        told: the partitions that have a new leader epoch already.
    """
    complete: list[TopicPartition] = []
    incomplete: list[TopicPartition] = []
    for count, name in enumerate(names, 1):
        (complete if _is_complete(context, name) else incomplete).append(name)
        if count % SLICE == 0:
            yield PAUSE
    yield from _start_added(context, batch, incomplete)
    yield from _complete(context, batch, complete, told)


def _start_added(context: ControllerContext, batch: RequestBatch, names: list[TopicPartition]) -> Script[None]:
    """Phase A: begins a new leader epoch, so that the leader takes the added replicas into its count, and starts these.

    An added replica that is in sync already, or leads, is not new: if its log is in a directory that has failed, an empty log in
    its place would lose records.

    Source: KafkaController.updateLeaderEpochAndSendRequest, startNewReplicasForReassignedPartition; the transition to NewReplica
    in ZkReplicaStateMachine.
    """

    def decide(name: TopicPartition) -> PartitionState:
        state = context.states[name].state
        return replace(state, leader_epoch=state.leader_epoch + 1)

    written = yield from _change_states(context, names, decide)
    for count, name in enumerate(written, 1):
        assignment = _assignment(context, name)
        new = _difference(assignment.adding_replicas, context.states[name].state.isr)
        batch.leader_and_isr(_difference(assignment.replicas, new), name)
        batch.leader_and_isr(new, name, is_new=True)
        if count % SLICE == 0:
            yield PAUSE


def _complete(
    context: ControllerContext, batch: RequestBatch, names: list[TopicPartition], told: Collection[TopicPartition] = ()
) -> Script[None]:
    """Phase B: removes what is not in the targets, and ends the reassignments.

    Source: KafkaController.moveReassignedPartitionLeaderIfRequired, stopRemovedReplicasOfReassignedPartition,
    removePartitionFromReassigningPartitions.
    """
    if not names:
        return

    def decide(name: TopicPartition) -> PartitionState | None:
        assignment = _assignment(context, name)
        removing = assignment.removing_replicas
        return removed_from(context.states[name].state, removing, target_of(assignment), _online(context, name))

    # B3, B4: one write.
    to_write = [
        name for name in names if name in context.states and (name not in told or _assignment(context, name).removing_replicas)
    ]
    written = yield from _change_states(context, to_write, decide)
    unwritten = {*to_write} - written
    # B2, B5.
    ended: dict[TopicPartition, ReplicaAssignment] = {}
    changed: dict[TopicPartition, ReplicaAssignment] = {}
    for count, name in enumerate(names, 1):
        if name in unwritten:
            log.error(
                "A reassignment cannot be completed, because the partition has changed meanwhile",
                partition=str(name),
                remedy="begin it again if it is still wanted",
            )
            continue
        former = _assignment(context, name)
        ended[name] = ReplicaAssignment(target_of(former))
        if former != ended[name]:
            changed[name] = ended[name]
        _put(context, name, ended[name])
        if name in written:
            _tell(context, batch, name, former.removing_replicas)
        if count % SLICE == 0:
            yield PAUSE
    # The brokers learn it before the assignment says so: a controller that takes over tells the assigned brokers alone.
    yield from batch.send()
    yield from _end(context, ended, changed)


def _end(
    context: ControllerContext,
    ended: Mapping[TopicPartition, ReplicaAssignment],
    changed: Mapping[TopicPartition, ReplicaAssignment],
) -> Script[None]:
    """B6, B7: writes the assignments that have changed, and removes the reassignments from the requests in ZooKeeper."""
    failed = yield from write_assignments(context, changed)
    if failed:
        log.error(
            "The znodes of topics that are being reassigned are missing or damaged",
            topics=sorted(failed),
            remedy="restore the znodes of the topics",
        )
    yield from remove_requests(context, lambda name, target: name in ended and ended[name].replicas == target)
    for name in ended:
        context.reassigning.pop(name, None)
    _log("Reassignments are complete", ended)


def _change_states(
    context: ControllerContext, names: Iterable[TopicPartition], decide: Callable[[TopicPartition], PartitionState | None]
) -> Script[set[TopicPartition]]:
    """Writes the states that `decide` returns for partitions; returns the partitions whose state was written.

    A state that was written by somebody else is read and decided again. A partition without a state stays without.
    """
    written: set[TopicPartition] = set()
    remaining = [name for name in names if name in context.states]
    while remaining:
        states: dict[TopicPartition, PartitionState] = {}
        for count, name in enumerate(remaining, 1):
            if (decided := decide(name)) is not None:
                states[name] = decided
            if count % SLICE == 0:
                yield PAUSE
        refused = yield from write_states(context, states)
        written |= states.keys() - refused.keys()
        remaining = [name for name, code in refused.items() if code is ZooKeeperErrorCode.BAD_VERSION]
        yield from read_states(context, remaining)
        remaining = [name for name in remaining if name in context.states]
    return written


def _log(event: str, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
    if assignments:
        first = {str(name): [*target_of(each)] for name, each in islice(assignments.items(), MOST_LOGGED)}
        log.info(event, count=len(assignments), first=first)


def _put(context: ControllerContext, name: TopicPartition, assignment: ReplicaAssignment) -> None:
    context.topics[name.topic].assignments[name.partition] = assignment


def _tell(context: ControllerContext, batch: RequestBatch, name: TopicPartition, removed: Iterable[int]) -> None:
    """Tells the state of a partition to its replicas, and brokers that have left the assignment to delete theirs."""
    if name in context.states:
        batch.leader_and_isr(context.replicas(name), name)
    batch.stop_replica(removed, name, deletes=True)
