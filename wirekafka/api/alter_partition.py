"""AlterPartition: the leader of partitions asks the controller to change their in-sync replicas (KIP-497).

Behaviour:
    A member of a cluster is never the controller, and answers NOT_CONTROLLER, so that the sender looks for the controller again.
    Another broker may take a member for the controller, because a broker of Apache Kafka had its id before. Only a member of a
    cluster serves this API.

Versions:
    0: topics by name. 1: `leader_recovery_state` (KIP-704). 2: topics by id (KIP-841). 3: the broker epochs of the in-sync
    replicas (KIP-903).

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleAlterPartitionRequest; kafka.server.NodeToControllerRequestThread.handleResponse (NOT_CONTROLLER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(ALTER_PARTITION)
def alter_partition(broker: Broker, call: Call[AlterPartitionRequest]) -> AlterPartitionResponse:
    """Refuses the request.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
