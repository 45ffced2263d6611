"""What groups of every type have in common: one name space, the offsets, and a place in listings.

A group id names one group, of whatever type: classic, consumer (KIP-848), share (KIP-932). All of them are in the one dict
`groups` of `GroupCoordinator`. What asks for a group of its own type looks there, and answers as Kafka does if another type
has the name. The rest of the coordinator (offsets, listing, deletion, expiry, loading) knows groups as `Group` only, and
what else a type of groups brings with it as `GroupType`.

Rule of this file: no state and no decisions.

Source: Group, GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from wirekafka.coordinator.effects import Effects
    from wirekafka.coordinator.groups.records import CommittedOffset, CoordinatorRecord, Decoder
    from wirekafka.coordinator.groups.requests import (
        CommitRequest,
        HeartbeatRequest,
        JoinRequest,
        JoinResult,
        LeaveResult,
        LeavingMember,
        SyncRequest,
        SyncResult,
    )
    from wirekafka.errors import ErrorCode
    from wirekafka.pending import Pending

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"

DEAD = "Dead"
"""The state of a group that does not exist."""


class Group(Protocol):
    """A group of any type.

    Attributes:
        partition: the partition of __consumer_offsets that holds it.
    """

    group_id: str
    partition: int

    @property
    def group_type(self) -> str:
        """`CLASSIC`, `CONSUMER` or `SHARE`."""

    @property
    def state_name(self) -> str:
        """Its state, by the name that Kafka gives it in listings."""

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type that listings show, for instance `consumer`; empty if it has none."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Raises unless the sender of the request may commit offsets.

        Raises:
            KafkaError: what the client is told.

        Source: Group.validateOffsetCommit.
        """

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises unless this member may read offsets; the epoch is -1 for a client that is no member.

        Raises:
            KafkaError: what the client is told; GROUP_ID_NOT_FOUND makes the group one without offsets.

        Source: Group.validateOffsetFetch.
        """

    def check_offset_delete(self) -> None:
        """Raises unless offsets of topics to which the group is not subscribed may be deleted.

        Raises:
            KafkaError: what the client is told.

        Source: Group.validateOffsetDelete.
        """

    def check_delete(self) -> None:
        """Raises unless the group may be deleted.

        Raises:
            KafkaError: NON_EMPTY_GROUP.

        Source: Group.validateDeleteGroup.
        """

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may be reading the topic."""

    def tombstones(self) -> list[CoordinatorRecord]:
        """What makes the log forget the group, but for its offsets."""

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """When the retention of an offset began; None if it does not expire as things are.

        Source: Group.offsetExpirationCondition.
        """


class GroupType(Protocol):
    """What a type of groups besides the classic one adds to the coordinator."""

    @property
    def group_type(self) -> str:
        """Of its groups."""

    @property
    def decoders(self) -> Mapping[int, Decoder]:
        """How its records are read, by the version of their key."""

    @property
    def replayers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """What takes over a record of each class."""

    @property
    def timers(self) -> Mapping[type[Any], Callable[[Any, int, Effects], None]]:
        """What a timer of each class of events does; it is given the event, the time and the effects to fill in."""

    def on_loaded(self, group: Any, now_ms: int, effects: Effects) -> None:
        """The log has been replayed; gives the members of one group, of this type, their timers."""

    def on_unload(self, group: Any, effects: Effects) -> None:
        """The log is gone, and the group with it: answers who waits NOT_COORDINATOR, cancels its timers."""


class ClassicMembers(Protocol):
    """How groups of another type deal with members that speak the classic protocol (KIP-848's upgrade, member by member)."""

    def join(self, group: Any, request: JoinRequest, pending: Pending[JoinResult], now_ms: int) -> Effects:
        """A JoinGroup for a group of this type that has members."""

    def sync(self, group: Any, request: SyncRequest, pending: Pending[SyncResult], now_ms: int) -> Effects:
        """A SyncGroup for a group of this type."""

    def heartbeat(self, group: Any, request: HeartbeatRequest, now_ms: int) -> tuple[ErrorCode, Effects]:
        """A Heartbeat for a group of this type; it sets timers, and nothing else."""

    def leave(self, group: Any, leaving: list[LeavingMember], now_ms: int) -> tuple[LeaveResult, Effects]:
        """A LeaveGroup for a group of this type."""
