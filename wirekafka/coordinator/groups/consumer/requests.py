"""What members of consumer groups ask, and what they are told, in the broker's own terms.

Rule of this file: data only. The modules of `wirekafka.api` translate from and to the protocol's messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from wirekafka.coordinator.groups.modern.topics import Partitions


@dataclass(slots=True)
class ConsumerHeartbeat:
    """A member's heartbeat: it joins, stays or leaves, and says what is new since the last one; None is what is not.

    Attributes:
        member_id: chosen by the client; empty if it wants one from the broker, as it may in version 0.
        member_epoch: `JOIN_EPOCH`, `LEAVE_EPOCH`, `STATIC_LEAVE_EPOCH`, or the one that it has.
        subscribed_topic_regex: empty if it subscribes by none any more.
        owned: what it has, by topic id.
        is_member_id_required: the client has to choose its id itself (version 1 on).
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Mapping[bytes, Collection[int]] | None = None
    is_member_id_required: bool = True


@dataclass(slots=True)
class ConsumerHeartbeatResult:
    """What a member is told.

    Attributes:
        assignment: what it may read; None if that has not changed since it was last told.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class DescribedConsumer:
    """A member in a description.

    Attributes:
        assignment: what it may be reading, by topic id.
        target: what it is to have.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str
    assignment: Mapping[bytes, Collection[int]]
    target: Mapping[bytes, Collection[int]]
    is_classic: bool


@dataclass(slots=True)
class DescribedConsumerGroup:
    """A consumer group in a description."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: list[DescribedConsumer] = field(default_factory=list)
