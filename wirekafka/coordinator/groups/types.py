"""The interfaces of groups of all types: group ids, offsets and listings.

A group id names one group of any type: classic, consumer (KIP-848) or share (KIP-932). The dict `GroupCoordinator.groups` holds
the groups of all types. A request for a group of another type gets the same error as in Kafka. The other parts of the coordinator
(offsets, listing, deletion, expiration, loading) use only the interfaces `Group` and `GroupType`.

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
        partition: The partition of __consumer_offsets that holds the group.
    """

    group_id: str
    partition: int

    @property
    def group_type(self) -> str:
        """`CLASSIC`, `CONSUMER` or `SHARE`."""

    @property
    def state_name(self) -> str:
        """The name of the group's state in listings, as in Kafka."""

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type in listings, for instance `consumer`; empty if the group has none."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Raises unless the sender of the request may commit offsets.

        Raises:
            KafkaError: The error of the response.

        Source: Group.validateOffsetCommit.
        """

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises unless the member may read offsets; the epoch is -1 for a client that is not a member.

        Raises:
            KafkaError: The error of the response; with GROUP_ID_NOT_FOUND, the response has no offsets and no error.

        Source: Group.validateOffsetFetch.
        """

    def check_offset_delete(self) -> None:
        """Raises unless offsets of topics to which the group is not subscribed may be deleted.

        Raises:
            KafkaError: The error of the response.

        Source: Group.validateOffsetDelete.
        """

    def check_delete(self) -> None:
        """Raises unless the group may be deleted.

        Raises:
            KafkaError: NON_EMPTY_GROUP.

        Source: Group.validateDeleteGroup.
        """

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume the topic."""

    def tombstones(self) -> list[CoordinatorRecord]:
        """Returns the tombstones that delete the group from the log, without those of its offsets."""

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """Returns the wall-clock time at which the retention of an offset began; None if it cannot expire at present.

        Source: Group.offsetExpirationCondition.
        """


class GroupType(Protocol):
    """The interface of a group type other than the classic one."""

    @property
    def group_type(self) -> str:
        """`CONSUMER` or `SHARE`."""

    @property
    def decoders(self) -> Mapping[int, Decoder]:
        """The decoders of its records, by the version of the key."""

    @property
    def replayers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """The functions that apply a record, by the class of the record."""

    @property
    def timers(self) -> Mapping[type[Any], Callable[[Any, int, Effects], None]]:
        """The functions that handle a timer, by the class of its event. Arguments: the event, the time, the effects to extend."""

    def on_loaded(self, group: Any, now_ms: int, effects: Effects) -> None:
        """Is called after the log was replayed; sets the timers of the members of one group of this type."""

    def on_unload(self, group: Any, effects: Effects) -> None:
        """Is called when the broker loses the log: completes pending requests with NOT_COORDINATOR and cancels the timers."""


class ClassicMembers(Protocol):
    """The requests of classic members to groups of another type, during the upgrade of KIP-848, member by member."""

    def join(self, group: Any, request: JoinRequest, pending: Pending[JoinResult], now_ms: int) -> Effects:
        """Handles a JoinGroup for a group of this type that has members."""

    def sync(self, group: Any, request: SyncRequest, pending: Pending[SyncResult], now_ms: int) -> Effects:
        """Handles a SyncGroup for a group of this type."""

    def heartbeat(self, group: Any, request: HeartbeatRequest, now_ms: int) -> tuple[ErrorCode, Effects]:
        """Handles a Heartbeat for a group of this type; its effects are only timers."""

    def leave(self, group: Any, leaving: list[LeavingMember], now_ms: int) -> tuple[LeaveResult, Effects]:
        """Handles a LeaveGroup for a group of this type."""
