"""InitProducerId: gives a producer its producer id and epoch, and gives a transactional id to one producer at a time.

Behaviour:
    Without a transactional id, each request gets a new producer id with epoch 0, whatever id and epoch the producer had before:
    an idempotent producer increments its epoch itself (KIP-360). An id without an epoch, an epoch without an id, and an empty
    transactional id get INVALID_REQUEST.
    With a transactional id, the epoch increases, which fences the former producer. When the epochs are used up, the producer gets
    a new id. An open transaction is aborted first: the answer is CONCURRENT_TRANSACTIONS, and the client retries. A producer that
    names its id and epoch continues after an error, and gets the same answer if it repeats the request. If another producer has
    taken the transactional id over, it gets PRODUCER_FENCED. A timeout above transaction.max.timeout.ms gets
    INVALID_TRANSACTION_TIMEOUT.

Versions:
    0, 1: as described (KIP-98). 2: flexible. 3: the producer's current id and epoch (KIP-360). 4: PRODUCER_FENCED (KIP-588);
    earlier versions have INVALID_PRODUCER_EPOCH instead. 5: TRANSACTION_ABORTABLE (KIP-890), which is never answered. 6:
    two-phase commit (KIP-939). With `enable2_pc` the transaction has no timeout if transaction.two.phase.commit.enable is true;
    otherwise the answer is TRANSACTIONAL_ID_AUTHORIZATION_FAILED. `keep_prepared_txn` gets UNSUPPORTED_VERSION, as in Apache
    Kafka 4.3.

Differs from Apache Kafka:
    A producer that repeats its request in the last epoch of its id gets the same answer. Apache Kafka answers
    UNKNOWN_SERVER_ERROR.
    Version 6, which Apache Kafka marks as unstable, is advertised.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import structlog

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity, told_to_client
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, NullableString, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

log = structlog.get_logger(__name__)

FIRST_VERSION_WITH_PRODUCER_FENCED = 4


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
    """Gives the producer an id and an epoch."""
    try:
        _authorize(broker, call)
        producer = _initialize(broker, call.request)
        _log_fencing(call, producer)
    except KafkaError as error:
        code = told_to_client(error.code, knows_producer_fenced=call.version >= FIRST_VERSION_WITH_PRODUCER_FENCED)
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def _authorize(broker: Broker, call: Call[InitProducerIdRequest]) -> None:
    """Raises unless the client may write to its transactional id or, without one, to the cluster or to any topic.

    Raises:
        KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.

    Source: KafkaApis.handleInitProducerIdRequest.
    """
    transactional_id = call.request.transactional_id
    if transactional_id is not None:
        call.authorize(Operation.WRITE, Resource.transactional_id(transactional_id))
        return
    if not call.is_authorized(Operation.IDEMPOTENT_WRITE, CLUSTER):
        may_write = any(call.is_authorized(Operation.WRITE, Resource.topic(topic.name)) for topic in broker.topics)
        if not may_write:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _log_fencing(call: Call[InitProducerIdRequest], producer: ProducerIdentity) -> None:
    """Logs that a producer takes over a transactional id, and so fences the producer that had the id before."""
    request = call.request
    if request.transactional_id is not None and producer.producer_epoch > 0 and request.producer_id == NO_PRODUCER_ID:
        log.info(
            "A producer took over a transactional id: the former producer is fenced",
            transactional_id=request.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            client=f"{call.client.host}:{call.client.port}",
            client_id=call.client_id,
        )


def _initialize(broker: Broker, request: InitProducerIdRequest) -> ProducerIdentity:
    """Returns the producer's id and epoch.

    Raises:
        KafkaError: INVALID_REQUEST, and as `TransactionRuntime.init_producer_id`.
    """
    expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    is_new = expected == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if not is_new and (expected.producer_id == NO_PRODUCER_ID or expected.producer_epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return ProducerIdentity(broker.producer_ids.take(), 0)
    return broker.transactions.init_producer_id(
        InitRequest(
            transactional_id=request.transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=None if is_new else expected,
            is_two_phase_commit=request.enable2_pc,
            keeps_prepared=request.keep_prepared_txn,
        )
    )
