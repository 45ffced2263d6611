"""Brokers that come, die, return or change, and their log directories that fail.

How it works: a broker is known by its id and its epoch. A broker that has another epoch than before has restarted, so it is
handled as one that died and one that came: it leaves the in-sync replicas, because its log may have lost records, and then it
learns its replicas anew. A broker whose directory has failed says so by a notification. It is asked for the state of all its
replicas by LeaderAndIsr, and answers KAFKA_STORAGE_ERROR for those that are offline.

Source: kafka.controller.KafkaController (processBrokerChange, processBrokerModification, onBrokerStartup, onBrokerFailure,
onBrokerLogDirFailure, processLeaderAndIsrResponseReceived) of Kafka 3.9.
Differs from Apache Kafka:
    The controller handles all brokers that died and all brokers that returned in one event. So it elects no dead broker, and no
    election is unclean because the last in-sync replica has just restarted.
    The controller does not compare the features of a broker with the finalized ones: a broker of Apache Kafka without one exits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import chain

import structlog

from wirekafka.controller.context import ControllerContext, LiveBroker
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect, elect_offline
from wirekafka.controller.replica_states import Replica, bring_online, take_offline
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import checked, raise_if_deposed, watch_children
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.leader_and_isr import LeaderAndIsrResponse
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import BrokerRegistration
from wirekafka.zookeeper.layout.requests import read_log_dir_event
from wirekafka.zookeeper.session import Children, Data, Delete, GetChildren, GetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

_BROKER_ID = re.compile("[0-9]{1,10}", re.ASCII)

MOST_BROKER_ID = (1 << 31) - 1
"""The greatest id of a broker. A greater one would be in no request, and no request with it would be sent."""

# Reading


def read_brokers() -> Script[dict[int, LiveBroker]]:
    """Reads which brokers are registered, and leaves watches on the list and on each registration.

    Raises:
        ZooKeeperError: the connection is lost.
    """
    children: Children = yield GetChildren(paths.BROKER_IDS, watch=True)
    broker_ids = sorted(int(name) for name in children.names if _BROKER_ID.fullmatch(name) and int(name) <= MOST_BROKER_ID)
    found: list[Data | ZooKeeperError] = yield [GetData(paths.broker(broker_id), watch=True) for broker_id in broker_ids]
    live = (_read(broker_id, each) for broker_id, each in zip(broker_ids, found, strict=True))
    return {broker.broker_id: broker for broker in live if broker is not None}


def _read(broker_id: int, found: Data | ZooKeeperError) -> LiveBroker | None:
    if isinstance(found, ZooKeeperError):
        if found.code is not ZooKeeperErrorCode.NO_NODE:
            raise found
        return None
    try:
        return LiveBroker(broker_id, found.stat.czxid, BrokerRegistration.read(broker_id, found.data))
    except MalformedZnodeError as error:
        remedy = "look which process has written it; the broker is used once it registers again"
        log.error("A broker is ignored, because its registration cannot be read", reason=str(error), remedy=remedy)
        return None


# Brokers that come and go


def look_at_brokers(context: ControllerContext, batch: RequestBatch, settings: ControllerSettings) -> Script[None]:
    """Reads which brokers are registered, and handles those that have come, died, returned with a new epoch or changed.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    found = yield from read_brokers()
    former = context.live
    staying = {broker_id for broker_id, each in found.items() if broker_id in former and former[broker_id].epoch == each.epoch}
    came = [broker_id for broker_id in found if broker_id not in staying]
    gone = [broker_id for broker_id in former if broker_id not in staying]
    if not came and not gone:
        _note_changes(context, batch, found)
        return
    log.info("Brokers have come or gone", came=came, gone=gone, live=[*found])
    context.live = {broker_id: each for broker_id, each in found.items() if broker_id in staying}
    replicas = yield from in_slices(_replicas(context), lambda replica: replica[1] not in staying)
    yield from _note_gone(context, batch, settings, gone, replicas, came)
    context.live = found
    context.settle_epochs()
    yield from _introduce(context, batch, staying, came)
    yield from elect_offline(context, batch, settings)
    yield from bring_online(context, batch, [each for each in replicas if each[1] in came])


def _note_changes(context: ControllerContext, batch: RequestBatch, found: dict[int, LiveBroker]) -> None:
    """Tells the brokers about endpoints, racks and features that have changed.

    Source: KafkaController.processBrokerModification.
    """
    is_changed = found != context.live
    context.live = found
    if is_changed:
        batch.update_metadata(context.live)


def _note_gone(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    gone: Collection[int],
    replicas: list[Replica],
    returning: Collection[int],
) -> Script[None]:
    """Source: KafkaController.onBrokerFailure."""
    for broker_id in gone:
        context.offline_replicas.pop(broker_id, None)
        context.shutting_down.discard(broker_id)
    yield from _lose(context, batch, settings, [each for each in replicas if each[1] in gone], returning)


def _lose(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    replicas: list[Replica],
    returning: Collection[int] = (),
) -> Script[None]:
    """Elects leaders where another in-sync replica is online, and removes replicas that are offline from the in-sync replicas.

    Source: KafkaController.onReplicasBecomeOffline.
    """
    kept = [each for each in replicas if not context.is_deleting(each[0].topic)]
    led = yield from in_slices(kept, lambda replica: _can_be_led_by_another(context, *replica))
    yield from elect(context, batch, settings, [name for name, _ in led], Election.OFFLINE)
    yield from take_offline(context, batch, kept, returning=returning)


def _can_be_led_by_another(context: ControllerContext, name: TopicPartition, broker_id: int) -> bool:
    stored = context.states.get(name)
    return (
        stored is not None
        and stored.state.leader == broker_id
        and any(context.is_online(each, name) for each in stored.state.isr)
    )


def _introduce(context: ControllerContext, batch: RequestBatch, staying: Collection[int], came: Collection[int]) -> Script[None]:
    """Tells brokers which others are live, and those that came all partitions, before any broker gets a LeaderAndIsr about it.

    A broker of Apache Kafka follows only leaders that it knows. The first request with partitions to a broker has all of them.

    Source: KafkaController.onBrokerStartup.
    """
    batch.update_metadata(staying)
    if not came:
        return
    yield from batch.send()
    names = yield from in_slices(context.states)
    for start in range(0, len(names), SLICE):
        batch.update_metadata(came, names[start : start + SLICE])
        yield PAUSE
    batch.update_metadata(came)
    yield from batch.send()


def _replicas(context: ControllerContext) -> Iterator[Replica]:
    for name in context.all_partitions():
        for broker_id in context.replicas(name):
            yield name, broker_id


# Log directories


def look_at_log_dir_events(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Asks brokers whose log directories have failed for their replicas, and deletes their notifications.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the connection is lost.

    Source: KafkaController.processLogDirEventNotification.
    """
    children = yield from watch_children(context, paths.LOG_DIR_EVENTS)
    notifications = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in children.names]
    found: list[Data | ZooKeeperError] = yield [GetData(path) for path in notifications]
    named = {_broker_of(path, each) for path, each in zip(notifications, found, strict=True)}
    broker_ids = [broker_id for broker_id in context.live if broker_id in named]
    if broker_ids:
        log.warning("Log directories of brokers have failed", brokers=broker_ids)
    asked = yield from in_slices(_replicas(context), lambda replica: replica[1] in broker_ids)
    yield from bring_online(context, batch, asked)
    outcomes: list[object] = yield [checked(context, [Delete(path)]) for path in notifications]
    for outcome in outcomes:
        raise_if_deposed(outcome)


def _broker_of(path: str, found: Data | ZooKeeperError) -> int | None:
    if isinstance(found, ZooKeeperError):
        if found.code is not ZooKeeperErrorCode.NO_NODE:
            raise found
        return None
    try:
        return read_log_dir_event(path, found.data)
    except MalformedZnodeError as error:
        remedy = "restart the broker that has written it, if partitions on it have no leader"
        log.error("A notification of a failed log directory cannot be read", reason=str(error), remedy=remedy)
        return None


def note_leader_and_isr(
    context: ControllerContext,
    batch: RequestBatch,
    settings: ControllerSettings,
    broker_id: int,
    response: LeaderAndIsrResponse,
) -> Script[None]:
    """Takes a broker's answer to LeaderAndIsr: which of its replicas are offline because their directories have failed.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.

    Source: KafkaController.processLeaderAndIsrResponseReceived.
    """
    if response.error_code != ErrorCode.NONE:
        remedy = "look at the log of that broker; it gets its partitions again when it registers"
        log.error("A broker refuses LeaderAndIsr", broker=broker_id, error=ErrorCode.of(response.error_code).name, remedy=remedy)
        return
    answers = yield from in_slices(_answers(context, response), lambda answer: answer[0].topic in context.topics)
    failed = {name for name, code in answers if code == ErrorCode.KAFKA_STORAGE_ERROR and broker_id in context.replicas(name)}
    former = context.offline_replicas.get(broker_id, set())
    current = former.difference(name for name, code in answers if code == ErrorCode.NONE) | failed
    if current == former:
        return
    context.offline_replicas[broker_id] = current
    lost = sorted((name, broker_id) for name in current - former)
    if lost:
        log.warning("Replicas are offline, because their log directory has failed", broker=broker_id, count=len(lost))
        yield from _lose(context, batch, settings, lost)
        yield from elect_offline(context, batch, settings, {name.topic for name, _ in lost})


def _answers(context: ControllerContext, response: LeaderAndIsrResponse) -> Iterator[tuple[TopicPartition, int]]:
    """Yields the partitions of an answer with their error codes; a topic whose id is unknown has no name."""
    by_name = ((each.topic_name, each) for each in response.partition_errors)
    by_id = ((context.topic_names.get(topic.topic_id, ""), each) for topic in response.topics for each in topic.partition_errors)
    for topic, each in chain(by_name, by_id):
        yield TopicPartition(topic, each.partition_index), each.error_code
