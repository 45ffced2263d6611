"""Invalid requests for share groups get Kafka's error codes and, if there is one, Kafka's message.

Each case is a function that sends its requests and returns their answers. The table at the end has the answers of both brokers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import POLL_S
from wirekafka.api import alter_share_group_offsets as altering
from wirekafka.api import delete_share_group_offsets as deleting
from wirekafka.api import describe_share_group_offsets as describing
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from wirekafka.api.share_fetch import ShareFetchRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.errors import ErrorCode

pytestmark = pytest.mark.xdist_group("share-groups")

SETTINGS = {
    "group.share.assignment.interval.ms": "0",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
NOBODY = b"?" * 16
ACCEPT, RENEW = 1, 4
NOTHING: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}

Said = tuple[int, int, int, list[int]]
"""Partition, first and last offset, types."""


@dataclass
class Stage:
    """A topic of one partition with eight records, a share group of the same name that begins at the first, and a connection."""

    broker: Broker
    connection: RawConnection
    topic: str
    topic_id: bytes
    epochs: dict[str, int] = field(default_factory=dict)

    def ask(self, request: Any, version: int) -> Any:
        """Sends a request, and repeats it while the coordinator is not ready."""
        deadline = time.monotonic() + 20
        while True:
            answer = self.connection.ask(request, version)
            if getattr(answer, "error_code", 0) not in NOT_YET or time.monotonic() > deadline:
                return answer
            time.sleep(POLL_S)

    def beat(self, epoch: int = 0, member: str = "m", **fields: Any) -> Any:
        if epoch == 0:
            fields = {"subscribed_topic_names": [self.topic]} | fields
        fields.setdefault("group_id", self.topic)
        return self.ask(ShareGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields), 1)

    def join(self, member: str = "m") -> int:
        """Joins and waits until the member has partitions; returns the member's epoch."""
        deadline = time.monotonic() + 20
        while True:
            answer = self.beat(member=member)
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return int(answer.member_epoch)
            assert time.monotonic() < deadline, answer
            time.sleep(POLL_S)

    def topic_with(self, *partitions: int, said: tuple[Said, ...] = (), topic_id: bytes | None = None) -> AcknowledgeTopic:
        named: dict[int, list[AcknowledgementBatch]] = {index: [] for index in partitions}
        for index, first, last, types in said:
            words = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            named.setdefault(index, []).append(words)
        return AcknowledgeTopic(
            topic_id=topic_id or self.topic_id,
            partitions=[
                AcknowledgePartition(partition_index=index, acknowledgement_batches=words) for index, words in named.items()
            ],
        )

    def fetch(self, *partitions: int, member: str | None = "m", said: tuple[Said, ...] = (), **fields: Any) -> Any:
        """Sends the next fetch of a member's session, or one with the given epoch."""
        epoch = fields.pop("epoch", self.epochs.get(member or "", 0))
        topics = fields.pop("topics", [self.topic_with(*partitions, said=said)] if partitions or said else [])
        wish: dict[str, Any] = {
            "group_id": self.topic,
            "max_wait_ms": 300,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
        }
        request = ShareFetchRequest(member_id=member, share_session_epoch=epoch, topics=topics, **wish | fields)
        request.batch_size = 100
        answer = self.ask(request, 2)
        if not answer.error_code and member is not None:
            self.epochs[member] = epoch + 1
        return answer

    def acknowledge(self, *said: Said, member: str | None = "m", beside: tuple[int, ...] = (), **fields: Any) -> Any:
        """Sends the next acknowledgements of a member's session, or some with the given epoch."""
        epoch = fields.pop("epoch", self.epochs.get(member or "", 0))
        topic = self.topic_with(*beside, said=said, topic_id=fields.pop("topic_id", None))
        fields.setdefault("group_id", self.topic)
        request = ShareAcknowledgeRequest(member_id=member, share_session_epoch=epoch, topics=[topic], **fields)
        answer = self.ask(request, 2)
        if not answer.error_code and member is not None:
            self.epochs[member] = epoch + 1
        return answer

    def hold_all(self) -> None:
        """Joins, and fetches until the member has all eight records."""
        self.join()
        answer = self.fetch(0)
        deadline = time.monotonic() + 20
        while not acquired(answer):
            assert time.monotonic() < deadline, answer
            answer = self.fetch()
        assert acquired(answer) == "0-7"

    def alter(self, partition: int, offset: int = 0, topic: str | None = None, group: str | None = None) -> Any:
        partitions = [altering.AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)]
        topics = [altering.AlterShareGroupOffsetsRequestTopic(topic_name=topic or self.topic, partitions=partitions)]
        group = self.topic if group is None else group
        return self.ask(altering.AlterShareGroupOffsetsRequest(group_id=group, topics=topics), 0)

    def delete(self, topic: str | None = None, group: str | None = None) -> Any:
        topics = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic or self.topic)]
        group = self.topic if group is None else group
        return self.ask(deleting.DeleteShareGroupOffsetsRequest(group_id=group, topics=topics), 0)

    def offsets(self, group: str, *partitions: int, topic: str | None = None) -> str:
        topics = None
        if partitions:
            name = topic or self.topic
            topics = [describing.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(partitions))]
        asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
        (found,) = self.ask(describing.DescribeShareGroupOffsetsRequest(groups=[asked]), 1).groups
        return " ".join(f"{p.start_offset}/{p.lag}" for topic in found.topics for p in topic.partitions) or "nothing"


def told(answer: Any) -> str:
    """Returns the error and its message."""
    name = ErrorCode(answer.error_code).name
    return name if answer.error_message is None else f"{name}: {answer.error_message}"


def acquired(answer: Any) -> str:
    """Returns the records that the member has acquired."""
    if answer.error_code:
        return told(answer)
    return " ".join(
        f"{each.first_offset}-{each.last_offset}"
        for topic in answer.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    )


def partitions_told(answer: Any) -> str:
    """Returns the error and message of each partition, in order."""
    if answer.error_code:
        return told(answer)
    partitions = [(each.partition_index, told(each)) for topic in answer.responses for each in topic.partitions]
    return ", ".join(f"{index} {text}" for index, text in sorted(partitions)) or "nothing"


@pytest.fixture(scope="module")
def shares_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("shares-broker"), SETTINGS)) as running:
        yield running


@pytest.fixture
def stage(shares_broker: Broker, topic: str) -> Iterator[Stage]:
    create_topic(shares_broker.bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": shares_broker.bootstrap})
    reset = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[reset])
    admin.incremental_alter_configs([group])[group].result(60)
    producer = Producer({"bootstrap.servers": shares_broker.bootstrap, "linger.ms": 100})
    for _ in range(8):
        producer.produce(topic, b"v")
    assert producer.flush(30) == 0
    with RawConnection(shares_broker.address) as connection:
        metadata = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
        stage = Stage(shares_broker, connection, topic, metadata.topics[0].topic_id)
        connection.ask(FindCoordinatorRequest(coordinator_keys=[topic]), 4)
        yield stage


def heartbeats_that_are_incomplete(stage: Stage) -> list[str]:
    return [
        told(stage.beat(member="")),
        told(stage.beat(member="m" * 37)),
        told(stage.beat(member=" ")),
        told(stage.beat(group_id="")),
        told(stage.beat(rack_id="")),
        told(stage.beat(subscribed_topic_names=None)),
        told(stage.beat(subscribed_topic_names=[])),
        told(stage.beat(-2)),
    ]


def members_and_epochs_that_are_not(stage: Stage) -> list[str]:
    missing = [told(stage.beat(4)).partition(":")[0], told(stage.beat(-1)).partition(":")[0]]
    epoch = stage.join()
    return [
        *missing,
        told(stage.beat(epoch + 7)).partition(":")[0],
        told(stage.beat(epoch, member="n")).partition(":")[0],
        told(stage.beat(-1, member="n")).partition(":")[0],
        told(stage.beat(epoch)),
    ]


def fetches_that_cannot_be(stage: Stage) -> list[str]:
    stage.join()
    return [
        told(stage.fetch(0, group_id=None)),
        told(stage.fetch(0, member=None)),
        told(stage.fetch(0, member="")),
        told(stage.fetch(0, member="m" * 37)),
        told(stage.fetch(0, epoch=1)),
        told(stage.fetch(0, epoch=-1)),
        told(stage.fetch(said=((0, 0, 0, [ACCEPT]),))),
        *[told(stage.fetch(0, is_renew_ack=True, **(NOTHING | {name: 1}))) for name in NOTHING],
        told(stage.fetch(0, share_acquire_mode=7)),
        told(stage.fetch(0, max_records=0)),
        told(stage.fetch(epoch=9)),
    ]


def partitions_that_are_not(stage: Stage) -> list[str]:
    stage.join()
    return [partitions_told(stage.fetch(9))]


def acknowledgements_of_no_session(stage: Stage) -> list[str]:
    stage.join()
    words = (0, 0, 0, [ACCEPT])
    missing = [
        partitions_told(stage.acknowledge(words, group_id=None)),
        partitions_told(stage.acknowledge(words, member="")),
        partitions_told(stage.acknowledge(words, epoch=0)),
        partitions_told(stage.acknowledge(words, epoch=1)),
        partitions_told(stage.acknowledge(words, epoch=-1)),
    ]
    stage.fetch(0)
    return [*missing, partitions_told(stage.acknowledge(words, epoch=9)), partitions_told(stage.acknowledge(words, epoch=0))]


def acknowledgements_that_are_malformed(stage: Stage) -> list[str]:
    stage.hold_all()
    wrong: list[Said] = [
        *[(0, 0, 0, [9]), (0, 0, 0, [-1]), (0, 0, 0, [RENEW]), (0, 1, 0, [ACCEPT])],
        *[(0, 0, 2, [ACCEPT, ACCEPT]), (0, 0, 0, []), (9, 0, 0, [ACCEPT])],
    ]
    return [
        *[partitions_told(stage.acknowledge(each)) for each in wrong],
        partitions_told(stage.acknowledge((0, 0, 0, [ACCEPT]), topic_id=NOBODY)),
        partitions_told(stage.acknowledge((0, 3, 3, [ACCEPT]), (0, 2, 2, [ACCEPT]))),
        partitions_told(stage.acknowledge((0, 0, 7, [ACCEPT]))),
    ]


def acknowledgements_of_what_a_member_does_not_have(stage: Stage) -> list[str]:
    stage.hold_all()
    stage.join("n")
    stage.fetch(0, member="n")
    return [
        partitions_told(stage.acknowledge((0, 0, 99, [ACCEPT]))),
        partitions_told(stage.acknowledge((0, 50, 60, [ACCEPT]))),
        partitions_told(stage.acknowledge((0, 0, 7, [ACCEPT]), member="n")).partition(":")[0],
        partitions_told(stage.acknowledge((0, 1, 2, [ACCEPT]), (0, 2, 3, [ACCEPT]))).partition(":")[0],
        partitions_told(stage.acknowledge((0, 4, 4, [ACCEPT]))),
        partitions_told(stage.acknowledge((0, 4, 4, [ACCEPT]))).partition(":")[0],
        partitions_told(stage.acknowledge((0, 0, 7, [ACCEPT]))).partition(":")[0],
    ]


def partitions_of_which_nothing_is_said(stage: Stage) -> list[str]:
    stage.hold_all()
    return [
        partitions_told(stage.acknowledge(beside=(0,))),
        partitions_told(stage.acknowledge(beside=(0, 9))),
        partitions_told(stage.acknowledge((9, 0, 0, [ACCEPT]), beside=(0,))),
        partitions_told(stage.acknowledge((0, 0, 7, [ACCEPT]))),
    ]


def sessions_that_are_opened_anew(stage: Stage) -> list[str]:
    stage.hold_all()
    stage.join("n")
    return [
        acquired(stage.fetch(0, epoch=0)),
        partitions_told(stage.acknowledge((0, 0, 3, [ACCEPT]))),
        acquired(stage.fetch(0, member="n")),
        partitions_told(stage.acknowledge((0, 4, 4, [ACCEPT]), epoch=-1)),
        partitions_told(stage.acknowledge((0, 5, 5, [ACCEPT]), epoch=5)),
        acquired(stage.fetch(member="n")),
    ]


def members_that_have_left(stage: Stage) -> list[str]:
    stage.hold_all()
    return [
        told(stage.beat(-1)),
        partitions_told(stage.acknowledge((0, 0, 3, [ACCEPT]))),
        acquired(stage.fetch()),
        acquired(stage.fetch(0, member="n")),
    ]


def offsets_that_cannot_be_set(stage: Stage) -> list[str]:
    stage.hold_all()
    refused = [told(stage.alter(0)), told(stage.delete())]
    stage.beat(-1)
    missing = f"{stage.topic}-missing"
    return [
        *refused,
        told(stage.alter(0, group="")),
        told(stage.delete(group="")),
        told(stage.delete(group=missing)).replace(missing, "x"),
        *[told(each) for each in stage.delete(missing).responses],
        partitions_told(stage.alter(9)),
        partitions_told(stage.alter(0, topic=missing)),
        partitions_told(stage.alter(0, topic=missing, group=missing)),
        told(stage.delete(group=missing)).replace(missing, "x"),
        partitions_told(stage.alter(0, 3)),
        *[told(each) for each in stage.delete().responses],
        *[told(each) for each in stage.delete().responses],
    ]


def offsets_that_are_not_known(stage: Stage) -> list[str]:
    missing = f"{stage.topic}-missing"
    return [
        stage.offsets(missing),
        stage.offsets(""),
        stage.offsets(missing, 0),
        stage.offsets(stage.topic, 0),
        stage.offsets(stage.topic, 0, topic=missing),
    ]


def offsets_of_partitions_below_0(stage: Stage) -> list[str]:
    answer = stage.alter(-1)
    return [ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code).name]


def topics_that_are_not(stage: Stage) -> list[str]:
    stage.join()
    return [partitions_told(stage.fetch(topics=[stage.topic_with(0), stage.topic_with(1, topic_id=NOBODY)]))]


Case = Callable[[Stage], list[str]]

EXPECTED: dict[Case, list[str]] = {
    heartbeats_that_are_incomplete: [
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "INVALID_REQUEST: MemberId can't be empty.",
        "INVALID_REQUEST: GroupId can't be empty.",
        "INVALID_REQUEST: RackId can't be empty.",
        "INVALID_REQUEST: SubscribedTopicNames must be set in first request.",
        "INVALID_REQUEST: SubscribedTopicNames must be set in first request.",
        "INVALID_REQUEST: MemberEpoch is invalid.",
    ],
    members_and_epochs_that_are_not: [
        "GROUP_ID_NOT_FOUND",
        "GROUP_ID_NOT_FOUND",
        "FENCED_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "NONE",
    ],
    fetches_that_cannot_be: [
        *["INVALID_REQUEST"] * 4,
        "SHARE_SESSION_NOT_FOUND",
        "SHARE_SESSION_NOT_FOUND",
        *["INVALID_REQUEST"] * 5,
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "INVALID_SHARE_SESSION_EPOCH",
    ],
    partitions_that_are_not: ["9 UNKNOWN_TOPIC_OR_PARTITION"],
    acknowledgements_of_no_session: [
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "INVALID_SHARE_SESSION_EPOCH",
        "SHARE_SESSION_NOT_FOUND",
        "SHARE_SESSION_NOT_FOUND",
        "INVALID_SHARE_SESSION_EPOCH",
        "INVALID_SHARE_SESSION_EPOCH",
    ],
    acknowledgements_that_are_malformed: [
        *["0 INVALID_REQUEST"] * 6,
        "9 UNKNOWN_TOPIC_OR_PARTITION",
        "0 UNKNOWN_TOPIC_ID",
        "0 INVALID_REQUEST",
        "0 NONE",
    ],
    acknowledgements_of_what_a_member_does_not_have: [
        "0 INVALID_REQUEST: Batch record not found. The last offset in request is past acquired records.",
        "0 INVALID_REQUEST: Batch record not found. The first offset in request is past acquired records.",
        "0 INVALID_RECORD_STATE",
        "0 INVALID_RECORD_STATE",
        "0 NONE",
        "0 INVALID_RECORD_STATE",
        "0 INVALID_RECORD_STATE",
    ],
    partitions_of_which_nothing_is_said: [
        "nothing",
        "9 UNKNOWN_TOPIC_OR_PARTITION",
        "9 UNKNOWN_TOPIC_OR_PARTITION",
        "0 NONE",
    ],
    sessions_that_are_opened_anew: ["", "0 NONE", "", "0 NONE", "SHARE_SESSION_NOT_FOUND", "5-7"],
    members_that_have_left: ["NONE", "0 NONE", "", ""],
    offsets_that_cannot_be_set: [
        "NON_EMPTY_GROUP: The group is not empty.",
        "NON_EMPTY_GROUP: The group is not empty.",
        "INVALID_GROUP_ID: The group id is invalid.",
        "INVALID_GROUP_ID: The group id is invalid.",
        "GROUP_ID_NOT_FOUND: Group x not found.",
        "UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.",
        "9 UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.",
        "0 UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.",
        "0 UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.",
        "GROUP_ID_NOT_FOUND: Group x not found.",
        "0 NONE",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION: There is no offset information to delete.",
    ],
    offsets_that_are_not_known: ["nothing", "nothing", "-1/-1", "-1/-1", "-1/-1"],
}


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_each_request_is_answered_as_kafka_answers_it(stage: Stage, case: Case) -> None:
    assert case(stage) == EXPECTED[case]


DIFFERENT: dict[Case, tuple[list[str], list[str]]] = {
    offsets_of_partitions_below_0: (["UNKNOWN_TOPIC_OR_PARTITION"], ["UNKNOWN_SERVER_ERROR"]),
    topics_that_are_not: (["0 NONE, 1 UNKNOWN_TOPIC_ID"], ["UNKNOWN_SERVER_ERROR"]),
}
"""The differences of docs/differences.md: the answers of wirekafka and those of Kafka."""


@pytest.mark.parametrize("case", DIFFERENT, ids=lambda case: case.__name__)
def test_requests_at_which_kafka_stumbles_are_answered(stage: Stage, broker_kind: str, case: Case) -> None:
    ours, theirs = DIFFERENT[case]
    assert case(stage) == (ours if broker_kind == WIREKAFKA else theirs)
