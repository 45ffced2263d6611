"""AlterReplicaLogDirs: moves partitions to other data directories of the broker, while clients use the partitions.

Behaviour:
    The response means that the move has begun; DescribeLogDirs shows its progress. A request for the directory that the partition
    is in cancels a move to another directory. A move that a restart interrupts begins again from the start.
    A path that is not in `log.dirs` gets LOG_DIR_NOT_FOUND. A path or a partition that is offline gets KAFKA_STORAGE_ERROR. A
    partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION. In a cluster, a partition of which the broker has no replica
    gets REPLICA_NOT_AVAILABLE, and kafka-reassign-partitions tries again.

Versions:
    0: as described (KIP-113). 1: as 0 (KIP-219). 2: flexible.

Differs from Apache Kafka:
    The directory of a partition that does not exist yet is not stored for the partition's creation.
    Moves have no quota. At most as many moves run at once as the broker has directories.
    A path may end in a slash, or contain `..`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.types import Int16, Int32, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.pending import Pending, Work

log = structlog.get_logger(__name__)


class AlterReplicaLogDirTopic(Message):
    name: String = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Message):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Message):
    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []


@serves(34, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, versions=range(3), flexible_since=2)
def alter_replica_log_dirs(broker: Broker, call: Call[AlterReplicaLogDirsRequest]) -> AlterReplicaLogDirsResponse | Pending[Any]:
    """Begins moves. If the request names a partition twice, the later entry counts."""
    return broker.slices.run(_begin_all(broker, call))


def _begin_all(broker: Broker, call: Call[AlterReplicaLogDirsRequest]) -> Work[AlterReplicaLogDirsResponse]:
    paths: dict[tuple[str, int], str] = {}
    for directory in call.request.dirs:
        for topic in directory.topics:
            paths |= {(topic.name, index): directory.path for index in topic.partitions}
            yield
    results: defaultdict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for (name, index), path in paths.items():
        code = _move(broker, call, name, index, path)
        results[name].append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
        yield
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions) for name, partitions in results.items()]
    )


def _move(broker: Broker, call: Call[AlterReplicaLogDirsRequest], name: str, index: int, path: str) -> ErrorCode:
    try:
        call.authorize(Operation.ALTER, CLUSTER)
        partition = broker.topics.find_partition(name, index)
        broker.logs.mover.find_directory(path)
        if not partition.is_hosted:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE)
        broker.logs.mover.begin(partition.topic_partition, path)
    except KafkaError as error:
        log.warning("Refused to move a partition", topic=name, partition=index, path=path, reason=str(error))
        return error.code
    return ErrorCode.NONE
