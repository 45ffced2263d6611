"""TxnOffsetCommit: commits offsets of a group as part of a producer's transaction.

Behaviour:
    The offsets become the committed offsets when the transaction commits. Until then OffsetFetch answers with the former offsets,
    or with UNSTABLE_OFFSET_COMMIT if the request has `require_stable`. The group's partition of __consumer_offsets must be in the
    transaction: until version 4 AddOffsetsToTxn adds it, from version 5 on this request does.
    If the producer names its consumer's generation, member id and instance id, they must be current, so that a consumer that has
    lost its partitions cannot commit for them (KIP-447). Each partition has its own error: UNKNOWN_TOPIC_OR_PARTITION,
    OFFSET_METADATA_TOO_LARGE. Errors of the whole request are in every partition: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID,
    FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE,
    TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS, COORDINATOR_NOT_AVAILABLE if the disk is full.

Versions:
    0. Offsets of a transaction (KIP-98). 1: as 0 (KIP-219).
    2. The leader epoch of the last consumed record (KIP-320).
    3. Flexible; the consumer's generation, member and instance (KIP-447).
    4. TRANSACTION_ABORTABLE instead of INVALID_TXN_STATE if the transaction has not begun (KIP-890).
    5. Adds the group's partition to the transaction; no AddOffsetsToTxn is needed (KIP-890, transactions v2).

Differs from Apache Kafka:
    On a full disk the error is COORDINATOR_NOT_AVAILABLE, because this broker stays the coordinator. Apache Kafka takes the
    directory offline and answers NOT_COORDINATOR. After either error clients look the coordinator up and try again.

Source: OffsetMetadataManager.commitTransactionalOffset, CoordinatorRuntime.scheduleTransactionalWriteOperation,
KafkaApis.handleTxnOffsetCommitRequest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from wirekafka.api.offset_commit import COMMITS_AT_ONCE
from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.effects import WritingProducer
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import GROUP_METADATA_TOPIC, NO_LEADER_EPOCH, TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_ABORTABLE_ERROR = 4
FIRST_VERSION_WITH_TRANSACTIONS_V2 = 5


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, since(2)] = -1
    committed_metadata: Annotated[NullableString, nullable(0)] = ""


class TxnOffsetCommitRequestTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message):
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, since(3)] = -1
    member_id: Annotated[String, since(3)] = ""
    group_instance_id: Annotated[NullableString, since(3), nullable(3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []


@serves(28, TxnOffsetCommitRequest, TxnOffsetCommitResponse, versions=range(6), flexible_since=3)
def txn_offset_commit(broker: Broker, call: Call[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse | Pending[Any]:
    """Commits the offsets of the partitions that exist, once the group's partition is in the transaction."""
    checked = broker.slices.run(_check_partitions(broker, call))
    if isinstance(checked, Pending):
        return checked.map(partial(_commit_late, broker, call))
    return _add_and_commit(broker, call, checked)


class _Checked(NamedTuple):
    """The commits for partitions that exist, their answers, and the response with all answers."""

    response: TxnOffsetCommitResponse
    commits: list[PartitionCommit]
    answers: list[TxnOffsetCommitResponsePartition]


def _check_partitions(broker: Broker, call: Call[TxnOffsetCommitRequest]) -> Work[_Checked]:
    commits: list[PartitionCommit] = []
    answers: list[TxnOffsetCommitResponsePartition] = []
    response = TxnOffsetCommitResponse()
    transactional_id, group = Resource.transactional_id(call.request.transactional_id), Resource.group(call.request.group_id)
    for asked in call.request.topics:
        answered = TxnOffsetCommitResponseTopic(name=asked.name)
        response.topics.append(answered)
        for partition in asked.partitions:
            answer = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            answered.partitions.append(answer)
            try:
                call.authorize(Operation.WRITE, transactional_id)
                call.authorize(Operation.READ, group)
                call.authorize(Operation.READ, Resource.topic(asked.name))
                broker.topics.find_partition(asked.name, partition.partition_index)
            except KafkaError as error:
                answer.error_code = error.code
            else:
                commits.append(_commit(asked.name, partition))
                answers.append(answer)
            yield
    return _Checked(response, commits, answers)


def _commit_late(broker: Broker, call: Call[TxnOffsetCommitRequest], checked: _Checked | Exception) -> Any:
    """Continues after the check of many partitions. The response is held until everything that it depends on is committed."""
    if isinstance(checked, Exception):
        return checked
    try:
        return broker.reply_gate.handle(lambda broker, call: _add_and_commit(broker, call, checked), broker, call)
    except Exception as error:  # noqa: BLE001 - the dispatcher answers it, whatever it is
        return error


def _add_and_commit(
    broker: Broker, call: Call[TxnOffsetCommitRequest], checked: _Checked
) -> TxnOffsetCommitResponse | Pending[Any]:
    response, commits, answers = checked

    def commit(broker: Broker, call: Call[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse | Pending[Any]:
        return broker.reply_gate.run_in_slices(broker.slices, lambda: _commit_in_slices(broker, call, checked))

    def proceed(error: ErrorCode | None) -> TxnOffsetCommitResponse | Pending[Any]:
        if error is None:
            # This may run after the handler has returned, so its response is held by a call of its own.
            held: TxnOffsetCommitResponse | Pending[Any] = broker.reply_gate.handle(commit, broker, call)
            return held
        for answer in answers:
            answer.error_code = error
        return response

    if not commits:
        return response
    try:
        is_added = _check_transaction(broker, call)
    except KafkaError as error:
        return proceed(error.code)
    if isinstance(is_added, Pending):
        return is_added.map(partial(_proceed_late, proceed))
    if not is_added:
        return proceed(None)
    return broker.transactions.after_commit(call.request.transactional_id, proceed, prepare=lambda: None)


def _proceed_late(proceed: Callable[[ErrorCode | None], Any], error: ErrorCode | None) -> Any:
    """Continues after another broker has answered for the transaction."""
    try:
        return proceed(error)
    except Exception as failure:  # noqa: BLE001 - the dispatcher answers it, whatever it is
        return failure


def _commit_in_slices(broker: Broker, call: Call[TxnOffsetCommitRequest], checked: _Checked) -> Work[TxnOffsetCommitResponse]:
    response, commits, answers = checked
    for first in range(0, len(commits), COMMITS_AT_ONCE):
        errors = _commit_all(broker, call, commits[first : first + COMMITS_AT_ONCE], is_later=first > 0)
        for answer, error_code in zip(answers[first:], errors, strict=False):
            answer.error_code = error_code
        yield
    return response


def _commit(topic: str, partition: TxnOffsetCommitRequestPartition) -> PartitionCommit:
    return PartitionCommit(
        topic,
        partition.partition_index,
        partition.committed_offset,
        None if partition.committed_leader_epoch == NO_LEADER_EPOCH else partition.committed_leader_epoch,
        partition.committed_metadata or "",
    )


def _commit_all(
    broker: Broker, call: Call[TxnOffsetCommitRequest], commits: list[PartitionCommit], *, is_later: bool
) -> list[ErrorCode]:
    """Commits offsets in one step; returns an error for each.

    Args:
        is_later: other requests were handled since the transaction was checked. If the transaction has ended meanwhile, offsets
            that were appended now would begin a transaction that nothing ends.
    """
    request = call.request
    try:
        if is_later:
            _check_transaction_again(broker, call)
        return broker.groups.commit_offsets_in_transaction(
            CommitRequest(
                request.group_id,
                commits,
                member_id=request.member_id,
                generation_id=request.generation_id,
                group_instance_id=request.group_instance_id,
            ),
            WritingProducer(request.producer_id, request.producer_epoch),
        )
    except KafkaError as error:
        return [error.code] * len(commits)


def _check_transaction_again(broker: Broker, call: Call[TxnOffsetCommitRequest]) -> None:
    """Raises unless the transaction is still open, or can be opened again by its coordinator on this broker.

    Raises:
        KafkaError: as `_check_transaction`; INVALID_TXN_STATE, the coordinator is another broker.
    """
    if isinstance(_check_transaction(broker, call), Pending):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)


def _check_transaction(broker: Broker, call: Call[TxnOffsetCommitRequest]) -> bool | Pending[ErrorCode | None]:
    """Raises unless the group's partition is in the producer's transaction, or can be added now.

    The partition's log knows transactions that are open in it, which were checked when they began. Clients know
    TRANSACTION_ABORTABLE from version 4 on. From version 5 on, this request adds the partition.

    Returns:
        Whether the transaction coordinator was called; or a Pending of the error, if another broker is the coordinator.

    Raises:
        KafkaError: INVALID_GROUP_ID, and the errors of the transaction coordinator.

    Source: CoordinatorPartitionWriter.maybeStartTransactionVerification.
    """
    request = call.request
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if broker.groups.has_open_transaction(request.group_id, request.producer_id, request.producer_epoch):
        return False
    partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_of(request.group_id))
    question = (request.transactional_id, request.producer_id, request.producer_epoch, [partition])
    adds = call.version >= FIRST_VERSION_WITH_TRANSACTIONS_V2
    knows_abortable = call.version >= FIRST_VERSION_WITH_ABORTABLE_ERROR
    pending = broker.transactions.ask_elsewhere(*question, adds=adds, knows_abortable=knows_abortable)
    if pending is not None:
        broker.groups.note_beginning(request.group_id, WritingProducer(request.producer_id, request.producer_epoch))
        return pending.map(lambda errors: _check_later(broker, request, errors.get(partition)))
    refused = broker.transactions.check_produce(*question, adds=adds, knows_abortable=knows_abortable)
    if partition in refused:
        raise KafkaError(refused[partition])
    return True


def _check_later(broker: Broker, request: TxnOffsetCommitRequest, code: ErrorCode | None) -> ErrorCode | None:
    """Returns the error after the answer of another broker; None if the offsets may be appended.

    The transaction may have ended meanwhile. Offsets that were appended now would begin a transaction that nothing ends.
    """
    producer = WritingProducer(request.producer_id, request.producer_epoch)
    try:
        if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_REQUEST):
            # A client that invents producer ids must not leave state in the partition.
            broker.groups.forget_beginning(request.group_id, producer.producer_id)
        elif code is None and not broker.groups.may_begin_transaction(request.group_id, producer):
            return ErrorCode.INVALID_TXN_STATE
    except KafkaError as error:
        return error.code
    return _as_committer_knows_it(code)


def _as_committer_knows_it(code: ErrorCode | None) -> ErrorCode | None:
    """Returns the answer of another broker in the form that TxnOffsetCommit has; None if it is no error.

    Source: GroupMetadataManager.maybeConvertOffsetCommitError.
    """
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NETWORK_EXCEPTION else code
