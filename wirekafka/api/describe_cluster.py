"""DescribeCluster: the brokers and the id of the cluster.

Behaviour:
    The response has this broker alone, with the same address as in Metadata. A member of a cluster answers with the live brokers
    that have the listener of this client, and with the controller.

Versions:
    0: as described (KIP-700).
    1: `endpoint_type`; only brokers can be requested, controllers get MISMATCHED_ENDPOINT_TYPE (KIP-919).
    2: `include_fenced_brokers`; this broker is never fenced (KIP-1073).

Differs from Apache Kafka:
    Nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, NOT_ASKED
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

NO_CONTROLLER_ID = -1
BROKERS = 1
CONTROLLERS = 2


class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, since(1)] = 1
    include_fenced_brokers: Annotated[Bool, since(2)] = False


class DescribeClusterBroker(Message):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, nullable(0)] = None
    is_fenced: Annotated[Bool, since(2)] = False


class DescribeClusterResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    endpoint_type: Annotated[Int8, since(1)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -2147483648


@serves(60, DescribeClusterRequest, DescribeClusterResponse, versions=range(3), flexible_since=0)
def describe_cluster(broker: Broker, call: Call[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Answers one DescribeCluster request."""
    request = call.request
    if request.endpoint_type != BROKERS:
        return _refused(request.endpoint_type)
    controller_id, brokers = _brokers(broker, call)
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            call.authorized_operations(CLUSTER) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _brokers(broker: Broker, call: Call[DescribeClusterRequest]) -> tuple[int, list[DescribeClusterBroker]]:
    """Returns the controller, and the brokers as the client reaches them."""
    if broker.member is None:
        host, port = broker.advertised_address(call.client)
        return broker.node_id, [DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port, rack=broker.config.rack)]
    image = broker.member.image
    return NO_CONTROLLER_ID if image.controller_id is None else image.controller_id, [
        DescribeClusterBroker(broker_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
        for node in image.nodes(call.client.listener)
    ]


def _refused(endpoint_type: int) -> DescribeClusterResponse:
    if endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=f"Unsupported endpoint type {endpoint_type}"
    )
