"""Apache Kafka loads the groups and offsets that wirekafka wrote, wirekafka those of Kafka, and both answer as before.

One broker of each kind is filled alike. Then wirekafka takes Kafka's data directory as it is, and Kafka gets wirekafka's files
into the folder of its own __consumer_offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import V2, RawProducer, ask, name_of
from compat_tests.harness.waiting import wait_until
from compat_tests.test_bad_groups import Stage
from compat_tests.test_kafka_reads_our_files import place_files

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
TOPIC = "read"
LONG_MS = 1_800_000
"""A session that lasts longer than the test."""
GROUPS = ("simple", "committed", "aborted", "open", "overtaken", "deleted", "left", "static")


@contextmanager
def staged(broker: Broker) -> Iterator[Stage]:
    """Somebody who asks, once there is a coordinator."""
    with RawConnection(broker.address) as connection:
        stage = Stage(connection, broker.address, TOPIC)
        for kind in (0, 1):
            wait_until(lambda kind=kind: stage.has_coordinator(kind), timeout_s=30, what="the coordinators are known")
        yield stage


def in_transaction(stage: Stage, group: str, *offsets: int) -> RawProducer:
    """A producer that has committed offsets for a group in a transaction that is open."""
    producer = RawProducer(stage.connection, f"for-{group}", V2)
    assert producer.init(900_000) == "NONE"
    assert [producer.commit_offsets(group, TOPIC, offset) for offset in offsets] == ["NONE"] * len(offsets)
    return producer


def fill(stage: Stage) -> tuple[str, int]:
    """Makes all the groups; returns the member of `static`, and its generation."""
    for group in ("simple", "committed", "aborted", "open", "deleted"):
        assert stage.commit(group_id=group, partition=1, metadata=f"of {group}") == "NONE"
    assert in_transaction(stage, "committed", 11, 12).commit() == "NONE"
    assert in_transaction(stage, "aborted", 13).abort() == "NONE"
    in_transaction(stage, "open", 14)
    overtaken = in_transaction(stage, "overtaken", 15)
    assert stage.commit(group_id="overtaken") == "NONE"
    assert overtaken.commit() == "NONE"
    assert stage.deleted("deleted") == "NONE"
    joined = stage.join(3, group_id="left")
    assert stage.sync(joined.member_id, joined.generation_id, group_id="left") == "NONE"
    assert stage.leave(joined.member_id, group_id="left") == "NONE"
    static = stage.join(group_id="static", group_instance_id="one", session_timeout=LONG_MS, rebalance_timeout=LONG_MS)
    assert stage.sync(static.member_id, static.generation_id, group_id="static", group_instance_id="one") == "NONE"
    wait_until(lambda: fetched(stage, "committed")[0].startswith("NONE"), timeout_s=10, what="the markers are written")
    return static.member_id, static.generation_id


def fetched(stage: Stage, group: str) -> list[str]:
    """What a group has committed, for both partitions."""
    topics = [{"name": TOPIC, "partition_indexes": [0, 1]}]
    answer = stage.ask("offset_fetch", 7, group_id=group, topics=topics, require_stable=True)
    places = [(name_of(each.error_code), each.committed_offset, each.metadata) for each in answer.topics[0].partitions]
    return [f"{error} {offset} {metadata}".rstrip() for error, offset, metadata in places]


def answers(stage: Stage, member: tuple[str, int]) -> dict[str, list[str]]:
    """What the broker says of every group."""
    found = {group: [*fetched(stage, group), stage.described(group)] for group in GROUPS}
    (described,) = ask(stage.connection, "describe_groups", 5, groups=["static"], include_authorized_operations=False).groups
    (each,) = described.members
    assert each.member_id == member[0]
    found["static"] += [str(each.group_instance_id), each.member_assignment.decode()]
    found["static"].append(stage.beat(*member, group_id="static", group_instance_id="one"))
    return found


@dataclass
class Exchange:
    """What each broker said of its own groups, and the other one of the same, by who wrote them."""

    before: Mapping[str, dict[str, list[str]]]
    after: Mapping[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    directory = tmp_path_factory.mktemp("exchanged-groups")
    wirekafka, kafka = Wirekafka(directory / "wirekafka", SETTINGS), ApacheKafka(directory / "kafka", SETTINGS)
    adopting = Wirekafka(directory / "adopting", SETTINGS)
    before, after, members = {}, {}, {}
    for name, broker in (("wirekafka", wirekafka), ("kafka", kafka)):
        broker.directory.mkdir()
        with brokers.running(broker):
            create_topic(broker.bootstrap, TOPIC, 2)
            with staged(broker) as stage:
                members[name] = fill(stage)
                before[name] = answers(stage, members[name])
            assert broker.terminate() in (0, 143)
    adopting.directory.mkdir()
    kafka.data_dir.rename(adopting.data_dir)
    with ExitStack() as stack:
        stack.enter_context(brokers.running(adopting))
        after["kafka"] = answers(stack.enter_context(staged(adopting)), members["kafka"])
        assert adopting.terminate() == 0
    adopting.data_dir.rename(kafka.data_dir)
    place_files(wirekafka.data_dir / "__consumer_offsets-0", kafka.data_dir / "__consumer_offsets-0")
    with ExitStack() as stack:
        stack.enter_context(brokers.running(kafka))
        after["wirekafka"] = answers(stack.enter_context(staged(kafka)), members["wirekafka"])
    return Exchange(before, after)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("writer", ["wirekafka", "kafka"])
def test_a_group_is_what_it_was_in_the_other_broker(exchange: Exchange, writer: str, group: str) -> None:
    assert exchange.after[writer][group] == exchange.before[writer][group]


@pytest.mark.parametrize("group", GROUPS)
def test_both_brokers_say_the_same_of_a_group(exchange: Exchange, group: str) -> None:
    assert exchange.before["wirekafka"][group] == exchange.before["kafka"][group]
