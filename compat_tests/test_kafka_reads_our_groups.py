"""wirekafka takes over the consumer groups of Apache Kafka, and Apache Kafka takes over those of wirekafka."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.clients import CONFLUENT, KAFKA_PYTHON, Agent, Client, Member
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.test_groups import Join, numbered, wait_until_assigned, wait_until_read
from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.errors import ErrorCode

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

SETTINGS = {
    "broker.rack": "here",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
"""The error codes that Apache Kafka returns for a while after its start."""

THEIRS, OURS, TOPIC = "of-kafka", "of-wirekafka", "both"


def described(broker: Broker, group: str) -> Any:
    """Returns a broker's description of a group, with its members in the order of their ids."""
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    with RawConnection(broker.address) as connection:
        (found,) = connection.ask(request, 1).groups
        deadline = time.monotonic() + 20
        while found.error_code in NOT_YET and time.monotonic() < deadline:
            time.sleep(0.1)
            (found,) = connection.ask(request, 1).groups
    assert found.error_code == 0, found
    found.members.sort(key=lambda member: member.member_id)
    for member in found.members:
        member.client_host = ""
        member.subscribed_topic_names.sort()
        for assignment in (member.assignment, member.target_assignment):
            assignment.topic_partitions.sort(key=lambda topic: topic.topic_name)
            for topic in assignment.topic_partitions:
                topic.partitions.sort()
    return found


@contextmanager
def reading(join: Join, broker: Broker, group: str, clients: list[tuple[Client, dict[str, str]]]) -> Iterator[list[Member]]:
    """Starts members that have read all records, and kills them at the end, so that they stay members for a while.

    They join one by one: while a group's first member is a classic one that has no assignment yet, Apache Kafka answers a
    member of the consumer protocol with UNKNOWN_SERVER_ERROR, and librdkafka gives up then.
    """
    members: list[Member] = []
    for client, options in clients:
        members.append(join(client, group, TOPIC, bootstrap=broker.bootstrap, session=6000, **options))
        wait_until_assigned(members, 4)
    wait_until_read(members, numbered(100, 4))
    yield members
    for member in members:
        member.process.kill()


CONSUMER = {"protocol": "consumer"}


def test_groups_go_on_at_the_other_broker(agent: Callable[[Client], Agent], join: Join, tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", SETTINGS)
    kafka.directory.mkdir()
    with brokers.running(kafka):
        create_topic(kafka.bootstrap, TOPIC, 4)
        agent(CONFLUENT).produce(kafka.bootstrap, TOPIC, numbered(100, 4))
        with reading(
            join, kafka, THEIRS, [(CONFLUENT, CONSUMER), (CONFLUENT, {**CONSUMER, "instance": "i"}), (KAFKA_PYTHON, {})]
        ):
            theirs = described(kafka, THEIRS)
        assert kafka.terminate() in (0, 143)

    wirekafka = Wirekafka(tmp_path / "wirekafka", SETTINGS)
    wirekafka.directory.mkdir()
    shutil.copytree(kafka.data_dir, wirekafka.data_dir)
    with brokers.running(wirekafka):
        assert described(wirekafka, THEIRS) == theirs
        assert_goes_on(wirekafka, theirs)
        with reading(
            join, wirekafka, OURS, [(CONFLUENT, CONSUMER), (CONFLUENT, {**CONSUMER, "instance": "i"}), (KAFKA_PYTHON, {})]
        ):
            ours = described(wirekafka, OURS)
        assert wirekafka.terminate() == 0

    for folder in kafka.data_dir.glob("__consumer_offsets-*"):
        shutil.rmtree(folder)
        shutil.copytree(wirekafka.data_dir / folder.name, folder)
    with brokers.running(kafka):
        assert described(kafka, OURS) == ours
        assert_goes_on(kafka, ours)


def assert_goes_on(broker: Broker, before: Any) -> None:
    """Raises unless a member's next heartbeat brings no change: the broker knows the topics of the group."""
    member = next(found for found in before.members if found.member_type == 1 and found.instance_id is None)
    beat = ConsumerGroupHeartbeatRequest(group_id=before.group_id, member_id=member.member_id, member_epoch=member.member_epoch)
    with RawConnection(broker.address) as connection:
        answer = connection.ask(beat, 1)
    assert (answer.error_code, answer.member_epoch) == (0, before.group_epoch), answer
    after = described(broker, before.group_id)
    assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, before.assignment_epoch)
