"""LeaderAndIsr: the controller says which partitions the broker leads and follows.

Behaviour:
    A request for an earlier registration of this broker gets STALE_BROKER_EPOCH, one of an old controller STALE_CONTROLLER_EPOCH.
    A partition gets an error and no role
    - with an older leader epoch or partition epoch than the broker knows, the same leader epoch, or a negative one:
      STALE_CONTROLLER_EPOCH;
    - without this broker among its replicas: UNKNOWN_TOPIC_OR_PARTITION;
    - with more than 1,000 replicas: INVALID_REPLICATION_FACTOR;
    - if its folder belongs to another topic, or another topic here has its topic id: INCONSISTENT_TOPIC_ID;
    - with a name or an index that no partition can have: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS;
    - if its log cannot be used: KAFKA_STORAGE_ERROR.
    Requests of controllers are executed one after the other, each to its end, also if its connection ends. Only a member of a
    cluster serves this API.

Versions:
    0: partitions one by one. 1: `is_new`. 2: partitions by topic, `broker_epoch` (KIP-380). 3: `adding_replicas` and
    `removing_replicas` (KIP-455). 4: flexible. 5: topic ids and `type` (KIP-516). 6: `leader_recovery_state` (KIP-704).
    7: `is_kraft_controller` (KIP-866).

Differs from Apache Kafka:
    The connection of a request that arrives after a newer one of the same controller, over a newer connection, is closed. Apache
    Kafka executes requests in the order of their arrival.
    A replica becomes a follower even if its leader is not among the live brokers. After a request of type FULL from any
    controller, the partitions that it does not name are strays. In the same leader epoch, a leader takes a newer partition epoch.

Source: KafkaApis.handleLeaderAndIsrRequest, ReplicaManager.becomeLeaderOrFollower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.replication.controller_requests import is_broker_epoch_stale, refusal
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR, LeaderAndIsrRequest, LeaderAndIsrResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


@serves_type(LEADER_AND_ISR)
def leader_and_isr(broker: Broker, call: Call[LeaderAndIsrRequest]) -> LeaderAndIsrResponse | Pending[Any]:
    """Takes the roles, one partition after the other, once the former requests of controllers have ended.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION without a cluster.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    member = broker.member
    if member is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this broker is not a member of a cluster")
    response: LeaderAndIsrResponse | Pending[Any] = member.controller_queue.run(_take_roles(member, call))
    return response


def _take_roles(member: Member, call: Call[LeaderAndIsrRequest]) -> Work[LeaderAndIsrResponse | Pending[Any]]:
    request = call.request

    def is_stale() -> bool:
        return is_broker_epoch_stale(request.broker_epoch, member.broker_epoch, is_kraft_controller=request.is_kraft_controller)

    if is_stale():
        return (yield from refusal(request, ErrorCode.STALE_BROKER_EPOCH))
    if not member.replicas.controller_order.take(request, call.correlation_id, call.client.number):
        return (yield from refusal(request, ErrorCode.STALE_CONTROLLER_EPOCH))
    return (yield from member.replicas.apply(request, is_stale))
