from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Int16, Int32, Int64, String, since

# OffsetForLeaderEpoch: key 23, versions 0-4, flexible since 4


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, since(2)] = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message):
    replica_id: Annotated[Int32, since(3)] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Annotated[Int32, since(1)] = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    topics: list[OffsetForLeaderTopicResult] = []
