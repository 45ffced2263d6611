"""The runtime of consumer groups: executes their steps with the runtime that all groups share.

Source: GroupCoordinatorService (consumerGroupHeartbeat, consumerGroupDescribe).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.groups.consumer.machine import ConsumerMachine
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult, DescribedConsumerGroup
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
from wirekafka.coordinator.groups.runtime import GroupRuntime
from wirekafka.coordinator.groups.types import CONSUMER
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import GROUP_VERSION
from wirekafka.replication.replica_manager import HostedTopics


def new_member_id() -> str:
    """Returns a random member id in Apache Kafka's form: a UUID in 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


class ConsumerGroupRuntime:
    """The consumer groups of one broker.

    Args:
        groups: the groups of all types. The constructor registers consumer groups there, so it must run before the groups are
            loaded.
        new_id: returns a new random member id.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        groups: GroupRuntime,
        topics: HostedTopics,
        image: LiveTopics,
        new_id: Callable[[], str] = new_member_id,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._features = topics.features
        self._image = image
        self._is_allowed = CONSUMER in config.items("group.coordinator.rebalance.protocols")

        resolve, make_times = topics.group_configs.resolve, GroupTimes.of

        def times_of(group_id: str) -> GroupTimes:
            return resolve(group_id).derive(make_times)

        settings = ConsumerSettings.of(config)
        self._machine = ConsumerMachine(groups.coordinator, settings, times_of, image, image.hashes, new_id)

    def heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Handles ConsumerGroupHeartbeat; see `Heartbeats.heartbeat`.

        Raises:
            KafkaError: as `Heartbeats.heartbeat`; UNSUPPORTED_VERSION if the broker's settings exclude consumer groups or the
                feature group.version is off; COORDINATOR_LOAD_IN_PROGRESS; the error of an append, in which case the member is
                unchanged.
        """
        self._check_served()
        self._groups.enter(request.group_id)
        self._image.check_known()
        result, effects = self._machine.heartbeats.heartbeat(request, self._clock.now_ms())
        error = self._groups.run(request.group_id, effects)
        if error is not None:
            raise KafkaError(append_error(error))
        return result

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Returns a description of a group and its members.

        Raises:
            KafkaError: UNSUPPORTED_VERSION, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND.
        """
        self._check_served()
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        self._groups.enter(group_id)
        return self._machine.groups.describe(group_id)

    def _check_served(self) -> None:
        if not self._is_allowed:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        self._features.require(GROUP_VERSION)
