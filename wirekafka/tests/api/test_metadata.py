from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.errors import ErrorCode
from wirekafka.names import GROUP_METADATA_TOPIC, ZERO_TOPIC_ID, new_topic_id
from wirekafka.tests.api.data_plane import Caller, run

EVERY_VERSION = pytest.mark.parametrize("version", range(14))


def named(*names: str, **settings: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **settings)


@EVERY_VERSION
def test_metadata_of_a_topic_names_broker_and_partitions(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 2)
        response = caller.ask(named("flights"), version)
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port) == (7, "127.0.0.1", 9092)
        assert broker.rack == ("here" if version >= 1 else None)
        assert response.cluster_id == (caller.broker.cluster_id if version >= 2 else None)
        assert response.controller_id == (7 if version >= 1 else -1)
        (found,) = response.topics
        assert (found.error_code, found.name, found.is_internal) == (0, "flights", False)
        assert found.topic_id == (topic.topic_id if version >= 10 else ZERO_TOPIC_ID)
        assert [partition.partition_index for partition in found.partitions] == [0, 1]
        for partition in found.partitions:
            assert (partition.error_code, partition.leader_id) == (0, 7)
            assert partition.leader_epoch == (0 if version >= 7 else -1)
            assert partition.replica_nodes == partition.isr_nodes == [7]
            assert partition.offline_replicas == []

    run(body, tmp_path, node_id="7", broker_rack="here")


@EVERY_VERSION
def test_metadata_of_an_unknown_topic_creates_it_in_the_same_answer(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        (found,) = caller.ask(named("flights"), version).topics
        assert (found.error_code, len(found.partitions)) == (0, 3)
        assert caller.broker.topics.find("flights") is not None

    run(body, tmp_path, num_partitions="3")


@EVERY_VERSION
def test_metadata_without_auto_creation_says_unknown_or_invalid(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(named("flights", "a/b"), version)
        codes = [topic.error_code for topic in response.topics]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert len(caller.broker.topics) == 0

    run(body, tmp_path, auto_create_topics_enable="false")


def test_metadata_client_can_forbid_creation(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        (found,) = caller.ask(named("flights", allow_auto_topic_creation=False), 4).topics
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, tmp_path)


@pytest.mark.parametrize("name", ["a/b", "", "..", "x_y"])
def test_metadata_creates_no_topic_of_an_invalid_name(tmp_path: Path, name: str) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("x.y", 1)
        (found,) = caller.ask(named(name), 12).topics
        assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "topics", "count"), [(0, [], 2), (1, [], 0), (1, None, 2), (13, [], 0), (13, None, 2)])
def test_metadata_empty_and_null_mean_all_or_none_by_version(tmp_path: Path, version: int, topics: Any, count: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        caller.broker.topics.create("b", 1)
        assert len(caller.ask(MetadataRequest(topics=topics), version).topics) == count

    run(body, tmp_path)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id_finds_or_says_unknown_id(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        unknown = new_topic_id()
        asked = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in (topic.topic_id, unknown)]
        first, second = caller.ask(MetadataRequest(topics=asked), version).topics
        assert (first.error_code, first.name) == (0, "a")
        assert (second.error_code, second.name, second.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)

    run(body, tmp_path)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_before_version_12_is_refused(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic.topic_id, name=None)])
        (found,) = caller.ask(asked, version).topics
        assert found.error_code == ErrorCode.INVALID_REQUEST

    run(body, tmp_path)


def test_metadata_tells_operations_where_asked(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        request = named("a", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
        response = caller.ask(request, 8)
        assert response.cluster_authorized_operations == 0b1111110100000
        assert response.topics[0].topic_authorized_operations == 0b110111111000
        response = caller.ask(named("a"), 8)
        assert response.cluster_authorized_operations == response.topics[0].topic_authorized_operations == -(2**31)

    run(body, tmp_path)


def test_metadata_flags_the_internal_topic_and_creates_it_compacted(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        (found,) = caller.ask(named(GROUP_METADATA_TOPIC), 9).topics
        assert (found.error_code, found.is_internal, len(found.partitions)) == (0, True, 5)
        topic = caller.broker.topics.find(GROUP_METADATA_TOPIC)
        assert topic is not None
        assert topic.log_config.is_compacted

    run(body, tmp_path, offsets_topic_num_partitions="5")


def test_metadata_name_given_twice_is_told_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert len(caller.ask(named("a", "a"), 9).topics) == 1

    run(body, tmp_path)


def test_metadata_follows_a_topic_that_grows(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        assert len(caller.ask(named("a"), 9).topics[0].partitions) == 1
        caller.broker.topics.add_partitions(topic, 3)
        assert len(caller.ask(named("a"), 9).topics[0].partitions) == 3

    run(body, tmp_path)
