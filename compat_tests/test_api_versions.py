"""The broker serves each version of each API that ApiVersions reports, over a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker
from compat_tests.harness.raw import ConnectionEndedError, RawConnection, batch, frame_of
from compat_tests.harness.topics import create_topic
from wirekafka.api.cluster_versions import MEMBERS_ONLY
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.registry import APIS, Api, all_apis
from wirekafka.errors import ErrorCode
from wirekafka.wire.messages.api_versions import ApiVersionsRequest
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wirekafka.wire.types import Message

TOPIC = "api-versions"

ISSUE_APIS = {
    0: 13,
    1: 18,
    2: 11,
    3: 13,
    8: 10,
    9: 10,
    10: 6,
    11: 9,
    12: 4,
    13: 5,
    14: 5,
    15: 6,
    16: 5,
    18: 4,
    19: 7,
    20: 6,
    21: 2,
    22: 6,
    23: 4,
    32: 4,
    33: 2,
    35: 5,
    37: 3,
    42: 2,
    44: 1,
    47: 0,
    60: 2,
    75: 0,
}
"""The newest version in Apache Kafka 4.3 of the APIs that are tested from version 0 on."""


@pytest.fixture(scope="module")
def topic_id(broker: Broker) -> bytes:
    """Returns the id of a topic with one record."""
    create_topic(broker.bootstrap, TOPIC)
    with RawConnection(broker.address) as connection:
        found = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 10)
    return found.topics[0].topic_id


def advertised(broker: Broker) -> dict[int, tuple[int, int]]:
    with RawConnection(broker.address) as connection:
        response = connection.ask(ApiVersionsRequest(), 0)
    assert response.error_code == 0
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def harmless_request(api: Api, version: int, topic_id: bytes) -> Message:
    """Makes a request that the broker has to understand and that changes nothing."""
    match api.name:
        case "Produce":
            data = PartitionProduceData(index=0, records=batch(b"v") if version >= 3 else b"")
            written = TopicProduceData(name=TOPIC, topic_id=topic_id, partition_data=[data])
            return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[written])
        case "Fetch":
            read = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[FetchPartition(partition_max_bytes=1 << 20)])
            return FetchRequest(max_bytes=1 << 20, topics=[read], session_id=0, session_epoch=-1)
        case "ListOffsets":
            partition = ListOffsetsPartition(partition_index=0, timestamp=-2, max_num_offsets=1)
            return ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])])
        case "ApiVersions":
            return ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        case "FindCoordinator":
            return FindCoordinatorRequest(key="a-group", coordinator_keys=["a-group"])
        case "InitProducerId":
            return InitProducerIdRequest(transactional_id=None)
        case "CreateTopics":
            created = CreatableTopic(name="never", num_partitions=1, replication_factor=1)
            return CreateTopicsRequest(topics=[created], validate_only=True)
    return api.request()


def served_apis() -> list[Api]:
    """Returns the APIs of a broker that is not a member of a cluster with ZooKeeper."""
    return [api for api in all_apis() if api.key not in MEMBERS_ONLY]


def each_version() -> list[object]:
    return [pytest.param(api, version, id=f"{api.name}-{version}") for api in served_apis() for version in api.versions]


@pytest.mark.wirekafka_only("serves versions that Kafka 4 has dropped")
def test_every_version_of_every_api_that_kafka_ever_had_is_advertised(broker: Broker) -> None:
    versions = advertised(broker)
    assert {key: versions.get(key) for key in ISSUE_APIS} == {key: (0, newest) for key, newest in ISSUE_APIS.items()}
    assert versions == {api.key: (api.versions[0], api.versions[-1]) for api in served_apis()}


@pytest.mark.parametrize(("api", "version"), each_version())
def test_every_advertised_version_is_answered(broker: Broker, broker_kind: str, topic_id: bytes, api: Api, version: int) -> None:
    if broker_kind == jars.KAFKA and api.name == "Produce" and version < 3:
        pytest.skip("Kafka 4 advertises what it has dropped, so that librdkafka goes on compressing (KAFKA-18659)")
    oldest, newest = advertised(broker).get(api.key, (1, 0))
    with RawConnection(broker.address) as connection:
        request = harmless_request(api, version, topic_id)
        if not oldest <= version <= newest:
            with pytest.raises(ConnectionEndedError):
                connection.ask(request, version)
            return
        response = connection.ask(request, version)
        assert ErrorCode.UNSUPPORTED_VERSION not in error_codes(response)
        assert ErrorCode.UNKNOWN_SERVER_ERROR not in error_codes(response)
        check(api, version, response)
        assert connection.ask(ApiVersionsRequest(), 0).error_code == 0, "the connection goes on"


def check(api: Api, version: int, response: Any) -> None:
    """Raises unless the response has what its request asked for."""
    match api.name:
        case "Produce":
            (partition,) = response.responses[0].partition_responses
            assert partition.error_code == (0 if version >= 3 else partition.error_code)
        case "Fetch":
            (partition,) = response.responses[0].partitions
            assert partition.error_code == 0
        case "ListOffsets":
            (partition,) = response.topics[0].partitions
            assert partition.error_code == 0
            assert (partition.old_style_offsets if version == 0 else partition.offset) == ([0] if version == 0 else 0)


def error_codes(message: Any) -> set[int]:
    """Returns all error codes in a response."""
    if isinstance(message, list):
        return set().union(*map(error_codes, message))
    if not isinstance(message, Message):
        return set()
    codes: set[int] = {getattr(message, "error_code", 0)}
    return codes.union(*(error_codes(getattr(message, name)) for name in message.field_defaults))


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker: Broker) -> None:
    with RawConnection(broker.address) as connection:
        connection.send(frame_of(18, 99, b"\0\0\0", 7, tagged=True))
        frame = connection.receive_frame()
        assert frame[:6] == b"\0\0\0\7" + ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        assert connection.ask(ApiVersionsRequest(), 0).error_code == 0


@pytest.mark.wirekafka_only("hides the newer versions of its APIs")
def test_hidden_versions_are_neither_advertised_nor_served(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker({"wirekafka.api.versions.max": "Fetch:11,DescribeCluster:none,ApiVersions:2"})
    versions = advertised(broker)
    assert versions[1] == (0, 11)
    assert versions[18] == (0, 2)
    assert 60 not in versions
    with RawConnection(broker.address) as connection, pytest.raises(ConnectionEndedError):
        connection.ask(FetchRequest(), 12)
    with RawConnection(broker.address) as connection, pytest.raises(ConnectionEndedError):
        connection.ask(APIS[60].request(), 0)
