"""The states of partitions: the first leader of new partitions, and later elections.

How it works: a partition without a state is new. It gets its state when one of its replicas is online. A partition whose leader
is not online waits for an election, which is tried whenever brokers come or go. Elections go by the states that the context
knows. A state that was written by somebody else meanwhile is read, and its election repeated.

Source: kafka.controller.ZkPartitionStateMachine of Kafka 3.9.
Differs from Apache Kafka:
    The controller does not read the state of a partition before an election, because only its own writes change the state.
    Brokers that shut down get no LeaderAndIsr of an election, except the former leader; Kafka lets their followers run again.
    While the broker of an in-sync replica is shutting down, no election is unclean, unless an operator asks for it. Kafka elects
    uncleanly when any broker comes or goes meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

import structlog

from wirekafka.controller import elections
from wirekafka.controller.context import ControllerContext, StoredState
from wirekafka.controller.elections import Election
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import DeposedError, create_states, write_states
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.session import Data, GetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

FIRST_RELEASE_WITH_RECOVERY = (3, 2)
"""The first release whose states have `leader_recovery_state` (KIP-704)."""

UNCLEAN_SETTING = "unclean.leader.election.enable"

Failures = dict[TopicPartition, KafkaError]
"""The partitions that have no new leader, and why."""


def elect(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    names: Iterable[TopicPartition],
    election: Election,
) -> Script[Failures]:
    """Elects leaders, writes the states, and tells the brokers; new partitions get their first state, whatever the election is.

    Returns:
        the failures: PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE by the election; LEADER_NOT_AVAILABLE for a
        new partition without an online replica; UNKNOWN_TOPIC_OR_PARTITION.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    failures: Failures = {}
    known: list[TopicPartition] = []
    new: list[TopicPartition] = []
    for count, name in enumerate(dict.fromkeys(names), 1):
        if context.assignment(name) is None:
            failures[name] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            (known if name in context.states else new).append(name)
        if count % SLICE == 0:
            yield PAUSE
    known += yield from _create(context, batch, new, failures)
    while known:
        known = yield from _elect(context, batch, settings, known, election, failures)
    return failures


def elect_offline(
    context: ControllerContext, batch: RequestBatch, settings: ControllerSettings, topics: Collection[str] | None = None
) -> Script[Failures]:
    """Elects leaders of all partitions that are new or whose leader is not online, but for topics that shall be deleted.

    Args:
        topics: looks at these only.

    Raises:
        as `elect`.

    Source: PartitionStateMachine.triggerOnlinePartitionStateChange.
    """
    looked_at = context.all_partitions() if topics is None else context.partitions_among(topics)
    names = yield from _those_without_leader(context, looked_at)
    return (yield from elect(context, batch, settings, names, Election.OFFLINE))


def _those_without_leader(context: ControllerContext, looked_at: Iterable[TopicPartition]) -> Script[list[TopicPartition]]:
    names: list[TopicPartition] = []
    for count, name in enumerate(looked_at, 1):
        if _needs_leader(context, name):
            names.append(name)
        if count % SLICE == 0:
            yield PAUSE
    return names


def _needs_leader(context: ControllerContext, name: TopicPartition) -> bool:
    if context.is_deleting(name.topic):
        return False
    stored = context.states.get(name)
    return stored is None or not context.is_online(stored.state.leader, name, includes_shutting_down=True)


def read_states(context: ControllerContext, names: Iterable[TopicPartition]) -> Script[None]:
    """Reads states into the context; a partition whose state does not exist or is malformed has none then.

    Raises:
        DeposedError: a controller with a later epoch has written a state.
        ZooKeeperError: the connection is lost.
    """
    wanted = [*names]
    found: list[Data | ZooKeeperError] = yield [GetData(paths.partition_state(name)) for name in wanted]
    for count, (name, each) in enumerate(zip(wanted, found, strict=True), 1):
        stored = stored_state(name, each)
        if stored is None:
            context.states.pop(name, None)
        elif stored.state.controller_epoch > context.epoch:
            raise DeposedError
        else:
            context.states[name] = stored
        if count % SLICE == 0:
            yield PAUSE


def stored_state(name: TopicPartition, found: Data | ZooKeeperError) -> StoredState | None:
    """Reads the state of a partition; None if it does not exist or is malformed.

    Raises:
        ZooKeeperError: the state could not be read.
    """
    if isinstance(found, ZooKeeperError):
        if found.code is not ZooKeeperErrorCode.NO_NODE:
            raise found
        return None
    try:
        return StoredState(PartitionState.read(name, found.data), found.stat.version)
    except MalformedZnodeError as error:
        remedy = "correct the znode; do not delete it, because it says which replicas have all acknowledged records"
        log.error("A partition has no leader, because its state in ZooKeeper cannot be read", reason=str(error), remedy=remedy)
        return None


# New partitions


def _create(
    context: ControllerContext, batch: RequestBatch, names: list[TopicPartition], failures: Failures
) -> Script[list[TopicPartition]]:
    """Creates the states of new partitions; returns those that have a state already."""
    states: dict[TopicPartition, PartitionState] = {}
    for count, name in enumerate(names, 1):
        first = elections.first_state(context.replicas(name), _online(context, name))
        if first is None:
            failures[name] = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no replica of the new partition is online")
        else:
            states[name] = first
        if count % SLICE == 0:
            yield PAUSE
    refused = yield from create_states(context, states)
    for count, name in enumerate(states, 1):
        if name not in refused:
            batch.leader_and_isr(context.states[name].state.isr, name, is_new=True)
        if count % SLICE == 0:
            yield PAUSE
    return (yield from _look_again(context, refused, ZooKeeperErrorCode.NODE_EXISTS, failures))


# Elections


def _elect(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    names: list[TopicPartition],
    election: Election,
    failures: Failures,
) -> Script[list[TopicPartition]]:
    """Elects leaders once; returns the partitions whose state somebody else has written meanwhile."""
    states: dict[TopicPartition, PartitionState] = {}
    former_leaders: dict[TopicPartition, int] = {}
    unclean_topics = yield from _unclean_topics(context, settings, names, election)
    for count, name in enumerate(names, 1):
        former_leaders[name] = context.states[name].state.leader
        elected = _elected(context, settings, name, election, unclean_topics)
        if elected is None:
            failures[name] = _failure(election)
        else:
            states[name] = elected
        if count % SLICE == 0:
            yield PAUSE
    refused = yield from write_states(context, states)
    for count, name in enumerate(states, 1):
        if name not in refused:
            _announce(context, batch, name, former_leaders[name])
        if count % SLICE == 0:
            yield PAUSE
    return (yield from _look_again(context, refused, ZooKeeperErrorCode.BAD_VERSION, failures))


def _unclean_topics(
    context: ControllerContext, settings: ControllerSettings, names: list[TopicPartition], election: Election
) -> Script[set[str]]:
    """Returns the topics in which a replica that is not in sync may become the leader.

    The settings are read, because a broker knows only those of the topics that it hosts or was asked for.

    Source: ZkPartitionStateMachine.collectUncleanLeaderElectionState.
    """
    if election is Election.UNCLEAN:
        return {name.topic for name in names}
    if election is not Election.OFFLINE:
        return set()
    lost = yield from in_slices(names, lambda name: _is_lost(context, name))
    topics = [*dict.fromkeys(name.topic for name in lost)]
    found: list[Data | ZooKeeperError] = yield [GetData(paths.configs("topics", topic)) for topic in topics]
    return {topic for topic, each in zip(topics, found, strict=True) if _allows_unclean(settings, topic, each)}


def _is_lost(context: ControllerContext, name: TopicPartition) -> bool:
    """Whether no replica in sync is online, and none is shutting down, which may still have the newest records."""
    isr = context.states[name].state.isr
    return not any(context.is_online(broker_id, name, includes_shutting_down=True) for broker_id in isr)


def _allows_unclean(settings: ControllerSettings, topic: str, found: Data | ZooKeeperError) -> bool:
    if isinstance(found, ZooKeeperError):
        if found.code is not ZooKeeperErrorCode.NO_NODE:
            raise found
        return settings.unclean_leader_election()
    try:
        own = EntityConfigs.read(paths.configs("topics", topic), found.data).values.get(UNCLEAN_SETTING)
    except MalformedZnodeError as error:
        remedy = "set them again by kafka-configs.sh"
        log.error("No election is unclean, because the settings of the topic cannot be read", reason=str(error), remedy=remedy)
        return False
    return settings.unclean_leader_election() if own is None else own.strip().lower() == "true"


def _elected(
    context: ControllerContext,
    settings: ControllerSettings,
    name: TopicPartition,
    election: Election,
    unclean_topics: Container[str],
) -> PartitionState | None:
    state, assignment, online = context.states[name].state, context.assignment(name), _online(context, name)
    assert assignment is not None, "elect has looked for it"
    replicas = assignment.replicas
    match election:
        case Election.PREFERRED:
            return elections.preferred(state, replicas, online)
        case Election.REASSIGN:
            targets = [broker_id for broker_id in replicas if broker_id not in assignment.removing_replicas]
            return elections.reassign(state, targets, online)
        case Election.CONTROLLED_SHUTDOWN:
            return elections.controlled_shutdown(state, replicas, online, context.shutting_down)
        case Election.OFFLINE | Election.UNCLEAN:
            clean = elections.offline(state, replicas, online)
            may_be_unclean = name.topic in unclean_topics and (election is Election.UNCLEAN or _is_lost(context, name))
            if clean is not None or not may_be_unclean:
                return clean
            return _elected_uncleanly(settings, name, state, online)


def _elected_uncleanly(
    settings: ControllerSettings, name: TopicPartition, state: PartitionState, online: list[int]
) -> PartitionState | None:
    elected = elections.unclean(state, online, online, marks_recovery=_marks_recovery(settings))
    if elected is not None:
        log.warning(
            "An unclean election gives a partition a leader that may lack acknowledged records",
            partition=str(name),
            leader=elected.leader,
        )
    return elected


def _marks_recovery(settings: ControllerSettings) -> bool:
    major, minor = settings.release.split(".")
    return (int(major), int(minor)) >= FIRST_RELEASE_WITH_RECOVERY


def _failure(election: Election) -> KafkaError:
    if election is Election.PREFERRED:
        return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader is not online or not in sync")
    return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica that may lead the partition is online")


def _announce(context: ControllerContext, batch: RequestBatch, name: TopicPartition, former_leader: int) -> None:
    """Tells the result to the replicas that are online, and to the former leader, even if it shuts down."""
    told = _online(context, name)
    if former_leader not in told and context.is_online(former_leader, name, includes_shutting_down=True):
        told.append(former_leader)
    batch.leader_and_isr(told, name)


def _online(context: ControllerContext, name: TopicPartition) -> list[int]:
    return [broker_id for broker_id in context.replicas(name) if context.is_online(broker_id, name)]


def _look_again(
    context: ControllerContext,
    refused: dict[TopicPartition, ZooKeeperErrorCode],
    expected: ZooKeeperErrorCode,
    failures: Failures,
) -> Script[list[TopicPartition]]:
    """Reads the states that somebody else has written; returns their partitions. Other refusals are failures."""
    changed = [name for name, code in refused.items() if code is expected]
    yield from read_states(context, changed)
    gone = [name for name in refused if name not in context.states or name not in changed]
    failures.update({name: KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "its znode was deleted") for name in gone})
    return [name for name in changed if name in context.states]
