"""EndTxn: commits or aborts the open transaction of a transactional id.

Behaviour:
    The decision is written first, then a marker to each partition of the transaction. With the marker, the transaction's offsets
    become the committed offsets. A client that repeats the request gets the same answer; a request for the opposite decision gets
    INVALID_TXN_STATE. While markers are not written, because they are many or a disk is full, the decision holds, and the next
    request of the transactional id gets CONCURRENT_TRANSACTIONS.
    A commit without an open transaction gets INVALID_TXN_STATE. An abort without one gets it too, except in version 5, where the
    request that should have opened the transaction may have failed.

Versions:
    0: as described (KIP-98). 1: as 0 (KIP-219). 2: PRODUCER_FENCED (KIP-588); earlier versions have INVALID_PRODUCER_EPOCH
        instead.
    3: flexible. 4: TRANSACTION_ABORTABLE (KIP-890), which is never answered. 5: transactions v2: the epoch increases, and the
    response has the producer id and epoch for the next transaction (KIP-890).

Differs from Apache Kafka:
    The response is sent when the first markers are written, at most 250 and for at most about 5 ms. Apache Kafka sends it when
    the decision is written.
    If transactions v1 ended the last transaction, a request of version 5 with one epoch less than the current one gets
    PRODUCER_FENCED, because another producer has the current epoch. Apache Kafka takes the request for a repeated one, and
    answers it with the current epoch.

Source: KafkaApis.handleEndTxnRequest, TransactionCoordinator.endTransaction and endTransactionWithTV1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.transactions.requests import ProducerIdentity, told_to_client
from wirekafka.coordinator.transactions.transaction import TRANSACTIONS_V2
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, String, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_PRODUCER_FENCED = 2
FIRST_VERSION_WITH_TRANSACTIONS_V2 = 5


class EndTxnRequest(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, since(5)] = -1
    producer_epoch: Annotated[Int16, since(5)] = -1


@serves(26, EndTxnRequest, EndTxnResponse, versions=range(6), flexible_since=3)
def end_txn(broker: Broker, call: Call[EndTxnRequest]) -> EndTxnResponse:
    """Ends the transaction."""
    request = call.request
    call.authorize(Operation.WRITE, Resource.transactional_id(request.transactional_id))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    client_version = TRANSACTIONS_V2 if call.version >= FIRST_VERSION_WITH_TRANSACTIONS_V2 else 0
    # A fetch that waits for several of these partitions gets them in one response.
    broker.purgatory.hold()
    try:
        after = broker.transactions.end(
            request.transactional_id, producer, is_commit=request.committed, client_version=client_version
        )
    except KafkaError as error:
        code = told_to_client(error.code, knows_producer_fenced=call.version >= FIRST_VERSION_WITH_PRODUCER_FENCED)
        return EndTxnResponse(error_code=code)
    finally:
        broker.purgatory.release()
    return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)
