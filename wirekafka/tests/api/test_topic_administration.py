"""CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.create_partitions import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from wirekafka.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wirekafka.api.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from wirekafka.errors import ErrorCode
from wirekafka.names import GROUP_METADATA_TOPIC, ZERO_TOPIC_ID, new_topic_id
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

NODE = 1


def creation(name: str = "flights", partitions: int = 2, replication_factor: int = 1, **settings: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, **settings)


def assigned(*replicas: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in replicas]


@pytest.mark.parametrize("version", range(8))
def test_create_topics_creates_and_tells_what_came_of_it(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        configs = [CreatableTopicConfig(name="retention.ms", value="5")]
        response = caller.ask(CreateTopicsRequest(topics=[creation(configs=configs)]), version)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        assert len(topic.partitions) == 2
        assert topic.log_config.retention_ms == 5
        (result,) = response.topics
        assert (result.name, result.error_code) == ("flights", 0)
        if version >= 1:
            assert result.error_message is None
        if version >= 5:
            assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (2, 1, 0)
            found = {config.name: config for config in result.configs}
            assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("5", 1)
            assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("1073741824", 5)
        if version >= 7:
            assert result.topic_id == topic.topic_id

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creation("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creation("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creation("taken", partitions=0), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creation("x.y"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creation("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (creation(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (creation(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (creation(partitions=100_000), ErrorCode.POLICY_VIOLATION),
        (creation(replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creation(replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creation(replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creation(configs=[CreatableTopicConfig(name="no.such", value="1")]), ErrorCode.INVALID_CONFIG),
        (creation(configs=[CreatableTopicConfig(name="retention.ms", value="x")]), ErrorCode.INVALID_CONFIG),
        (creation(configs=[CreatableTopicConfig(name="retention.ms", value=None)]), ErrorCode.INVALID_CONFIG),
        (creation(assignments=assigned((0, [NODE]))), ErrorCode.INVALID_REQUEST),
        (creation(replication_factor=-1, assignments=assigned((0, [NODE]))), ErrorCode.INVALID_REQUEST),
        (creation(partitions=-1, replication_factor=-1, assignments=assigned((0, [9]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creation(partitions=-1, replication_factor=-1, assignments=assigned((0, []))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            creation(partitions=-1, replication_factor=-1, assignments=assigned((0, [NODE]), (2, [NODE]))),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            creation(partitions=-1, replication_factor=-1, assignments=assigned((0, [NODE]), (0, [NODE]))),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_create_topics_of_what_cannot_be_is_refused_with_kafkas_error(
    tmp_path: Path, topic: CreatableTopic, code: ErrorCode, validate_only: bool
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("taken", 1)
        caller.broker.topics.create("x_y", 1)
        response = caller.ask(CreateTopicsRequest(topics=[topic], validate_only=validate_only), 7)
        assert [result.error_code for result in response.topics] == [code]
        assert response.topics[0].error_message
        assert len(caller.broker.topics) == 2

    run(body, tmp_path)


def test_create_topics_fills_in_defaults_and_takes_assignments(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topics = [
            creation("a", -1, -1),
            creation("b", -1, -1, assignments=assigned((1, [NODE]), (0, [NODE]))),
        ]
        response = caller.ask(CreateTopicsRequest(topics=topics), 7)
        assert [(result.error_code, result.num_partitions) for result in response.topics] == [(0, 3), (0, 2)]

    run(body, tmp_path, num_partitions="3")


def test_create_topics_validate_only_creates_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        (result,) = caller.ask(CreateTopicsRequest(topics=[creation()], validate_only=True), 7).topics
        assert (result.error_code, result.num_partitions, result.topic_id) == (0, 2, ZERO_TOPIC_ID)
        assert len(caller.broker.topics) == 0

    run(body, tmp_path)


def test_create_topics_name_given_twice_is_refused_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(CreateTopicsRequest(topics=[creation("a"), creation("b"), creation("a")]), 7)
        assert [(result.name, result.error_code) for result in response.topics] == [("b", 0), ("a", ErrorCode.INVALID_REQUEST)]
        assert [topic.name for topic in caller.broker.topics] == ["b"]

    run(body, tmp_path)


def deletion(version: int, *names: str) -> DeleteTopicsRequest:
    if version >= 6:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    return DeleteTopicsRequest(topic_names=list(names))


@pytest.mark.parametrize("version", range(7))
def test_delete_topics_by_name_frees_the_name(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 2)
        response = caller.ask(deletion(version, "a", "b"), version)
        assert [(each.name, each.error_code) for each in response.responses] == [
            ("a", 0),
            ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        caller.broker.topics.create("a", 1)

    run(body, tmp_path)


def test_delete_topics_by_id_tells_names(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        unknown = new_topic_id()
        states = [DeleteTopicState(topic_id=topic.topic_id), DeleteTopicState(topic_id=unknown)]
        response = caller.ask(DeleteTopicsRequest(topics=states), 6)
        assert [(each.name, each.topic_id, each.error_code) for each in response.responses] == [
            ("a", topic.topic_id, 0),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ]

    run(body, tmp_path)


def test_delete_topics_refuses_what_is_ambiguous(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        a, b = caller.broker.topics.create("a", 1), caller.broker.topics.create("b", 1)
        states = [
            DeleteTopicState(name="a"),
            DeleteTopicState(name="a"),
            DeleteTopicState(),
            DeleteTopicState(name="x", topic_id=a.topic_id),
            DeleteTopicState(topic_id=b.topic_id),
            DeleteTopicState(topic_id=b.topic_id),
        ]
        response = caller.ask(DeleteTopicsRequest(topics=states), 6)
        assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST] * 4
        messages = {(each.name, each.error_message) for each in response.responses}
        assert {("a", "Duplicate topic name."), (None, "Duplicate topic id.")} <= messages
        assert len(caller.broker.topics) == 2

    run(body, tmp_path)


def test_delete_topics_refuses_the_internal_topic(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create_internal(GROUP_METADATA_TOPIC)
        (result,) = caller.ask(deletion(6, GROUP_METADATA_TOPIC), 6).responses
        assert result.error_code == ErrorCode.INVALID_REQUEST

    run(body, tmp_path, offsets_topic_num_partitions="1")


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_delete_topics_can_be_switched_off(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        (result,) = caller.ask(deletion(version, "a"), version).responses
        assert result.error_code == code
        assert caller.broker.topics.find("a") is not None

    run(body, tmp_path, delete_topic_enable="false")


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_grows_topics(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        for name in ("a", "b", "c"):
            caller.broker.topics.create(name, 2)
        topics = [
            CreatePartitionsTopic(name="a", count=4, assignments=None),
            CreatePartitionsTopic(name="b", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[NODE])]),
            CreatePartitionsTopic(name="c", count=2, assignments=None),
            CreatePartitionsTopic(name="d", count=2, assignments=None),
        ]
        response = caller.ask(CreatePartitionsRequest(topics=topics), version)
        assert [(each.name, each.error_code) for each in response.results] == [
            ("a", 0),
            ("b", 0),
            ("c", ErrorCode.INVALID_PARTITIONS),
            ("d", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [len(topic.partitions) for topic in caller.broker.topics] == [4, 3, 2]

    run(body, tmp_path)


@pytest.mark.parametrize("assignments", [[], [[NODE]], [[NODE], [9]], [[NODE], []]])
def test_create_partitions_with_a_wrong_assignment_is_refused(tmp_path: Path, assignments: list[list[int]]) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        asked = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=3, assignments=asked)])
        (result,) = caller.ask(request, 3).results
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    run(body, tmp_path)


def test_internal_topic_keeps_its_partitions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create_internal(GROUP_METADATA_TOPIC)
        count = len(topic.partitions)
        for validate_only in (True, False):
            asked = CreatePartitionsTopic(name=GROUP_METADATA_TOPIC, count=count + 1, assignments=None)
            (result,) = caller.ask(CreatePartitionsRequest(topics=[asked], validate_only=validate_only), 3).results
            assert result.error_code == ErrorCode.INVALID_REQUEST
            assert len(topic.partitions) == count

    run(body, tmp_path)


def test_create_partitions_validate_only_and_duplicates_change_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        asked = CreatePartitionsTopic(name="a", count=3, assignments=None)
        (result,) = caller.ask(CreatePartitionsRequest(topics=[asked], validate_only=True), 3).results
        assert result.error_code == 0
        (result,) = caller.ask(CreatePartitionsRequest(topics=[asked, asked]), 3).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert len(topic.partitions) == 1

    run(body, tmp_path)


def described(response: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (topic.name, topic.error_code, [partition.partition_index for partition in topic.partitions]) for topic in response.topics
    ]


def test_describe_topic_partitions_pages_through_everything(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        for name, count in (("b", 3), ("a", 2), ("c", 1)):
            caller.broker.topics.create(name, count)
        pages, cursor = [], None
        while True:
            response = caller.ask(DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor), 0)
            pages.append(described(response))
            if response.next_cursor is None:
                break
            cursor = Cursor(topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index)
        assert pages == [[("a", 0, [0, 1])], [("b", 0, [0, 1])], [("b", 0, [2]), ("c", 0, [0])]]

    run(body, tmp_path)


def test_describe_topic_partitions_of_names_tells_each(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("b", 1)
        asked = [TopicRequest(name=name) for name in ("b", "a", "x/y", "b")]
        response = caller.ask(DescribeTopicPartitionsRequest(topics=asked), 0)
        assert described(response) == [
            ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
            ("b", 0, [0]),
            ("x/y", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
        ]
        found = response.topics[1]
        assert (found.topic_id, found.topic_authorized_operations) == (topic.topic_id, 0b110111111000)
        (partition,) = found.partitions
        assert (partition.leader_id, partition.leader_epoch) == (NODE, 0)
        assert partition.replica_nodes == partition.isr_nodes == [NODE]
        assert caller.broker.topics.find("a") is None

    run(body, tmp_path)


def test_describe_topic_partitions_obeys_the_brokers_limit(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 5)
        response = caller.ask(DescribeTopicPartitionsRequest(), 0)
        assert described(response) == [("a", 0, [0, 1, 2])]
        assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("a", 3)

    run(body, tmp_path, max_request_partition_size_limit="3")


@pytest.mark.parametrize("cursor", [Cursor(topic_name="b"), Cursor(topic_name="a", partition_index=-1)])
def test_describe_topic_partitions_with_a_foreign_cursor_is_refused(tmp_path: Path, cursor: Cursor) -> None:
    async def body(caller: Caller) -> None:
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")], cursor=cursor)
        assert described(caller.ask(request, 0)) == [("a", ErrorCode.INVALID_REQUEST, [])]

    run(body, tmp_path)


def test_topics_leave_the_folder_of_kafkas_controllers_alone(tmp_path: Path) -> None:
    segment = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.write_bytes(b"theirs")

    async def body(caller: Caller) -> None:
        assert len(caller.broker.topics) == 0

    run(body, tmp_path)
    assert segment.read_bytes() == b"theirs"


def test_topics_survive_a_restart_and_a_move_of_their_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    found: list[tuple[str, bytes, int, dict[str, str]]] = []

    async def create(caller: Caller) -> None:
        configs = [CreatableTopicConfig(name="retention.ms", value="-1")]
        caller.ask(CreateTopicsRequest(topics=[creation("a.b-1", 2, configs=configs)]), 7)
        topic = caller.broker.topics.find("a.b-1")
        assert topic is not None
        topic.partitions[1].append(memoryview(batch(b"x")), now_ms=NOW_MS)

    async def look(caller: Caller) -> None:
        (topic,) = caller.broker.topics
        found.append((topic.name, topic.topic_id, topic.partitions[1].log.log_end_offset, topic.overrides))

    run(create, first)
    run(look, first)
    for index in range(2):
        shutil.copytree(first / f"a.b-1-{index}", second / f"a.b-1-{index}")
    run(look, second, **{"wirekafka.takeover.without": "settings"})
    run(look, second)
    name, topic_id, end_offset, overrides = found[0]
    assert (name, end_offset, overrides) == ("a.b-1", 1, {"retention.ms": "-1"})
    assert found[1:] == [(name, topic_id, 1, {})] * 2
