"""AddOffsetsToTxn: announces that a transaction will commit offsets of a group.

Behaviour:
    The partition of __consumer_offsets that stores the group's offsets is added to the transaction, which opens the transaction
    if necessary. The group need not exist.

Versions:
    0: as described (KIP-98). 1: as 0 (KIP-219). 2: PRODUCER_FENCED (KIP-588); earlier versions have INVALID_PRODUCER_EPOCH
        instead.
    3: flexible. 4: TRANSACTION_ABORTABLE (KIP-890), which is never answered. Clients of transactions v2 do not send this request.

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleAddOffsetsToTxnRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.transactions.requests import ProducerIdentity, told_to_client
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.wire.types import Int16, Int32, Int64, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


class AddOffsetsToTxnRequest(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@serves(25, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, versions=range(5), flexible_since=3)
def add_offsets_to_txn(broker: Broker, call: Call[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse:
    """Adds the group's partition to the transaction."""
    request = call.request
    call.authorize(Operation.WRITE, Resource.transactional_id(request.transactional_id))
    call.authorize(Operation.READ, Resource.group(request.group_id))
    partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_of(request.group_id))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        broker.transactions.add_partitions(request.transactional_id, producer, [partition])
    except KafkaError as error:
        code = told_to_client(error.code, knows_producer_fenced=call.version >= FIRST_VERSION_WITH_PRODUCER_FENCED)
        return AddOffsetsToTxnResponse(error_code=code)
    return AddOffsetsToTxnResponse()
