"""Checks whether a producer may begin its transaction in the partitions of a Produce request.

How it works: the log knows whether a transaction is open in it. Only the first batch of a transaction in a partition needs the
transaction coordinator, so most transactional requests end with the check of `begin_transaction`. The append may come later than
the answer of the coordinator, and the transaction may have ended meanwhile, so `check_may_begin` asks the log again.

Source: ReplicaManager.handleProduceAppend and maybeSendPartitionsToTransactionCoordinator; KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from wirekafka.api.produce.rules import (
    FIRST_VERSION_WITH_ABORTABLE_ERROR,
    FIRST_VERSION_WITH_ADDED_PARTITIONS,
    FIRST_VERSION_WITH_TOPIC_IDS,
    check_batch,
    denial_of,
    find_partition,
)
from wirekafka.api.registry import Call
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending
from wirekafka.wire.batch import BatchHeader

if TYPE_CHECKING:
    from wirekafka.api.produce.messages import ProduceRequest
    from wirekafka.broker import Broker
    from wirekafka.replication.partition import Partition

RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""The errors of the coordinator after which the producer sends the batch again."""

Refused = dict[TopicPartition, KafkaError]
"""The partitions to which the request's transaction must not write, each with its error. The names outlive a change of the role
of this broker, which replaces the `Partition`."""


def check_transaction(
    broker: Broker, call: Call[ProduceRequest], transactional_id: str
) -> tuple[Refused, list[TopicPartition]] | Pending[Refused]:
    """Asks the transaction coordinator about the partitions in which the request would begin a transaction.

    Returns:
        The refused partitions, and the partitions about which the coordinator was asked; or a Pending of the refused partitions
        if another broker is the coordinator.

    Raises:
        KafkaError: INVALID_PRODUCER_ID_MAPPING, the batches belong to several producers.
    """
    batches = _transactional_batches(broker, call)
    if not batches:
        return {}, []
    identities = {(header.producer_id, header.producer_epoch) for header in batches.values()}
    if len(identities) > 1:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional records of more than one producer")
    adds = call.version >= FIRST_VERSION_WITH_ADDED_PARTITIONS
    refused: Refused = {}
    asked: dict[TopicPartition, Partition] = {}
    for partition, header in batches.items():
        try:
            if partition.log.producers.begin_transaction(header, must_be_zero=adds, now_ms=call.now_ms):
                asked[partition.topic_partition] = partition
        except KafkaError as error:
            refused[partition.topic_partition] = error
    if asked:
        [(producer_id, producer_epoch)] = identities
        question = (transactional_id, producer_id, producer_epoch, list(asked))
        knows_abortable = call.version >= FIRST_VERSION_WITH_ABORTABLE_ERROR
        pending = broker.transactions.ask_elsewhere(*question, adds=adds, knows_abortable=knows_abortable)
        if pending is not None:
            answer = partial(_refused_later, refused, asked, producer_id, adds)
            return pending.map(answer)
        errors = broker.transactions.check_produce(*question, adds=adds, knows_abortable=knows_abortable)
        _refuse(refused, asked, producer_id, errors, adds=adds)
    return refused, list(asked)


def _refuse(
    refused: Refused,
    asked: Mapping[TopicPartition, Partition],
    producer_id: int,
    errors: Mapping[TopicPartition, ErrorCode],
    *,
    adds: bool,
) -> None:
    """Adds the partitions that the coordinator has refused."""
    for name, code in errors.items():
        refused[name] = _as_producer_knows_it(code, adds=adds)
        if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_REQUEST):
            # A client that invents producer ids must not leave state in the partition.
            asked[name].log.producers.forget_beginning(producer_id)


def _refused_later(
    refused: Refused,
    asked: Mapping[TopicPartition, Partition],
    producer_id: int,
    adds: bool,
    errors: Mapping[TopicPartition, ErrorCode],
) -> Refused:
    """Returns the refused partitions after the answer of another broker.

    This broker may have lost a partition meanwhile, and have led it again.
    """
    _refuse(refused, asked, producer_id, errors, adds=adds)
    for name, partition in asked.items():
        if partition.is_gone:
            refused[name] = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return refused


def check_may_begin(partition: Partition, records: memoryview) -> None:
    """Raises if the transaction of a checked batch has ended since `check_transaction`.

    Otherwise the batch would begin a transaction that nothing ends.

    Raises:
        KafkaError: INVALID_TXN_STATE.

    Source: VerificationGuard; UnifiedLog.analyzeAndValidateProducerState.
    """
    header = BatchHeader(records)
    if not (header.is_transactional and header.has_producer_id):
        return
    log, producer = partition.log, (header.producer_id, header.producer_epoch)
    if not (log.has_open_transaction(*producer) or log.producers.has_beginning(*producer)):
        raise _as_producer_knows_it(ErrorCode.INVALID_TXN_STATE, adds=False)


def coordinator_is_lost() -> KafkaError:
    """Returns the refusal of partitions whose addition to the transaction was lost before its commit."""
    return _as_producer_knows_it(ErrorCode.NOT_COORDINATOR, adds=True)


def _transactional_batches(broker: Broker, call: Call[ProduceRequest]) -> dict[Partition, BatchHeader]:
    """Returns the transactional batches of the request, without those that are refused for other reasons."""
    is_by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    batches = {}
    for data in call.request.topic_data:
        topic = data.topic_id if is_by_id else data.name
        if denial_of(broker, call, topic) is not None:
            continue
        for each in data.partition_data:
            try:
                partition = find_partition(broker, topic, each.index)
                check_batch(call, each.records)
            except KafkaError:
                continue
            assert each.records is not None, "the batch was checked before"
            header = BatchHeader(each.records)
            if header.is_transactional and header.has_producer_id:
                batches[partition] = header
    return batches


def _as_producer_knows_it(code: ErrorCode, *, adds: bool) -> KafkaError:
    """Returns the coordinator's error in the form that producers expect of Produce.

    Retriable errors become NOT_ENOUGH_REPLICAS, after which all producers retry, and do not request metadata first.

    Source: ReplicaManager.handleProduceAppend.
    """
    if code is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(code, "the partition was not added to the transaction")
    if code in RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        reason = f"whether the partition belongs to the transaction is not known: {code.name}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
    return KafkaError(code)
