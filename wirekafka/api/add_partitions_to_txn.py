"""AddPartitionsToTxn: announces the partitions that a transaction will write to.

Behaviour:
    The first partitions open the transaction, later partitions extend it. If one partition does not exist, none is added: that
    partition gets UNKNOWN_TOPIC_OR_PARTITION and the others get OPERATION_NOT_ATTEMPTED. Otherwise all get the same answer.
    With `verify_only` nothing is added: a partition that is not in the transaction gets TRANSACTION_ABORTABLE.

Versions:
    0: one transaction (KIP-98). 1: as 0 (KIP-219). 2: PRODUCER_FENCED (KIP-588); earlier versions have INVALID_PRODUCER_EPOCH
    instead. 3: flexible. 4: several transactions, and `verify_only`. Brokers send it to each other (KIP-890), and the partitions
    that it adds belong to transactions v2. 5: TRANSACTION_ABORTABLE may be answered (KIP-890).

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleAddPartitionsToTxnRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.coordinator.transactions.requests import ProducerIdentity, told_to_client
from wirekafka.coordinator.transactions.transaction import TRANSACTIONS_V2
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.wire.messages.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_PRODUCER_FENCED = 2
FIRST_VERSION_WITH_BROKER_REQUESTS = 4


@serves_type(ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn(broker: Broker, call: Call[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Pending[Any]:
    """Adds partitions to transactions, or verifies that they were added; each transaction succeeds or fails by itself."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _addition(broker, call))


def _addition(broker: Broker, call: Call[AddPartitionsToTxnRequest]) -> Work[AddPartitionsToTxnResponse]:
    request = call.request
    if call.version >= FIRST_VERSION_WITH_BROKER_REQUESTS:
        response = AddPartitionsToTxnResponse()
        for each in request.transactions:
            results = yield from _results(broker, call, each)
            result = AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=results)
            response.results_by_transaction.append(result)
            yield
        return response
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=(yield from _results(broker, call, transaction)))


def _results(
    broker: Broker, call: Call[AddPartitionsToTxnRequest], transaction: AddPartitionsToTxnTransaction
) -> Work[list[AddPartitionsToTxnTopicResult]]:
    partitions = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    try:
        _authorize(call, transaction)
    except KafkaError as error:
        return _by_topic(dict.fromkeys(partitions, error.code))
    refused = {}
    for partition in partitions:
        code = _refusal(broker, call, partition)
        if code is not None:
            refused[partition] = code
        yield
    if refused:
        return _by_topic({partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED) for partition in partitions})
    try:
        errors = _ask_coordinator(broker, call.version, transaction, partitions)
    except KafkaError as error:
        code = told_to_client(error.code, knows_producer_fenced=call.version >= FIRST_VERSION_WITH_PRODUCER_FENCED)
        errors = dict.fromkeys(partitions, code)
    return _by_topic({partition: errors.get(partition, ErrorCode.NONE) for partition in partitions})


def _ask_coordinator(
    broker: Broker, version: int, transaction: AddPartitionsToTxnTransaction, partitions: list[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """Returns the errors of the partitions, by partition.

    Raises:
        KafkaError: an error that concerns all partitions.
    """
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return broker.transactions.verify_partitions(transaction.transactional_id, producer, partitions)
    client_version = TRANSACTIONS_V2 if version >= FIRST_VERSION_WITH_BROKER_REQUESTS else 0
    broker.transactions.add_partitions(transaction.transactional_id, producer, partitions, client_version=client_version)
    return {}


def _authorize(call: Call[AddPartitionsToTxnRequest], transaction: AddPartitionsToTxnTransaction) -> None:
    """Raises unless the client may write to the transactional id, or is a broker.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
    """
    if call.version >= FIRST_VERSION_WITH_BROKER_REQUESTS:
        call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    else:
        call.authorize(Operation.WRITE, Resource.transactional_id(transaction.transactional_id))


def _refusal(broker: Broker, call: Call[AddPartitionsToTxnRequest], partition: TopicPartition) -> ErrorCode | None:
    """Returns why the partition cannot be added; None if it can be added."""
    try:
        if call.version < FIRST_VERSION_WITH_BROKER_REQUESTS:
            call.authorize(Operation.WRITE, Resource.topic(partition.topic))
        if broker.member is not None and broker.member.image.find_partition(*partition) is None:
            # The coordinator finds the leader for the marker in the image. The table may have a new partition before the image.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broker.topics.find_partition(*partition)
    except KafkaError as error:
        return error.code
    return None


def _by_topic(errors: Mapping[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), error in errors.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        topics.setdefault(topic, []).append(result)
    return [AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results) for topic, results in topics.items()]
