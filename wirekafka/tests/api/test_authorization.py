"""Every API of the registry calls authorize with the operation and the resource type that Kafka uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.registry import Api, Call, Client, all_apis
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import FileRegion
from wirekafka.metadata.operations import Operation as Op
from wirekafka.metadata.operations import ProtectedType as Type
from wirekafka.metadata.operations import Resource
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Route
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.wire.codec import Field, decode, encode, fields_of
from wirekafka.wire.types import Message

TOPIC = "flights"

EXPECTED: dict[str, set[tuple[Op, Type]]] = {
    "AddOffsetsToTxn": {(Op.WRITE, Type.TRANSACTIONAL_ID), (Op.READ, Type.GROUP)},
    "AddPartitionsToTxn": {(Op.WRITE, Type.TRANSACTIONAL_ID), (Op.WRITE, Type.TOPIC), (Op.CLUSTER_ACTION, Type.CLUSTER)},
    "AllocateProducerIds": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "AlterConfigs": {(Op.ALTER_CONFIGS, Type.TOPIC)},
    "AlterPartition": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "AlterPartitionReassignments": {(Op.ALTER, Type.CLUSTER)},
    "AlterReplicaLogDirs": {(Op.ALTER, Type.CLUSTER)},
    "AlterShareGroupOffsets": {(Op.READ, Type.GROUP), (Op.READ, Type.TOPIC)},
    "ApiVersions": set(),
    "ConsumerGroupDescribe": {(Op.DESCRIBE, Type.GROUP)},
    "ConsumerGroupHeartbeat": {(Op.READ, Type.GROUP), (Op.DESCRIBE, Type.TOPIC)},
    "ControlledShutdown": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "CreateAcls": {(Op.ALTER, Type.CLUSTER)},
    "CreatePartitions": {(Op.ALTER, Type.TOPIC)},
    "CreateTopics": {(Op.CREATE, Type.CLUSTER), (Op.CREATE, Type.TOPIC), (Op.DESCRIBE_CONFIGS, Type.TOPIC)},
    "DeleteAcls": {(Op.ALTER, Type.CLUSTER)},
    "DeleteGroups": {(Op.DELETE, Type.GROUP)},
    "DeleteRecords": {(Op.DELETE, Type.TOPIC)},
    "DeleteShareGroupOffsets": {(Op.DELETE, Type.GROUP)},
    "DeleteShareGroupState": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "DeleteTopics": {(Op.DELETE, Type.TOPIC)},
    "DescribeAcls": {(Op.DESCRIBE, Type.CLUSTER)},
    "DescribeCluster": {(operation, Type.CLUSTER) for operation in (*range(Op.ALTER, Op.IDEMPOTENT_WRITE + 1), Op.CREATE)},
    "DescribeConfigs": {(Op.DESCRIBE_CONFIGS, Type.TOPIC)},
    "DescribeGroups": {(Op.DESCRIBE, Type.GROUP)},
    "DescribeLogDirs": {(Op.DESCRIBE, Type.CLUSTER)},
    "DescribeProducers": {(Op.READ, Type.TOPIC)},
    "DescribeShareGroupOffsets": {(Op.DESCRIBE, Type.GROUP)},
    "DescribeTopicPartitions": {(Op.DESCRIBE, Type.TOPIC)},
    "DescribeTransactions": {(Op.DESCRIBE, Type.TRANSACTIONAL_ID)},
    "ElectLeaders": {(Op.ALTER, Type.CLUSTER)},
    "EndTxn": {(Op.WRITE, Type.TRANSACTIONAL_ID)},
    "Fetch": {(Op.READ, Type.TOPIC)},
    "FindCoordinator": {(Op.DESCRIBE, Type.GROUP)},
    "Heartbeat": {(Op.READ, Type.GROUP)},
    "IncrementalAlterConfigs": {(Op.ALTER_CONFIGS, Type.TOPIC)},
    "InitializeShareGroupState": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "InitProducerId": {(Op.WRITE, Type.TRANSACTIONAL_ID)},
    "JoinGroup": {(Op.READ, Type.GROUP)},
    "LeaderAndIsr": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "LeaveGroup": {(Op.READ, Type.GROUP)},
    "ListConfigResources": {(Op.DESCRIBE_CONFIGS, Type.CLUSTER)},
    "ListGroups": {(Op.DESCRIBE, Type.CLUSTER)},
    "ListOffsets": {(Op.DESCRIBE, Type.TOPIC)},
    "ListPartitionReassignments": {(Op.DESCRIBE, Type.CLUSTER)},
    "ListTransactions": set(),
    "Metadata": {(Op.DESCRIBE, Type.TOPIC)},
    "OffsetCommit": {(Op.READ, Type.GROUP), (Op.READ, Type.TOPIC)},
    "OffsetDelete": {(Op.DELETE, Type.GROUP), (Op.READ, Type.TOPIC)},
    "OffsetFetch": {(Op.DESCRIBE, Type.GROUP), (Op.DESCRIBE, Type.TOPIC)},
    "OffsetForLeaderEpoch": {(Op.DESCRIBE, Type.TOPIC)},
    "Produce": {(Op.WRITE, Type.TOPIC), (Op.WRITE, Type.TRANSACTIONAL_ID)},
    "ReadShareGroupState": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "ReadShareGroupStateSummary": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "ShareAcknowledge": {(Op.READ, Type.GROUP)},
    "ShareFetch": {(Op.READ, Type.GROUP)},
    "ShareGroupDescribe": {(Op.DESCRIBE, Type.GROUP)},
    "ShareGroupHeartbeat": {(Op.READ, Type.GROUP), (Op.DESCRIBE, Type.TOPIC)},
    "StopReplica": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "SyncGroup": {(Op.READ, Type.GROUP)},
    "TxnOffsetCommit": {(Op.WRITE, Type.TRANSACTIONAL_ID), (Op.READ, Type.GROUP), (Op.READ, Type.TOPIC)},
    "UpdateFeatures": {(Op.ALTER, Type.CLUSTER)},
    "UpdateMetadata": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "WriteShareGroupState": {(Op.CLUSTER_ACTION, Type.CLUSTER)},
    "WriteTxnMarkers": {(Op.ALTER, Type.CLUSTER), (Op.CLUSTER_ACTION, Type.CLUSTER)},
}
"""The permissions that each API needs at least. ApiVersions needs none; ListTransactions needs one for each transaction.

Source: kafka.server.KafkaApis, kafka.server.ControllerApis.
"""

DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
TELL_NOTHING = {"ApiVersions", "DescribeCluster", "ListGroups", "ListTransactions"}
"""APIs that leave out the resources that the client may not see, and answer no error."""

every_api = pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)


class Guard:
    """An authorizer that allows everything or nothing; it records the operations and resources."""

    def __init__(self, *, may_do: bool) -> None:
        self.may_do = may_do
        self.asked: set[tuple[Op, Type]] = set()

    def is_authorized(self, principal: str, operation: Op, resource: Resource) -> bool:
        self.asked.add((operation, resource.type))
        return self.may_do


def request_of(api: Api, version: int, topic_id: bytes) -> Any:
    """Makes a request that names one topic, group or other resource in each of its lists."""
    request = _message(api.request, version, api.is_flexible(version), topic_id)
    if api.name == "Fetch":
        request.session_epoch, request.replica_id = -1, -1
        request.forgotten_topics_data, request.replica_state = [], None
    if api.name in ("ShareFetch", "ShareAcknowledge"):
        request.share_session_epoch = 0
        request.is_renew_ack = False
        request.topics = []
    if api.name in ("AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs"):
        request.resources[0].resource_type, request.resources[0].resource_name = 2, TOPIC
    if api.name == "DescribeTopicPartitions":
        request.cursor = None
    if api.name == "DescribeCluster":
        request.endpoint_type, request.include_cluster_authorized_operations = 1, True
    if api.name == "CreateTopics":
        request.topics[0].name, request.topics[0].assignments, request.topics[0].configs = "weather", [], []
        request.topics[0].num_partitions = request.topics[0].replication_factor = 1
    if api.name == "DeleteTopics" and version >= 6:
        request.topics[0].topic_id = bytes(16)
    if api.name == "Metadata" and version >= 10:
        request.topics[0].topic_id = bytes(16)
    if api.name == "Produce":
        request.acks = 1
    if api.name in ("ConsumerGroupHeartbeat", "ShareGroupHeartbeat"):
        request.member_epoch = 0
    if api.name == "ListConfigResources":
        request.resource_types = []
    return request


def _message(cls: type[Message], version: int, is_flexible: bool, topic_id: bytes) -> Any:
    message = cls()
    for field in fields_of(cls, version, is_flexible):
        setattr(message, field.name, _value(field, cls, version, is_flexible, topic_id))
    return message


def _value(field: Field, owner: type[Message], version: int, is_flexible: bool, topic_id: bytes) -> Any:
    if field.struct is not None:
        return _message(field.struct, version, is_flexible, topic_id)
    if field.element is not None:
        return [_value(field.element, owner, version, is_flexible, topic_id)]
    assert field.wire is not None
    match field.wire.name:
        case "string":
            return TOPIC
        case "bytes":
            return b""
        case "records":
            return batch(b"a")
        case "uuid":
            return topic_id
        case _:
            return field.default or 0


def answer(caller: Caller, api: Api, version: int, *, may_do: bool) -> tuple[set[tuple[Op, Type]], set[int]]:
    """Returns the permissions that the handler needed, and the error codes in its response."""
    guard = Guard(may_do=may_do)
    client = Client("127.0.0.1", 50_000, "PLAINTEXT", "127.0.0.1", 9092, authorizer=guard)
    topic = caller.broker.topics.find(TOPIC)
    assert topic is not None
    is_flexible = api.is_flexible(version)
    frame = memoryview(bytearray(encode(request_of(api, version, topic.topic_id), version, is_flexible)))
    call = Call(decode(api.request, version, is_flexible, frame), version, "test", client, NOW_MS)
    response: Any
    try:
        response = api.handler_on(caller.broker)(caller.broker, call)
    except KafkaError as error:
        response = Route(api, version, api.handler).error_response(error)
    assert response is not None, f"{api.name} {version} answers nothing"
    if isinstance(response, Pending):
        response.abandon()
        return guard.asked, set()
    if isinstance(response, list):
        body = b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in response)
        response = decode(api.response, version, api.is_flexible(version), body)
    return guard.asked, set(_error_codes(response))


def _error_codes(message: Any) -> Iterator[int]:
    for name in message.__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                yield from _error_codes(each)


@every_api
def test_api_that_is_called_asks_for_permission_as_kafka_does(tmp_path: Path, api: Api) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create(TOPIC, 1)
        asked: set[tuple[Op, Type]] = set()
        for version in api.versions:
            for may_do in (False, True):
                asked |= answer(caller, api, version, may_do=may_do)[0]
                if caller.broker.topics.find(TOPIC) is None:
                    caller.broker.topics.create(TOPIC, 1)
        assert asked >= EXPECTED[api.name]
        assert bool(asked) == bool(EXPECTED[api.name])

    run(body, tmp_path)


@every_api
def test_api_that_is_called_without_permission_tells_the_client_and_changes_nothing(tmp_path: Path, api: Api) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create(TOPIC, 1)
        for version in api.versions:
            _, codes = answer(caller, api, version, may_do=False)
            if api.name not in TELL_NOTHING:
                assert codes & DENIALS, f"version {version}: {codes}"
        assert [each.name for each in caller.broker.topics] == [TOPIC]
        assert len(topic.partitions) == 1
        assert topic.partitions[0].log.log_end_offset == 0

    run(body, tmp_path)
