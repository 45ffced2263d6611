"""The requests of group members and the coordinator's responses, without protocol versions and without sentinels.

Rule of this file: data only. The modules of `wirekafka.api` translate from and to the protocol's messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wirekafka.coordinator.groups.records import CommittedOffset
from wirekafka.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
"""The member id that a client sends before the coordinator has given it one."""

NO_GENERATION = -1
"""The generation id that a client sends if it is not a member, or does not know its generation."""

Protocols = list[tuple[str, bytes]]
"""The protocols that a member supports, in order of preference, each with metadata (consumers: assignors, subscriptions)."""


@dataclass(slots=True)
class JoinRequest:
    """A JoinGroup request of a new or an existing member.

    Attributes:
        member_id: The id that the coordinator gave the member; `UNKNOWN_MEMBER_ID` for a new member.
        group_instance_id: The name of a static member (KIP-345); None for a dynamic member.
        is_member_id_required: Whether a new dynamic member must send JoinGroup again with the id that it is given (KIP-394).
        can_skip_assignment: Whether the response may tell a static leader to keep the current assignment (KIP-814).
        reason: The reason that the client gives for the request.
    """

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    group_instance_id: str | None = None
    is_member_id_required: bool = True
    can_skip_assignment: bool = True
    reason: str | None = None


@dataclass(slots=True)
class JoinedMember:
    """A member in the response to the leader, which assigns the partitions."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinResult:
    """The response to a JoinGroup: the membership in one generation, or an error.

    Attributes:
        members: All members of the group; empty unless the response is for the leader.
        is_assignment_skipped: Whether the leader must keep the current assignment.
    """

    error: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = UNKNOWN_MEMBER_ID
    is_assignment_skipped: bool = False
    members: list[JoinedMember] = field(default_factory=list)

    def refused(self, error: ErrorCode) -> JoinResult:
        """Returns the response for the case that the broker loses the group before the commit."""
        return JoinResult(error, self.member_id)


@dataclass(slots=True)
class SyncRequest:
    """A SyncGroup request. It asks for the member's assignment; the leader's request holds the assignments of all members.

    Attributes:
        protocol_type, protocol_name: The protocol that the member expects the group to have; None if the request has none.
    """

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class SyncResult:
    """The response to a SyncGroup: the member's assignment, in the bytes that the leader sent, or an error."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def refused(self, error: ErrorCode) -> SyncResult:
        """Returns the response for the case that the broker loses the group before the commit."""
        return SyncResult(error)


@dataclass(slots=True)
class HeartbeatRequest:
    """A Heartbeat request of a member."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None


@dataclass(slots=True)
class LeavingMember:
    """A member to remove. A static member may be named by its group instance id with `UNKNOWN_MEMBER_ID`."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class LeaveResult:
    """The result for each `LeavingMember`, in the order of the request; `error` if the whole request failed."""

    error: ErrorCode
    members: list[ErrorCode] = field(default_factory=list)


@dataclass(slots=True)
class PartitionCommit:
    """An offset to commit for an existing partition.

    Attributes:
        commit_timestamp_ms: The time of the commit; None for the current time.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    commit_timestamp_ms: int | None = None


@dataclass(slots=True)
class CommitRequest:
    """A commit of offsets of one group. The client is a member, or uses the group only for its offsets.

    Attributes:
        generation_id: `NO_GENERATION`, with `UNKNOWN_MEMBER_ID`, if the client is not a member.
        retention_time_ms: How long the offsets are kept; None for the retention of the broker.
        knows_consumer_protocol: Whether the client knows the error codes of KIP-848 (OffsetCommit version 9 and later).
    """

    group_id: str
    commits: list[PartitionCommit]
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    group_instance_id: str | None = None
    retention_time_ms: int | None = None
    knows_consumer_protocol: bool = False


@dataclass(slots=True)
class ListedGroup:
    """A group in a listing."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(slots=True)
class DescribedMember:
    """A member in a description. Metadata and assignment are those of the chosen protocol; both are empty without one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class DescribedGroup:
    """A group in a description."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: list[DescribedMember]


GroupOffsets = dict[str, dict[int, CommittedOffset]]
"""The offsets of one group, by topic and partition."""
