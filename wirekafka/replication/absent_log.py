"""The log of a partition that this broker does not host, and of a `Partition` that another one has replaced.

Source: ReplicaManager.getPartitionOrError, HostedPartition.None.
"""

from __future__ import annotations

from typing import NoReturn

from wirekafka.errors import ErrorCode, KafkaError


class AbsentLog:
    """Stands for the log of a partition that this broker does not host, and refuses every use.

    Attributes:
        offline_reason: None, because nothing has failed.
    """

    offline_reason: None = None

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses the use of the log.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER.
        """
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no replica of the partition")


ABSENT_LOG = AbsentLog()
