"""Elections of leaders that clients and tools ask for: of preferred leaders, and unclean ones.

How it works: clients send ElectLeaders, which becomes an event. Tools before Kafka 2.4 write partitions into the znode
`/admin/preferred_replica_election`, which the controller deletes after the elections.

Source: kafka.controller.KafkaController (processReplicaLeaderElection, onReplicaElection, fetchPendingPreferredReplicaElections)
of Kafka 3.9; KIP-460.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.writes import multi
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.requests import reading_preferred_replica_election
from wirekafka.zookeeper.session import Data, Delete, Exists, GetData, Stat, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

MOST_LOGGED = 10
"""The most partitions in one line of the log."""

Outcomes = dict[TopicPartition, KafkaError | None]
"""For each partition, why it has no new leader; None if it has one."""


def elect_leaders(
    context: ControllerContext, batch: RequestBatch, names: Iterable[TopicPartition] | None, election: Election
) -> Script[Outcomes]:
    """Elects leaders for ElectLeaders.

    Args:
        names: the partitions; None for all.
        election: PREFERRED or UNCLEAN.

    Returns:
        the outcomes: ELECTION_NOT_NEEDED if the partition has the preferred leader, or for an unclean election any leader that is
        online; PREFERRED_LEADER_NOT_AVAILABLE; ELIGIBLE_LEADERS_NOT_AVAILABLE; UNKNOWN_TOPIC_OR_PARTITION;
        INVALID_TOPIC_EXCEPTION if the topic is being deleted.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    assert election in (Election.PREFERRED, Election.UNCLEAN), "clients can ask for these elections"
    outcomes: Outcomes = {}
    electable: list[TopicPartition] = []
    for count, name in enumerate(list(context.all_partitions()) if names is None else names, 1):
        outcomes[name] = obstacle(context, name, election)
        if outcomes[name] is None:
            electable.append(name)
        if count % SLICE == 0:
            yield PAUSE
    outcomes.update((yield from elect(context, batch, batch.settings, electable, election)))
    return outcomes


def obstacle(context: ControllerContext, name: TopicPartition, election: Election) -> KafkaError | None:
    """Returns why no leader of a partition is elected; None if one shall be.

    Source: KafkaController.processReplicaLeaderElection.
    """
    replicas, stored = context.replicas(name), context.states.get(name)
    if not replicas:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if context.is_deleting(name.topic):
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    leader = None if stored is None else stored.state.leader
    if election is Election.PREFERRED:
        has_leader = leader == replicas[0]
    else:
        has_leader = leader in context.available
    return KafkaError(ErrorCode.ELECTION_NOT_NEEDED) if has_leader else None


def look_at_elections(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Elects the preferred leaders that `/admin/preferred_replica_election` asks for, and deletes the request.

    Source: KafkaController.onReplicaElection, removePartitionsFromPreferredReplicaElection.
    """
    stat: Stat | None = yield Exists(paths.PREFERRED_REPLICA_ELECTION, watch=True)
    if stat is None:
        return
    try:
        found: Data = yield GetData(paths.PREFERRED_REPLICA_ELECTION)
        names = yield from reading_preferred_replica_election(found.data)
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
        return
    except MalformedZnodeError as error:
        log.warning("A request for preferred leaders is ignored", reason=str(error))
        names = []
    outcomes = yield from elect_leaders(context, batch, names, Election.PREFERRED)
    failures = yield from in_slices(outcomes.items(), lambda outcome: outcome[1] is not None)
    first = {str(name): error.code.name for name, error in failures[:MOST_LOGGED] if error is not None}
    log.info("Preferred leaders are elected", partitions=len(outcomes), failures=len(failures), first_failures=first)
    try:
        yield from multi(context, [Delete(paths.PREFERRED_REPLICA_ELECTION)])
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
