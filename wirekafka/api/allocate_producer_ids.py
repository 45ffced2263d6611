"""AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730).

Behaviour:
    A member of a cluster is never the controller, and answers NOT_CONTROLLER, so that the sender looks for the controller again.
    Only a member of a cluster serves this API.

Versions:
    0: as declared.

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleAllocateProducerIdsRequest; kafka.server.NodeToControllerRequestThread.handleResponse (NOT_CONTROLLER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.messages.allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(ALLOCATE_PRODUCER_IDS)
def allocate_producer_ids(broker: Broker, call: Call[AllocateProducerIdsRequest]) -> AllocateProducerIdsResponse:
    """Refuses the request.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
