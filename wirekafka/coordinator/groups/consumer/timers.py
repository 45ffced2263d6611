"""The timers of consumer groups: what they are for, and what happens when one is due.

Source: GroupMetadataManager (groupSessionTimeoutKey, groupRebalanceTimeoutKey, consumerGroupJoinKey, consumerGroupSyncKey).
"""

from __future__ import annotations

from dataclasses import dataclass

from wirekafka.coordinator.effects import Effects, TimerKey


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A member has not been heard of for its session timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RevocationExpired:
    """A member has not given its partitions up within its rebalance timeout."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True)
class ClassicJoinExpired:
    """A classic member was told to join again, and has not within its rebalance timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicSyncExpired:
    """A classic member has joined, and has not asked for its assignment within its rebalance timeout."""

    group_id: str
    member_id: str


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a member's session timeout."""
    return TimerKey("member-session", group_id, member_id)


def revocation_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a member's rebalance timeout."""
    return TimerKey("member-revocation", group_id, member_id)


def join_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a classic member's wait for its JoinGroup."""
    return TimerKey("member-join", group_id, member_id)


def sync_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a classic member's wait for its SyncGroup."""
    return TimerKey("member-sync", group_id, member_id)


def renew_session(group_id: str, member_id: str, timeout_ms: int, effects: Effects) -> None:
    """The member was heard of: its session starts again."""
    effects.set_timer(session_timer(group_id, member_id), timeout_ms, MemberExpired(group_id, member_id))


def cancel_all(group_id: str, member_id: str, effects: Effects) -> None:
    """The member is no more."""
    for timer in (session_timer, revocation_timer, join_timer, sync_timer):
        effects.cancel_timer(timer(group_id, member_id))
