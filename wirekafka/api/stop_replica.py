"""StopReplica: the controller says which replicas the broker gives up, and which logs it deletes.

Behaviour:
    A request for an earlier registration of this broker gets STALE_BROKER_EPOCH, one of an old controller STALE_CONTROLLER_EPOCH.
    A partition with an older leader epoch than the broker knows gets FENCED_LEADER_EPOCH, one whose log cannot be used
    KAFKA_STORAGE_ERROR. A partition that the broker does not have is stopped already. Only a member of a cluster serves this API.

Versions:
    0: partitions one by one, `delete_partitions` for all. 1: partitions by topic, `broker_epoch` (KIP-380). 2: flexible.
    3: `delete_partition` and `leader_epoch` for each partition (KIP-570). 4: `is_kraft_controller` (KIP-866).

Differs from Apache Kafka:
    The connection of a request that arrives after a newer one of the same controller, over a newer connection, is closed. Apache
    Kafka executes requests in the order of their arrival.
    A leader that is stopped without a deletion does not lead any more.

Source: KafkaApis.handleStopReplicaRequest, ReplicaManager.stopReplicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.replication.controller_requests import is_broker_epoch_stale
from wirekafka.wire.messages.stop_replica import STOP_REPLICA, StopReplicaRequest, StopReplicaResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


@serves_type(STOP_REPLICA)
def stop_replica(broker: Broker, call: Call[StopReplicaRequest]) -> StopReplicaResponse | Pending[StopReplicaResponse]:
    """Stops the replicas, one after the other, once the former requests of controllers have ended.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION without a cluster.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    member = broker.member
    if member is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this broker is not a member of a cluster")
    return member.controller_queue.run(_stop(member, call))


def _stop(member: Member, call: Call[StopReplicaRequest]) -> Work[StopReplicaResponse]:
    request = call.request
    if is_broker_epoch_stale(request.broker_epoch, member.broker_epoch, is_kraft_controller=request.is_kraft_controller):
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    if not member.replicas.controller_order.take(request, call.correlation_id, call.client.number):
        return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    return (yield from member.replicas.stop(request))
