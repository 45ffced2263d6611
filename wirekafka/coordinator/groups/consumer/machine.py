"""The consumer protocol as a whole: its groups, its requests, and its timers.

How it works: a member that misses a deadline is removed. If the append of its tombstones fails, the timer is set again for
`RETRY_MS`, and then checks whether the member still has to be removed.

Source: GroupMetadataManager (consumerGroupFenceMemberOperation, scheduleConsumerGroupRebalanceTimeout), CoordinatorRuntime (its
timer, which tries again after 500 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.classic_members import ConsumerGroupsClassicMembers
from wirekafka.coordinator.groups.consumer.groups import ConsumerGroups
from wirekafka.coordinator.groups.consumer.heartbeats import Heartbeats
from wirekafka.coordinator.groups.consumer.member import ConsumerMember
from wirekafka.coordinator.groups.consumer.migration import Migration
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.groups.consumer.timers import (
    ClassicJoinExpired,
    ClassicSyncExpired,
    MemberExpired,
    RevocationExpired,
    join_timer,
    revocation_timer,
    session_timer,
    sync_timer,
)
from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicImage
from wirekafka.coordinator.groups.types import CONSUMER
from wirekafka.errors import ErrorCode

log = structlog.get_logger(__name__)

RETRY_MS = 500
"""The time between a failed append and the next try to remove the member."""

Expired = MemberExpired | RevocationExpired | ClassicJoinExpired | ClassicSyncExpired

_TIMERS = {
    MemberExpired: session_timer,
    RevocationExpired: revocation_timer,
    ClassicJoinExpired: join_timer,
    ClassicSyncExpired: sync_timer,
}
_REASONS = {
    MemberExpired: "its session has expired",
    RevocationExpired: "it has not revoked its partitions within its rebalance timeout",
    ClassicJoinExpired: "it has not joined again within its rebalance timeout",
    ClassicSyncExpired: "it has not sent SyncGroup within its rebalance timeout",
}


class ConsumerMachine:
    """The consumer groups of a coordinator.

    Attributes:
        groups: the groups themselves.
        heartbeats: handles ConsumerGroupHeartbeat.
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
        self.groups.timers.update(dict.fromkeys(_TIMERS, self._on_expired))
        coordinator.add_kind(self.groups)
        coordinator.membership.others[CONSUMER] = ConsumerGroupsClassicMembers(self.groups, self._migration, new_id)

    def _on_expired(self, event: Expired, now_ms: int, effects: Effects) -> None:
        group = self.groups.find(event.group_id)
        member = None if group is None else group.members.get(event.member_id)
        if group is None or member is None or not _is_due(event, member):
            return
        log.info("Member is removed", group=event.group_id, member=event.member_id, reason=_REASONS[type(event)])
        self._migration.remove_members(group, [member], now_ms, effects)
        remove = effects.then
        assert remove is not None, "the removal of a member writes records"

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = remove(error, now_ms)
            if error is not None:
                after.set_timer_if_absent(_TIMERS[type(event)](event.group_id, event.member_id), RETRY_MS, event)
            return after

        effects.then = decided


def _is_due(event: Expired, member: ConsumerMember) -> bool:
    """Whether the member still has to be removed."""
    match event:
        case MemberExpired():
            return True
        case RevocationExpired():
            return member.member_epoch == event.member_epoch
        case ClassicJoinExpired() | ClassicSyncExpired():
            return member.is_classic
        case _:
            assert_never(event)
