from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import finish
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller, wait_for
from wirekafka.tests.api.sharing import ACCEPT, RELEASE, RENEW, Member, Said, acquired, append, errors, run, topic_id


@pytest.mark.parametrize("version", [1, 2])
def test_acknowledgement_is_taken_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge((0, 0, 1, [ACCEPT]), version=version)) == {0: 0}
        (offset,) = finish(caller.broker.share_groups.describe_offsets("g", {"flights": [0]}))["flights"]
        assert (offset.start_offset, offset.lag) == (2, 0)

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (((0, 1, 0, [ACCEPT]),), ErrorCode.INVALID_REQUEST),
        (((0, -1, 0, [ACCEPT]), (0, -2, 0, [ACCEPT])), ErrorCode.INVALID_REQUEST),
        (((0, 0, 1, []),), ErrorCode.INVALID_REQUEST),
        (((0, 0, 1, [ACCEPT, ACCEPT, ACCEPT]),), ErrorCode.INVALID_REQUEST),
        (((0, 0, 1, [5]),), ErrorCode.INVALID_REQUEST),
        (((0, 0, 1, [-1]),), ErrorCode.INVALID_REQUEST),
        (((0, 0, 1, [RENEW]),), ErrorCode.INVALID_REQUEST),
        (((0, 0, 9, [ACCEPT]),), ErrorCode.INVALID_REQUEST),
        (((1, 0, 0, [ACCEPT]),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (((9, 0, 0, [ACCEPT]),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (((0, 0, 0, [ACCEPT]), (0, 0, 0, [ACCEPT])), ErrorCode.INVALID_RECORD_STATE),
    ],
    ids=[
        "backwards", "out of order", "no type", "too many types", "unknown type", "negative type", "renewal without saying so",
        "beyond", "never fetched", "no partition", "twice",
    ],
)  # fmt: skip
def test_acknowledgement_that_cannot_be_is_refused(tmp_path: Path, said: tuple[Said, ...], code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge(*said)) == {said[0][0]: code}
        assert errors(member.acknowledge((0, 0, 1, [ACCEPT]))) == {0: 0}, "nothing was taken of it"

    run(body, tmp_path)


def test_partition_of_which_nothing_is_said_is_told_of_beside_others_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge(beside=(0, 1))) == {}
        assert errors(member.acknowledge(beside=(0, 9))) == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]), beside=(1,))) == {0: 0, 1: 0}

    run(body, tmp_path)


def test_last_that_is_said_of_a_partition_counts(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        sound, wrong = member.topic(said=((0, 0, 0, [ACCEPT]),)), member.topic(said=((0, 1, 1, [7]),))
        assert errors(member.acknowledge(topics=[sound, wrong])) == {0: ErrorCode.INVALID_REQUEST}
        assert errors(member.acknowledge(topics=[wrong, sound])) == {0: 0}, "nothing was taken of the former"

    run(body, tmp_path)


def test_acknowledgement_for_a_topic_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]), id=b"?" * 16)) == {0: ErrorCode.UNKNOWN_TOPIC_ID}

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x"}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"member_id": "x", "epoch": -1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"epoch": 0}, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
        ({"epoch": 7}, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
    ],
    ids=["no group", "no member", "no session", "no session to end", "first epoch", "wrong epoch"],
)
def test_acknowledgement_of_no_session_is_refused(tmp_path: Path, fields: dict[str, Any], code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        with pytest.raises(KafkaError) as raised:
            member.acknowledge((0, 0, 0, [ACCEPT]), **fields)
        assert (raised.value.code, raised.value.message) == (code, None), "as in Kafka, without a message"

    run(body, tmp_path)


def test_renewal_that_the_group_does_not_allow_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter(
            "g", {"share.auto.offset.reset": "earliest", "share.renew.acknowledge.enable": "false"}
        )
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        refused = member.acknowledge((0, 0, 0, [RENEW]), is_renew_ack=True)
        assert errors(refused) == {0: ErrorCode.INVALID_RECORD_STATE}
        leader = refused.responses[0].partitions[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (-1, -1), "no broker is named"

    run(body, tmp_path)


def test_record_that_was_delivered_as_often_as_it_may_be_is_given_up(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        for count in range(1, 6):
            assert acquired(await member.fetch(0)) == {0: [(0, 0, count)]}
            assert errors(member.acknowledge((0, 0, 0, [RELEASE]))) == {0: 0}
        assert acquired(await member.fetch()) == {}

    run(body, tmp_path)


def test_acknowledgement_is_answered_once_it_is_committed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        topic = caller.broker.topics.find("__share_group_state")
        assert topic is not None
        for partition in topic.partitions:
            partition.set_replicas((partition.leader, 99), (partition.leader, 99))
        by_acknowledge = member.acknowledge((0, 0, 0, [ACCEPT]))
        by_fetch = member.ask(member.fetch_request(0, said=((0, 1, 1, [ACCEPT]),)), 2)
        assert (by_acknowledge.is_done, by_fetch.is_done) == (False, False)
        for partition in topic.partitions:
            partition.advance_high_watermark(partition.log.log_end_offset)
        assert errors(await wait_for(by_acknowledge)) == {0: 0}
        assert by_fetch.is_done

    run(body, tmp_path)


def state_partitions(caller: Caller) -> list[Partition]:
    topic = caller.broker.topics.find("__share_group_state")
    assert topic is not None
    return topic.partitions


def lose_state(caller: Caller) -> None:
    """The broker does not lead the partitions of the state any more, and nothing that was not committed is committed."""
    for partition in state_partitions(caller):
        partition.wake_watchers()
        caller.broker.share_groups.states.state.resign(partition.index)


def test_acknowledgement_whose_state_is_lost_before_the_commit_is_refused_and_forgotten(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        for partition in state_partitions(caller):
            partition.set_replicas((partition.leader, 99), (partition.leader, 99))
        answer = member.acknowledge((0, 0, 0, [ACCEPT]))
        assert not answer.is_done
        lose_state(caller)
        answered = await wait_for(answer)
        assert isinstance(answered, KafkaError) or errors(answered)[0]
        assert caller.broker.share_groups.partitions.find(ShareKey("g", topic_id(caller), 0)) is None

    run(body, tmp_path)


def test_records_whose_state_is_lost_are_neither_acknowledged_nor_released_by_their_lock(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        lose_state(caller)
        ends = [partition.log.log_end_offset for partition in state_partitions(caller)]
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT])))[0]
        await trio.sleep(60)
        member.disconnect()
        assert [partition.log.log_end_offset for partition in state_partitions(caller)] == ends

    run(body, tmp_path)


def test_records_are_delivered_again_once_their_state_is_loaded_again(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        assert acquired(await member.fetch(0)) == {0: [(0, 0, 1)]}
        lose_state(caller)
        for partition in state_partitions(caller):
            caller.broker.share_groups.states.state.elect(partition, 7)
        await trio.sleep(1)
        assert acquired(await member.fetch()) == {0: [(0, 0, 1)]}
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    run(body, tmp_path)
