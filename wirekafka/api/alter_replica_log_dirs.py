"""AlterReplicaLogDirs: moves partitions to other data directories of the broker, while they are used.

Behaviour:
    The answer says that a move has begun; DescribeLogDirs says how far it is. A move to where the partition is ends one that is
    under way to elsewhere. A move outlives a restart: it begins anew then.
    LOG_DIR_NOT_FOUND is a path that `log.dirs` does not name, KAFKA_STORAGE_ERROR one that is offline, or a partition that is;
    UNKNOWN_TOPIC_OR_PARTITION a partition that does not exist.

Versions:
    0: as described (KIP-113). 1: as 0 (KIP-219). 2: flexible.

Differs from Apache Kafka:
    A directory that is named for a partition that does not exist is not remembered for its creation.
    Moves have no quota: as many run at once as there are directories.
    A path may end in a slash, or hold `..`, and still be found.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.types import Int16, Int32, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker

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
def alter_replica_log_dirs(broker: Broker, call: Call[AlterReplicaLogDirsRequest]) -> AlterReplicaLogDirsResponse:
    """Begins moves; of two for one partition, the later one in the request counts."""
    paths: dict[tuple[str, int], str] = {}
    for directory in call.request.dirs:
        for topic in directory.topics:
            paths |= {(topic.name, index): directory.path for index in topic.partitions}
    results: defaultdict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for (name, index), path in paths.items():
        code = _move(broker, call, name, index, path)
        results[name].append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions) for name, partitions in results.items()]
    )


def _move(broker: Broker, call: Call[AlterReplicaLogDirsRequest], name: str, index: int, path: str) -> ErrorCode:
    try:
        call.authorize(Operation.ALTER, CLUSTER)
        broker.logs.mover.begin(broker.topics.find_partition(name, index).topic_partition, path)
    except KafkaError as error:
        log.warning("Refused to move a partition", topic=name, partition=index, path=path, reason=str(error))
        return error.code
    return ErrorCode.NONE
