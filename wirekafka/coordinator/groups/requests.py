"""What members ask of the coordinator, and what it answers, in the broker's own terms: no versions, no sentinels.

Rule of this file: data only. The modules of `wirekafka.api` translate from and to the protocol's messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wirekafka.coordinator.groups.records import CommittedOffset
from wirekafka.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
"""What a client calls itself before the coordinator has named it."""

NO_GENERATION = -1
"""The generation of a client that is in no group, or of none that it knows."""

Protocols = list[tuple[str, bytes]]
"""The protocols a member supports with its metadata for each, best first (for consumers: assignors and subscriptions)."""


@dataclass(slots=True)
class JoinRequest:
    """A wish to be, or to stay, a member.

    Attributes:
        member_id: the id given before; `UNKNOWN_MEMBER_ID` if none was.
        group_instance_id: the name of a static member (KIP-345); None for a dynamic one.
        is_member_id_required: a dynamic member must come again with the id that it is given (KIP-394).
        can_skip_assignment: a static leader may be told to leave the assignment as it is (KIP-814).
        reason: why, in the client's words.
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
    """A member as the leader sees it when it assigns partitions."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinResult:
    """A membership of one generation, or why there is none.

    Attributes:
        members: all members, for the leader only.
        is_assignment_skipped: the leader is to keep the assignment that stands.
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
        """What the member is told instead, if the group is lost before this may be told."""
        return JoinResult(error, self.member_id)


@dataclass(slots=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings those of all.

    Attributes:
        protocol_type, protocol_name: what the member believes was chosen; None if it does not say.
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
    """A member's assignment, exactly the leader's bytes, or why there is none."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def refused(self, error: ErrorCode) -> SyncResult:
        """What the member is told instead, if the group is lost before this may be told."""
        return SyncResult(error)


@dataclass(slots=True)
class HeartbeatRequest:
    """A member is still there."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None


@dataclass(slots=True)
class LeavingMember:
    """A member that is to be removed: by its id, or by a static member's name with `UNKNOWN_MEMBER_ID`."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class LeaveResult:
    """What became of each `LeavingMember`, in their order; `error` instead if none could be looked at."""

    error: ErrorCode
    members: list[ErrorCode] = field(default_factory=list)


@dataclass(slots=True)
class PartitionCommit:
    """An offset to be committed for a partition that exists.

    Attributes:
        commit_timestamp_ms: when it was committed; None for now.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    commit_timestamp_ms: int | None = None


@dataclass(slots=True)
class CommitRequest:
    """Offsets of one group, from a member of it or from a client that uses the group for its offsets only.

    Attributes:
        generation_id: `NO_GENERATION` with `UNKNOWN_MEMBER_ID` for a client that is no member.
        retention_time_ms: how long the offsets are kept; None for the broker's own rule.
        knows_consumer_protocol: the client knows what KIP-848 may answer (OffsetCommit 9 on).
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
    """A member in a description; its metadata and assignment are those of the chosen protocol, empty while there is none."""

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
