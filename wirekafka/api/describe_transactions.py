"""DescribeTransactions: the states of transactional ids.

Behaviour:
    The response has for each id its state, its producer and, while its transaction is open or ending, the partitions that have no
    marker yet. An unknown id gets TRANSACTIONAL_ID_NOT_FOUND, an empty id INVALID_REQUEST.

Versions:
    0: as described (KIP-664).

Differs from Apache Kafka:
    An id that is named twice is described once.

Source: KafkaApis.handleDescribeTransactionsRequest, TransactionCoordinator.handleDescribeTransactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import NO_TIMESTAMP
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Int16, Int32, Int64, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DescribeTransactionsRequest(Message):
    transactional_ids: list[String] = []


class TopicData(Message):
    topic: String = ""
    partitions: list[Int32] = []


class TransactionState(Message):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []


@serves(65, DescribeTransactionsRequest, DescribeTransactionsResponse, versions=range(1), flexible_since=0)
def describe_transactions(broker: Broker, call: Call[DescribeTransactionsRequest]) -> DescribeTransactionsResponse | Pending[Any]:
    """Describes each transactional id of the request."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _description(broker, call))


def _description(broker: Broker, call: Call[DescribeTransactionsRequest]) -> Work[DescribeTransactionsResponse]:
    names = dict.fromkeys(call.request.transactional_ids)
    return DescribeTransactionsResponse(transaction_states=(yield from collect(_described(broker, call, name) for name in names)))


def _described(broker: Broker, call: Call[DescribeTransactionsRequest], transactional_id: str) -> TransactionState:
    try:
        call.authorize(Operation.DESCRIBE, Resource.transactional_id(transactional_id))
        transaction, partitions = broker.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        if call.is_authorized(Operation.DESCRIBE, Resource.topic(topic)):
            topics.setdefault(topic, []).append(index)
    start_ms = transaction.start_timestamp_ms
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=NO_TIMESTAMP if start_ms is None else start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
