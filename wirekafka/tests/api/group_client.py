"""Shared by the tests of the group APIs: one client that joins, syncs and commits through the codec."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wirekafka.pending import Pending
from wirekafka.tests.api import data_plane
from wirekafka.tests.api.data_plane import Caller, wait_for


def run(body: Callable[[Caller], Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test over a broker with a topic `flights` of four partitions, whose groups do not wait for more members."""

    async def with_topic(caller: Caller) -> None:
        if caller.broker.topics.find("flights") is None:
            caller.broker.topics.create("flights", 4)
        await body(caller)

    data_plane.run(with_topic, path, group_initial_rebalance_delay_ms="0", offsets_topic_num_partitions="3", **settings)


def join(
    caller: Caller, version: int = 9, *, group: str = "g", member: str = "", instance: str | None = None, **fields: Any
) -> Any:
    """Returns the response to a JoinGroup, or a Pending of it."""
    defaults: dict[str, Any] = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, "protocol_type": "consumer"}
    fields = defaults | fields
    fields.setdefault("protocols", [JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\7flights")])
    request = JoinGroupRequest(group_id=group, member_id=member, group_instance_id=instance, **fields)
    return caller.ask(request, version)


async def answered(response: Any) -> Any:
    """Returns the response; waits for it if it is pending."""
    return await wait_for(response) if isinstance(response, Pending) else response


async def join_alone(caller: Caller, *, group: str = "g", instance: str | None = None, **fields: Any) -> str:
    """Makes a stable group of generation 1 with one member, whose assignment is `mine`; returns the member's id."""
    joined = await answered(join(caller, 5 if instance else 3, group=group, instance=instance, **fields))
    mine = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    request = SyncGroupRequest(
        group_id=group,
        member_id=joined.member_id,
        generation_id=joined.generation_id,
        assignments=[mine],
    )
    await answered(caller.ask(request, 0))
    return str(joined.member_id)


def commit(caller: Caller, version: int = 9, *, offset: int = 5, partition: int = 1, **fields: Any) -> int:
    """Commits one offset of `flights`; returns the error."""
    partition_fields = {name: fields.pop(name) for name in list(fields) if name.startswith("commit")}
    flights = caller.broker.topics.find("flights")
    assert flights is not None
    asked = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, **partition_fields)
    topic = OffsetCommitRequestTopic(name="flights", topic_id=flights.topic_id, partitions=[asked])
    response = caller.ask(OffsetCommitRequest(group_id=fields.pop("group", "g"), topics=[topic], **fields), version)
    (answer,) = response.topics
    assert answer.topic_id == (flights.topic_id if version >= 10 else bytes(16))
    assert answer.name == ("flights" if version < 10 else "")
    return int(answer.partitions[0].error_code)
