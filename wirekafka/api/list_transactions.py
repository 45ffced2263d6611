"""ListTransactions: the transactional ids that this broker coordinates.

Behaviour:
    Filters select ids by states, by producer ids, by the time since the current or last transaction was opened, and by a regular
    expression of RE2 that must match the whole id. The response names the unknown states of the filter, which match nothing.

Versions:
    0: states and producer ids (KIP-664). 1: `duration_filter` (KIP-994). 2: `transactional_id_pattern` (KIP-1152); a pattern that
    does not compile gets INVALID_REGULAR_EXPRESSION.

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleListTransactionsRequest, TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.transactions.requests import TransactionFilter
from wirekafka.coordinator.transactions.transaction import STATES_BY_TITLE
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.pending import Pending, Work


class ListTransactionsRequest(Message):
    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, since(1)] = -1
    transactional_id_pattern: Annotated[NullableString, since(2), nullable(2)] = None


class TransactionState(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []


@serves(66, ListTransactionsRequest, ListTransactionsResponse, versions=range(3), flexible_since=0)
def list_transactions(
    broker: Broker, call: Call[ListTransactionsRequest]
) -> ListTransactionsResponse | Pending[ListTransactionsResponse]:
    """Lists the ids that pass all filters."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _listed(broker, call))


def _listed(broker: Broker, call: Call[ListTransactionsRequest]) -> Work[ListTransactionsResponse]:
    request = call.request
    wanted = TransactionFilter(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        open_longer_than_ms=None if request.duration_filter < 0 else request.duration_filter,
        pattern=request.transactional_id_pattern,
    )
    try:
        found = yield from broker.transactions.list_transactions(wanted)
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    response = ListTransactionsResponse(
        unknown_state_filters=[state for state in request.state_filters if state not in STATES_BY_TITLE]
    )
    for transaction in found:
        if call.is_authorized(Operation.DESCRIBE, Resource.transactional_id(transaction.transactional_id)):
            listed = TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            response.transaction_states.append(listed)
        yield
    return response
