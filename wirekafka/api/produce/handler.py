"""Produce: appends record batches to partitions.

Behaviour:
    Each partition is validated, appended and answered by itself. With `acks` 0 the producer gets no response, and an error closes
    the connection, so that the producer looks for the leader again. With `acks` 1 the response is sent once the records are in
    the log, with -1 once they are committed. Other values get INVALID_REQUIRED_ACKS. With `acks` -1 and fewer in-sync replicas
    than `min.insync.replicas` nothing is appended: NOT_ENOUGH_REPLICAS. Records that are appended and not committed within
    `timeout_ms` get REQUEST_TIMED_OUT; if too few replicas are in sync at their commit, they get
    NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    Internal topics are refused with INVALID_TOPIC_EXCEPTION.
    From version 3 on, the records of a partition must be one batch of magic 2 (INVALID_RECORD). Older versions have message sets
    of any magic, which are converted, as in Kafka. zstd needs version 7 (UNSUPPORTED_COMPRESSION_TYPE).
    A batch that an idempotent producer sends again is not appended, and is answered with its first offset.
    The transaction coordinator must accept the first batch of a transaction in a partition. Up to version 11 the partition must
    have been added to the transaction (unless `transaction.partition.verification.enable` is false). From version 12 on, this
    request adds it. A refused partition gets INVALID_TXN_STATE, or TRANSACTION_ABORTABLE from version 11 on;
    INVALID_PRODUCER_EPOCH if another producer has taken the transactional id over; INVALID_PRODUCER_ID_MAPPING; or
    NOT_ENOUGH_REPLICAS, after which all clients retry, if the coordinator is not available.
    A transactional batch without a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Transactional batches of several
    producers get INVALID_PRODUCER_ID_MAPPING for the whole request. A batch outside of its producer's open transaction gets
    INVALID_TXN_STATE.

Versions:
    0: message sets. 1: `throttle_time_ms`. 2: `log_append_time_ms` (KIP-32). 3: `transactional_id`, record batches (KIP-98).
    4: KAFKA_STORAGE_ERROR (KIP-112). 5: `log_start_offset` (KIP-107). 6: as 5. 7: zstd (KIP-110).
    8: `record_errors`, `error_message` (KIP-467). 9: flexible. 10: `current_leader`, `node_endpoints` (KIP-951).
    11: TRANSACTION_ABORTABLE. 12: adds the partitions to the transaction (KIP-890). 13: topic ids (KIP-516).

Differs from Apache Kafka:
    A transactional batch without a transactional id refuses its own partition, and not the whole request.
    CONCURRENT_TRANSACTIONS is answered at once. Apache Kafka asks the coordinator again for a tenth of a second. In wirekafka
    that is not needed, because EndTxn is answered after the first markers, at most 250, are written.
    `record_errors` name the first 10,000 records without a key, and those of the first 10,000 whose timestamp is out of bounds.
    Versions 0 to 2, which Apache Kafka 4 dropped, are served.

Source: KafkaApis.handleProduceRequest; ReplicaManager.handleProduceAppend, maybeSendPartitionsToTransactionCoordinator and
appendToLocalLog; ProduceRequest.validateRecords.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.api.current_leader import current_leader
from wirekafka.api.produce.messages import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from wirekafka.api.produce.produce_pass import ProducePass
from wirekafka.api.produce.rules import (
    ACKS_ALL,
    FIRST_VERSION_WITH_TAGS,
    FIRST_VERSION_WITH_TOPIC_IDS,
    find_partition,
    is_zookeeper_session,
)
from wirekafka.api.produce.shortcut import NO_OFFSETS, ProduceShortcut, head_size_of
from wirekafka.api.produce.transactions import Refused, check_transaction, coordinator_is_lost
from wirekafka.api.registry import Call, Encode, serves
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import format_topic_id
from wirekafka.pending import Pending
from wirekafka.replication.delayed_produce import DelayedProduce
from wirekafka.troubles import ZOOKEEPER_CLIENT

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_LEADERS = 10
MOST_FAILURES_TOLD = 3


def _make_shortcut(
    broker: Broker, call: Call[ProduceRequest], frame: memoryview, encode: Encode
) -> tuple[int, ProduceShortcut] | None:
    """Returns the size of the request's head, and the shortcut for later requests with the same head; None without a shortcut.

    Args:
        encode: frames a response in the version of the request.
    """
    head_size = head_size_of(call, frame)
    if not head_size:
        return None
    [data] = call.request.topic_data
    name, topic_id, index = data.name, data.topic_id, data.partition_data[0].index
    topic = topic_id if call.version >= FIRST_VERSION_WITH_TOPIC_IDS else name
    try:
        partition = find_partition(broker, topic, index)
    except KafkaError:
        return None

    def frame_answer(correlation_id: int, answer: PartitionProduceResponse) -> bytes:
        response = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[answer])
        framed = encode(correlation_id, _respond(broker, call, [response]))
        assert isinstance(framed, bytes), "the response has no region of a file"
        return framed

    base_offset, append_time_ms, log_start_offset = NO_OFFSETS
    success = PartitionProduceResponse(
        index=index, base_offset=base_offset, log_append_time_ms=append_time_ms, log_start_offset=log_start_offset
    )
    return head_size, ProduceShortcut(
        head_size,
        is_flexible=call.version >= FIRST_VERSION_WITH_TAGS,
        is_acks_all=call.request.acks == ACKS_ALL,
        broker=broker,
        client_id=call.client_id,
        resource=Resource.topic(partition.topic),
        topic=topic,
        index=index,
        timeout_ms=call.request.timeout_ms,
        success=frame_answer(0, success),
        frame_answer=frame_answer,
    )


@serves(
    0,
    ProduceRequest,
    ProduceResponse,
    versions=range(14),
    flexible_since=FIRST_VERSION_WITH_TAGS,
    shortcut=_make_shortcut,
)
def produce(broker: Broker, call: Call[ProduceRequest]) -> ProduceResponse | Pending[Any] | None:
    """Appends the records and answers for each partition; with acks=all, once all of them are committed.

    Raises:
        ProtocolError: a partition failed, and the producer wants no response.
    """
    transactional_id = call.request.transactional_id
    refusal = _refusal(call)
    if transactional_id is None or refusal is not None:
        return _append_all(broker, call, refusal, {})
    try:
        call.authorize(Operation.WRITE, Resource.transactional_id(transactional_id))
        checked = check_transaction(broker, call, transactional_id)
    except KafkaError as error:
        return _append_all(broker, call, error, {})
    if isinstance(checked, Pending):
        _keep_records(call.request)
        return checked.map(partial(_append_late, broker, call))
    refused, asked = checked
    if not asked or broker.transactions.is_committed(transactional_id):
        return _append_all(broker, call, None, refused)

    def proceed(error: ErrorCode | None) -> ProduceResponse | Pending[Any] | None:
        lost: Refused = {} if error is None else dict.fromkeys(asked, coordinator_is_lost())
        return _append_all(broker, call, None, refused | lost, is_late=True)

    return broker.transactions.after_commit(transactional_id, proceed, prepare=partial(_keep_records, call.request))


def _append_late(broker: Broker, call: Call[ProduceRequest], refused: Refused) -> Any:
    """Appends after another broker has answered for the transaction; returns the response, a Pending of it, or an exception."""
    try:
        return _append_all(broker, call, None, refused, is_late=True)
    except Exception as error:  # noqa: BLE001 - the dispatcher answers it, whatever it is
        return error


def _keep_records(request: ProduceRequest) -> None:
    """Copies the records out of the frame, which is valid only until the handler returns."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))


def _append_all(
    broker: Broker, call: Call[ProduceRequest], refusal: KafkaError | None, refused: Refused, *, is_late: bool = False
) -> ProduceResponse | Pending[Any] | None:
    """Appends to each partition, unless the request or the partition is refused.

    Args:
        is_late: the transaction may have ended since it was checked.

    Raises:
        ProtocolError: a partition failed, and the producer wants no response.
    """
    is_by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    produce_pass = ProducePass(broker, call, refusal, refused, is_late=is_late)
    broker.purgatory.hold()
    try:
        for data in call.request.topic_data:
            produce_pass.append_to(data.topic_id if is_by_id else data.name, data)
    finally:
        broker.purgatory.release()
    if produce_pass.has_heavy:
        return produce_pass.append_heavy(lambda: _answer(broker, call, produce_pass))
    return _answer(broker, call, produce_pass)


def _answer(
    broker: Broker, call: Call[ProduceRequest], produce_pass: ProducePass
) -> ProduceResponse | Pending[ProduceResponse] | None:
    """Returns the response once all records are appended.

    Raises:
        ProtocolError: a partition failed, and the producer wants no response.
    """
    request, responses, uncommitted = call.request, produce_pass.responses, produce_pass.uncommitted
    if uncommitted:
        delayed = DelayedProduce(broker.clock, timeout_ms=request.timeout_ms, answer=lambda: _respond(broker, call, responses))
        delayed.wait_for(uncommitted)
        return delayed.pending
    if request.acks:
        return _respond(broker, call, responses)
    if not responses and is_zookeeper_session(call):
        raise broker.troubles.refusal(call.client, ZOOKEEPER_CLIENT)
    _close_on_error(responses)
    return None


def _respond(broker: Broker, call: Call[ProduceRequest], responses: list[TopicProduceResponse]) -> ProduceResponse:
    """Returns the response; in a cluster it names the leaders of the partitions that this broker does not lead."""
    response = ProduceResponse(responses=responses)
    member = broker.member
    if member is None or call.version < FIRST_VERSION_WITH_LEADERS:
        return response
    nodes: dict[int, NodeEndpoint] = {}
    for topic in responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                found = current_leader(broker, member, call.client.listener, topic.name, answer.index)
                answer.current_leader = LeaderIdAndEpoch(leader_id=found.leader_id, leader_epoch=found.leader_epoch)
                if found.node is not None:
                    node_id, host, port, rack = found.node
                    nodes[node_id] = NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
    response.node_endpoints = list(nodes.values())
    return response


def _refusal(call: Call[ProduceRequest]) -> KafkaError | None:
    """Returns why the whole request is refused; None if it is not refused."""
    if not -1 <= call.request.acks <= 1:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    return None


def _close_on_error(responses: list[TopicProduceResponse]) -> None:
    """Ends the connection of a producer that wants no response, if it must learn of an error.

    Raises:
        ProtocolError: a partition failed.
    """
    failed = [
        f"{response.name or format_topic_id(response.topic_id)}-{answer.index}: {ErrorCode(answer.error_code).name}"
        for response in responses
        for answer in response.partition_responses
        if answer.error_code
    ]
    if failed:
        raise ProtocolError(f"a Produce with acks=0 failed ({', '.join(failed[:MOST_FAILURES_TOLD])})")
