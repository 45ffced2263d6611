"""Requests with unknown members, old generations and unknown groups get Kafka's error codes.

Each case is a function that sends its requests and returns their answers. The table at the end has the answers of both brokers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.raw import RawConnection, framed
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import TRANSIENT, ask, name_of
from compat_tests.harness.waiting import POLL_S, wait_until
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.registry import APIS
from wirekafka.wire.codec import encode


def subscription(topic: str) -> bytes:
    """Makes the metadata, version 0, of a consumer that subscribes to one topic."""
    return struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic.encode(), -1)


@dataclass
class Stage:
    """A topic of two partitions, a group of the same name, and one connection."""

    connection: RawConnection
    address: tuple[str, int]
    topic: str

    def ask(self, api: str, version: int, code_of: Callable[[Any], Any] = lambda answer: answer.error_code, **values: Any) -> Any:
        """Sends a request, and repeats it while the coordinator is not ready."""
        values.setdefault("group_id", self.topic)
        deadline = time.monotonic() + 20
        while True:
            answer = ask(self.connection, api, version, **values)
            if name_of(code_of(answer)) not in TRANSIENT or time.monotonic() > deadline:
                return answer
            time.sleep(POLL_S)

    def has_coordinator(self, kind: int = 0) -> bool:
        """Returns whether there is a coordinator; the first request creates the internal topic."""
        return name_of(ask(self.connection, "find_coordinator", 3, key_type=kind, key=self.topic).error_code) == "NONE"

    def join(self, version: int = 5, *, names: Sequence[str] = ("range",), **values: Any) -> Any:
        """Sends JoinGroup; by default it is the request of a dynamic consumer without a member id."""
        own = {
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": subscription(self.topic)} for name in names],
        }
        return self.ask("join_group", version, **{**own, **values})

    def sync(self, member_id: str, generation: int, version: int = 3, **values: Any) -> str:
        """Sends SyncGroup with an assignment for the member itself; returns the error."""
        given = [{"member_id": member_id, "assignment": b"mine"}]
        own = {"member_id": member_id, "generation_id": generation, "group_instance_id": None, "assignments": given}
        return name_of(self.ask("sync_group", version, **{**own, **values}).error_code)

    def beat(self, member_id: str, generation: int, **values: Any) -> str:
        """Sends Heartbeat; returns the error."""
        own = {"member_id": member_id, "generation_id": generation, "group_instance_id": None}
        return name_of(self.ask("heartbeat", 3, **{**own, **values}).error_code)

    def leave(self, member_id: str, instance: str | None = None, **values: Any) -> str:
        """Sends LeaveGroup for one member; returns the error of the member or of the request."""
        members = [{"member_id": member_id, "group_instance_id": instance}]
        answer = self.ask("leave_group", 3, members=members, **values)
        return name_of(answer.members[0].error_code if answer.members else answer.error_code)

    def commit(self, version: int = 8, *, partition: int = 0, topic: str | None = None, metadata: str = "", **values: Any) -> str:
        """Sends OffsetCommit of one offset, without a member unless one is given; returns the error."""
        place = {"partition_index": partition, "committed_offset": 5, "committed_metadata": metadata}
        place |= {"commit_timestamp": -1, "committed_leader_epoch": -1}
        topics = [{"name": topic or self.topic, "partitions": [place]}]
        own = {"generation_id": -1, "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1}
        if "generation_id" in values:
            values["generation_id_or_member_epoch"] = values["generation_id"]

        def code_of(answer: Any) -> int:
            code: int = answer.topics[0].partitions[0].error_code
            return code

        answer = self.ask("offset_commit", version, code_of, topics=topics, **{**own, "group_instance_id": None, **values})
        return name_of(code_of(answer))

    def member(self, instance: str | None = None) -> tuple[str, int]:
        """Makes a stable group of one member; returns the member's id and the generation."""
        joined = self.join(group_instance_id=instance)
        if name_of(joined.error_code) == "MEMBER_ID_REQUIRED":
            joined = self.join(member_id=joined.member_id)
        assert name_of(joined.error_code) == "NONE"
        assert self.sync(joined.member_id, joined.generation_id, group_instance_id=instance) == "NONE"
        return joined.member_id, joined.generation_id

    def deleted(self, group: str) -> str:
        """Sends DeleteGroups for one group; returns the error."""
        answer = ask(self.connection, "delete_groups", 1, groups_names=[group])
        return name_of(answer.results[0].error_code)

    def offset_deleted(self, topic: str, partition: int = 0, **values: Any) -> str:
        """Sends OffsetDelete of one offset; returns the error of the partition or of the request."""
        topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        answer = self.ask("offset_delete", 0, topics=topics, **values)
        return name_of(answer.topics[0].partitions[0].error_code if answer.topics else answer.error_code)

    def described(self, group: str, version: int = 5) -> str:
        """Sends DescribeGroups for one group; returns the error, the state and the protocol."""
        answer = ask(self.connection, "describe_groups", version, groups=[group], include_authorized_operations=True)
        (found,) = answer.groups
        return f"{name_of(found.error_code)} {found.group_state} {found.protocol_type} {found.protocol_data}".rstrip()


@pytest.fixture
def stage(broker: Broker, topic: str) -> Iterator[Stage]:
    create_topic(broker.bootstrap, topic, 2)
    with RawConnection(broker.address) as connection:
        stage = Stage(connection, broker.address, topic)
        wait_until(stage.has_coordinator, timeout_s=60, what="the coordinator is known")
        assert stage.commit(group_id="somebody") == "NONE"
        yield stage


def code(answer: Any) -> str:
    return name_of(answer.error_code)


def a_group_that_is_not_there(stage: Stage) -> list[str]:
    answers = [stage.beat("x", 1), stage.sync("x", 1), stage.leave("x"), stage.leave("", "one")]
    answers += [code(stage.join(member_id="x")), stage.deleted(stage.topic), stage.offset_deleted(stage.topic)]
    return [*answers, stage.described(stage.topic), stage.described(stage.topic, 6)]


def no_group(stage: Stage) -> list[str]:
    answers = [code(stage.join(group_id="")), stage.sync("x", 1, group_id=""), stage.beat("x", 1, group_id="")]
    return [*answers, stage.leave("x", group_id=""), stage.offset_deleted(stage.topic, group_id="")]


def session_timeouts_out_of_bounds(stage: Stage) -> list[str]:
    return [code(stage.join(session_timeout=ms)) for ms in (1_800_001, 0, -1, 6000)]


def generations_that_are_not(stage: Stage) -> list[str]:
    member, generation = stage.member()
    wrong = [generation - 1, generation + 1, -1]
    answers = [stage.beat(member, each) for each in wrong] + [stage.sync(member, each) for each in wrong]
    answers += [stage.commit(member_id=member, generation_id=each) for each in wrong]
    return [*answers, stage.beat(member, generation)]


def members_that_are_not(stage: Stage) -> list[str]:
    _, generation = stage.member()
    answers = [stage.beat("x", generation), stage.sync("x", generation), stage.leave("x"), stage.leave("")]
    answers += [code(stage.join(member_id="x")), stage.commit(member_id="x", generation_id=generation)]
    return [*answers, stage.commit(), stage.commit(member_id="x"), stage.commit(2)]


def instances_that_are_not(stage: Stage) -> list[str]:
    _, generation = stage.member("one")
    name: dict[str, Any] = {"group_instance_id": "two"}
    answers = [stage.beat("x", generation, **name), stage.sync("x", generation, **name), stage.leave("x", "two")]
    return [*answers, stage.leave("", "two"), stage.commit(member_id="x", generation_id=generation, **name)]


def an_instance_that_another_has_taken_over(stage: Stage) -> list[str]:
    first, generation = stage.member("one")
    second = stage.join(group_instance_id="one")
    assert second.member_id != first
    name: dict[str, Any] = {"group_instance_id": "one"}
    answers = [stage.beat(first, generation, **name), stage.sync(first, generation, **name), stage.leave(first, "one")]
    answers += [stage.commit(member_id=first, generation_id=generation, **name), stage.beat(first, generation)]
    answers += [code(stage.join(member_id=first, **name)), stage.beat(second.member_id, generation, **name)]
    return [*answers, stage.leave("", "one"), stage.beat(second.member_id, generation, **name)]


def what_a_static_leader_is_told_when_it_is_back(stage: Stage) -> list[str]:
    member, _ = stage.member("one")
    newest, before = stage.join(9, group_instance_id="one"), stage.join(8, group_instance_id="one")

    def told(answer: Any) -> str:
        leads = "leads" if answer.leader == answer.member_id else "follows"
        skips = getattr(answer, "skip_assignment", False)
        return f"{code(answer)} {answer.generation_id} {leads} {skips} {len(answer.members)} {answer.leader == member}"

    return [told(newest), told(before)]


def protocols_that_do_not_fit(stage: Stage) -> list[str]:
    answers = [code(stage.join(names=())), code(stage.join(protocol_type=""))]
    member, generation = stage.member()
    answers += [code(stage.join(names=("other",))), code(stage.join(protocol_type="connect"))]
    answers += [code(stage.join(names=(), member_id=member)), code(stage.join(names=("other",), member_id=member))]
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    answers += [stage.sync(member, generation, 5, **{**named, name: "other"}) for name in named]
    answers += [stage.sync(member, generation, 5, **{**named, name: None}) for name in named]
    return [*answers, stage.sync(member, generation, 5, **named)]


def a_member_that_joins_and_does_not_sync(stage: Stage) -> list[str]:
    joined = stage.join(3)
    member, generation = joined.member_id, joined.generation_id
    own = {"member_id": member, "generation_id": generation}
    answers = [stage.beat(member, generation), stage.commit(**own), stage.commit(9, **own), stage.described(stage.topic)]
    return [*answers, stage.sync(member, generation), stage.commit(**own), stage.described(stage.topic)]


def a_member_in_a_rebalance(stage: Stage) -> list[str]:
    member, generation = stage.member()
    with RawConnection(stage.address) as other:
        asked = Stage(other, stage.address, stage.topic)
        required = asked.join()
        waiting = Stage(stage.connection, stage.address, stage.topic)
        own: dict[str, Any] = {"member_id": member, "generation_id": generation}
        answers = [code(required), stage.beat(member, generation)]
        # The request of the other member is sent and waits for this member.
        send_join(other, stage, required.member_id)
        while waiting.beat(member, generation) == "NONE":
            time.sleep(POLL_S)
        answers += [stage.beat(member, generation), stage.sync(member, generation), stage.commit(**own)]
        answers += [stage.described(stage.topic), stage.deleted(stage.topic), stage.offset_deleted(stage.topic)]
        answers += [stage.leave(member), stage.beat(member, generation)]
    return answers


def send_join(connection: RawConnection, stage: Stage, member_id: str) -> None:
    """Sends a JoinGroup and does not wait for its answer."""
    request = JoinGroupRequest(
        group_id=stage.topic,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(stage.topic))],
    )
    connection.send(framed(APIS[11], 5, encode(request, 5, False)))


def commits_of_what_is_not_there(stage: Stage) -> list[str]:
    answers = [stage.commit(topic="no-such-topic"), stage.commit(partition=2), stage.commit(partition=-1)]
    answers += [stage.commit(metadata="x" * 4096), stage.commit(metadata="x" * 4097)]
    return [*answers, *(stage.commit(version, topic="no-such-topic") for version in (2, 5, 9))]


def commits_of_a_generation_of_no_group(stage: Stage) -> list[str]:
    own: dict[str, Any] = {"member_id": "x", "generation_id": 3}
    answers = [stage.commit(version, **own) for version in (2, 8, 9)]
    return [*answers, stage.commit(member_id="x"), stage.commit(9, member_id="x")]


def offsets_of_the_group_without_a_name(stage: Stage) -> list[str]:
    return [stage.commit(group_id=""), stage.deleted(""), stage.deleted("")]


def deletions(stage: Stage) -> list[str]:
    assert stage.commit() == "NONE"
    answers = [stage.offset_deleted(stage.topic, 1), stage.offset_deleted(stage.topic, 7), stage.offset_deleted("nowhere")]
    answers += [stage.offset_deleted(stage.topic), stage.deleted(stage.topic), stage.deleted(stage.topic)]
    member, _ = stage.member()
    answers += [stage.deleted(stage.topic), stage.offset_deleted(stage.topic)]
    return [*answers, stage.leave(member), stage.deleted(stage.topic)]


def deletions_of_a_group_that_is_no_consumers(stage: Stage) -> list[str]:
    joined = stage.join(3, protocol_type="connect")
    assert stage.sync(joined.member_id, joined.generation_id) == "NONE"
    answers = [stage.offset_deleted(stage.topic), stage.described(stage.topic)]
    return [*answers, stage.leave(joined.member_id), stage.offset_deleted(stage.topic), stage.described(stage.topic)]


def listings(stage: Stage) -> list[str]:
    stage.commit()
    member, _ = stage.member()

    def listed(states: Sequence[str] = (), types: Sequence[str] = ()) -> str:
        answer = ask(stage.connection, "list_groups", 5, states_filter=states, types_filter=types)
        found = [group for group in answer.groups if group.group_id == stage.topic]
        return " ".join([code(answer), *(f"{group.protocol_type} {group.group_state} {group.group_type}" for group in found)])

    answers = [
        listed(),
        listed(["stable"]),
        listed([" STABLE "]),
        listed(["Empty"]),
        listed(["Nothing"]),
        listed(["Stable", "x"]),
    ]
    answers += [listed(types=["classic"]), listed(types=["Classic"]), listed(types=["consumer"]), listed(types=["nothing"])]
    return [*answers, listed(["empty"], ["classic"]), stage.leave(member), listed(["empty"], ["classic"]), listed(["Dead"])]


def a_client_that_leaves_before_it_joins(stage: Stage) -> list[str]:
    required = stage.join()
    answers = [code(required), stage.beat(required.member_id, 0), stage.sync(required.member_id, 0)]
    answers += [stage.commit(member_id=required.member_id, generation_id=0), stage.described(stage.topic)]
    return [
        *answers,
        stage.leave(required.member_id),
        stage.leave(required.member_id),
        code(stage.join(member_id=required.member_id)),
    ]


Case = Callable[[Stage], list[str]]

EXPECTED: dict[Case, str] = {
    a_group_that_is_not_there: (
        "UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, "
        "GROUP_ID_NOT_FOUND, GROUP_ID_NOT_FOUND, NONE Dead, GROUP_ID_NOT_FOUND Dead"
    ),
    no_group: "INVALID_GROUP_ID, INVALID_GROUP_ID, INVALID_GROUP_ID, INVALID_GROUP_ID, INVALID_GROUP_ID",
    session_timeouts_out_of_bounds: (
        "INVALID_SESSION_TIMEOUT, INVALID_SESSION_TIMEOUT, INVALID_SESSION_TIMEOUT, MEMBER_ID_REQUIRED"
    ),
    generations_that_are_not: (
        "ILLEGAL_GENERATION, ILLEGAL_GENERATION, ILLEGAL_GENERATION, ILLEGAL_GENERATION, ILLEGAL_GENERATION, "
        "ILLEGAL_GENERATION, ILLEGAL_GENERATION, ILLEGAL_GENERATION, ILLEGAL_GENERATION, NONE"
    ),
    members_that_are_not: (
        "UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, "
        "UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID"
    ),
    instances_that_are_not: ("UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID"),
    an_instance_that_another_has_taken_over: (
        "FENCED_INSTANCE_ID, FENCED_INSTANCE_ID, FENCED_INSTANCE_ID, FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID, "
        "FENCED_INSTANCE_ID, NONE, NONE, UNKNOWN_MEMBER_ID"
    ),
    what_a_static_leader_is_told_when_it_is_back: "NONE 1 leads True 1 False, NONE 1 follows False 0 False",
    protocols_that_do_not_fit: (
        "INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, "
        "INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, "
        "INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_GROUP_PROTOCOL, "
        "INCONSISTENT_GROUP_PROTOCOL, NONE"
    ),
    a_member_that_joins_and_does_not_sync: (
        "NONE, REBALANCE_IN_PROGRESS, REBALANCE_IN_PROGRESS, NONE CompletingRebalance consumer, NONE, NONE, "
        "NONE Stable consumer range"
    ),
    a_member_in_a_rebalance: (
        "MEMBER_ID_REQUIRED, NONE, REBALANCE_IN_PROGRESS, REBALANCE_IN_PROGRESS, NONE, "
        "NONE PreparingRebalance consumer, NON_EMPTY_GROUP, GROUP_SUBSCRIBED_TO_TOPIC, NONE, UNKNOWN_MEMBER_ID"
    ),
    commits_of_what_is_not_there: (
        "UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, NONE, "
        "OFFSET_METADATA_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, "
        "UNKNOWN_TOPIC_OR_PARTITION"
    ),
    commits_of_a_generation_of_no_group: "ILLEGAL_GENERATION, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, NONE, NONE",
    offsets_of_the_group_without_a_name: "NONE, NONE, GROUP_ID_NOT_FOUND",
    deletions: (
        "NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, NONE, NONE, GROUP_ID_NOT_FOUND, "
        "NON_EMPTY_GROUP, GROUP_SUBSCRIBED_TO_TOPIC, NONE, NONE"
    ),
    deletions_of_a_group_that_is_no_consumers: ("NON_EMPTY_GROUP, NONE Stable connect range, NONE, NONE, NONE Empty connect"),
    listings: (
        "NONE consumer Stable classic, NONE consumer Stable classic, NONE consumer Stable classic, NONE, NONE, "
        "NONE consumer Stable classic, NONE consumer Stable classic, NONE consumer Stable classic, NONE, NONE, "
        "NONE, NONE, NONE consumer Empty classic, NONE"
    ),
    a_client_that_leaves_before_it_joins: (
        "MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, NONE Empty, NONE, "
        "UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID"
    ),
}
"""The answers of both brokers."""


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_each_request_is_answered_as_kafka_answers_it(stage: Stage, case: Case) -> None:
    assert ", ".join(case(stage)) == EXPECTED[case]
