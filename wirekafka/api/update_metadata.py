"""UpdateMetadata: the controller tells this broker the live brokers and the state of partitions.

Behaviour:
    Only a member of a cluster with ZooKeeper serves this request. It replaces the live brokers and the controller of the image,
    and the partitions that it names; the leader -2 deletes a partition. Metadata, FindCoordinator and others answer from it.
    A request for an older registration of this broker gets STALE_BROKER_EPOCH. A request of a former controller gets
    STALE_CONTROLLER_EPOCH. A request that has begun is taken to its end before another request of a controller begins.

Versions:
    0: the address of a broker. 1: endpoints. 2: racks. 3: names of listeners. 4: offline replicas. 5: partitions by topic, the
    broker epoch (KIP-380). 6: flexible. 7: topic ids (KIP-516). 8: `is_kraft_controller` and `type` (KIP-866); the type FULL has
    no effect, as in Apache Kafka without a migration.

Differs from Apache Kafka:
    The connection of a request that arrives after a newer one of the same controller, over a newer connection, is closed. Apache
    Kafka executes requests in the order of their arrival.
    If the first request after a new registration of this broker has partitions, the topics that it does not name are removed.
    A request with more than 10,000 endpoints of brokers gets INVALID_REQUEST, and partitions with more than 1,000 replicas are
    ignored.
    A large request is executed in steps, so for some milliseconds clients may see some of its topics and not others.

Source: KafkaApis.handleUpdateMetadataRequest, ReplicaManager.maybeUpdateMetadataCache of Apache Kafka 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.replication.controller_requests import is_broker_epoch_stale
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


@serves_type(UPDATE_METADATA)
def update_metadata(
    broker: Broker, call: Call[UpdateMetadataRequest]
) -> UpdateMetadataResponse | Pending[UpdateMetadataResponse]:
    """Takes one UpdateMetadata request into the image of the cluster, once the former requests of controllers have ended.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, STALE_BROKER_EPOCH, STALE_CONTROLLER_EPOCH;
            UNSUPPORTED_VERSION without a cluster.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    member = broker.member
    if member is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this broker is not a member of a cluster")
    return member.controller_queue.run(_update(member, call))


def _update(member: Member, call: Call[UpdateMetadataRequest]) -> Work[UpdateMetadataResponse]:
    request = call.request
    if is_broker_epoch_stale(request.broker_epoch, member.broker_epoch, is_kraft_controller=request.is_kraft_controller):
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
    if not member.replicas.controller_order.take(request, call.correlation_id, call.client.number):
        raise KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH)
    if request.controller_epoch < member.replicas.controller_epoch:
        raise KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH)
    member.replicas.controller_epoch = request.controller_epoch
    yield from member.image.update(request, lambda: member.registration.is_present(request.broker_epoch))
    member.has_brokers.set()
    if member.image.has_all_topics:
        member.has_image.set()
    return UpdateMetadataResponse()
