"""A cluster that a test plays for `wirekafka cluster`: its brokers listen on loopback, and its state is in this object.

with played_cluster({1: "a", 2: "b"}) as cluster:
    cluster.add("orders", 0, replicas=[1, 2], size_bytes=100)
    cluster.run("describe")
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from click.testing import CliRunner, Result

from wirekafka.api.alter_configs import AlterConfigsResourceResponse
from wirekafka.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from wirekafka.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from wirekafka.api.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from wirekafka.api.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from wirekafka.api.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wirekafka.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from wirekafka.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wirekafka.api.registry import APIS
from wirekafka.cli import main
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.frames import read_request_header
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

SET, TOPIC, BROKER = 0, 2, 4


@dataclass
class PlayedPartition:
    """A partition; `ends` are the log end offsets of its replicas, `copied` the bytes of the replicas that are added."""

    leader: int
    replicas: list[int]
    isr: list[int]
    size_bytes: int
    ends: dict[int, int] = field(default_factory=dict)
    target: list[int] | None = None
    copied: int = 0


class PlayedCluster:
    """The cluster.

    Attributes:
        racks: the live brokers.
        configs: the dynamic settings of topics and brokers, by type and name.
        copied_at_once: the bytes that a reassignment copies between two requests that list reassignments.
        silent: brokers that accept connections and never answer.
        refused: the errors of reassignments, by partition.
        asked: the names of the requests, in order.
    """

    def __init__(self, racks: Mapping[int, str | None]) -> None:
        self.racks = dict(racks)
        self.controller_id = min(self.racks)
        self.partitions: dict[TopicPartition, PlayedPartition] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.min_isr: dict[str, str] = {}
        self.copied_at_once = 100
        self.silent: set[int] = set()
        self.failed_dirs: set[int] = set()
        self.refused: dict[TopicPartition, ErrorCode] = {}
        self.asked: list[str] = []
        self.config_changes: list[tuple[int, int, str, dict[str, str | None]]] = []
        self.ports: dict[int, int] = {}

    def add(
        self,
        topic: str,
        index: int,
        replicas: list[int],
        *,
        size_bytes: int = 0,
        isr: list[int] | None = None,
        leader: int | None = None,
        ends: Mapping[int, int] = {},
    ) -> None:
        """Adds a partition, which its first replica leads, with all replicas in sync, unless they are given."""
        found = PlayedPartition(
            replicas[0] if leader is None else leader, replicas, replicas if isr is None else isr, size_bytes, dict(ends)
        )
        self.partitions[TopicPartition(topic, index)] = found

    def run(self, *arguments: str) -> Result:
        """Runs a command on the cluster."""
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        return CliRunner().invoke(main, ["cluster", arguments[0], "--bootstrap-server", bootstrap, *arguments[1:]])

    def answer(self, broker_id: int, request: Message) -> Message:
        """Answers a request to a broker."""
        self.asked.append(type(request).__name__.removesuffix("Request"))
        match request:
            case ApiVersionsRequest():
                return ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=kind.key, min_version=kind.versions[0], max_version=kind.versions[-1])
                        for kind in KINDS.values()
                    ]
                )
            case MetadataRequest():
                return self._metadata(request)
            case DescribeConfigsRequest():
                return self._describe_configs(request)
            case DescribeLogDirsRequest():
                return self._describe_log_dirs(broker_id, request)
            case ListOffsetsRequest():
                return self._list_offsets(broker_id, request)
            case ListPartitionReassignmentsRequest():
                return self._list_reassignments(broker_id)
            case AlterPartitionReassignmentsRequest():
                return self._alter_reassignments(broker_id, request)
            case IncrementalAlterConfigsRequest():
                return self._alter_configs(broker_id, request)
            case ElectLeadersRequest():
                return self._elect(request)
        raise AssertionError(request)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics: dict[str, MetadataResponseTopic] = {}
        for name, each in self.partitions.items() if request.topics is None else ():
            topic = topics.setdefault(name.topic, MetadataResponseTopic(name=name.topic, partitions=[]))
            topic.partitions.append(
                MetadataResponsePartition(
                    partition_index=name.partition, leader_id=each.leader, replica_nodes=each.replicas, isr_nodes=each.isr
                )
            )
        return MetadataResponse(
            cluster_id="played",
            controller_id=self.controller_id,
            brokers=[
                MetadataResponseBroker(node_id=each, host="127.0.0.1", port=self.ports[each], rack=rack)
                for each, rack in self.racks.items()
            ],
            topics=list(topics.values()),
        )

    def _describe_configs(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for each in request.resources:
            stored = self.configs.get((each.resource_type, each.resource_name), {})
            found = [DescribeConfigsResourceResult(name=name, value=value, config_source=1) for name, value in stored.items()]
            if each.resource_type == TOPIC:
                value = self.min_isr.get(each.resource_name, "1")
                found.append(DescribeConfigsResourceResult(name="min.insync.replicas", value=value, config_source=5))
            results.append(
                DescribeConfigsResult(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[config for config in found if config.name in (each.configuration_keys or ())],
                )
            )
        return DescribeConfigsResponse(results=results)

    def _describe_log_dirs(self, broker_id: int, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        topics = []
        for name, each in self.partitions.items():
            size = each.size_bytes if broker_id in each.isr else each.copied
            if broker_id in {*each.replicas, *(each.target or ())}:
                part = DescribeLogDirsPartition(partition_index=name.partition, partition_size=size)
                topics.append(DescribeLogDirsTopic(name=name.topic, partitions=[part]))
        results = [DescribeLogDirsResult(log_dir="/data", topics=topics)]
        if broker_id in self.failed_dirs:
            results.append(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir="/failed"))
        return DescribeLogDirsResponse(results=results)

    def _list_offsets(self, broker_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        assert request.replica_id == -2
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                end = self.partitions[TopicPartition(topic.name, part.partition_index)].ends.get(broker_id)
                code = ErrorCode.NONE if end is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER
                offset = -1 if end is None else end
                parts.append(ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code, offset=offset))
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _list_reassignments(self, broker_id: int) -> ListPartitionReassignmentsResponse:
        if broker_id != self.controller_id:
            return ListPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        topics = []
        for name, each in self.partitions.items():
            if each.target is None:
                continue
            each.copied = min(each.copied + self.copied_at_once, each.size_bytes)
            adding = [replica for replica in each.target if replica not in each.replicas]
            if not adding or each.copied == each.size_bytes:
                each.replicas, each.isr, each.target, each.copied = each.target, each.target, None, 0
                if each.leader not in each.replicas:
                    each.leader = each.replicas[0]
                continue
            removing = [replica for replica in each.replicas if replica not in each.target]
            part = OngoingPartitionReassignment(
                partition_index=name.partition,
                replicas=[*each.replicas, *adding],
                adding_replicas=adding,
                removing_replicas=removing,
            )
            topics.append(OngoingTopicReassignment(name=name.topic, partitions=[part]))
        return ListPartitionReassignmentsResponse(topics=topics)

    def _alter_reassignments(
        self, broker_id: int, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        if broker_id != self.controller_id:
            return AlterPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        responses = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                name = TopicPartition(topic.name, part.partition_index)
                code = self.refused.get(name, ErrorCode.NONE) if part.replicas is not None else ErrorCode.NONE
                if code is ErrorCode.NONE:
                    self.partitions[name].target = part.replicas
                    self.partitions[name].copied = 0
                parts.append(ReassignablePartitionResponse(partition_index=part.partition_index, error_code=code))
            responses.append(ReassignableTopicResponse(name=topic.name, partitions=parts))
        return AlterPartitionReassignmentsResponse(responses=responses)

    def _alter_configs(self, broker_id: int, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        responses = []
        for each in request.resources:
            key = (each.resource_type, each.resource_name)
            assert each.resource_type == TOPIC or each.resource_name == str(broker_id)
            stored = self.configs.setdefault(key, {})
            changes = {}
            for change in each.configs:
                changes[change.name] = change.value if change.config_operation == SET else None
                stored.pop(change.name, None)
                if change.config_operation == SET:
                    stored[change.name] = change.value or ""
            self.config_changes.append((broker_id, *key, changes))
            if not stored:
                del self.configs[key]
            responses.append(AlterConfigsResourceResponse(resource_type=key[0], resource_name=key[1]))
        return IncrementalAlterConfigsResponse(responses=responses)

    def _elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        results = []
        for topic in request.topic_partitions or ():
            parts = []
            for index in topic.partitions:
                each = self.partitions[TopicPartition(topic.topic, index)]
                code = ErrorCode.ELECTION_NOT_NEEDED if each.leader == each.replicas[0] else ErrorCode.NONE
                each.leader = each.replicas[0]
                parts.append(PartitionResult(partition_id=index, error_code=code))
            results.append(ReplicaElectionResult(topic=topic.topic, partition_result=parts))
        return ElectLeadersResponse(replica_election_results=results)


KINDS: dict[int, RequestType[Any, Any]] = {
    api.key: RequestType(api.key, api.request, api.response, api.versions, api.flexible_since)
    for api in APIS.values()
    if api.request
    in (
        MetadataRequest,
        DescribeConfigsRequest,
        DescribeLogDirsRequest,
        ListPartitionReassignmentsRequest,
        AlterPartitionReassignmentsRequest,
        IncrementalAlterConfigsRequest,
        ElectLeadersRequest,
    )
} | {LIST_OFFSETS.key: LIST_OFFSETS, API_VERSIONS.key: API_VERSIONS}


def framed_answer(cluster: PlayedCluster, broker_id: int, frame: bytes) -> bytes:
    """Returns the response to a request, with its size."""
    header = read_request_header(frame)
    kind, version = KINDS[header.api_key], header.api_version
    flexible = kind.is_flexible(version)
    request = decode(kind.request, version, flexible, memoryview(frame)[header.body_offset + flexible :])
    response = cluster.answer(broker_id, request)
    body = (b"\0" if flexible else b"") + encode(response, version, flexible)
    return struct.pack(">ii", 4 + len(body), header.correlation_id) + body


def _serve(cluster: PlayedCluster, broker_id: int, connection: socket.socket) -> None:
    with closing(connection), suppress(OSError), connection.makefile("rb") as stream:
        while size := stream.read(4):
            frame = stream.read(int.from_bytes(size, "big"))
            if broker_id in cluster.silent:
                continue
            connection.sendall(framed_answer(cluster, broker_id, frame))


@contextmanager
def played_cluster(racks: Mapping[int, str | None]) -> Iterator[PlayedCluster]:
    """Runs the brokers in threads, which end with the block."""
    cluster = PlayedCluster(racks)
    listeners, threads = [], []

    def accept(broker_id: int, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            served = threading.Thread(target=_serve, args=(cluster, broker_id, connection))
            threads.append(served)
            served.start()

    try:
        for broker_id in racks:
            listener = socket.create_server(("127.0.0.1", 0))
            listeners.append(listener)
            cluster.ports[broker_id] = listener.getsockname()[1]
            threads.append(threading.Thread(target=accept, args=(broker_id, listener)))
            threads[-1].start()
        yield cluster
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in threads:
            thread.join(10)
