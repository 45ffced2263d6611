"""Invalid heartbeats of the consumer protocol, and other invalid requests for consumer groups, get Kafka's error codes.

Each case is a function that sends its requests and returns their answers. The table at the end has the answers of both brokers.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from compat_tests.harness.broker import WIREKAFKA, Broker
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import POLL_S, wait_until
from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from wirekafka.api.delete_groups import DeleteGroupsRequest
from wirekafka.api.describe_groups import DescribeGroupsRequest
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.leave_group import LeaveGroupRequest, MemberIdentity
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.api.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wirekafka.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wirekafka.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wirekafka.errors import ErrorCode
from wirekafka.wire.types import Message

pytestmark = pytest.mark.xdist_group("consumer-groups")

NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


@dataclass
class Stage:
    """A topic of four partitions, a group of the same name, and one connection."""

    connection: RawConnection
    topic: str

    def ask(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Any:
        """Sends a request, and repeats it while the coordinator is not ready."""
        deadline = time.monotonic() + 20
        while True:
            answer = self.connection.ask(request, version)
            if code_of(answer) not in NOT_YET or time.monotonic() > deadline:
                return answer
            time.sleep(POLL_S)

    def beat(self, epoch: int = 0, member: str = "m", version: int = 1, **fields: Any) -> Any:
        if epoch == 0:
            joins = {"rebalance_timeout_ms": 20_000, "subscribed_topic_names": [self.topic], "topic_partitions": []}
            fields = joins | fields
        fields.setdefault("group_id", self.topic)
        request = ConsumerGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields)
        return self.ask(request, version, lambda answer: answer.error_code)

    def error(self, *arguments: Any, **fields: Any) -> str:
        return name_of(self.beat(*arguments, **fields).error_code)

    def join(self, protocol_type: str = "consumer", *names: str, metadata: bytes | None = None, **fields: Any) -> Any:
        """Sends the JoinGroup of a classic client, which has metadata only for the first of its protocols."""
        if metadata is None:
            metadata = struct.pack(f">hih{len(self.topic)}si", 0, 1, len(self.topic), self.topic.encode(), -1)
        names = names or ("range",)
        request = JoinGroupRequest(
            group_id=self.topic,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=b"" if number else metadata) for number, name in enumerate(names)
            ],
            **fields,
        )
        return self.ask(request, 9, lambda answer: answer.error_code)

    def commit(self, member: str, epoch: int, version: int = 9, partition: int = 0) -> str:
        asked = OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
        request = OffsetCommitRequest(
            group_id=self.topic,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[asked])],
        )
        return name_of(self.ask(request, version, committed).topics[0].partitions[0].error_code)

    def fetch(self, member: str | None, epoch: int) -> str:
        asked = OffsetFetchRequestGroup(group_id=self.topic, member_id=member, member_epoch=epoch, topics=None)
        return name_of(self.ask(OffsetFetchRequest(groups=[asked]), 9, fetched).groups[0].error_code)


def committed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def fetched(answer: Any) -> int:
    return int(answer.groups[0].error_code)


def name_of(code: int) -> str:
    return ErrorCode(code).name


@pytest.fixture
def stage(broker: Broker, topic: str) -> Iterator[Stage]:
    create_topic(broker.bootstrap, topic, 4)
    with RawConnection(broker.address) as connection:
        stage = Stage(connection, topic)
        # This request creates the topic that holds groups.
        stage.ask(FindCoordinatorRequest(coordinator_keys=[topic]), 4, lambda answer: answer.coordinators[0].error_code)
        wait_until(lambda: is_known_to_groups(stage), timeout_s=60, what="groups know the new topic")
        yield stage


def is_known_to_groups(stage: Stage) -> bool:
    """Returns whether a member gets partitions; Apache Kafka's coordinator learns of a new topic after some milliseconds."""
    answer = stage.beat(member=os.urandom(4).hex(), group_id=os.urandom(4).hex())
    return bool(answer.assignment.topic_partitions)


def requests_that_are_incomplete(stage: Stage) -> list[str]:
    return [
        stage.error(member=""),
        stage.error(group_id=""),
        stage.error(group_id=" "),
        stage.error(instance_id=""),
        stage.error(rack_id=" "),
        stage.error(rebalance_timeout_ms=-1),
        stage.error(subscribed_topic_names=None),
        stage.error(topic_partitions=None),
        stage.error(topic_partitions=[HeartbeatTopicPartitions(topic_id=b"x" * 16, partitions=[0])]),
        stage.error(-2),
        stage.error(-3),
    ]


def members_named_by_the_broker(stage: Stage) -> list[str]:
    joined = stage.beat(member="", version=0)
    return [
        name_of(joined.error_code),
        str(len(joined.member_id) > 0),
        stage.error(joined.member_epoch, member="", version=0),
        stage.error(-1, member="", version=0),
    ]


def assignors_and_expressions_that_are_none(stage: Stage) -> list[str]:
    return [
        stage.error(server_assignor="mine"),
        stage.error(server_assignor=""),
        stage.error(server_assignor="range"),
        stage.error(subscribed_topic_names=None, subscribed_topic_regex="("),
        stage.error(member="n", subscribed_topic_names=None, subscribed_topic_regex="a(?=b)"),
        stage.error(member="n", subscribed_topic_names=None, subscribed_topic_regex="a**"),
        stage.error(member="n", subscribed_topic_names=None, subscribed_topic_regex="a{1001}"),
        stage.error(member="n", subscribed_topic_names=None, subscribed_topic_regex=""),
        stage.error(member="n", subscribed_topic_names=None, subscribed_topic_regex="[[:alpha:]]+x"),
    ]


def groups_and_members_that_are_not(stage: Stage) -> list[str]:
    before = [stage.error(1), stage.error(-1), stage.error(-2, instance_id="i")]
    epoch = stage.beat().member_epoch
    return [
        *before,
        stage.error(epoch, "other"),
        stage.error(-1, "other"),
        stage.error(epoch, instance_id="i"),
        stage.error(-2, instance_id="i"),
    ]


def epochs_that_are_not(stage: Stage) -> list[str]:
    joined = stage.beat()
    (has,) = joined.assignment.topic_partitions
    epoch = joined.member_epoch
    return [
        stage.error(epoch + 1),
        stage.error(epoch - 1),
        stage.error(epoch),
        stage.error(epoch, topic_partitions=[HeartbeatTopicPartitions(topic_id=has.topic_id, partitions=[0])]),
        stage.error(),
        stage.error(-1),
        stage.error(epoch),
    ]


def static_members(stage: Stage) -> list[str]:
    epoch = stage.beat(instance_id="i").member_epoch
    taken = stage.error(member="n", instance_id="i")
    left = stage.beat(-2, instance_id="i")
    back = stage.beat(member="n", instance_id="i")
    return [
        taken,
        f"{name_of(left.error_code)} {left.member_epoch}",
        stage.error(epoch, "m", instance_id="i"),
        f"{name_of(back.error_code)} {back.member_epoch - epoch} {len(back.assignment.topic_partitions[0].partitions)}",
        stage.error(-1, "m", instance_id="i"),
        stage.error(epoch, "n", instance_id="j"),
        stage.error(-1, "n", instance_id="i"),
    ]


def commits_and_fetches(stage: Stage) -> list[str]:
    epoch = stage.beat().member_epoch
    return [
        stage.commit("m", epoch),
        stage.commit("m", epoch + 1),
        stage.commit("m", epoch - 1),
        stage.commit("m", -1),
        stage.commit("other", epoch),
        stage.commit("", -1),
        stage.commit("m", epoch, version=8),
        stage.fetch("m", epoch),
        stage.fetch("m", epoch - 1),
        stage.fetch("other", epoch),
        stage.fetch(None, -1),
    ]


def classic_requests(stage: Stage) -> list[str]:
    epoch = stage.beat().member_epoch
    beat = HeartbeatRequest(group_id=stage.topic, member_id="m", generation_id=epoch)
    sync = SyncGroupRequest(group_id=stage.topic, member_id="m", generation_id=epoch)
    first = stage.join()
    member = stage.join(member_id=first.member_id)
    return [
        name_of(stage.join("connect").error_code),
        name_of(stage.connection.ask(beat, 4).error_code),
        name_of(stage.connection.ask(sync, 5).error_code),
        name_of(first.error_code),
        f"{name_of(member.error_code)} {member.generation_id - epoch} {member.protocol_name} {member.leader!r}",
        name_of(stage.join("consumer", "other", member_id=first.member_id).error_code),
        name_of(stage.join("consumer", "other").error_code),
        name_of(stage.join(metadata=b"", member_id=first.member_id).error_code),
        name_of(stage.join(group_instance_id="i", member_id="nobody").error_code),
    ]


NOTHING = struct.pack(">hii", 0, 0, -1)


def upgrade(stage: Stage, assignment: bytes, protocol_type: str = "consumer", name: str = "range") -> str:
    """Makes a classic group with one member, which a member of the consumer protocol then joins."""
    member = stage.join(protocol_type, name).member_id
    joined = stage.join(protocol_type, name, member_id=member)
    given = [SyncGroupRequestAssignment(member_id=member, assignment=assignment)]
    sync = SyncGroupRequest(group_id=stage.topic, member_id=member, generation_id=joined.generation_id, assignments=given)
    synced = stage.connection.ask(sync, 3).error_code
    code = stage.error()
    leaving = [MemberIdentity(member_id=member)]
    stage.connection.ask(LeaveGroupRequest(group_id=stage.topic, members=leaving), 5)
    return f"{name_of(synced)} {code}"


def upgrades_that_would_lose_something(stage: Stage) -> list[str]:
    return [
        upgrade(stage, NOTHING, "connect"),
        upgrade(stage, struct.pack(">hii4s", 0, 0, 4, b"data")),
        upgrade(stage, b"\0"),
        upgrade(stage, NOTHING, name="of-our-own"),
    ]


def upgrade_of_an_assignment_that_lies_of_its_length(stage: Stage) -> list[str]:
    return [upgrade(stage, struct.pack(">hih", 0, 1, 100))]


def downgrade_of_a_member_that_cannot_be_read(stage: Stage) -> list[str]:
    """The two remaining members have one protocol in common, for which one of them has no metadata."""
    stage.beat()
    joined = []
    for names in (["range", "mine"], ["mine"]):
        member_id = stage.join("consumer", *names).member_id
        joined.append(name_of(stage.join("consumer", *names, member_id=member_id).error_code))
    return [*joined, stage.error(-1)]


def offsets_for_an_epoch_without_a_member(stage: Stage) -> list[str]:
    return [stage.fetch(None, stage.beat().member_epoch)]


def removals(stage: Stage) -> list[str]:
    stage.beat(instance_id="i")

    def leave(member: str, instance: str | None = None) -> str:
        leaving = [MemberIdentity(member_id=member, group_instance_id=instance)]
        answer = stage.connection.ask(LeaveGroupRequest(group_id=stage.topic, members=leaving), 5)
        return name_of(answer.members[0].error_code)

    return [leave("other"), leave("", "j"), leave("other", "i"), leave("", "i"), stage.error(1, instance_id="i")]


def other_tools(stage: Stage) -> list[str]:
    epoch = stage.beat().member_epoch
    stage.commit("m", epoch)

    def delete_offset() -> str:
        topics = [OffsetDeleteRequestTopic(name=stage.topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
        answer = stage.connection.ask(OffsetDeleteRequest(group_id=stage.topic, topics=topics), 0)
        return name_of(answer.topics[0].partitions[0].error_code)

    def delete() -> str:
        return name_of(stage.connection.ask(DeleteGroupsRequest(groups_names=[stage.topic]), 2).results[0].error_code)

    def describe(group: str) -> str:
        return name_of(stage.connection.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups[0].error_code)

    (classic,) = stage.connection.ask(DescribeGroupsRequest(groups=[stage.topic]), 5).groups
    return [
        f"{name_of(classic.error_code)} {classic.group_state}",
        describe(stage.topic),
        describe(""),
        describe(f"{stage.topic}-not"),
        delete_offset(),
        delete(),
        stage.error(-1),
        delete_offset(),
        delete(),
        describe(stage.topic),
    ]


Case = Callable[[Stage], list[str]]

EXPECTED: dict[Case, str] = {
    requests_that_are_incomplete: ", ".join(["INVALID_REQUEST"] * 11),
    members_named_by_the_broker: "NONE, True, INVALID_REQUEST, INVALID_REQUEST",
    assignors_and_expressions_that_are_none: (
        "UNSUPPORTED_ASSIGNOR, UNSUPPORTED_ASSIGNOR, NONE, INVALID_REGULAR_EXPRESSION, INVALID_REGULAR_EXPRESSION, "
        "INVALID_REGULAR_EXPRESSION, INVALID_REGULAR_EXPRESSION, NONE, NONE"
    ),
    groups_and_members_that_are_not: (
        "GROUP_ID_NOT_FOUND, GROUP_ID_NOT_FOUND, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, "
        "UNKNOWN_MEMBER_ID"
    ),
    epochs_that_are_not: ("FENCED_MEMBER_EPOCH, FENCED_MEMBER_EPOCH, NONE, NONE, NONE, NONE, UNKNOWN_MEMBER_ID"),
    static_members: (
        "UNRELEASED_INSTANCE_ID, NONE -2, FENCED_INSTANCE_ID, NONE 0 4, FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID, NONE"
    ),
    commits_and_fetches: (
        "NONE, STALE_MEMBER_EPOCH, STALE_MEMBER_EPOCH, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, "
        "UNSUPPORTED_VERSION, NONE, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, NONE"
    ),
    classic_requests: (
        "INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, NONE 0 range '', "
        "INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_SERVER_ERROR, UNKNOWN_MEMBER_ID"
    ),
    upgrades_that_would_lose_something: ("NONE GROUP_ID_NOT_FOUND, NONE GROUP_ID_NOT_FOUND, NONE GROUP_ID_NOT_FOUND, NONE NONE"),
    removals: "UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, NONE, UNKNOWN_MEMBER_ID",
    other_tools: (
        "NONE Dead, NONE, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC, NON_EMPTY_GROUP, NONE, NONE, NONE, "
        "GROUP_ID_NOT_FOUND"
    ),
}


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_each_request_is_answered_as_kafka_answers_it(stage: Stage, case: Case) -> None:
    assert ", ".join(case(stage)) == EXPECTED[case]


DIFFERENT: dict[Case, tuple[str, str]] = {
    upgrade_of_an_assignment_that_lies_of_its_length: ("NONE GROUP_ID_NOT_FOUND", "NONE UNKNOWN_SERVER_ERROR"),
    downgrade_of_a_member_that_cannot_be_read: ("NONE, NONE, NONE", "NONE, NONE, GROUP_ID_NOT_FOUND"),
    offsets_for_an_epoch_without_a_member: ("UNKNOWN_MEMBER_ID", "UNKNOWN_SERVER_ERROR"),
}
"""The differences of docs/differences.md: the answers of wirekafka and those of Kafka."""


@pytest.mark.parametrize("case", DIFFERENT, ids=lambda case: case.__name__)
def test_requests_at_which_kafka_stumbles_are_answered(stage: Stage, broker_kind: str, case: Case) -> None:
    ours, theirs = DIFFERENT[case]
    assert ", ".join(case(stage)) == (ours if broker_kind == WIREKAFKA else theirs)
