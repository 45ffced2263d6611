"""The messages of Fetch."""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import (
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Records,
    String,
    Uuid,
    nullable,
    since,
    tag,
    until,
)


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Annotated[Int64, since(4)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, tag(0, since=12)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, tag(1, since=12)] = None
    snapshot_id: Annotated[SnapshotId | None, tag(2, since=12)] = None
    aborted_transactions: Annotated[list[AbortedTransaction] | None, since(4), nullable(4)] = []
    preferred_read_replica: Annotated[Int32, since(11)] = -1
    records: Annotated[Records, nullable(0)] = None


class FetchableTopicResponse(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, nullable(16)] = None


class FetchResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, since(7)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], tag(0, since=16)] = []


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, since(9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, since(12)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, tag(0, since=17)] = ZERO_TOPIC_ID
    high_watermark: Annotated[Int64, tag(1, since=18)] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class FetchRequest(Message):
    cluster_id: Annotated[NullableString, tag(0, since=12), nullable(12)] = None
    replica_id: Annotated[Int32, until(14)] = -1
    replica_state: Annotated[ReplicaState | None, tag(1, since=15)] = None
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Annotated[Int32, since(3)] = 0x7FFFFFFF
    isolation_level: Annotated[Int8, since(4)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    session_epoch: Annotated[Int32, since(7)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], since(7)] = []
    rack_id: Annotated[String, since(11)] = ""


FETCH = RequestType(1, FetchRequest, FetchResponse, range(19), flexible_since=12)
