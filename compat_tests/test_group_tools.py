"""kafka-consumer-groups.sh, for groups of the classic and the consumer protocol: every way to reset offsets, to delete,
to describe and to list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.tools import ALL_GROUPS, GROUPS, Outcome, Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

HOUR_MS = 3_600_000


class Group:
    """A group that has read two topics to their ends and committed, and the tool.

    Attributes:
        many: a topic of two partitions: the first has five records of an hour ago and five of now, the second none.
        few: a topic with four records in one partition.
        consumer: the only member of the group.
    """

    def __init__(self, broker: Broker, tool: Tools, topic: str, protocol: str) -> None:
        self.name, self.many, self.few = f"group-of-{topic}", f"{topic}-many", f"{topic}-few"
        self.protocol = protocol
        self._server = ("--bootstrap-server", broker.bootstrap)
        self._tool = tool
        self._write(broker.bootstrap)
        settings = {
            "group.protocol": protocol,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self.consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": self.name, **settings})
        self._read()

    def _write(self, bootstrap: str) -> None:
        create_topic(bootstrap, self.many, 2)
        create_topic(bootstrap, self.few)
        producer = Producer({"bootstrap.servers": bootstrap})
        self.now_ms = int(time.time() * 1000)
        for number in range(10):
            time_ms = self.now_ms - (HOUR_MS if number < 5 else 0)
            producer.produce(self.many, str(number), partition=0, timestamp=time_ms)
        for number in range(4):
            producer.produce(self.few, str(number), partition=0)
        assert producer.flush(20) == 0

    def _read(self) -> None:
        self.consumer.subscribe([self.many, self.few])
        count = 0

        def has_read() -> bool:
            nonlocal count
            message = self.consumer.poll(0.1)
            count += message is not None and message.error() is None
            return count == 14

        wait_until(has_read, timeout_s=60, what=f"{self.name} has read")
        self.consumer.commit(asynchronous=False)

    def run(self, *arguments: str) -> Outcome:
        """Runs the tool with the broker's address; the tool reports errors with exit code 0."""
        return self._tool.run(GROUPS, *self._server, *arguments)

    def table(self, *arguments: str) -> list[dict[str, str]]:
        """Returns the rows of a table by their headings."""
        out = self._tool.check(GROUPS, *self._server, *arguments).out.replace("COORDINATOR (ID)", "COORDINATOR ID")
        rows = [line.split() for line in out.splitlines() if line.strip()]
        heads = [index for index, row in enumerate(rows) if row[0] in ("GROUP", "TOPIC")]
        assert heads, out
        return [dict(zip(rows[heads[0]], row, strict=False)) for row in rows[heads[0] + 1 :] if len(row) > 1]

    def described(self, *arguments: str) -> list[dict[str, str]]:
        """Returns the rows of --describe, without the line that the group has no members."""
        rows = self.table("--describe", "--group", self.name, *arguments)
        return [row for row in rows if row["GROUP"] == self.name]

    def reset(self, *arguments: str) -> dict[str, int]:
        """Returns the rows of --reset-offsets: the new offsets."""
        rows = self.table("--reset-offsets", "--group", self.name, *arguments)
        return {self._short(row["TOPIC"], row["PARTITION"]): int(row["NEW-OFFSET"]) for row in rows if row["GROUP"] == self.name}

    def exported(self, *arguments: str) -> str:
        """Returns the lines of --reset-offsets --export: TOPIC,PARTITION,OFFSET; long names are quoted."""
        return self.run("--reset-offsets", "--group", self.name, *arguments, "--export").out

    def committed(self) -> dict[str, int]:
        """Returns the committed offsets by the description of the group."""
        rows = self.described("--offsets")
        return {
            self._short(row["TOPIC"], row["PARTITION"]): int(row["CURRENT-OFFSET"])
            for row in rows
            if row["CURRENT-OFFSET"] != "-"
        }

    def listed(self, *arguments: str, tool: str = GROUPS) -> list[str]:
        """Returns the group's row in --list, without its name."""
        lines = self._tool.check(tool, *self._server, "--list", *arguments).lines()
        return [" ".join(line.split()[1:]) for line in lines if line.split()[0] == self.name]

    def _short(self, topic: str, partition: str) -> str:
        """Returns the name of a partition in the tests: `many 0`, `many 1` or `few 0`."""
        return f"{'many' if topic == self.many else 'few'} {partition}"


@pytest.fixture(params=["classic", "consumer"])
def group(request: pytest.FixtureRequest, broker: Broker, tools_jvm: Tools, topic: str) -> Iterator[Group]:
    group = Group(broker, tools_jvm, topic, request.param)
    yield group
    group.consumer.close()


@pytest.fixture
def left_group(group: Group) -> Group:
    """Returns a group without members, whose offsets may be changed."""
    group.consumer.close()
    return group


def test_offsets_are_reset_in_every_way(left_group: Group) -> None:
    group, many, few = left_group, left_group.many, left_group.few
    both = ("--topic", many, "--topic", few)
    steps: list[tuple[tuple[str, ...], dict[str, int]]] = [
        (("--topic", many, "--to-earliest"), {"many 0": 0, "many 1": 0}),
        (("--topic", many, "--to-latest"), {"many 0": 10, "many 1": 0}),
        (("--topic", f"{many}:0", "--shift-by", "-3"), {"many 0": 7}),
        (("--topic", f"{many}:0", "--shift-by", "2"), {"many 0": 9}),
        (("--topic", f"{many}:0", "--shift-by", "100"), {"many 0": 10}),
        (("--topic", f"{many}:0", "--shift-by", "-100"), {"many 0": 0}),
        ((*both, "--to-offset", "3"), {"many 0": 3, "many 1": 0, "few 0": 3}),
        (("--topic", f"{many}:0,1", "--to-offset", "8"), {"many 0": 8, "many 1": 0}),
        (("--all-topics", "--to-offset", "7"), {"many 0": 7, "many 1": 0, "few 0": 4}),
        (("--all-topics", "--to-current"), {"many 0": 7, "many 1": 0, "few 0": 4}),
        (("--topic", many, "--by-duration", "PT30M"), {"many 0": 5, "many 1": 0}),
        (("--topic", f"{many}:0", "--by-duration", "P1D"), {"many 0": 0}),
        (("--all-topics", "--to-latest"), {"many 0": 10, "many 1": 0, "few 0": 4}),
    ]
    committed = group.committed()
    assert committed == {"many 0": 10, "few 0": 4}
    for arguments, expected in steps:
        assert group.reset(*arguments, "--dry-run") == expected, arguments
        assert group.committed() == committed, "a dry run changes nothing"
        assert group.reset(*arguments, "--execute") == expected, arguments
        committed |= expected
        assert group.committed() == committed, arguments


def test_offsets_are_reset_to_a_time_in_any_zone(left_group: Group) -> None:
    half_an_hour_ago = datetime.fromtimestamp(left_group.now_ms / 1000, UTC) - timedelta(minutes=30)
    texts = [
        half_an_hour_ago.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        half_an_hour_ago.astimezone(timezone(timedelta(hours=5, minutes=30))).strftime("%Y-%m-%dT%H:%M:%S.000+05:30"),
    ]
    partition = ("--topic", f"{left_group.many}:0")
    for text in texts:
        left_group.reset(*partition, "--to-latest", "--execute")
        assert left_group.reset(*partition, "--to-datetime", text, "--execute") == {"many 0": 5}
        assert left_group.committed()["many 0"] == 5
    later = (half_an_hour_ago + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert left_group.reset(*partition, "--to-datetime", later, "--dry-run") == {"many 0": 10}


def test_offsets_go_into_a_file_and_come_back_from_it(left_group: Group, tmp_path: Path) -> None:
    group, plan = left_group, tmp_path / "offsets.csv"
    group.reset("--topic", group.many, "--topic", group.few, "--to-offset", "2", "--execute")
    text = group.exported("--all-topics", "--to-current", "--dry-run")
    assert sorted(text.replace('"', "").split()) == sorted([f"{group.few},0,2", f"{group.many},0,2", f"{group.many},1,0"])
    plan.write_text(text.strip() + "\n")
    text = group.exported("--all-topics", "--to-earliest", "--execute")
    assert sorted(text.replace('"', "").split()) == sorted([f"{group.few},0,0", f"{group.many},0,0", f"{group.many},1,0"])
    assert group.committed() == {"many 0": 0, "many 1": 0, "few 0": 0}
    expected = {"many 0": 2, "many 1": 0, "few 0": 2}
    assert group.reset("--from-file", str(plan), "--dry-run") == expected
    assert group.reset("--from-file", str(plan), "--execute") == expected
    assert group.committed() == expected


def test_what_cannot_be_reset_is_told(group: Group) -> None:
    reset = ("--reset-offsets", "--group", group.name)
    refused = group.run(*reset, "--topic", group.many, "--to-earliest", "--execute")
    assert f"the group '{group.name}' is inactive, but the current state is Stable" in refused.out + refused.err
    group.consumer.close()
    refused = group.run(*reset, "--topic", f"{group.many}:9", "--to-earliest", "--execute")
    assert f'The partitions "{group.many}-9" do not exist' in refused.out + refused.err
    refused = group.run(*reset, "--topic", "no-such-topic", "--to-earliest", "--execute")
    assert "UnknownTopicOrPartitionException" in refused.out + refused.err
    assert group.committed() == {"many 0": 10, "few 0": 4}


def test_a_reset_makes_a_group_that_was_not_there(left_group: Group) -> None:
    new = f"{left_group.name}-new"
    rows = left_group.table("--reset-offsets", "--group", new, "--topic", left_group.few, "--to-latest", "--execute")
    assert [(row["PARTITION"], row["NEW-OFFSET"]) for row in rows] == [("0", "4")]
    left_group.name = new
    assert left_group.committed() == {"few 0": 4}
    assert left_group.listed("--type", "--state") == ["Classic Empty"]


def test_offsets_of_a_group_are_deleted(group: Group) -> None:
    delete = ("--delete-offsets", "--group", group.name)

    def statuses(*arguments: str) -> dict[str, str]:
        lines = group.run(*delete, *arguments).lines()
        found = [re.fullmatch(r"\S+\s+(\d+|-)\s+(Successful|Error: .*?)\s*", line) for line in lines]
        return {match[1]: match[2] for match in found if match is not None}

    refused = statuses("--topic", group.many)
    assert refused.keys() == {"0", "1"}
    assert all("GroupSubscribedToTopicException" in status for status in refused.values())
    refused_group = group.run("--delete", "--group", group.name)
    assert "GroupNotEmptyException" in refused_group.out + refused_group.err
    group.consumer.close()
    assert group.committed() == {"many 0": 10, "few 0": 4}
    assert statuses("--topic", f"{group.many}:0") == {"0": "Successful"}
    assert group.committed() == {"few 0": 4}
    assert statuses("--topic", group.many) == {"0": "Successful", "1": "Successful"}
    assert "UnknownTopicOrPartitionException" in statuses("--topic", "no-such-topic")["-"]
    deleted = group.run("--delete", "--group", group.name)
    assert f"Deletion of requested consumer groups ('{group.name}') was successful." in deleted.out
    assert group.listed() == []
    gone = group.run(*delete, "--topic", group.many)
    assert "GroupIdNotFoundException" in gone.out + gone.err


def test_a_group_with_a_member_is_described(group: Group) -> None:
    is_new = group.protocol == "consumer"
    (member,) = group.described("--members")
    assert (member["CLIENT-ID"], member["HOST"], member["#PARTITIONS"]) == ("reader", "/127.0.0.1", "3")
    assert member["CONSUMER-ID"] == group.consumer.memberid()

    offsets = group.described()
    assert offsets == group.described("--offsets")
    told = {
        (row["TOPIC"], row["PARTITION"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"], row["CONSUMER-ID"])
        for row in offsets
    }
    owner = member["CONSUMER-ID"]
    assert told == {
        (group.many, "0", "10", "10", "0", owner),
        (group.many, "1", "-", "0", "-", owner),
        (group.few, "0", "4", "4", "0", owner),
    }
    assert {row["LEADER-EPOCH"] for row in group.described("--offsets", "--verbose")} == {"0", "-"}

    (state,) = group.described("--state", "--verbose")
    assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")
    assert state["ASSIGNMENT-STRATEGY"] == ("uniform" if is_new else "range")
    assert state["GROUP-EPOCH"] == state["TARGET-ASSIGNMENT-EPOCH"]
    assert (state["GROUP-EPOCH"] == "-") is not is_new

    (verbose,) = group.described("--members", "--verbose")
    assignment = f"{group.few}:0;{group.many}:0,1"
    assert verbose["CURRENT-ASSIGNMENT"] == assignment
    assert verbose["CURRENT-EPOCH"] == verbose["TARGET-EPOCH"] == state["GROUP-EPOCH"]
    assert verbose["TARGET-ASSIGNMENT"] == (assignment if is_new else "-")


def test_a_group_without_members_is_described(left_group: Group) -> None:
    (state,) = left_group.described("--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
    assert left_group.described("--members") == []
    offsets = left_group.described()
    assert {row["CONSUMER-ID"] for row in offsets} == {"-"}
    assert {(row["TOPIC"], row["LAG"]) for row in offsets} == {(left_group.many, "0"), (left_group.few, "0")}
    for arguments in ((), ("--state",), ("--members",)):
        outcome = left_group.run("--describe", "--group", left_group.name, *arguments)
        assert f"Consumer group '{left_group.name}' has no active members." in outcome.out + outcome.err
        nobody = left_group.run("--describe", "--group", "no-such-group", *arguments)
        assert "GroupIdNotFoundException: Group no-such-group not found" in nobody.out + nobody.err


def test_groups_are_listed_by_state_and_type(group: Group) -> None:
    kind = group.protocol.capitalize()
    other = "classic" if group.protocol == "consumer" else "consumer"
    assert group.listed() == [""]
    assert group.listed("--state") == ["Stable"]
    assert group.listed("--type") == [kind]
    assert group.listed("--state", "--type") == [f"{kind} Stable"]
    assert group.listed("--state", "stable") == ["Stable"]
    assert group.listed("--state", "Empty,PreparingRebalance") == []
    assert group.listed(tool=ALL_GROUPS) == [f"{kind} consumer"]
    assert group.listed("--type", group.protocol) == [kind]
    assert group.listed("--type", other) == []
    assert group.listed("--state", "Empty,Stable", "--type", kind) == [f"{kind} Stable"]
    group.consumer.close()
    assert group.listed("--state", "Empty", "--type", "classic,consumer") == [f"{kind} Empty"]
    assert group.listed("--state", "Stable") == []
    refused = group.run("--list", "--type", "nonsense")
    assert refused.code == 1
    assert "Invalid types list 'nonsense'" in refused.out + refused.err
    refused = group.run("--list", "--state", "nonsense")
    assert refused.code == 1
    assert "Invalid state list 'nonsense'" in refused.out + refused.err
