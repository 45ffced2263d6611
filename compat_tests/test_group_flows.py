"""The generations of a classic group, by raw requests of several members at once.

Each case runs its members and returns the answers that they got; the table at the end has the answers of both brokers. Members
have names of one letter, which replaces the member id in the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from compat_tests.conftest import CLASSES
from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import Broker
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import ask, name_of
from compat_tests.harness.waiting import POLL_S, wait_until
from compat_tests.test_bad_groups import Stage, subscription

SETTINGS = {"group.max.size": "3", "group.initial.rebalance.delay.ms": "1000", "offsets.topic.num.partitions": "1"}
REBALANCE_MS = 2000
SESSION_MS = 6000


class Flow:
    """A group and its members, each on a connection of its own.

    Attributes:
        letters: by member id.
        ids: by letter, the present id of a member.
        generations: by letter, the generation of the member's last answer.
    """

    def __init__(self, broker: Broker, group: str, stack: ExitStack) -> None:
        self.broker, self.group = broker, group
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor(8))
        self._stages: dict[str, Stage] = {}
        self.letters: dict[str, str] = {"": "-"}
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}

    def stage(self, who: str) -> Stage:
        if who not in self._stages:
            connection = self._stack.enter_context(RawConnection(self.broker.address, timeout_s=30))
            self._stages[who] = Stage(connection, self.broker.address, self.group)
        return self._stages[who]

    def join(
        self,
        who: str,
        *,
        instance: str | None = None,
        protocols: Sequence[str] = ("range",),
        version: int = 3,
        metadata: bytes = b"",
        session_ms: int = SESSION_MS,
        member: str | None = None,
    ) -> Future[str]:
        """Sends JoinGroup; the future has the answer. A dynamic member needs no id in version 3."""

        def told() -> str:
            answer = self.stage(who).join(
                9 if instance is not None and version == 3 else version,
                protocols=[{"name": name, "metadata": metadata or subscription(self.group)} for name in protocols],
                member_id=self.ids.get(who, "") if member is None else member,
                group_instance_id=instance,
                session_timeout=session_ms,
                rebalance_timeout=REBALANCE_MS,
                reason=None,
            )
            error = name_of(answer.error_code)
            if answer.member_id:
                self.ids[who], self.letters[answer.member_id] = answer.member_id, who
            if error != "NONE":
                return f"{who}: {error}"
            self.generations[who] = answer.generation_id
            # The leader's letter is known once the leader has its own answer.
            wait_until(lambda: answer.leader in self.letters, timeout_s=60, what="the leader is answered too")
            skips = ", skips" if getattr(answer, "skip_assignment", False) else ""
            count = f", of {len(answer.members)}" if answer.members else ""
            return f"{who}: {answer.generation_id} {answer.protocol_name} led by {self.letters[answer.leader]}{count}{skips}"

        return self._later(told)

    def sync(self, who: str, assignments: str = "", *, instance: str | None = None) -> Future[str]:
        """Sends SyncGroup, with each letter's assignment as `a=1 b=2`."""
        given = [pair.split("=") for pair in assignments.split()]

        def told() -> str:
            answer = self.stage(who).ask(
                "sync_group",
                3,
                member_id=self.ids[who],
                generation_id=self.generations[who],
                group_instance_id=instance,
                assignments=[{"member_id": self.ids[letter], "assignment": text.encode()} for letter, text in given],
            )
            return f"{who}: {name_of(answer.error_code)} {answer.assignment.decode()}".rstrip()

        return self._later(told)

    def _later(self, told: Callable[[], str]) -> Future[str]:
        """Sends a request in a thread, and returns when it is sent: the requests of a case reach the broker in order."""
        future = self._pool.submit(told)
        time.sleep(0.1)
        return future

    def beat(self, who: str, instance: str | None = None) -> str:
        code = self.stage(f"{who}-beats").beat(self.ids[who], self.generations[who], group_instance_id=instance)
        return f"{who}: {code}"

    def beat_until(self, who: str, wanted: str, instance: str | None = None) -> str:
        wait_until(lambda: self.beat(who, instance) == f"{who}: {wanted}", timeout_s=60, what=f"{who} is told {wanted}")
        return self.beat(who, instance)

    def leave(self, *whos: str, instances: Sequence[str] = ()) -> str:
        members = [{"member_id": self.ids.get(who, who), "group_instance_id": None} for who in whos]
        members += [{"member_id": "", "group_instance_id": instance} for instance in instances]
        answer = self.stage("admin").ask("leave_group", 3, members=members)
        return " ".join(name_of(each.error_code) for each in answer.members)

    def described(self) -> str:
        asked = {"groups": [self.group], "include_authorized_operations": False}
        (group,) = ask(self.stage("admin").connection, "describe_groups", 5, **asked).groups
        members = sorted(f"{self.letters.get(each.member_id)}={each.member_assignment.decode()}" for each in group.members)
        return " ".join([group.group_state, group.protocol_data or "-", *members])

    def both(self, first: str = "a", second: str = "b", **values: Any) -> list[str]:
        """Makes a stable group of two members; the first one leads."""
        joins = [self.join(first, **values), self.join(second, **values)]
        told = [join.result() for join in joins]
        syncs = [self.sync(second), self.sync(first, f"{first}=1 {second}=2")]
        return [*told, *(sync.result() for sync in syncs)]


@pytest.fixture(scope="module")
def small_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("small-groups"), SETTINGS)) as running:
        with RawConnection(running.address) as connection:
            stage = Stage(connection, running.address, "somebody")
            wait_until(stage.has_coordinator, timeout_s=60, what="the coordinator is known")
            create_topic(running.bootstrap, "somebody", 1)
            assert stage.commit() == "NONE"
        yield running


@pytest.fixture
def flow(small_broker: Broker, topic: str) -> Iterator[Flow]:
    with ExitStack() as stack:
        yield Flow(small_broker, topic, stack)


def two_come_at_once(flow: Flow) -> list[str]:
    return [*flow.both(), flow.described(), flow.beat("a"), flow.beat("b")]


def a_third_one_comes_later(flow: Flow) -> list[str]:
    flow.both()
    third = flow.join("c")
    told = [flow.beat("a"), flow.beat("b"), flow.described()]
    joins = [flow.join("b"), flow.join("a")]
    told += [join.result() for join in (*joins, third)]
    syncs = [flow.sync("c"), flow.sync("a", "a=1 b=2 c=3"), flow.sync("b")]
    return [*told, *(sync.result() for sync in syncs), flow.described()]


def one_too_many(flow: Flow) -> list[str]:
    joins = [flow.join(who) for who in "abcd"]
    told = [join.result() for join in joins]
    flow.sync("a", "a=1").result()
    return [*told, flow.join("e").result(), flow.join("f", version=4).result()]


def the_leader_leaves(flow: Flow) -> list[str]:
    flow.both()
    told = [flow.leave("a"), flow.beat("a"), flow.beat("b"), flow.described()]
    told.append(flow.join("b").result())
    return [*told, flow.sync("b", "b=all").result(), flow.leave("b"), flow.described()]


def some_leave_and_others_were_not_there(flow: Flow) -> list[str]:
    flow.both()
    return [flow.leave("nobody", "a", "nobody", instances=["nothing"]), flow.beat("b"), flow.leave("b", "b"), flow.described()]


def the_leader_does_not_come_back(flow: Flow) -> list[str]:
    flow.both()
    told = [flow.join("b", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff").result()]
    return [*told, flow.beat("a"), flow.sync("b", "b=all").result(), flow.described()]


def a_static_leader_does_not_come_back(flow: Flow) -> list[str]:
    joins = [flow.join("a", instance="one"), flow.join("b")]
    told = [each.result() for each in joins]
    flow.sync("a", "a=1 b=2", instance="one").result()
    flow.sync("b").result()
    told.append(flow.join("b", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff").result())
    told += [flow.sync("b", "a=3 b=4").result(), flow.described()]
    return [*told, flow.beat("a", "one")]


def a_member_joins_and_falls_silent(flow: Flow) -> list[str]:
    joins = [flow.join("a"), flow.join("b")]
    told = [join.result() for join in joins]
    told.append(flow.sync("a", "a=1 b=2").result())
    # The member is removed after the rebalance timeout, because it has not sent SyncGroup.
    told += [flow.beat_until("a", "REBALANCE_IN_PROGRESS"), flow.beat("b")]
    return [*told, flow.join("a").result(), flow.described()]


def a_leader_joins_and_falls_silent(flow: Flow) -> list[str]:
    joins = [flow.join("a"), flow.join("b")]
    told = [join.result() for join in joins]
    told.append(flow.sync("b").result())
    return [*told, flow.beat("a"), flow.beat("b"), flow.join("b").result()]


def a_session_ends(flow: Flow) -> list[str]:
    told = [*flow.both()]
    deadline = time.monotonic() + 20
    while flow.beat("b") == "b: NONE" and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return [*told, flow.beat("b"), flow.beat("a"), flow.join("b").result()]


def a_follower_asks_again(flow: Flow) -> list[str]:
    flow.both()
    return [flow.join("b").result(), flow.beat("a"), flow.sync("b").result()]


def a_leader_asks_again(flow: Flow) -> list[str]:
    flow.both()
    leader = flow.join("a")
    return [flow.beat("b"), flow.join("b").result(), leader.result()]


def who_missed_the_answer_asks_again(flow: Flow) -> list[str]:
    joins = [flow.join("a"), flow.join("b")]
    told = [join.result() for join in joins]
    return [*told, flow.join("a").result(), flow.join("b").result(), flow.sync("a", "a=1 b=2").result(), flow.sync("b").result()]


def a_vote(flow: Flow) -> list[str]:
    wishes = {"a": ["x", "y", "z"], "b": ["z", "y"], "c": ["w", "y", "z"]}
    joins = [flow.join(who, protocols=names) for who, names in wishes.items()]
    return sorted(join.result() for join in joins)


def a_rebalance_is_interrupted(flow: Flow) -> list[str]:
    flow.both()
    joins = [flow.join("a"), flow.join("b")]
    told = [*(join.result() for join in joins), flow.described()]
    flow.join("c")
    return [*told, flow.described()]


def a_client_that_is_given_an_id_does_not_come_back(flow: Flow) -> list[str]:
    flow.both()
    told = [flow.join("c", version=4, session_ms=700).result()]
    began = time.monotonic()
    joins = [flow.join("a"), flow.join("b")]
    # The other members wait for it until its session expires.
    return [*told, *(join.result() for join in joins), str(0.3 < time.monotonic() - began < REBALANCE_MS / 1000)]


def a_static_member_is_back(flow: Flow) -> list[str]:
    joins = [flow.join("a"), flow.join("b", instance="two")]
    told = [join.result() for join in joins]
    flow.sync("a", "a=1 b=2").result()
    told.append(flow.sync("b", instance="two").result())
    former = flow.ids["b"]
    told.append(flow.join("b", instance="two", member="").result())
    told += [str(flow.ids["b"] == former), flow.beat("a"), flow.sync("b", instance="two").result(), flow.described()]
    # If only the metadata changes and the protocol does not, there is still no rebalance.
    changed = flow.join("b", instance="two", member="", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff").result()
    return [*told, changed, flow.beat("a"), flow.sync("b", instance="two").result()]


def a_static_member_is_back_with_another_protocol(flow: Flow) -> list[str]:
    joins = [flow.join("a", instance="one", protocols=["x", "y"]), flow.join("b", instance="two", protocols=["x", "y"])]
    told = [join.result() for join in joins]
    flow.sync("a", "a=1 b=2", instance="one").result()
    flow.sync("b", instance="two").result()
    back = flow.join("b", instance="two", member="", protocols=["y"])
    told += [flow.beat("a", "one"), flow.join("a", instance="one", protocols=["x", "y"]).result(), back.result()]
    return told


def a_static_member_is_back_in_a_rebalance(flow: Flow) -> list[str]:
    joins = [flow.join("a", instance="one"), flow.join("b", instance="two")]
    told = [join.result() for join in joins]
    waiting = flow.sync("b", instance="two")
    back = flow.join("c", instance="two", member="")
    told += [waiting.result(), flow.beat("a", "one"), flow.join("a", instance="one").result(), back.result()]
    return told


def an_administrator_removes_a_static_member(flow: Flow) -> list[str]:
    joins = [flow.join("a", instance="one"), flow.join("b", instance="two")]
    told = [join.result() for join in joins]
    flow.sync("a", "a=1 b=2", instance="one").result()
    return [*told, flow.leave(instances=["two", "two", "three"]), flow.beat("b", "two"), flow.beat("a", "one")]


Case = Callable[[Flow], list[str]]

EXPECTED: dict[Case, str] = {
    two_come_at_once: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: NONE 2; a: NONE 1; Stable range a=1 b=2; a: NONE; b: NONE"
    ),
    a_third_one_comes_later: (
        "a: REBALANCE_IN_PROGRESS; b: REBALANCE_IN_PROGRESS; PreparingRebalance - None= a=1 b=2; "
        "b: 2 range led by a; a: 2 range led by a, of 3; c: 2 range led by a; c: NONE 3; a: NONE 1; b: NONE 2; "
        "Stable range a=1 b=2 c=3"
    ),
    one_too_many: (
        "a: 1 range led by a, of 3; b: 1 range led by a; c: 1 range led by a; d: GROUP_MAX_SIZE_REACHED; "
        "e: GROUP_MAX_SIZE_REACHED; f: GROUP_MAX_SIZE_REACHED"
    ),
    the_leader_leaves: (
        "NONE; a: UNKNOWN_MEMBER_ID; b: REBALANCE_IN_PROGRESS; PreparingRebalance - b=2; "
        "b: 2 range led by b, of 1; b: NONE all; NONE; Empty -"
    ),
    some_leave_and_others_were_not_there: (
        "UNKNOWN_MEMBER_ID NONE UNKNOWN_MEMBER_ID UNKNOWN_MEMBER_ID; b: REBALANCE_IN_PROGRESS; NONE UNKNOWN_MEMBER_ID; Empty -"
    ),
    the_leader_does_not_come_back: "b: 2 range led by b, of 1; a: UNKNOWN_MEMBER_ID; b: NONE all; Stable range b=all",
    a_static_leader_does_not_come_back: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: 2 range led by b, of 2; b: NONE 4; "
        "Stable range a=3 b=4; a: ILLEGAL_GENERATION"
    ),
    a_member_joins_and_falls_silent: (
        "a: 1 range led by a, of 2; b: 1 range led by a; a: NONE 1; a: REBALANCE_IN_PROGRESS; "
        "b: UNKNOWN_MEMBER_ID; a: 2 range led by a, of 1; CompletingRebalance - a=1"
    ),
    a_leader_joins_and_falls_silent: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: REBALANCE_IN_PROGRESS; a: UNKNOWN_MEMBER_ID; "
        "b: REBALANCE_IN_PROGRESS; b: 2 range led by b, of 1"
    ),
    a_session_ends: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: NONE 2; a: NONE 1; b: REBALANCE_IN_PROGRESS; "
        "a: UNKNOWN_MEMBER_ID; b: 2 range led by b, of 1"
    ),
    a_follower_asks_again: "b: 1 range led by a; a: NONE; b: NONE 2",
    a_leader_asks_again: "b: REBALANCE_IN_PROGRESS; b: 2 range led by a; a: 2 range led by a, of 2",
    who_missed_the_answer_asks_again: (
        "a: 1 range led by a, of 2; b: 1 range led by a; a: 1 range led by a, of 2; b: 1 range led by a; a: NONE 1; b: NONE 2"
    ),
    a_rebalance_is_interrupted: (
        "a: 2 range led by a, of 2; b: 2 range led by a; CompletingRebalance - a=1 b=2; PreparingRebalance - None= a= b="
    ),
    a_client_that_is_given_an_id_does_not_come_back: (
        "c: MEMBER_ID_REQUIRED; a: 2 range led by a, of 2; b: 2 range led by a; True"
    ),
    a_vote: "a: 1 y led by a, of 3; b: 1 y led by a; c: 1 y led by a",
    a_static_member_is_back: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: NONE 2; b: 1 range led by a; False; a: NONE; "
        "b: NONE 2; Stable range a=1 b=2; b: 1 range led by a; a: NONE; b: NONE 2"
    ),
    a_static_member_is_back_with_another_protocol: (
        "a: 1 x led by a, of 2; b: 1 x led by a; a: REBALANCE_IN_PROGRESS; a: 2 y led by a, of 2; b: 2 y led by a"
    ),
    a_static_member_is_back_in_a_rebalance: (
        "a: 1 range led by a, of 2; b: 1 range led by a; b: FENCED_INSTANCE_ID; a: REBALANCE_IN_PROGRESS; "
        "a: 2 range led by a, of 2; c: 2 range led by a"
    ),
    an_administrator_removes_a_static_member: (
        "a: 1 range led by a, of 2; b: 1 range led by a; NONE UNKNOWN_MEMBER_ID UNKNOWN_MEMBER_ID; "
        "b: UNKNOWN_MEMBER_ID; a: REBALANCE_IN_PROGRESS"
    ),
}
"""The answers of both brokers."""


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_members_are_told_what_kafka_tells_them(flow: Flow, case: Case) -> None:
    assert "; ".join(case(flow)) == EXPECTED[case]
