"""Share groups whose records and state are on different brokers: 2 has the group and leads flights-0, and 1 has the state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.share_state.state import ShareState
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_LEADER_ID, SHARE_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.testing.data_plane import wait_for
from wirekafka.tests.api.sharing import ACCEPT, Member, acquired, append, errors, partitions_of, topic_id
from wirekafka.tests.api.test_share_groups import altering, deleting, describing
from wirekafka.tests.coordinator import two_brokers
from wirekafka.tests.coordinator.two_brokers import TwoBrokers
from wirekafka.wire.messages.share_group_state import WriteShareGroupStateRequest

WRITES = "share-state-write"


def run(path: Path, body: Callable[[TwoBrokers], Awaitable[None]]) -> None:
    async def with_topics(cluster: TwoBrokers) -> None:
        for member in cluster.members.values():
            topics = member.broker.topics
            for topic in (topics.create("flights", 1), topics.create_internal(SHARE_STATE_TOPIC)):
                topic.partitions[0].leader = NO_LEADER_ID
            topics.group_configs.alter("g", {"share.auto.offset.reset": "earliest"})
        await cluster.elect(SHARE_STATE_TOPIC, 0, 1)
        await cluster.elect("flights", 0, 2)
        await body(cluster)

    settings = {"share_coordinator_state_topic_num_partitions": "1", "group_share_assignment_interval_ms": "0"}
    two_brokers.run(with_topics, path, **settings)


async def joined(cluster: TwoBrokers, member_id: str = "m") -> Member:
    """Returns a member that has its partition."""
    member = Member(cluster.members[2].caller, member_id)
    await trio.sleep(1)
    member.heartbeat()
    return member


async def answer(response: Any) -> Any:
    return await wait_for(response) if isinstance(response, Pending) else response


def state(cluster: TwoBrokers) -> ShareState | None:
    """Returns the state of flights-0 on broker 1."""
    return state_of(cluster, ShareKey("g", topic_id(cluster.members[2].caller), 0))


def state_of(cluster: TwoBrokers, key: ShareKey) -> ShareState | None:
    return cluster.members[1].broker.share_groups.states.get(key)


def test_member_gets_a_partition_once_another_broker_has_its_state(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = Member(cluster.members[2].caller, joins=False)
        first = member.heartbeat(subscribed_topic_names=["flights"])
        assert first.assignment.topic_partitions == []
        await trio.sleep(1)
        assert state(cluster) is not None
        [topic] = member.heartbeat().assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (topic_id(member.caller), [0])
        assert member.heartbeat().assignment is None

    run(tmp_path, body)


def test_acknowledgements_are_answered_once_another_broker_has_stored_them(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a", b"b")
        assert acquired(await member.fetch(0)) == {0: [(0, 1, 1)]}
        response = member.acknowledge((0, 0, 1, [ACCEPT]))
        assert isinstance(response, Pending)
        assert not response.is_done
        assert errors(await wait_for(response)) == {0: 0}
        stored = state(cluster)
        assert stored is not None
        assert (stored.start_offset, stored.batches) == (2, [])

    run(tmp_path, body)


def test_acknowledgements_wait_for_the_next_share_coordinator(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a")
        append(member.caller, b"b")
        await member.fetch(0)
        await cluster.elect(SHARE_STATE_TOPIC, 0, NO_LEADER_ID, epoch=2)
        first = member.acknowledge((0, 0, 0, [ACCEPT]))
        second = member.acknowledge((0, 1, 1, [ACCEPT]))
        await trio.sleep(20)
        assert not first.is_done and not second.is_done
        await cluster.elect(SHARE_STATE_TOPIC, 0, 1, epoch=3)
        assert errors(await wait_for(first)) == errors(await wait_for(second)) == {0: 0}
        stored = state(cluster)
        assert stored is not None
        assert stored.start_offset == 2
        writes = [each for each, _ in cluster.members[2].channels[WRITES].sent if isinstance(each, WriteShareGroupStateRequest)]
        assert len(writes) == 2 + 1, "the start offset, the first acknowledgement, and the second one after it"

    run(tmp_path, body)


def test_records_are_delivered_again_after_an_acknowledgement_could_not_be_stored(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a")
        await member.fetch(0)
        await cluster.elect(SHARE_STATE_TOPIC, 0, NO_LEADER_ID, epoch=2)
        refused = await wait_for(member.acknowledge((0, 0, 0, [ACCEPT])))
        assert isinstance(refused, KafkaError)
        assert trio.current_time() > 30
        await cluster.elect(SHARE_STATE_TOPIC, 0, 1, epoch=3)
        other = Member(member.caller, "n")
        assert acquired(await other.fetch(0)) == {0: [(0, 0, 1)]}

    run(tmp_path, body)


def test_locks_end_when_the_leader_moves(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a")
        assert acquired(await member.fetch(0)) == {0: [(0, 0, 1)]}
        waiting = Member(member.caller, "w", joins=False)
        pending = waiting.ask(waiting.fetch_request(0, max_wait_ms=100_000), 2)
        assert isinstance(pending, Pending)
        await trio.sleep(0.1)
        await cluster.elect("flights", 0, 1, epoch=2)
        ended = partitions_of(await wait_for(pending))
        assert ended[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert errors(await answer(member.acknowledge((0, 0, 0, [ACCEPT])))) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        moved = partitions_of(await member.fetch(0))
        assert moved[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.elect("flights", 0, 2, epoch=3)
        other = Member(member.caller, "n", joins=False)
        assert acquired(await other.fetch(0)) == {0: [(0, 0, 1)]}

    run(tmp_path, body)


def test_state_that_cannot_be_read_lets_the_consumer_fetch_again(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a")
        await cluster.elect(SHARE_STATE_TOPIC, 0, NO_LEADER_ID, epoch=2)
        assert partitions_of(await member.fetch(0))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.elect(SHARE_STATE_TOPIC, 0, 1, epoch=3)
        assert acquired(await member.fetch(0)) == {0: [(0, 0, 1)]}

    run(tmp_path, body)


async def offsets(cluster: TwoBrokers) -> list[tuple[int, int, int]]:
    asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    request = describing.DescribeShareGroupOffsetsRequest(groups=[asked])
    [group] = (await answer(cluster.members[2].caller.ask(request, 1))).groups
    return [(each.partition_index, each.start_offset, each.lag) for topic in group.topics for each in topic.partitions]


def test_offsets_are_described_set_and_deleted_on_other_brokers(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        append(member.caller, b"a", b"b", b"c")
        await member.fetch(0)
        await wait_for(member.acknowledge((0, 0, 0, [ACCEPT])))
        assert await offsets(cluster) == [(0, 1, 2)]
        member.member_epoch = -1
        member.heartbeat()
        wanted = altering.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=2)
        topics = [altering.AlterShareGroupOffsetsRequestTopic(topic_name="flights", partitions=[wanted])]
        request = altering.AlterShareGroupOffsetsRequest(group_id="g", topics=topics)
        altered = await answer(member.caller.ask(request, 0))
        assert [each.error_code for topic in altered.responses for each in topic.partitions] == [0]
        assert await offsets(cluster) == [(0, 2, 1)]
        # The session of the member goes on, and the leader has the former state until its next write is fenced.
        await answer(member.acknowledge((0, 1, 1, [ACCEPT])))
        assert await offsets(cluster) == [(0, 2, 1)]
        deletion = deleting.DeleteShareGroupOffsetsRequest(
            group_id="g", topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name="flights")]
        )
        deleted = await answer(member.caller.ask(deletion, 0))
        assert [each.error_code for each in deleted.responses] == [0]
        assert state(cluster) is None
        assert await offsets(cluster) == []

    run(tmp_path, body)


def test_group_is_deleted_with_its_state_on_another_broker(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        member = await joined(cluster)
        request = DeleteGroupsRequest(groups_names=["g"])
        assert (await answer(member.caller.ask(request, 2))).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        assert state(cluster) is not None
        member.member_epoch = -1
        member.heartbeat()
        assert (await answer(member.caller.ask(request, 2))).results[0].error_code == 0
        assert state(cluster) is None
        assert not cluster.members[2].broker.groups.has_group("g")

    run(tmp_path, body)


KEY = ShareKey("g", b"i" * 16, 0)


@pytest.mark.parametrize(
    ("state_epoch", "leader_epoch", "code"),
    [(4, 5, None), (5, 9, None), (3, 5, ErrorCode.FENCED_STATE_EPOCH), (4, 4, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_writes_of_former_leaders_and_of_former_start_offsets_are_fenced(
    tmp_path: Path, state_epoch: int, leader_epoch: int, code: ErrorCode | None
) -> None:
    async def body(cluster: TwoBrokers) -> None:
        coordinator = cluster.members[1].broker.share_groups.coordinator
        coordinator.initialize(KEY, 4, 10)
        assert coordinator.read(KEY, 5).start_offset == 10
        change = StateChange(10, 1, [StateBatch(11, 11, RecordState.ACKNOWLEDGED, 1)])
        if code is None:
            coordinator.write(KEY, state_epoch, leader_epoch, change)
        else:
            with pytest.raises(KafkaError) as caught:
                coordinator.write(KEY, state_epoch, leader_epoch, change)
            assert caught.value.code is code
        stored = state_of(cluster, KEY)
        assert stored is not None
        assert stored.batches == ([] if code else change.batches)

    run(tmp_path, body)


def test_repeated_initialization_keeps_what_the_group_has_done_since(tmp_path: Path) -> None:
    async def body(cluster: TwoBrokers) -> None:
        coordinator = cluster.members[1].broker.share_groups.coordinator
        coordinator.initialize(KEY, 4, None)
        coordinator.write(KEY, 4, 0, StateChange(3, 0, []))
        coordinator.initialize(KEY, 4, None)
        assert coordinator.read(KEY, 0).start_offset == 3
        coordinator.initialize(KEY, 5, None)
        assert coordinator.read(KEY, 0).start_offset is None
        with pytest.raises(KafkaError) as caught:
            coordinator.initialize(KEY, 4, None)
        assert caught.value.code is ErrorCode.FENCED_STATE_EPOCH

    run(tmp_path, body)
