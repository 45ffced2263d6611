"""The groups of a running broker as a test sees them, of every type in one form.

Rules of this file: it asks the broker's APIs in process, so it shows what an admin client shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.api.list_groups import ListGroupsRequest
from wirekafka.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.coordinator.groups.consumer.consumer_protocol import decode_assignment
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from wirekafka.testing.local_client import LocalClient

TopicPartitions = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group.

    Attributes:
        member_id, client_id, host: as the coordinator knows it.
        instance_id: `group.instance.id`; None for a dynamic member.
        partitions: what is assigned to it.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: TopicPartitions


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group.

    Attributes:
        group_id: its name.
        type: "Classic", "Consumer" or "Share"; empty if there is no such group.
        state: such as "Stable" or "Empty"; "Dead" if there is no such group.
        members: in the order of the description.
        committed: the committed offsets by topic and partition; empty for a share group.
    """

    group_id: str
    type: str
    state: str
    members: tuple[MemberView, ...] = ()
    committed: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def is_stable(self) -> bool:
        """Whether the group has members, and all of them have their partitions."""
        return self.state == "Stable" and bool(self.members)


async def read_groups(client: LocalClient) -> list[GroupView]:
    """Returns all groups, by name.

    Raises:
        KafkaError: a coordinator refuses to answer.
    """
    listed = await client.ask(ListGroupsRequest(), 5)
    _check(listed.error_code)
    names = sorted(each.group_id for each in listed.groups)
    return [await _read(client, name, {each.group_id: each.group_type for each in listed.groups}) for name in names]


async def read_group(client: LocalClient, group_id: str) -> GroupView:
    """Returns a group; one that is dead and has nothing if there is no such group.

    Raises:
        KafkaError: a coordinator refuses to answer.
    """
    listed = await client.ask(ListGroupsRequest(), 5)
    _check(listed.error_code)
    return await _read(client, group_id, {each.group_id: each.group_type for each in listed.groups})


async def _read(client: LocalClient, group_id: str, types: dict[str, str]) -> GroupView:
    kind = types.get(group_id, "").capitalize()
    if not kind:
        return GroupView(group_id, "", "Dead")
    state, members = await _DESCRIBE[kind](client, group_id)
    committed = {} if kind == "Share" else await _committed(client, group_id)
    return GroupView(group_id, kind, state, members, committed)


async def _describe_classic(client: LocalClient, group_id: str) -> tuple[str, tuple[MemberView, ...]]:
    [found] = (await client.ask(DescribeGroupsRequest(groups=[group_id]), 5)).groups
    _check(found.error_code)
    members = (
        MemberView(each.member_id, each.client_id, each.client_host, each.group_instance_id, _embedded(each.member_assignment))
        for each in found.members
    )
    return found.group_state, tuple(members)


async def _describe_consumer(client: LocalClient, group_id: str) -> tuple[str, tuple[MemberView, ...]]:
    [found] = (await client.ask(ConsumerGroupDescribeRequest(group_ids=[group_id]), 1)).groups
    _check(found.error_code)
    members = (
        MemberView(each.member_id, each.client_id, each.client_host, each.instance_id, _assigned(each.assignment))
        for each in found.members
    )
    return found.group_state, tuple(members)


async def _describe_share(client: LocalClient, group_id: str) -> tuple[str, tuple[MemberView, ...]]:
    [found] = (await client.ask(ShareGroupDescribeRequest(group_ids=[group_id]), 1)).groups
    _check(found.error_code)
    members = (
        MemberView(each.member_id, each.client_id, each.client_host, None, _assigned(each.assignment)) for each in found.members
    )
    return found.group_state, tuple(members)


_DESCRIBE = {"Classic": _describe_classic, "Consumer": _describe_consumer, "Share": _describe_share}


async def _committed(client: LocalClient, group_id: str) -> dict[tuple[str, int], int]:
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
    [found] = (await client.ask(asked, 9)).groups
    _check(found.error_code)
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in found.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


def _assigned(assignment: Any) -> TopicPartitions:
    return frozenset((topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions)


def _embedded(assignment: bytes) -> TopicPartitions:
    """Returns the partitions in a consumer's assignment; none if the members are not consumers, or wait for theirs."""
    try:
        found = decode_assignment(assignment)
    except ProtocolError:
        return frozenset()
    return frozenset((topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions)


def _check(error_code: int) -> None:
    if error_code:
        raise KafkaError(ErrorCode(error_code))
