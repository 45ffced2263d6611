"""`wirekafka group` as a client of an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from wirekafka.cli import main
from wirekafka.cli.client.times import parse_time_ms
from wirekafka.testing import EmbeddedBroker

TOPIC = "orders"
COUNT = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic(TOPIC, 2)
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(COUNT):
            producer.produce(TOPIC, b"value", partition=0, timestamp=1_000_000_000_000 + number)
        assert producer.flush(60) == 0
        yield running


def run(broker: EmbeddedBroker, *arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["group", *arguments, "-b", broker.bootstrap, "--timeout", "60"])
    assert result.exit_code == exit_code, result.output
    return result


@contextmanager
def consumer(broker: EmbeddedBroker, group: str) -> Iterator[Consumer]:
    opened = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": "reader",
            "log_level": 0,
            "enable.auto.commit": False,
        }
    )
    try:
        yield opened
    finally:
        opened.close()


def commit(broker: EmbeddedBroker, group: str, offset: int) -> None:
    with consumer(broker, group) as opened:
        opened.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)


def reset(broker: EmbeddedBroker, group: str, *arguments: str) -> list[int]:
    """Returns the new offsets by partition."""
    rows: list[dict[str, Any]] = json.loads(run(broker, "reset-offsets", group, *arguments, "--json").stdout)
    return [row["new_offset"] for row in rows]


def test_group_is_listed_and_described_with_its_lag(broker: EmbeddedBroker) -> None:
    commit(broker, "lagging", 4)
    assert json.loads(run(broker, "list", "lag*", "--json").stdout) == [{"group": "lagging", "type": "classic", "state": "empty"}]
    assert ["lagging", "classic", "empty"] in [line.split() for line in run(broker, "list").stdout.splitlines()]
    [found] = json.loads(run(broker, "describe", "lagging", "--json").stdout)
    assert (found["state"], found["lag"], found["members"]) == ("empty", 6, [])
    [row] = found["partitions"]
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (4, 10, 6)
    shown = run(broker, "describe", "lagging").stdout
    assert shown.startswith("lagging: empty, classic, 0 members, lag 6, coordinator ")
    assert ["orders", "0", "4", "10", "6", "-", "-", "-"] in [line.split() for line in shown.splitlines()]


def test_running_member_is_shown_with_its_partitions_and_keeps_the_group_from_a_reset(broker: EmbeddedBroker) -> None:
    with consumer(broker, "running") as opened:
        opened.subscribe([TOPIC])
        while not opened.assignment():
            opened.poll(0.1)
        broker.wait_for_group_stable("running", members=1, timeout_s=60)
        [found] = json.loads(run(broker, "describe", "running", "--json").stdout)
        assert (found["state"], found["assignor"], len(found["members"])) == ("stable", "range", 1)
        assert [(each["partition"], each["client"], each["lag"]) for each in found["partitions"]] == [
            (0, "reader", None),
            (1, "reader", None),
        ]
        refused = run(broker, "reset-offsets", "running", "--topic", TOPIC, "--to-earliest", "--execute", exit_code=1)
        assert refused.stderr == "wirekafka: group running is stable: stop its members first\n"
        assert "stop the members of the group first" in run(broker, "delete", "running", exit_code=1).stderr


def test_reset_is_only_shown_without_execute(broker: EmbeddedBroker) -> None:
    commit(broker, "planned", 4)
    result = run(broker, "reset-offsets", "planned", "--all-topics", "--to-earliest")
    assert ["orders", "0", "4", "0"] in [line.split() for line in result.stdout.splitlines()]
    assert result.stderr == "Nothing is changed: --execute commits the new offsets.\n"
    assert reset(broker, "planned", "--all-topics", "--to-current") == [4]
    assert reset(broker, "planned", "--all-topics", "--to-latest", "--execute") == [10]
    assert reset(broker, "planned", "--all-topics", "--to-current") == [10]


@pytest.mark.parametrize(
    ("arguments", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "99"], 10),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-9"], 0),
        (["--shift-by", "3"], 7),
        (["--to-datetime", "1000000000005"], 5),
        (["--to-datetime", "2001-09-09T01:46:40.005"], 5),
        (["--to-datetime", "-1m"], 10),
    ],
)
def test_reset_goes_to_its_target_within_the_partition(broker: EmbeddedBroker, arguments: list[str], offset: int) -> None:
    commit(broker, "moved", 4)
    assert reset(broker, "moved", "--all-topics", *arguments) == [offset]


def test_reset_of_a_new_group_creates_it_with_the_partitions_that_are_named(broker: EmbeddedBroker) -> None:
    assert reset(broker, "new", "--topic", f"{TOPIC}:0", "--to-offset", "3", "--execute") == [3]
    assert reset(broker, "new", "--topic", TOPIC, "--to-current") == [3, 0]


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        (["--topic", "orders"], "Give exactly one of --to-earliest, ", 2),
        (["--topic", "orders", "--to-latest", "--to-earliest"], "Give exactly one of", 2),
        (["--to-latest"], "Give --topic or --all-topics", 2),
        (["--topic", "orders", "--to-datetime", "noon"], "noon is no time", 2),
        (["--topic", "orders:x", "--to-latest"], "accepted is TOPIC:PARTITION", 2),
        (["--topic", "orders:7", "--to-latest"], "topic orders has no partition 7", 1),
        (["--topic", "nope", "--to-latest"], "topic nope does not exist", 1),
        (["--all-topics", "--to-latest"], "has no committed offsets", 1),
        (["--topic", "orders", "--shift-by", "1"], "has no committed offset to shift", 1),
    ],
)
def test_reset_that_makes_no_sense_is_refused(broker: EmbeddedBroker, arguments: list[str], message: str, exit_code: int) -> None:
    assert message in run(broker, "reset-offsets", "none", *arguments, exit_code=exit_code).stderr


def test_delete_deletes_a_group_and_names_those_that_do_not_exist(broker: EmbeddedBroker) -> None:
    commit(broker, "done", 4)
    result = run(broker, "delete", "done", "nope", exit_code=1)
    assert result.stdout == "done deleted\n"
    assert "group nope: The group id does not exist" in result.stderr
    assert "group done does not exist" in run(broker, "describe", "done", exit_code=1).stderr


def test_times_are_iso_in_utc_milliseconds_or_how_long_ago() -> None:
    assert parse_time_ms("1970-01-01T00:00:01", 0) == 1000
    assert parse_time_ms("1970-01-01T01:00:01+01:00", 0) == 1000
    assert parse_time_ms("1777636800000", 0) == 1777636800000
    assert parse_time_ms("-1.5h", 10_000_000) == 4_600_000
    assert parse_time_ms("-20ms", 100) == 80


def test_coordinator_that_loads_its_groups_is_asked_again(broker: EmbeddedBroker) -> None:
    commit(broker, "loading", 4)
    with broker.fault(api="ConsumerGroupDescribe", error="COORDINATOR_LOAD_IN_PROGRESS", times=1) as fault:
        [found] = json.loads(run(broker, "describe", "loading", "--json").stdout)
    assert (found["lag"], len(fault.hits)) == (6, 1)
