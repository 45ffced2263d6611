"""A group of the classic protocol: its members, its generation, its state, and the table of transitions.

How it works: a rebalance has two barriers. In PREPARING_REBALANCE JoinGroup requests are parked until all members have
joined or the rebalance timeout is over. Then the generation grows by one, the members vote for a protocol, and the requests are
answered; the leader gets the list of all members. In COMPLETING_REBALANCE SyncGroup requests are parked until the leader sends
the assignments; once the log has them, the group is STABLE. A group without members is EMPTY, and stays because of its offsets.
A deleted group has no object, so Kafka's state Dead is only the name for a group that does not exist.

Rules of this file: no effects, no log records, no timers; `rebalance` and `membership` decide, a `ClassicGroup` keeps the state.
    Invariant: `static_members` maps the instance id of each static member in `members` to its id, and nothing else.
    Invariant: `supported_protocols[name]` is the number of members that support it.
    Invariant: no member id is in both `members` and `pending_members`; `pending_sync_members` is part of `members`.
    Invariant: `leader` is in `members`, or None if there are none.
Kafka processes members in the order of a hash map; this broker processes them in the order in which they joined.

Source: ClassicGroup, ClassicGroupMember, ClassicGroupState; KIP-62, KIP-345, KIP-394.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import structlog

from wirekafka.coordinator.effects import SetTimer
from wirekafka.coordinator.groups.classic.subscription import subscribed_topics
from wirekafka.coordinator.groups.records import (
    CommittedOffset,
    CoordinatorRecord,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
)
from wirekafka.coordinator.groups.requests import CommitRequest, JoinResult, Protocols, SyncResult
from wirekafka.coordinator.groups.types import CLASSIC, Group
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.names import NO_TIMESTAMP
from wirekafka.pending import Pending


class GroupState(Enum):
    """The state of a group; the value is Kafka's name in listings."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


# The attribute of an enum costs each heartbeat and each commit 0.06 us (2026-11).
EMPTY, PREPARING_REBALANCE = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE

TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
}
"""The states that may follow each state."""

log = structlog.get_logger(__name__)

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of Kafka's consumers, whose metadata the coordinator reads for the topics."""


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group.

    Attributes:
        protocols: the protocols that the member supports, best first, with its metadata for each.
        awaiting_join, awaiting_sync: the parked request; None if there is none.
        is_new: the client has joined and has had no response yet: it does not know its id and cannot send heartbeats.
        renewal: the last renewal of the session, which is used again, because heartbeats are frequent.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: Pending[JoinResult] | None = None
    awaiting_sync: Pending[SyncResult] | None = None
    is_new: bool = False
    renewal: SetTimer | None = None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether a parked request counts as a heartbeat; False for a new member, whose JoinGroup has a timeout of its own."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Returns the metadata of the member for a protocol that the member supports."""
        return next(metadata for name, metadata in self.protocols if name == protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """Returns the first protocol of the member that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """A group; see the module's invariants.

    Attributes:
        partition: the partition of __consumer_offsets that holds the group.
        protocol_type: None until the first member joins: the group is a simple one, which only stores offsets.
        protocol_name: the protocol chosen for this generation.
        state_timestamp_ms: the time of the last change of the state; None if an old record does not have it.
        pending_members: the ids from MEMBER_ID_REQUIRED whose clients have not joined yet.
        pending_sync_members: members that have not sent SyncGroup in this generation; ignored while the next one is prepared.
        subscribed_topics: the topics of all members; None if they are not known.
        has_new_member: a member has joined; a new group that waits for its first members may therefore wait longer.
        awaiting_join_count: the number of members with a parked JoinGroup.
    """

    group_id: str
    partition: int = 0
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    generation_id: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: set[str] = field(default_factory=set)
    pending_sync_members: dict[str, None] = field(default_factory=dict)
    supported_protocols: Counter[str] = field(default_factory=Counter)
    subscribed_topics: frozenset[str] | None = None
    has_new_member: bool = False
    awaiting_join_count: int = 0

    @classmethod
    def of_record(cls, group_id: str, partition: int, value: GroupMetadataValue) -> ClassicGroup:
        """Creates the group of a record: STABLE if the record has members, else EMPTY.

        Raises:
            ProtocolError: the record contradicts itself.

        Source: GroupMetadataManager.replay(GroupMetadataKey, GroupMetadataValue).
        """
        if value.members and value.protocol is None:
            raise ProtocolError(f"the record of group {group_id} has members but no protocol")
        if _has_twice(value):
            raise ProtocolError(f"the record of group {group_id} names a member twice")
        group = cls(group_id, partition)
        for loaded in value.members:
            group.add(_member_of_record(loaded, value.protocol or ""), value.protocol_type)
        group.state = group.previous_state = GroupState.STABLE if value.members else GroupState.EMPTY
        group.state_timestamp_ms = None if value.current_state_timestamp == NO_TIMESTAMP else value.current_state_timestamp
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.generation_id = value.generation
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        group.update_subscribed_topics()
        return group

    def to_record(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """Returns the record of the group with these assignments of its members."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=NO_TIMESTAMP if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    @property
    def group_type(self) -> str:
        """Always `CLASSIC`."""
        return CLASSIC

    @property
    def state_name(self) -> str:
        """Kafka's name of the state."""
        return self.state.value

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type; empty for a simple group."""
        return self.protocol_type or ""

    @property
    def is_empty(self) -> bool:
        """Whether the group is EMPTY."""
        return self.state is GroupState.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        """Whether the members are Kafka consumers."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def has_all_members_joined(self) -> bool:
        """Whether all members, and all clients that got a member id, have joined the rebalance."""
        return not self.pending_members and self.awaiting_join_count == len(self.members)

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members, in milliseconds."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Changes the state; the table of transitions must allow it."""
        assert state in TRANSITIONS[self.state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member; the first member becomes the leader, and the group takes its protocol type."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.supported_protocols.update(_names(member.protocols))
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Removes a member or a pending member; if the leader is removed, the oldest member becomes the leader."""
        self.pending_members.discard(member_id)
        self.pending_sync_members.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        assert member.awaiting_join is None, "the parked JoinGroup of a member is answered before the member is removed"
        self._count_out(member)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Updates a member from its new JoinGroup."""
        self._count_out(member)
        member.protocols = protocols
        self.supported_protocols.update(_names(protocols))
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """Gives a static member a new id, which fences the old id. The member keeps its place, and stays the leader if it was.

        Returns:
            The member, without parked requests: the caller refuses those of the old id.
        """
        old_member_id = self.static_members[group_instance_id]
        member = self.members[old_member_id]
        member.member_id = new_member_id
        member.is_new = False
        self.members = {known.member_id: known for known in self.members.values()}
        self.static_members[group_instance_id] = new_member_id
        self.pending_sync_members.pop(old_member_id, None)
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def check_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Raises unless a request comes from a member.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the static member has another member id now.

        Source: ClassicGroup.validateMember.
        """
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if existing != member_id:
                log.info(
                    "Fenced a static member",
                    group=self.group_id,
                    instance=group_instance_id,
                    member=member_id,
                    replaced_by=existing,
                )
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Raises unless the sender of the request may commit offsets.

        A. A client that is not a member commits without a generation, while the group is empty.
        B. A member commits in its generation. Between JoinGroup and SyncGroup the member must retry: REBALANCE_IN_PROGRESS.
        C. In a transaction, a request without a member id is accepted, because producers before KIP-447 send none. A member may
           commit in any state of the group.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS.

        Source: ClassicGroup.validateOffsetCommit.
        """
        if request.generation_id < 0 and self.state is EMPTY:
            return
        if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
            if is_transactional:
                return
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if self.state is COMPLETING_REBALANCE and not is_transactional:
            # The member knows the current generation, so it has the response to JoinGroup, but has not sent SyncGroup.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Never raises: any client may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        """Raises unless the topics to which the members subscribe are known.

        Raises:
            KafkaError: NON_EMPTY_GROUP.
        """
        if self.state is not GroupState.EMPTY and not self.is_consumer_group:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        """Raises unless the group has no members.

        Raises:
            KafkaError: NON_EMPTY_GROUP.
        """
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def tombstones(self) -> list[CoordinatorRecord]:
        """Returns the tombstones that delete the group from the log, without those of its offsets."""
        return [GroupRecord(self.group_id, None)]

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """Returns the time at which the retention of an offset began; None if the offset does not expire (KIP-211).

        A. In a simple group: the time of the commit.
        B. In a group that has lost its members: the time of that loss; if the group's record is too old to have it, the time of
           the commit.
        C. In a stable consumer group whose topics are known: the time of the commit, because no member subscribes to the topic.
        D. In any other group the offset does not expire.

        Source: ClassicGroup.offsetExpirationCondition.
        """
        if self.protocol_type is None:
            return offset.commit_timestamp_ms
        if self.state is GroupState.EMPTY:
            return offset.commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        if self.is_consumer_group and self.subscribed_topics is not None and self.state is GroupState.STABLE:
            return offset.commit_timestamp_ms
        return None

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether the group accepts a member with these protocols: all members must support one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and any(
            self.supported_protocols[name] == len(self.members) for name in _names(protocols)
        )

    def elect_joined_leader(self) -> bool:
        """Makes a member that has joined the leader, unless the leader has joined; returns False if no member has joined.

        Source: ClassicGroup.maybeElectNewJoinedLeader.
        """
        if self.leader is None:
            return False
        if self.members[self.leader].awaiting_join is not None:
            return True
        joined = next((member for member in self.members.values() if member.awaiting_join is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def park_join(self, member: Member, pending: Pending[JoinResult] | None) -> Pending[JoinResult] | None:
        """Parks a member's JoinGroup, or removes the parked one if `pending` is None; returns the formerly parked request."""
        parked, member.awaiting_join = member.awaiting_join, pending
        self.awaiting_join_count += (pending is not None) - (parked is not None)
        return parked

    def select_protocol(self) -> str:
        """Returns the protocol that most members prefer among those that all support; of equals, the one with the first vote."""
        candidates = {name for name, count in self.supported_protocols.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def start_generation(self, now_ms: int) -> None:
        """Begins the next generation and chooses its protocol; a group without members becomes EMPTY."""
        self.generation_id = self.generation_id + 1 if self.generation_id < 0x7FFFFFFF else 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.update_subscribed_topics()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def update_subscribed_topics(self) -> None:
        """Reads the subscribed topics from the members' metadata.

        Source: ClassicGroup.computeSubscribedTopics.
        """
        self.subscribed_topics = None
        if not self.is_consumer_group:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            self.subscribed_topics = subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume the topic; a consumer group with unknown subscriptions may consume any topic."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics

    def _count_out(self, member: Member) -> None:
        self.supported_protocols.subtract(_names(member.protocols))
        for name in _names(member.protocols):
            if not self.supported_protocols[name]:
                del self.supported_protocols[name]


def classic_group(groups: Mapping[str, Group], group_id: str) -> ClassicGroup | None:
    """Returns the group of this id if it is a classic group; otherwise None."""
    group = groups.get(group_id)
    return group if isinstance(group, ClassicGroup) else None


def empty_record(group: ClassicGroup) -> GroupMetadataValue:
    """Returns the record of a group that has had no members yet."""
    return GroupMetadataValue(
        current_state_timestamp=NO_TIMESTAMP if group.state_timestamp_ms is None else group.state_timestamp_ms
    )


def _names(protocols: Protocols) -> Iterable[str]:
    """Returns each protocol once, in order."""
    return dict(protocols).keys()


def _has_twice(value: GroupMetadataValue) -> bool:
    """Whether two members of a record have the same id, or the same instance id."""
    member_ids = [member.member_id for member in value.members]
    instance_ids = [member.group_instance_id for member in value.members if member.group_instance_id is not None]
    return any(len(set(ids)) < len(ids) for ids in (member_ids, instance_ids))


def _member_of_record(loaded: MemberMetadata, protocol_name: str) -> Member:
    return Member(
        member_id=loaded.member_id,
        group_instance_id=loaded.group_instance_id,
        client_id=loaded.client_id,
        client_host=loaded.client_host,
        rebalance_timeout_ms=loaded.session_timeout if loaded.rebalance_timeout == -1 else loaded.rebalance_timeout,
        session_timeout_ms=loaded.session_timeout,
        protocols=[(protocol_name, loaded.subscription)],
        assignment=loaded.assignment,
    )
