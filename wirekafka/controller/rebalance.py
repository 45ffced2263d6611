"""Elects preferred leaders from time to time (`auto.leader.rebalance.enable`).

How it works: the preferred leader of a partition is its first replica. If a broker does not lead more than
`leader.imbalance.per.broker.percentage` of the partitions that prefer it, the controller elects it for those that it can lead.

Source: kafka.controller.KafkaController (checkAndTriggerAutoLeaderRebalance, canPreferredReplicaBeLeader) of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

FIRST_DELAY_S = 5
"""When a new controller looks at the balance first. Source: KafkaController.onControllerFailover."""


def imbalanced(preferred_counts: Mapping[int, int], elsewhere_counts: Mapping[int, int], percent: int) -> set[int]:
    """Returns the brokers of which too many preferred partitions have another leader.

    Args:
        preferred_counts: of how many partitions a broker is the preferred leader.
        elsewhere_counts: how many of these have another leader.
        percent: the share that is allowed.
    """
    return {
        broker_id for broker_id, count in preferred_counts.items() if elsewhere_counts.get(broker_id, 0) * 100 > percent * count
    }


def rebalance(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Elects the preferred leaders of brokers that lead too few of their partitions; nothing if it is disabled."""
    settings = batch.settings.auto_rebalance
    if settings is None:
        return
    preferred_counts: dict[int, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for count, name in enumerate(list(context.all_partitions()), 1):
        _count(context, name, preferred_counts, elsewhere)
        if count % SLICE == 0:
            yield PAUSE
    elsewhere_counts = {broker_id: len(names) for broker_id, names in elsewhere.items()}
    for broker_id in sorted(imbalanced(preferred_counts, elsewhere_counts, settings.imbalance_percent)):
        names = [name for name in elsewhere[broker_id] if _can_lead(context, name, broker_id)]
        if names:
            log.info("Moving leaders back to their preferred replica", broker=broker_id, partitions=len(names))
            yield from elect(context, batch, batch.settings, names, Election.PREFERRED)


def _count(
    context: ControllerContext,
    name: TopicPartition,
    preferred_counts: dict[int, int],
    elsewhere: dict[int, list[TopicPartition]],
) -> None:
    replicas, stored = context.replicas(name), context.states.get(name)
    if not replicas or context.is_deleting(name.topic):
        return
    preferred_counts[replicas[0]] = preferred_counts.get(replicas[0], 0) + 1
    if stored is not None and stored.state.leader != replicas[0]:
        elsewhere.setdefault(replicas[0], []).append(name)


def _can_lead(context: ControllerContext, name: TopicPartition, broker_id: int) -> bool:
    return context.is_online(broker_id, name) and broker_id in context.states[name].state.isr
