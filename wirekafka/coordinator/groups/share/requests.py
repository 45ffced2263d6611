"""The requests of share group members and the responses to them, independent of protocol versions.

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
    """A heartbeat: the member joins, stays or leaves. A field is None if it has not changed since the last heartbeat.

    Attributes:
        member_id: chosen by the client.
        member_epoch: `JOIN_EPOCH`, `LEAVE_EPOCH`, or the epoch of the member.
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
    """The response to a heartbeat.

    Attributes:
        assignment: the partitions from which the member fetches; None if they have not changed since the last response.
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
    """The position of a share group in a partition.

    Attributes:
        start_offset: None if the group has not fetched from the partition.
        lag: the number of records that are not acknowledged yet; None if unknown.
        error: why the position is not known; if set, only `partition` is valid beside it.
    """

    partition: int
    start_offset: int | None = None
    leader_epoch: int = 0
    lag: int | None = None
    error: KafkaError | None = None
