"""DescribeLogDirs: the data directories, their partitions, and their free space.

Behaviour:
    Null topics ask for all partitions; otherwise the response has the named partitions that exist. The size of a partition is the
    size of its records, without indexes. A partition that AlterReplicaLogDirs moves is also listed in the new directory, as a
    future partition, with the number of records that are still to be copied. A directory that has failed or cannot be read gets
    KAFKA_STORAGE_ERROR.

Versions:
    0: as described (KIP-113). 1: as 0. 2: flexible. 3: an error code for the whole response. 4: total and usable bytes (KIP-827).
    5: `is_cordoned` (KIP-1066).

Differs from Apache Kafka:
    The lag of a future replica is counted in whole segments.
    No directory is cordoned.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.replication.partition import Partition
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.log.directory import DataDirectory


class DescribableLogDirTopic(Message):
    topic: String = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Message):
    topics: Annotated[list[DescribableLogDirTopic] | None, nullable(0)] = []


class DescribeLogDirsPartition(Message):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, since(4)] = -1
    usable_bytes: Annotated[Int64, since(4)] = -1
    is_cordoned: Annotated[Bool, since(5)] = False


class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(3)] = 0
    results: list[DescribeLogDirsResult] = []


Contents = defaultdict["DataDirectory", defaultdict[str, list[DescribeLogDirsPartition]]]


@serves(35, DescribeLogDirsRequest, DescribeLogDirsResponse, versions=range(6), flexible_since=2)
def describe_log_dirs(broker: Broker, call: Call[DescribeLogDirsRequest]) -> DescribeLogDirsResponse | Pending[Any]:
    """Answers one DescribeLogDirs request."""
    if not call.is_authorized(Operation.DESCRIBE, CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return broker.slices.run(_description(broker, call))


def _description(broker: Broker, call: Call[DescribeLogDirsRequest]) -> Work[DescribeLogDirsResponse]:
    by_directory: Contents = defaultdict(lambda: defaultdict(list))
    for partition in _asked(broker, call.request.topics):
        if partition.is_gone or not partition.is_hosted:  # Its topic was deleted since the first step, or it is elsewhere.
            continue
        by_directory[broker.logs.home_of(partition.log)][partition.topic].append(
            DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
        )
        move = broker.logs.mover.moves.get(partition.topic_partition)
        if move is not None:
            by_directory[move.target][partition.topic].append(
                DescribeLogDirsPartition(
                    partition_index=partition.index,
                    partition_size=move.copied_bytes,
                    offset_lag=max(partition.log.log_end_offset - move.copied_end_offset, 0),
                    is_future_key=True,
                )
            )
        yield
    return DescribeLogDirsResponse(
        results=[_describe(directory, by_directory[directory]) for directory in broker.logs.directories]
    )


def _asked(broker: Broker, topics: list[DescribableLogDirTopic] | None) -> Iterator[Partition]:
    if topics is None:
        for topic in broker.topics:
            yield from topic.partitions
        return
    asked: defaultdict[str, set[int]] = defaultdict(set)
    for each in topics:
        asked[each.topic].update(each.partitions)
    for name, indexes in asked.items():
        found = broker.topics.find(name)
        if found is not None:
            yield from (partition for partition in found.partitions if partition.index in indexes)


def _describe(directory: DataDirectory, topics: dict[str, list[DescribeLogDirsPartition]]) -> DescribeLogDirsResult:
    if directory.offline_reason is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    try:
        room = os.statvfs(directory.path)
    except OSError:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    return DescribeLogDirsResult(
        log_dir=directory.path,
        topics=[DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        total_bytes=room.f_frsize * room.f_blocks,
        usable_bytes=room.f_frsize * room.f_bavail,
    )
