"""The edge of the consumer groups: their steps carried out by the runtime that all groups share.

Source: GroupCoordinatorService (consumerGroupHeartbeat, consumerGroupDescribe).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.consumer.machine import ConsumerMachine
from wirekafka.coordinator.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult, DescribedConsumerGroup
from wirekafka.coordinator.consumer.settings import ConsumerSettings
from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.modern.live_topics import LiveTopics
from wirekafka.coordinator.runtime import GroupRuntime
from wirekafka.errors import KafkaError


def new_member_id() -> str:
    """A random id as Apache Kafka gives one to a member: a UUID in 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


class ConsumerGroupRuntime:
    """The consumer groups of one broker.

    Args:
        groups: the groups of all types; this makes them know consumer groups, and has to before they are loaded.
        new_id: a random id of a member, different each time.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        groups: GroupRuntime,
        topics: LiveTopics,
        new_id: Callable[[], str] = new_member_id,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._machine = ConsumerMachine(groups.coordinator, ConsumerSettings.of(config), topics, topics.hashes, new_id)

    def heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """ConsumerGroupHeartbeat: see `Heartbeats.heartbeat`.

        Raises:
            KafkaError: as that; or what an append ended with: the member is where it was then.
        """
        result, effects = self._machine.heartbeats.heartbeat(request, self._clock.now_ms())
        error = self._groups.run(request.group_id, effects)
        if error is not None:
            raise KafkaError(append_error(error))
        return result

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """A group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        return self._machine.groups.describe(group_id)
