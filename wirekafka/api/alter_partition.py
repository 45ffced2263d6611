"""AlterPartition: the leader of partitions asks the controller to change their in-sync replicas (KIP-497).

Behaviour:
    The controller writes the in-sync replicas to ZooKeeper if the leader knows the present state of the partition, and tells the
    brokers. Other members answer NOT_CONTROLLER, so that the sender looks for the controller again. Only a member of a
    cluster serves this API.

Versions:
    0: topics by name. 1: `leader_recovery_state` (KIP-704). 2: topics by id (KIP-841). 3: the broker epochs of the in-sync
    replicas (KIP-903).

Differs from Apache Kafka:
    The broker epochs of the in-sync replicas are checked; Apache Kafka's controller with ZooKeeper ignores them.

Source: KafkaApis.handleAlterPartitionRequest; kafka.server.NodeToControllerRequestThread.handleResponse (NOT_CONTROLLER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.controller_events import active_controller, enter
from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(ALTER_PARTITION)
def alter_partition(broker: Broker, call: Call[AlterPartitionRequest]) -> AlterPartitionResponse | Pending[Any]:
    """Lets the controller of this broker change the in-sync replicas.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    controller = None if broker.member is None else active_controller(broker.member)
    if controller is None:
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    from wirekafka.controller import alter_partition as script

    altered = enter(controller, lambda context, batch: script.alter_partition(context, batch, call.request, call.version))
    return altered.map(_response)


def _response(outcome: AlterPartitionResponse | KafkaError) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=outcome.code) if isinstance(outcome, KafkaError) else outcome
