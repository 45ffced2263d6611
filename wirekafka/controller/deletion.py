"""The deletion of topics: replicas first, and when all brokers have deleted theirs, the znodes.

How it works: `/admin/delete_topics/T` asks for a deletion. The brokers are told that the topic has no leader any more
(`LEADER_DURING_DELETE` in UpdateMetadata), and to delete their replicas (StopReplica). The answers come as events. When all
replicas are deleted, the znodes are, the request last. A new controller begins again with the requests that it finds.

A deletion waits while it is ineligible: a replica is offline, or a broker could not delete its replica. It is tried again when a
broker returns.

Differs from Apache Kafka:
    A deletion ends the reassignments of the topic, as with KRaft. With ZooKeeper it waits for them, for ever if the leader of a
    partition dies, because no leader is elected for a topic that is being deleted.
    The states of the partitions in ZooKeeper keep their leaders until they are deleted.
    The znode of the topic, its settings and the request are deleted in one transaction, so that no crash leaves settings for the
    next topic of this name.

Source: kafka.controller.TopicDeletionManager, KafkaController (processTopicDeletion,
processTopicDeletionStopReplicaResponseReceived), kafka.zk.KafkaZkClient.deleteTopicZNode of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.reassignment import remove_requests
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import checked, raise_if_deposed, watch_children
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.stop_replica import StopReplicaResponse
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.session import (
    Children,
    Delete,
    Exists,
    GetChildren,
    Multi,
    Stat,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

MOST_DELETES = 100
"""The most znodes in one multi."""

MOST_ATTEMPTS = 5
"""How often the znodes of a topic are read and deleted, if others change them at the same time."""

MOST_LOGGED = 10
"""The most topics in one line of the log."""

SLICE = 64
"""How many partitions are looked at without a pause."""


class Step(Enum):
    """What a deletion does next."""

    WAIT = "wait"
    """Brokers have not answered, or the deletion is ineligible."""
    STOP_REPLICAS = "stop replicas"
    DELETE_ZNODES = "delete znodes"


def next_step(*, replica_count: int, deleted_count: int, stopping_count: int, is_ineligible: bool) -> Step:
    """Returns what the deletion of a topic does next.

    Args:
        replica_count: of all partitions of the topic.
        deleted_count: the replicas whose broker has deleted them.
        stopping_count: the replicas whose broker was told, and has not answered.

    Source: TopicDeletionManager.resumeDeletions.
    """
    if deleted_count == replica_count:
        return Step.DELETE_ZNODES
    return Step.WAIT if stopping_count or is_ineligible else Step.STOP_REPLICAS


# Events


def look_at_deletions(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Reads which topics shall be deleted, and begins their deletion.

    Source: KafkaController.processTopicDeletion.
    """
    ended = yield from read_deletions(context, batch.settings)
    if ended:
        yield from remove_requests(context, lambda name, target: name in ended)
    yield from _go_on(context, batch)


def read_deletions(context: ControllerContext, settings: ControllerSettings) -> Script[set[TopicPartition]]:
    """Reads which topics shall be deleted, so that no leader is elected for them. Requests for unknown topics are deleted.

    If the settings disable deletions, all requests are deleted.

    A new controller does so when it knows the topics, before it elects leaders.

    Returns:
        the partitions whose reassignment has ended, because their topic is to be deleted.

    Source: KafkaController.fetchTopicDeletionsInProgress, TopicDeletionManager.init.
    """
    requests = yield from watch_children(context, paths.DELETE_TOPICS)
    if not settings.allows_deletions:
        yield from _refuse(context, requests.names)
        return set()
    yield from _delete_unknown(context, [name for name in requests.names if name not in context.topics])
    context.deleting.update((name, None) for name in requests.names if name in context.topics)
    ended = {name for name in context.reassigning if context.is_deleting(name.topic)}
    for name in ended:
        del context.reassigning[name]
    return ended


def _delete_unknown(context: ControllerContext, names: list[str]) -> Script[None]:
    """Deletes the requests for topics that do not exist. A topic that was created just now is known at the next look."""
    found: list[Stat | ZooKeeperError | None] = yield [Exists(paths.topic(name)) for name in names]
    unknown = [name for name, stat in zip(names, found, strict=True) if stat is None]
    if unknown:
        log.warning("Topics that shall be deleted do not exist", count=len(unknown), first=unknown[:MOST_LOGGED])
    outcomes: list[object] = yield [checked(context, [Delete(paths.deleted_topic(name))]) for name in unknown]
    for outcome in (*found, *outcomes):
        raise_if_deposed(outcome)


def _refuse(context: ControllerContext, names: Sequence[str]) -> Script[None]:
    if names:
        log.warning("Topics are not deleted, because delete.topic.enable is false", count=len(names), first=names[:MOST_LOGGED])
    for outcome in (yield [checked(context, [Delete(paths.deleted_topic(name))]) for name in names]):
        raise_if_deposed(outcome)


def note_stopped(context: ControllerContext, batch: RequestBatch, broker_id: int, response: StopReplicaResponse) -> Script[None]:
    """Takes a broker's answer to StopReplica, and deletes the znodes of topics whose replicas are all deleted.

    The answer may be late: the replica may be unknown, or may have been given up when its broker died.

    Source: KafkaController.processTopicDeletionStopReplicaResponseReceived.
    """
    if response.error_code != ErrorCode.NONE:
        yield from _fail(context, broker_id, f"broker {broker_id} answers {ErrorCode.of(response.error_code).name}")
        return
    for count, each in enumerate(response.partition_errors, 1):
        replica = (each.partition_index, broker_id)
        stopping = context.stopping_replicas.get(each.topic_name)
        if stopping is None or replica not in stopping:
            continue
        stopping.remove(replica)
        if each.error_code == ErrorCode.NONE:
            context.deleted_replicas.setdefault(each.topic_name, set()).add(replica)
        else:
            reason = f"broker {broker_id} answers {ErrorCode.of(each.error_code).name} for partition {each.partition_index}"
            _wait(context, each.topic_name, reason)
        if count % SLICE == 0:
            yield PAUSE
    yield from _go_on(context, batch)


def note_offline(context: ControllerContext, batch: RequestBatch, replicas: Iterable[tuple[TopicPartition, int]]) -> Script[None]:
    """Takes replicas that have become offline: their brokers died, or their directories failed.

    Args:
        replicas: partitions with broker ids; those of topics that are not being deleted are ignored.

    Source: TopicDeletionManager.failReplicaDeletion.
    """
    for count, (name, broker_id) in enumerate(replicas, 1):
        if context.is_deleting(name.topic):
            context.stopping_replicas.get(name.topic, set()).discard((name.partition, broker_id))
            if (name.partition, broker_id) not in context.deleted_replicas.get(name.topic, ()):
                _wait(context, name.topic, f"the replica of partition {name.partition} on broker {broker_id} is offline")
        if count % SLICE == 0:
            yield PAUSE
    yield from _go_on(context, batch)


def note_returned(context: ControllerContext, batch: RequestBatch, broker_ids: Collection[int]) -> Script[None]:
    """Tries the deletion of topics again that have replicas on brokers that have arrived.

    Source: KafkaController.onBrokerStartup.
    """
    topics = [name for name in context.deleting if any(broker_id in broker_ids for _, broker_id in _replicas(context, name))]
    yield from resume(context, batch, topics)


def resume(context: ControllerContext, batch: RequestBatch, topics: Iterable[str]) -> Script[None]:
    """Tries the deletion of topics again.

    Source: TopicDeletionManager.resumeDeletionForTopics.
    """
    context.ineligible.difference_update(topics)
    yield from _go_on(context, batch)


# Steps


def _go_on(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Does what each deletion does next."""
    complete: list[str] = []
    stopping: list[str] = []
    for name in list(context.deleting):
        replica_count = sum(len(each.replicas) for each in context.topics[name].assignments.values())
        step = next_step(
            replica_count=replica_count,
            deleted_count=len(context.deleted_replicas.get(name, ())),
            stopping_count=len(context.stopping_replicas.get(name, ())),
            is_ineligible=name in context.ineligible,
        )
        if step is Step.DELETE_ZNODES:
            complete.append(name)
        elif step is Step.STOP_REPLICAS:
            stopping.append(name)
            yield from _stop_replicas(context, batch, name)
        yield PAUSE
    if stopping:
        log.info("Deleting the replicas of topics", count=len(stopping), first=stopping[:MOST_LOGGED])
    _say_waits(context)
    if complete:
        yield from _complete(context, complete)


def _stop_replicas(context: ControllerContext, batch: RequestBatch, topic: str) -> Script[None]:
    """Tells all brokers that the topic is being deleted, and those with a replica to delete it.

    Source: TopicDeletionManager.onTopicDeletion, onPartitionDeletion.
    """
    stopping = context.stopping_replicas.setdefault(topic, set())
    deleted = context.deleted_replicas.setdefault(topic, set())
    offline: set[int] = set()
    for count, (index, broker_id) in enumerate(_replicas(context, topic), 1):
        name = TopicPartition(topic, index)
        if (index, broker_id) not in deleted:
            if context.is_online(broker_id, name):
                batch.stop_replica([broker_id], name, deletes=True)
                stopping.add((index, broker_id))
            else:
                offline.add(broker_id)
        batch.update_metadata(context.live, [name])
        if count % SLICE == 0:
            yield PAUSE
    if offline:
        _wait(context, topic, f"replicas on brokers {sorted(offline)} are offline")


def _fail(context: ControllerContext, broker_id: int, reason: str) -> Script[None]:
    """Gives up all replicas that a broker was told to delete."""
    for topic, stopping in context.stopping_replicas.items():
        given_up = {replica for replica in stopping if replica[1] == broker_id}
        stopping -= given_up
        if given_up:
            _wait(context, topic, reason)
        yield PAUSE
    _say_waits(context)


def _wait(context: ControllerContext, topic: str, reason: str) -> None:
    if topic not in context.ineligible:
        context.untold_waits[topic] = reason
    context.ineligible.add(topic)


def _say_waits(context: ControllerContext) -> None:
    """Logs the deletions that wait now, in one line."""
    waits, context.untold_waits = context.untold_waits, {}
    if waits:
        log.info("The deletion of topics waits", count=len(waits), first=dict(islice(waits.items(), MOST_LOGGED)))


def _replicas(context: ControllerContext, topic: str) -> Iterator[tuple[int, int]]:
    for index, assignment in context.topics[topic].assignments.items():
        for broker_id in assignment.replicas:
            yield index, broker_id


# Znodes


def _complete(context: ControllerContext, topics: list[str]) -> Script[None]:
    """Deletes the znodes of topics whose replicas are all deleted.

    Source: TopicDeletionManager.completeDeleteTopic.
    """
    for attempt in range(MOST_ATTEMPTS):
        # One refused topic must not hold up the others, so after a failure each has its own transaction.
        most_together = MOST_DELETES if attempt == 0 else 1
        yield from _delete_below(context, topics, most_together)
        deleted = yield from _delete_topics(context, topics, most_together)
        for name in deleted:
            context.remove_topic(name)
            yield PAUSE
        log.info("Topics are deleted", count=len(deleted), first=deleted[:MOST_LOGGED])
        topics = [name for name in topics if name in context.topics]
        if not topics:
            return
    log.error(
        "The znodes of topics cannot be deleted; the deletion is tried again when a broker returns",
        topics=topics,
        remedy="look whether this broker may delete the znodes below /brokers/topics and /config/topics",
    )


def _delete_below(context: ControllerContext, topics: list[str], most_together: int) -> Script[None]:
    """Deletes what is below the znodes of topics, the deepest znodes first."""
    levels: list[list[str]] = [[paths.topic(name) for name in topics]]
    while levels[-1]:
        found: list[Children | ZooKeeperError] = yield [GetChildren(path) for path in levels[-1]]
        below: list[str] = []
        for path, children in zip(levels[-1], found, strict=True):
            if not isinstance(children, ZooKeeperError):
                below += [f"{path}/{name}" for name in children.names]
            elif children.code is not ZooKeeperErrorCode.NO_NODE:
                raise children
        levels.append(below)
    doomed = [path for level in reversed(levels[1:]) for path in level]
    yield from _apply(context, [[Delete(path)] for path in doomed], most_together)


def _delete_topics(context: ControllerContext, topics: list[str], most_together: int) -> Script[list[str]]:
    """Deletes the znodes of topics, their settings and the requests; returns the topics of which all is deleted."""
    doomed = [[paths.topic(name), paths.configs("topics", name), paths.deleted_topic(name)] for name in topics]
    found: list[object] = yield [Exists(path) for group in doomed for path in group]
    for each in found:
        if isinstance(each, ZooKeeperError):
            raise each
    existing = iter(found)
    groups = [[Delete(path) for path in group if next(existing) is not None] for group in doomed]
    are_applied = yield from _apply(context, groups, most_together)
    # A topic whose znodes have all vanished needs no transaction, so that the failure of another topic's does not concern it.
    return [name for name, group, is_applied in zip(topics, groups, are_applied, strict=True) if is_applied or not group]


def _apply(context: ControllerContext, groups: list[list[Delete]], most_together: int) -> Script[list[bool]]:
    """Deletes znodes, those of a group in one transaction with each other; returns which groups were applied.

    Args:
        most_together: the most znodes in one transaction, but for the znodes of a larger group.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    multis: list[Multi] = []
    counts: list[int] = []
    taken: list[Delete] = []
    count = 0
    for group in groups:
        if taken and len(taken) + len(group) > most_together:
            multis.append(checked(context, taken))
            counts.append(count)
            taken, count = [], 0
            yield PAUSE
        taken += group
        count += 1
    multis.append(checked(context, taken))
    counts.append(count)
    outcomes: list[object] = yield multis
    are_applied: list[bool] = []
    for outcome, count in zip(outcomes, counts, strict=True):
        raise_if_deposed(outcome)
        are_applied += [not isinstance(outcome, ZooKeeperError)] * count
    return are_applied
