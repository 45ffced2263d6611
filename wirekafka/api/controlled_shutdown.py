"""ControlledShutdown: a broker asks the controller to move its leaderships away.

Behaviour:
    A member of a cluster is never the controller, and answers STALE_CONTROLLER_EPOCH, like a broker of Apache Kafka that is not
    the controller. Only a member of a cluster serves this API.

Versions:
    0: the header of the request has no client id. 1: a client id. 2: `broker_epoch` (KIP-380). 3: flexible.

Differs from Apache Kafka: nothing.

Source: KafkaApis.handleControlledShutdownRequest, KafkaController.doControlledShutdown (ControllerMovedException).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(CONTROLLED_SHUTDOWN)
def controlled_shutdown(broker: Broker, call: Call[ControlledShutdownRequest]) -> ControlledShutdownResponse:
    """Refuses the request.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    return ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
