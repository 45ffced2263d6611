"""Verifies or adds partitions of transactions whose coordinator is another broker, by AddPartitionsToTxn.

How it works: a broker that gets the first batch of a transaction in a partition asks the transaction's coordinator whether the
partition is in the transaction. Questions for one broker wait in a queue. A request has many questions, and one request is in
flight at a time. The Produce waits for the answer as a `Pending`.

Rules of this file:
    The coordinator is asked in version 4, which brokers of release 3.5 and later have. Older brokers cannot verify, so nothing
    is verified in a cluster of an older release.
    A request has at most one transaction of each transactional id, because the response names transactions by these ids.

Differs from Apache Kafka:
    Several requests of a producer may wait for the coordinator's answer. Apache Kafka ends a request that is still in the queue
    with NETWORK_EXCEPTION when the next one arrives.
    With an `inter.broker.protocol.version` below 3.5, transactions are not verified. Apache Kafka asks each broker for its
    versions.

Source: KIP-890; kafka.server.AddPartitionsToTxnManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wirekafka.coordinator.cluster import CoordinatorCluster, PeerQueue, by_topic
from wirekafka.coordinator.transactions.requests import ProducerIdentity
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending
from wirekafka.wire.messages.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from wirekafka.replication.replica_fetcher import Channel, Timers

VERSION = 4
"""The first version that brokers send to each other; a request has several transactions."""

TRANSACTIONS_IN_REQUEST = 500
"""The most questions in one request."""

Errors = dict[TopicPartition, ErrorCode]
"""The partitions that must not be written to, each with its error."""


class _Question(NamedTuple):
    """The partitions of one request that a transaction must have, or that are added to it."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: list[TopicPartition]
    adds: bool
    pending: Pending[Errors]

    def refuse(self, code: ErrorCode) -> None:
        """Answers that no partition may be written to."""
        self.pending.complete(dict.fromkeys(self.partitions, code))


Codes = dict[tuple[str, TopicPartition], int]
"""The error codes of a response, by transactional id and partition."""

QuestionQueue = PeerQueue[_Question, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse]


class RemoteVerification:
    """Asks the transaction coordinators of other brokers."""

    def __init__(self, cluster: CoordinatorCluster, timers: Timers) -> None:
        self._cluster = cluster
        self._timers = timers
        self._queues = cluster.open_queues("add-partitions-to-txn", self._make_queue)

    def ask(
        self,
        place: TopicPartition,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: list[TopicPartition],
        *,
        adds: bool,
    ) -> Pending[Errors] | None:
        """Asks the coordinator whether partitions are in a producer's transaction, or adds them.

        Args:
            place: the partition of __transaction_state that holds the transactional id.

        Returns:
            A Pending of the errors: those of the coordinator; COORDINATOR_NOT_AVAILABLE, there is none; NETWORK_EXCEPTION, the
            coordinator has not answered. None if this broker is the coordinator.
        """
        pending: Pending[Errors] = Pending()
        question = _Question(transactional_id, producer, partitions, adds, pending)
        try:
            broker_id = self._cluster.leader_of(place)
        except KafkaError:
            question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return pending
        if broker_id == self._cluster.node_id:
            return None
        if adds or self._cluster.verifies_transactions:
            self._queues.put(broker_id, question)
        else:
            pending.complete({})
        return pending

    def _make_queue(self, channel: Channel) -> QuestionQueue:
        return PeerQueue(
            channel,
            self._timers,
            ADD_PARTITIONS_TO_TXN,
            VERSION,
            most_items=TRANSACTIONS_IN_REQUEST,
            build=_request,
            take=_take,
        )


def _request(questions: list[_Question]) -> AddPartitionsToTxnRequest:
    """Returns the request for some questions; a question that contradicts an earlier one is left out."""
    first: dict[str, _Question] = {}
    partitions: dict[str, dict[TopicPartition, None]] = {}
    for question in questions:
        known = first.setdefault(question.transactional_id, question)
        if _agree(known, question):
            partitions.setdefault(question.transactional_id, {}).update(dict.fromkeys(question.partitions))
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=question.producer.producer_id,
                producer_epoch=question.producer.producer_epoch,
                verify_only=not question.adds,
                topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in by_topic(partitions[transactional_id]).items()
                ],
            )
            for transactional_id, question in first.items()
        ]
    )


def _agree(first: _Question, other: _Question) -> bool:
    return (first.producer, first.adds) == (other.producer, other.adds)


def _take(questions: list[_Question], response: AddPartitionsToTxnResponse | None) -> None:
    """Answers the questions of a request."""
    refusal = _refusal(response)
    codes = {} if response is None else _codes(response)
    first: dict[str, _Question] = {}
    for question in questions:
        known = first.setdefault(question.transactional_id, question)
        with isolate(
            "A Produce could not continue after the transaction coordinator's answer", transactional_id=question.transactional_id
        ):
            if refusal is not None:
                question.refuse(refusal)
            elif not _agree(known, question):
                question.refuse(ErrorCode.NETWORK_EXCEPTION)  # the producer sends its request again
            else:
                question.pending.complete(_errors(question, codes))


def _refusal(response: AddPartitionsToTxnResponse | None) -> ErrorCode | None:
    """Returns the error of the request as a whole; None if it has none."""
    if response is None:
        return ErrorCode.NETWORK_EXCEPTION
    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return ErrorCode.INVALID_TXN_STATE
    return _error_of(response.error_code) if response.error_code else None


def _codes(response: AddPartitionsToTxnResponse) -> Codes:
    return {
        (result.transactional_id, TopicPartition(topic.name, each.partition_index)): each.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for each in topic.results_by_partition
    }


def _errors(question: _Question, codes: Codes) -> Errors:
    found = {
        partition: codes.get((question.transactional_id, partition), ErrorCode.UNKNOWN_SERVER_ERROR)
        for partition in question.partitions
    }
    return {partition: _error_of(code) for partition, code in found.items() if code}


def _error_of(code: int) -> ErrorCode:
    try:
        error = ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
