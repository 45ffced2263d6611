"""The consumer protocol as a whole: its groups, what members ask of them, what happens when a timer is due.

Source: GroupMetadataManager (consumerGroupFenceMemberOperation, scheduleConsumerGroupRebalanceTimeout).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from wirekafka.coordinator.consumer.classic_members import ConsumerGroupsClassicMembers
from wirekafka.coordinator.consumer.groups import ConsumerGroups
from wirekafka.coordinator.consumer.heartbeats import Heartbeats
from wirekafka.coordinator.consumer.migration import Migration
from wirekafka.coordinator.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.consumer.timers import ClassicJoinExpired, ClassicSyncExpired, MemberExpired, RevocationExpired
from wirekafka.coordinator.coordinator import GroupCoordinator
from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.group_types import CONSUMER
from wirekafka.coordinator.modern.topics import MetadataHashes, TopicImage

log = structlog.get_logger(__name__)

_REASONS = {
    MemberExpired: "its session has expired",
    ClassicJoinExpired: "it has not joined again within its rebalance timeout",
    ClassicSyncExpired: "it has not asked for its assignment within its rebalance timeout",
}


class ConsumerMachine:
    """The consumer groups of a coordinator.

    Attributes:
        groups: the groups themselves.
        heartbeats: ConsumerGroupHeartbeat.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        settings: ConsumerSettings,
        times_of: Callable[[str], GroupTimes],
        image: TopicImage,
        hashes: MetadataHashes,
        new_id: Callable[[], str],
    ) -> None:
        table = coordinator.groups
        self.groups = ConsumerGroups(table, settings, times_of, image, hashes, coordinator.partition_of, coordinator.forget)
        self._migration = Migration(table, self.groups, coordinator.rebalancer)
        self.heartbeats = Heartbeats(self.groups, self._migration, new_id)
        self.groups.timers.update(
            {
                MemberExpired: self._fence,
                ClassicJoinExpired: self._fence,
                ClassicSyncExpired: self._fence,
                RevocationExpired: self._on_revocation_expired,
            }
        )
        coordinator.add_kind(self.groups)
        coordinator.membership.others[CONSUMER] = ConsumerGroupsClassicMembers(self.groups, self._migration, new_id)

    def _fence(self, event: MemberExpired | ClassicJoinExpired | ClassicSyncExpired, now_ms: int, out: Effects) -> None:
        """A member that has not done in time what it had to is removed."""
        group = self.groups.find(event.group_id)
        member = None if group is None else group.members.get(event.member_id)
        if group is not None and member is not None:
            log.info("Member is removed", group=event.group_id, member=event.member_id, reason=_REASONS[type(event)])
            self._migration.remove_members(group, [member], now_ms, out)

    def _on_revocation_expired(self, event: RevocationExpired, now_ms: int, out: Effects) -> None:
        group = self.groups.find(event.group_id)
        member = None if group is None else group.members.get(event.member_id)
        if group is not None and member is not None and member.member_epoch == event.member_epoch:
            reason = "it has not given its partitions up within its rebalance timeout"
            log.info("Member is removed", group=event.group_id, member=event.member_id, reason=reason)
            self._migration.remove_members(group, [member], now_ms, out)
