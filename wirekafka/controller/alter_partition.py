"""AlterPartition: a leader asks for other in-sync replicas, or says that it has recovered.

How it works: the checks go by what the controller knows. What passes them is written with the version that the controller knows,
so a state that changed meanwhile refuses it.

Source: kafka.controller.KafkaController.tryProcessAlterPartition of Kafka 3.9; KIP-497, KIP-704, KIP-841, KIP-903, KAFKA-14154.
Differs from Apache Kafka:
    The broker epochs of the new in-sync replicas are checked (KIP-903), as Kafka's controllers with KRaft do. So a replica that
    has restarted since it caught up stays out of sync. Kafka's controllers with ZooKeeper ignore these epochs.
    Only the leader may change the in-sync replicas. They must be replicas of the partition, and include the leader; as with
    KRaft.
    The leader may stay in sync while it shuts down, so that it can remove followers that do not catch up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import structlog

from wirekafka.controller.context import ControllerContext, StoredState
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.writes import write_states
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    AlterPartitionTopicResponse,
    BrokerState,
)
from wirekafka.zookeeper.layout.topics import RECOVERED, RECOVERING, PartitionState

log = structlog.get_logger(__name__)

MOST_LOGGED = 10
"""The most partitions that a line of the log names."""

UNKNOWN_BROKER_EPOCH = -1
"""The broker epoch of a replica that has not told its leader; it is not checked (KIP-903)."""
FIRST_VERSION_WITH_TOPIC_IDS = 2
FIRST_VERSION_WITH_INELIGIBLE_REPLICA = 2
FIRST_VERSION_WITH_BROKER_EPOCHS = 3


@dataclass(slots=True)
class _Request:
    """A request in progress.

    Attributes:
        states: what is to be written.
        refused: the errors of the other partitions; None for one that is already as it shall be.
        refused_count: the number of changes that are refused because of what they are, not because another one was faster.
        first_refused: the first of them with their errors, for the log.
    """

    broker_id: int
    version: int
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    refused: dict[TopicPartition, ErrorCode | None] = field(default_factory=dict)
    refused_count: int = 0
    first_refused: dict[str, str] = field(default_factory=dict)


def alter_partition(
    context: ControllerContext, batch: RequestBatch, request: AlterPartitionRequest, version: int
) -> Script[AlterPartitionResponse]:
    """Answers a leader; the other brokers learn the new in-sync replicas by UpdateMetadata.

    Args:
        version: of the request: topics have names before version 2, and replicas broker epochs since version 3.

    Returns:
        an answer, whose error is STALE_BROKER_EPOCH if the leader's registration is not the present one. The error of a partition
        is NOT_CONTROLLER if the leader's epochs are ahead of this controller; FENCED_LEADER_EPOCH; INVALID_UPDATE_VERSION;
        INVALID_REQUEST; INELIGIBLE_REPLICA, before version 2 OPERATION_NOT_ATTEMPTED; UNKNOWN_TOPIC_ID;
        UNKNOWN_TOPIC_OR_PARTITION.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown.
    """
    live = context.live.get(request.broker_id)
    if live is None or live.epoch != request.broker_epoch:
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    asked = _Request(request.broker_id, version)
    for topic in request.topics:
        for partition in topic.partitions:
            _consider(context, asked, _name(context, topic, partition, version), partition)
            yield PAUSE
    if asked.refused_count:
        log.info("The controller refuses new in-sync replicas", count=asked.refused_count, first=asked.first_refused)
    failures = yield from write_states(context, asked.states)
    asked.refused.update(dict.fromkeys(failures, ErrorCode.INVALID_UPDATE_VERSION))
    told = [*asked.states, *asked.refused]
    for start in range(0, len(told), SLICE):
        batch.update_metadata(context.live, told[start : start + SLICE])
        yield PAUSE
    response = AlterPartitionResponse(topics=[])
    for topic in request.topics:
        response.topics.append((yield from _answer_topic(context, asked, topic)))
    return response


def _name(
    context: ControllerContext, topic: AlterPartitionTopic, partition: AlterPartitionPartition, version: int
) -> TopicPartition | None:
    """Returns the partition; None if its topic id is unknown."""
    name = context.topic_names.get(topic.topic_id) if version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.topic_name
    return None if name is None else TopicPartition(name, partition.partition_index)


def _consider(
    context: ControllerContext, asked: _Request, name: TopicPartition | None, partition: AlterPartitionPartition
) -> None:
    if name is None:
        return
    stored = context.states.get(name)
    if stored is None:
        asked.refused[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return
    replicas = _new_isr(partition, asked.version)
    wanted = replace(
        stored.state,
        isr=tuple(each.broker_id for each in replicas),
        leader_recovery_state=partition.leader_recovery_state,
    )
    refusal = _fault_of_epochs(stored, partition)
    if refusal is None and stored.state.leader != asked.broker_id:
        refusal = ErrorCode.INVALID_REQUEST
    if refusal is None and wanted == stored.state:
        asked.refused[name] = None
        return
    refusal = refusal or _fault_of_version(stored, partition) or _fault_of_state(context, name, stored.state, wanted)
    if refusal is None and _ineligible(context, name, stored.state.leader, replicas):
        has_code = asked.version >= FIRST_VERSION_WITH_INELIGIBLE_REPLICA
        refusal = ErrorCode.INELIGIBLE_REPLICA if has_code else ErrorCode.OPERATION_NOT_ATTEMPTED
    if refusal is None:
        asked.states[name] = wanted
    else:
        asked.refused[name] = refusal
        if len(asked.first_refused) < MOST_LOGGED:
            asked.first_refused[str(name)] = f"{refusal.name} for {[*islice(wanted.isr, MOST_LOGGED)]}"
        asked.refused_count += 1


def _new_isr(partition: AlterPartitionPartition, version: int) -> Sequence[BrokerState]:
    if version >= FIRST_VERSION_WITH_BROKER_EPOCHS:
        return partition.new_isr_with_epochs
    return [BrokerState(broker_id=broker_id, broker_epoch=UNKNOWN_BROKER_EPOCH) for broker_id in partition.new_isr]


def _fault_of_epochs(stored: StoredState, partition: AlterPartitionPartition) -> ErrorCode | None:
    """A leader that is ahead has a newer controller (KAFKA-14154)."""
    if partition.partition_epoch > stored.version or partition.leader_epoch > stored.state.leader_epoch:
        return ErrorCode.NOT_CONTROLLER
    return ErrorCode.FENCED_LEADER_EPOCH if partition.leader_epoch < stored.state.leader_epoch else None


def _fault_of_version(stored: StoredState, partition: AlterPartitionPartition) -> ErrorCode | None:
    return ErrorCode.INVALID_UPDATE_VERSION if partition.partition_epoch < stored.version else None


def _fault_of_state(
    context: ControllerContext, name: TopicPartition, state: PartitionState, wanted: PartitionState
) -> ErrorCode | None:
    is_possible = state.leader in wanted.isr and set(wanted.isr) <= {*context.replicas(name)}
    is_recovering_alone = wanted.leader_recovery_state == RECOVERED or len(wanted.isr) == 1
    is_falling_back = state.leader_recovery_state == RECOVERED and wanted.leader_recovery_state == RECOVERING
    if not is_possible or not is_recovering_alone or is_falling_back or len(set(wanted.isr)) < len(wanted.isr):
        return ErrorCode.INVALID_REQUEST
    return None


def _ineligible(context: ControllerContext, name: TopicPartition, leader: int, isr: Sequence[BrokerState]) -> list[int]:
    """Returns the replicas that cannot be in sync: not live, shutting down, without their directory, or registered anew."""
    return [each.broker_id for each in isr if each.broker_id != leader and not _is_eligible(context, name, each)]


def _is_eligible(context: ControllerContext, name: TopicPartition, replica: BrokerState) -> bool:
    if not context.is_online(replica.broker_id, name):
        return False
    return replica.broker_epoch in (UNKNOWN_BROKER_EPOCH, context.live[replica.broker_id].epoch)


def _answer_topic(context: ControllerContext, asked: _Request, topic: AlterPartitionTopic) -> Script[AlterPartitionTopicResponse]:
    partitions = yield from in_slices(_answer(context, asked, topic, partition) for partition in topic.partitions)
    yield PAUSE
    return AlterPartitionTopicResponse(topic_name=topic.topic_name, topic_id=topic.topic_id, partitions=partitions)


def _answer(
    context: ControllerContext, asked: _Request, topic: AlterPartitionTopic, partition: AlterPartitionPartition
) -> AlterPartitionPartitionResponse:
    name = _name(context, topic, partition, asked.version)
    code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else asked.refused.get(name)
    if name is None or code is not None:
        return AlterPartitionPartitionResponse(partition_index=partition.partition_index, error_code=code or ErrorCode.NONE)
    stored = context.states[name]
    return AlterPartitionPartitionResponse(
        partition_index=partition.partition_index,
        leader_id=stored.state.leader,
        leader_epoch=stored.state.leader_epoch,
        isr=[*stored.state.isr],
        leader_recovery_state=stored.state.leader_recovery_state,
        partition_epoch=stored.version,
    )
