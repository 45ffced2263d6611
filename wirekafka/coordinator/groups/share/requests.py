"""What members of share groups ask, and what they are told, in the broker's own terms.

Rule of this file: data only. The modules of `wirekafka.api` translate from and to the protocol's messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.share.records import ShareMember
from wirekafka.errors import KafkaError

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


@dataclass(slots=True)
class ShareHeartbeat:
    """A member's heartbeat: it joins, stays or leaves, and says what is new since the last one; None is what is not.

    Attributes:
        member_id: chosen by the client.
        member_epoch: `JOIN_EPOCH`, `LEAVE_EPOCH`, or the one that it has.
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


@dataclass(slots=True)
class ShareHeartbeatResult:
    """What a member is told.

    Attributes:
        assignment: what it fetches from; None if that has not changed since it was last told.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class DescribedShareGroup:
    """A share group in a description."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    members: list[ShareMember] = field(default_factory=list)


@dataclass(slots=True)
class ShareOffset:
    """Where a share group is in a partition.

    Attributes:
        start_offset: None if that is not known: the group never came to it.
        lag: how many records are not done with yet; None if that is not known.
        error: why nobody can say; of the rest only the partition counts then.
    """

    partition: int
    start_offset: int | None = None
    leader_epoch: int = 0
    lag: int | None = None
    error: KafkaError | None = None
