"""The requests of consumer group members and the responses to them, independent of protocol versions.

Rule of this file: data only. The modules of `wirekafka.api` translate from and to the protocol's messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from wirekafka.coordinator.groups.modern.topics import Partitions


@dataclass(slots=True)
class ConsumerHeartbeat:
    """A heartbeat of a member that joins, stays or leaves. A field is None if it has not changed since the last heartbeat.

    Attributes:
        member_id: The client chooses it. In version 0 it may be empty, and the broker chooses the id.
        member_epoch: `JOIN_EPOCH`, `LEAVE_EPOCH`, `STATIC_LEAVE_EPOCH`, or the current epoch of the member.
        subscribed_topic_regex: Empty if the member no longer subscribes to a regular expression.
        owned: The partitions that the member owns, by topic id.
        is_member_id_required: Whether the client must choose the member id (version 1 and later).
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
    """The response to a heartbeat.

    Attributes:
        assignment: The partitions that the member may consume; None if they have not changed since the last response.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class DescribedConsumer:
    """A member in a description.

    Attributes:
        assignment: The partitions of the current assignment, by topic id.
        target: The partitions of the target assignment, by topic id.
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
