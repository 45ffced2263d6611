"""The pass over the partitions of one Produce request, which appends to each and answers for each.

How it works: a batch is validated and appended at once if that costs little. If the batch needs much CPU, or the request
has used its time on the loop, the records are copied and validated in a worker's thread, one partition after the other, and
appended on the loop. Meanwhile the request's reply is pending and holds its connection, so the batches of a producer keep their
order.

Rules of this file: the state may change while a thread validates a batch, so a partition is looked up and its
rules are checked again before the append.

Source: ReplicaManager.appendToLocalLog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wirekafka.api.produce.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wirekafka.api.produce.rules import (
    ACKS_ALL,
    FIRST_VERSION_WITH_BATCHES,
    check_batch,
    denial_of,
    find_partition,
    internal_topic,
    is_transactional,
    too_few_in_sync_replicas,
    without_transactional_id,
)
from wirekafka.api.produce.transactions import Refused, check_may_begin
from wirekafka.api.told_errors import tell_refused_batch
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.faults import log_once
from wirekafka.log.validation import Batch, HeavyBatchError, validate_batch, without_bounds
from wirekafka.names import INTERNAL_TOPICS
from wirekafka.pending import Pending
from wirekafka.replication.delayed_produce import Appended
from wirekafka.workers import Job, rest

if TYPE_CHECKING:
    from wirekafka.api.produce.messages import ProduceRequest
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.log.context import AppendInfo
    from wirekafka.replication.partition import Partition

SECONDS_ON_LOOP = 0.01
"""The seconds that one request appends on the loop. Workers validate its further partitions."""


@dataclass(slots=True)
class _Heavy:
    """Records that wait for their validation in a thread.

    Attributes:
        topic: the topic's name or id.
        data: the records, copied, and the partition's index.
        answers: the answers of the topic's partitions, which get the answer.
        number: the index of the answer there.
    """

    topic: str | bytes
    data: PartitionProduceData
    answers: list[PartitionProduceResponse]
    number: int


class ProducePass:
    """One pass over the partitions of a request.

    Args:
        refusal: why the whole request is refused; None if it is not refused.
        refused: the partitions to which the request's transaction must not write.
        is_late: the transaction may have ended since it was checked, so it is checked again at each append.

    Attributes:
        responses: the answers so far, by topic.
        uncommitted: the records whose commit the request waits for.
    """

    __slots__ = (
        "_broker",
        "_call",
        "_end",
        "_has_batches",
        "_heavy",
        "_is_acks_all",
        "_is_late",
        "_job",
        "_refusal",
        "_refused",
        "_uncommitted_reply",
        "responses",
        "uncommitted",
    )

    def __init__(
        self, broker: Broker, call: Call[ProduceRequest], refusal: KafkaError | None, refused: Refused, *, is_late: bool
    ) -> None:
        self._broker = broker
        self._call = call
        self._refusal = refusal
        self._refused = refused
        self._is_acks_all = call.request.acks == ACKS_ALL
        self._is_late = is_late
        self._has_batches = call.version >= FIRST_VERSION_WITH_BATCHES
        self._heavy: list[_Heavy] = []
        self._job: Job | None = None
        self._uncommitted_reply: Pending[Any] | None = None
        self._end: float | None = None
        self.responses: list[TopicProduceResponse] = []
        self.uncommitted: list[Appended] = []

    @property
    def has_heavy(self) -> bool:
        """Whether some records wait for their validation in a thread."""
        return bool(self._heavy)

    def append_to(self, topic: str | bytes, data: TopicProduceData) -> None:
        """Appends the records for one topic, except those whose validation needs much CPU.

        Args:
            topic: the topic's name or id.
        """
        answers: list[PartitionProduceResponse] = []
        self.responses.append(TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers))
        denial = self._refusal or denial_of(self._broker, self._call, topic)
        for each in data.partition_data:
            if denial is not None:
                answers.append(_refuse(self._broker, self._call, topic, each.index, denial))
                continue
            try:
                now = perf_counter()
                if self._end is None:
                    self._end = now + SECONDS_ON_LOOP
                elif now > self._end:
                    raise HeavyBatchError
                answers.append(self._append(topic, each, each.records))
            except HeavyBatchError:
                copied = None if each.records is None else memoryview(bytearray(each.records))
                self._heavy.append(_Heavy(topic, PartitionProduceData(index=each.index, records=copied), answers, len(answers)))
                answers.append(PartitionProduceResponse(index=each.index))

    def append_heavy(self, answer: Callable[[], Any]) -> Pending[Any]:
        """Validates the waiting records in threads, and appends them.

        Args:
            answer: called once all records are appended; returns the response or a Pending of it.
        """
        pending: Pending[Any] = Pending(on_abandon=self._abandon)
        self._is_late = self._call.request.transactional_id is not None
        self._heavy.reverse()
        self._append_next(pending, answer)
        return pending

    def _abandon(self) -> None:
        """Drops the batches that are not appended, and the wait for the commit of the others: the connection was closed."""
        self._heavy.clear()
        if self._uncommitted_reply is not None:
            self._uncommitted_reply.abandon()
        if self._job is not None:
            self._job.cancel()

    def _append_next(self, pending: Pending[Any], answer: Callable[[], Any]) -> None:
        if pending.is_done:
            return
        if not self._heavy:
            self._finish(pending, answer)
            return
        heavy = self._heavy[-1]
        try:
            work = self._validation_of(heavy)
        except KafkaError as error:
            self._take(heavy, error)
            self._broker.clock.call_later(0, partial(self._append_next, pending, answer))
            return
        size_bytes = 0 if heavy.data.records is None else len(heavy.data.records)
        self._job = self._broker.workers.submit(work, partial(self._validated, pending, answer, heavy), held_bytes=size_bytes)

    def _validation_of(self, heavy: _Heavy) -> Callable[[], Batch | None]:
        """Returns the work for a thread.

        Raises:
            KafkaError: the records cannot be appended.
        """
        partition = find_partition(self._broker, heavy.topic, heavy.data.index)
        self._check(partition, heavy.data)
        if not heavy.data.records:
            return lambda: None
        return partial(
            validate_batch, heavy.data.records, config=partition.log.config, now_ms=self._call.now_ms, effort=without_bounds(rest)
        )

    def _validated(
        self, pending: Pending[Any], answer: Callable[[], Any], heavy: _Heavy, result: Batch | BaseException | None
    ) -> None:
        """Takes the result of a validation."""
        if isinstance(result, Batch):
            try:
                if result.config is not find_partition(self._broker, heavy.topic, heavy.data.index).log.config:
                    self._append_next(pending, answer)  # the topic's settings have changed, so the batch is validated again
                    return
            except KafkaError as error:
                result = error
        if isinstance(result, BaseException) and not isinstance(result, KafkaError):
            log_once(result, "A batch could not be validated", client=self._call.client.host)
            result = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._take(heavy, result)
        self._append_next(pending, answer)

    def _take(self, heavy: _Heavy, result: Batch | KafkaError | None) -> None:
        """Appends a validated batch, and stores the answer."""
        self._heavy.pop()
        if isinstance(result, KafkaError):
            found = _refuse(self._broker, self._call, heavy.topic, heavy.data.index, result)
        else:
            found = self._append(heavy.topic, heavy.data, result)
        heavy.answers[heavy.number] = found

    def _finish(self, pending: Pending[Any], answer: Callable[[], Any]) -> None:
        try:
            response = answer()
        except ProtocolError as error:
            response = error
        if isinstance(response, Pending):
            self._uncommitted_reply = response
            if not response.holds_connection:
                pending.release_connection()
            response.then(pending.complete, pending.release_connection)
        else:
            pending.complete(response)

    def _append(
        self, topic: str | bytes, data: PartitionProduceData, records: memoryview | Batch | None
    ) -> PartitionProduceResponse:
        """Appends the records of one partition, and answers for it.

        Args:
            records: the records of `data`, or the batch as which they were validated.

        Raises:
            HeavyBatchError: the records must be validated in a thread.
        """
        index = data.index
        log_start_offset = -1
        try:
            # Not by `rules.find_partition`: the call costs the hot path 0.1 us.
            partition = self._broker.find_partition(topic, index)
            if partition.topic in INTERNAL_TOPICS:
                raise internal_topic(partition.topic)
            self._check(partition, data)
            log_start_offset = partition.log.log_start_offset
            if not records:
                return PartitionProduceResponse(index=index, base_offset=-1, log_start_offset=log_start_offset)
            info = partition.append(records, now_ms=self._call.now_ms)
        except KafkaError as error:
            return _refuse(self._broker, self._call, topic, index, error, log_start_offset)
        except HeavyBatchError:
            raise
        except Exception as error:  # noqa: BLE001 - the answers for the other partitions must not depend on this one
            return failure_of(index, unexpected_failure(error, topic, index), log_start_offset)
        answer = answer_of(index, info)
        if not partition.is_sole_replica and self._is_uncommitted(partition, info.last_offset):
            self.uncommitted.append(Appended(partition, info.last_offset + 1, partial(setattr, answer, "error_code")))
        return answer

    def _is_uncommitted(self, partition: Partition, last_offset: int) -> bool:
        """Whether the request waits for the commit of records up to this offset."""
        return self._is_acks_all and last_offset >= partition.log.high_watermark

    def _check(self, partition: Partition, data: PartitionProduceData) -> None:
        """Raises unless the request may append the records to the partition.

        Raises:
            KafkaError: as `check_batch`; NOT_ENOUGH_REPLICAS; the refusal of the transaction.
        """
        if self._has_batches:
            check_batch(self._call, data.records)
            if self._refused or self._is_late:
                self._check_transaction(partition, data)
        elif not data.records:
            return
        elif is_transactional(data.records):
            raise without_transactional_id()
        if self._is_acks_all and not partition.has_enough_in_sync_replicas:
            raise too_few_in_sync_replicas(partition)

    def _check_transaction(self, partition: Partition, data: PartitionProduceData) -> None:
        """Raises if the request's transaction must not write to the partition, or has ended there meanwhile.

        Raises:
            KafkaError: the refusal of the coordinator; INVALID_TXN_STATE.
        """
        refusal = self._refused.get(partition.topic_partition)
        if refusal is not None:
            raise refusal
        if self._is_late:
            assert data.records is not None, "the batch was checked before"
            check_may_begin(partition, data.records)


def _refuse(
    broker: Broker, call: Call[ProduceRequest], topic: str | bytes, index: int, error: KafkaError, log_start_offset: int = -1
) -> PartitionProduceResponse:
    """Returns the answer for a partition to which nothing was appended, and tells the operator what to do about it."""
    is_fenced_idempotent = error.code is ErrorCode.INVALID_PRODUCER_EPOCH and call.request.transactional_id is None
    if not is_fenced_idempotent:  # an idempotent producer takes a new epoch itself (KIP-360)
        tell_refused_batch(broker, call.client, call.client_id, topic, index, error)
    return failure_of(index, error, log_start_offset)


def answer_of(index: int, info: AppendInfo) -> PartitionProduceResponse:
    """Returns the answer for a partition to which records were appended."""
    append_time = info.log_append_time_ms
    return PartitionProduceResponse(
        index=index,
        base_offset=info.base_offset,
        log_append_time_ms=-1 if append_time is None else append_time,
        log_start_offset=info.log_start_offset,
    )


def failure_of(index: int, error: KafkaError, log_start_offset: int = -1) -> PartitionProduceResponse:
    """Returns the answer for a partition to which nothing was appended."""
    blamed = [
        BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=error.message) for record in error.record_indexes
    ]
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=blamed,
        error_message=error.message,
    )


def unexpected_failure(error: Exception, topic: str | bytes, index: int) -> KafkaError:
    """Logs an exception of an append that is not the client's fault; returns the error for the partition."""
    log_once(error, "A Produce to a partition failed", topic=topic, partition=index)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
