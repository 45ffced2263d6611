"""The scripts of the controller for a change of a znode, and for an answer of a broker.

How it works: `reaction_to` maps the path of a znode to a script, and `reaction_to_answer` an answer. The scripts call those of
the features, such as `brokers` and `deletion`, in the right order.

Rules of this file: it decides nothing by itself.

Source: the events of kafka.controller.KafkaController of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import structlog

from wirekafka.controller import deletion, reassignment
from wirekafka.controller.brokers import look_at_brokers, look_at_log_dir_events, note_leader_and_isr
from wirekafka.controller.context import ControllerContext, LiveBroker
from wirekafka.controller.deletion import look_at_deletions
from wirekafka.controller.partition_states import read_states
from wirekafka.controller.reassignment import look_at_reassignments
from wirekafka.controller.replica_states import Replica
from wirekafka.controller.requested_elections import look_at_elections
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.topics import look_at_partitions, look_at_topics
from wirekafka.controller.writes import checked, raise_if_deposed, watch_children
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR
from wirekafka.wire.messages.stop_replica import STOP_REPLICA, StopReplicaRequest, StopReplicaResponse
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.requests import reading_isr_change
from wirekafka.zookeeper.session import Data, Delete, GetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

Event = Callable[[ControllerContext, RequestBatch], Script[Any]]


class Reaction(NamedTuple):
    """What the controller does about a change.

    Attributes:
        path: what it looks at; a second change before it looks needs no second look.
        is_urgent: it comes before all other events.
    """

    path: str
    event: Event
    is_urgent: bool = False


# Znodes


def reaction_to(path: str) -> Reaction | None:
    """Returns what the controller does when a znode changes; None if nothing."""
    parent, _, name = path.rpartition("/")
    if paths.BROKER_IDS in (path, parent):
        # A dead broker must not be taken for an in-sync replica by the events that are queued.
        return Reaction(paths.BROKER_IDS, _look_at_brokers, is_urgent=True)
    if parent == paths.TOPICS:
        return Reaction(path, lambda context, batch: _look_at_partitions(context, batch, name))
    event = _EVENTS.get(path)
    return None if event is None else Reaction(path, event)


def _look_at_brokers(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    former = {broker.broker_id: broker.epoch for broker in context.live.values()}
    yield from look_at_brokers(context, batch, batch.settings)
    current = {broker.broker_id: broker.epoch for broker in context.live.values()}
    came = [broker_id for broker_id, epoch in current.items() if former.get(broker_id) != epoch]
    gone = {broker_id for broker_id, epoch in former.items() if current.get(broker_id) != epoch}
    if gone:
        yield from deletion.note_offline(context, batch, _deleting_replicas(context, gone))
    if came:
        yield from reassignment.note_returned(context, batch, came)
        yield from deletion.note_returned(context, batch, came)


def _deleting_replicas(context: ControllerContext, broker_ids: Collection[int]) -> Iterator[Replica]:
    for topic in context.deleting:
        for name in context.partitions_of(topic):
            for broker_id in context.replicas(name):
                if broker_id in broker_ids:
                    yield name, broker_id


def _look_at_topics(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    former = {*context.topics}
    yield from look_at_topics(context, batch)
    # The request to delete a new topic may have come before the topic was known.
    if not context.topics.keys() <= former:
        yield from look_at_deletions(context, batch)


def _look_at_partitions(context: ControllerContext, batch: RequestBatch, name: str) -> Script[None]:
    was_known = name in context.topics
    yield from look_at_partitions(context, batch, name)
    if not was_known and name in context.topics:
        yield from look_at_deletions(context, batch)


def look_at_isr_changes(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Reads the states that leaders have changed by themselves, as brokers of Kafka before 2.7 do, and tells all brokers.

    Source: KafkaController.processIsrChangeNotification.
    """
    children = yield from watch_children(context, paths.ISR_CHANGES)
    notifications = [f"{paths.ISR_CHANGES}/{name}" for name in children.names]
    found: list[Data | ZooKeeperError] = yield [GetData(path) for path in notifications]
    changed: dict[TopicPartition, None] = {}
    for path, each in zip(notifications, found, strict=True):
        names = yield from _changed(path, each)
        changed.update(dict.fromkeys((yield from in_slices(names, lambda name: bool(context.replicas(name))))))
    yield from read_states(context, changed)
    for count, name in enumerate(changed, 1):
        batch.update_metadata(context.live, [name])
        if count % SLICE == 0:
            yield PAUSE
    for outcome in (yield [checked(context, [Delete(path)]) for path in notifications]):
        raise_if_deposed(outcome)


def _changed(path: str, found: Data | ZooKeeperError) -> Script[list[TopicPartition]]:
    if isinstance(found, ZooKeeperError):
        if found.code is not ZooKeeperErrorCode.NO_NODE:
            raise found
        return []
    try:
        return (yield from reading_isr_change(path, found.data))
    except MalformedZnodeError as error:
        remedy = "nothing needs to be done: the brokers learn the in-sync replicas with the next change"
        log.error("A notification of changed in-sync replicas cannot be read", reason=str(error), remedy=remedy)
        return []


_EVENTS: Final[dict[str, Event]] = {
    paths.TOPICS: _look_at_topics,
    paths.DELETE_TOPICS: look_at_deletions,
    paths.REASSIGN_PARTITIONS: look_at_reassignments,
    paths.PREFERRED_REPLICA_ELECTION: look_at_elections,
    paths.ISR_CHANGES: look_at_isr_changes,
    paths.LOG_DIR_EVENTS: look_at_log_dir_events,
}


# Answers


def reaction_to_answer(broker: LiveBroker, kind: RequestType[Any, Any], request: Any, response: Any) -> Event | None:
    """Returns what the controller does about an answer of a broker; None if nothing."""
    if kind is LEADER_AND_ISR:
        return lambda context, batch: _take_leader_and_isr(context, batch, broker, response)
    if kind is STOP_REPLICA:
        return lambda context, batch: _take_stop_replica(context, batch, broker, request, response)
    return None


def _take_leader_and_isr(context: ControllerContext, batch: RequestBatch, broker: LiveBroker, response: Any) -> Script[None]:
    if not _is_current(context, broker):
        return
    former = set(context.offline_replicas.get(broker.broker_id, ()))
    yield from note_leader_and_isr(context, batch, batch.settings, broker.broker_id, response)
    lost = context.offline_replicas.get(broker.broker_id, set()) - former
    if lost:
        yield from deletion.note_offline(context, batch, [(name, broker.broker_id) for name in sorted(lost)])


def _take_stop_replica(
    context: ControllerContext,
    batch: RequestBatch,
    broker: LiveBroker,
    request: StopReplicaRequest,
    response: StopReplicaResponse,
) -> Script[None]:
    """Passes the answers about topics that are deleted on. Other replicas that were stopped may be told to be deleted later.

    Only the answer to the newest order for a replica counts. An earlier order may have deleted the log of a former topic of the
    same name, before the broker created the log of the present topic.

    Source: kafka.controller.AbstractControllerBrokerRequestBatch.sendStopReplicaRequests (isPartitionDeleted).
    """
    if not _is_current(context, broker):
        return
    deleted = {*(yield from in_slices(_deleted_by(context, broker.broker_id, request)))}
    if deleted:
        errors = (each for each in response.partition_errors if (each.topic_name, each.partition_index) in deleted)
        of_deletions = StopReplicaResponse(error_code=response.error_code, partition_errors=(yield from in_slices(errors)))
        yield from deletion.note_stopped(context, batch, broker.broker_id, of_deletions)


def _deleted_by(context: ControllerContext, broker_id: int, request: StopReplicaRequest) -> Iterator[tuple[str, int]]:
    for topic in request.topic_states:
        newest = context.deletion_orders.get(topic.topic_name, {})
        for each in topic.partition_states:
            if newest.get((each.partition_index, broker_id)) is each:
                yield topic.topic_name, each.partition_index


def _is_current(context: ControllerContext, broker: LiveBroker) -> bool:
    """Whether an answer comes from the registration that the controller knows."""
    current = context.live.get(broker.broker_id)
    return current is not None and current.epoch == broker.epoch


# After events


def complete_reassignments(changed: Collection[TopicPartition]) -> Event:
    """Returns the event that completes the reassignments whose target is in sync, among partitions that have changed."""
    return lambda context, batch: reassignment.note_in_sync(context, batch, changed)
