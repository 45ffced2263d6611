"""The timers of consumer groups: their keys and their events.

Source: GroupMetadataManager (groupSessionTimeoutKey, groupRebalanceTimeoutKey, consumerGroupJoinKey, consumerGroupSyncKey).
"""

from __future__ import annotations

from dataclasses import dataclass

from wirekafka.coordinator.effects import Effects, TimerKey


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A member has sent no heartbeat for its session timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RevocationExpired:
    """A member has not revoked its partitions within its rebalance timeout."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True)
class ClassicJoinExpired:
    """A classic member that was told to join again has not joined within its rebalance timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicSyncExpired:
    """A classic member that has joined has not sent SyncGroup within its rebalance timeout."""

    group_id: str
    member_id: str


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a member's session timeout."""
    return TimerKey("member-session", group_id, member_id)


def revocation_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a member's rebalance timeout."""
    return TimerKey("member-revocation", group_id, member_id)


def join_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a classic member's wait for its JoinGroup."""
    return TimerKey("member-join", group_id, member_id)


def sync_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a classic member's wait for its SyncGroup."""
    return TimerKey("member-sync", group_id, member_id)


def renew_session(group_id: str, member_id: str, timeout_ms: int, effects: Effects) -> None:
    """Starts the session of a member again."""
    effects.set_timer(session_timer(group_id, member_id), timeout_ms, MemberExpired(group_id, member_id))


def cancel_all(group_id: str, member_id: str, effects: Effects) -> None:
    """Cancels all timers of a member that was removed."""
    for timer in (session_timer, revocation_timer, join_timer, sync_timer):
        effects.cancel_timer(timer(group_id, member_id))
