"""InitProducerId: gives a producer the id under which its batches are numbered.

Behaviour:
    Each call gives an id that nobody has, with epoch 0, whatever id and epoch the producer had before: an idempotent producer
    raises its epoch itself (KIP-360). An id without an epoch, or an epoch without an id, is an INVALID_REQUEST.

Versions:
    0, 1: as they are (KIP-98). 2: flexible. 3: the producer's id and epoch so far (KIP-360). 4: PRODUCER_FENCED (KIP-588).
    5: TRANSACTION_ABORTABLE (KIP-890). 6: two-phase commit (KIP-939).

Differs from Apache Kafka:
    Transactions do not exist yet: a transactional id gives TRANSACTIONAL_ID_AUTHORIZATION_FAILED, for that is what the Java
    client, librdkafka and kafka-python all take as fatal at once; librdkafka tries again for ever after most other errors.
    The broker's log says the reason.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import structlog

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, NullableString, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

log = structlog.get_logger(__name__)


class InitProducerIdRequest(Message):
    transactional_id: Annotated[NullableString, nullable(0)] = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1
    enable2_pc: Annotated[Bool, since(6)] = False
    keep_prepared_txn: Annotated[Bool, since(6)] = False


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, since(6)] = -1


@serves(22, InitProducerIdRequest, InitProducerIdResponse, versions=range(7), flexible_since=2)
def init_producer_id(broker: Broker, call: Call[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Gives an id, or says why there is none."""
    try:
        _check(call)
        producer_id = broker.producer_ids.take()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check(call: Call[InitProducerIdRequest]) -> None:
    """Checks what is asked.

    Raises:
        KafkaError: INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
    """
    request = call.request
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    log.warning(
        "Refused a transactional producer: transactions are not supported yet",
        transactional_id=request.transactional_id,
        client=call.client.host,
        client_id=call.client_id,
    )
    raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
