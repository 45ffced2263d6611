"""AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730).

Behaviour:
    The controller gives each block once. Other members answer NOT_CONTROLLER, so that the sender looks for the controller again.
    Only a member of a cluster serves this API.

Versions:
    0: as declared.

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleAllocateProducerIdsRequest; kafka.server.NodeToControllerRequestThread.handleResponse (NOT_CONTROLLER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.controller_events import active_controller, enter
from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending
from wirekafka.wire.messages.allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(ALLOCATE_PRODUCER_IDS)
def allocate_producer_ids(broker: Broker, call: Call[AllocateProducerIdsRequest]) -> AllocateProducerIdsResponse | Pending[Any]:
    """Lets the controller of this broker take a block for the broker that asks.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    controller = None if broker.member is None else active_controller(broker.member)
    if controller is None:
        return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    from wirekafka.controller.producer_ids import allocate

    return enter(controller, lambda context, batch: allocate(context, call.request)).map(_response)


def _response(outcome: AllocateProducerIdsResponse | KafkaError) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=outcome.code) if isinstance(outcome, KafkaError) else outcome
