"""ControlledShutdown: a broker asks the controller to move its leaderships away.

Behaviour:
    The controller elects other leaders for the partitions that the broker leads, removes its replicas from the in-sync replicas,
    and answers with the partitions that the broker still leads. A member that is not the controller answers
    STALE_CONTROLLER_EPOCH, like a broker of Apache Kafka. Only a member of a cluster serves this API.

Versions:
    0: the header of the request has no client id. 1: a client id. 2: `broker_epoch` (KIP-380). 3: flexible.

Differs from Apache Kafka: nothing.

Source: KafkaApis.handleControlledShutdownRequest, KafkaController.doControlledShutdown (ControllerMovedException).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.controller_events import active_controller, enter, not_controller
from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(CONTROLLED_SHUTDOWN)
def controlled_shutdown(broker: Broker, call: Call[ControlledShutdownRequest]) -> ControlledShutdownResponse | Pending[Any]:
    """Lets the controller of this broker move the leaderships of the broker that asks.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    controller = None if broker.member is None else active_controller(broker.member)
    if controller is None:
        return _response(not_controller())
    from wirekafka.controller.controlled_shutdown import shut_down

    moved = enter(controller, lambda context, batch: shut_down(context, batch, batch.settings, call.request))
    return moved.map(_response)


def _response(outcome: ControlledShutdownResponse | KafkaError) -> ControlledShutdownResponse:
    if not isinstance(outcome, KafkaError):
        return outcome
    is_moved = outcome.code is ErrorCode.NOT_CONTROLLER
    return ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH if is_moved else outcome.code)
