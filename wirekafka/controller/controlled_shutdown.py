"""Controlled shutdown: a broker that is about to stop gives its leaderships to other replicas, and leaves the in-sync replicas.

Source: kafka.controller.KafkaController.doControlledShutdown of Kafka 3.9; KIP-49, KIP-380.
"""

from __future__ import annotations

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect
from wirekafka.controller.replica_states import take_offline
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script, in_slices
from wirekafka.controller.settings import ControllerSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

log = structlog.get_logger(__name__)

UNKNOWN_BROKER_EPOCH = -1
"""The broker epoch of a request before version 2."""


def shut_down(
    context: ControllerContext, batch: RequestBatch, settings: ControllerSettings, request: ControlledShutdownRequest
) -> Script[ControlledShutdownResponse]:
    """Moves the leaderships of a broker that is about to stop, and stops its other replicas.

    Returns:
        the partitions that the broker still leads, because they have no other in-sync replica; the broker may ask again.
        Partitions with one replica are not among them, because they would stay for ever.

    Raises:
        KafkaError: BROKER_NOT_AVAILABLE, STALE_BROKER_EPOCH.
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    broker_id = request.broker_id
    _check(context, request)
    log.info("A broker shuts down", broker=broker_id)
    context.shutting_down.add(broker_id)
    hosted = yield from in_slices(context.all_partitions(), lambda name: _is_concerned(context, name, broker_id))
    led = [name for name in hosted if context.states[name].state.leader == broker_id]
    followed = [name for name in hosted if context.states[name].state.leader != broker_id]
    yield from elect(context, batch, settings, led, Election.CONTROLLED_SHUTDOWN)
    yield from take_offline(context, batch, [(name, broker_id) for name in followed])
    remaining = [name for name in hosted if name in context.states and context.states[name].state.leader == broker_id]
    return ControlledShutdownResponse(
        remaining_partitions=[RemainingPartition(topic_name=name.topic, partition_index=name.partition) for name in remaining]
    )


def _check(context: ControllerContext, request: ControlledShutdownRequest) -> None:
    live = context.live.get(request.broker_id)
    if live is None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {request.broker_id} is not registered")
    if request.broker_epoch not in (UNKNOWN_BROKER_EPOCH, live.epoch):
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {request.broker_id} has epoch {live.epoch}")


def _is_concerned(context: ControllerContext, name: TopicPartition, broker_id: int) -> bool:
    replicas = context.replicas(name)
    return broker_id in replicas and len(replicas) > 1 and name in context.states and not context.is_deleting(name.topic)
