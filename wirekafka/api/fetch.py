"""Fetch: gives records from the offsets that a consumer names, or waits until there are enough.

Behaviour:
    The records of a partition are whole batches as they were stored, from the one that holds the offset up to the high
    watermark, sent from the file. `max_bytes` (at most `fetch.max.bytes`) limits the answer, `partition_max_bytes` each
    partition; the first batch of the first partition that has any is given whatever its size (KIP-74). With fewer than
    `min_bytes` the fetch waits, for `max_wait_ms` at most (the cases are those of `cluster.purgatory.DelayedFetch`). An error
    in one partition does not touch the others, but ends the waiting.
    A session remembers what is fetched (KIP-227): epoch 0 opens one, -1 does without, any other epoch continues one and names
    only what has changed; its answer leaves out partitions without news, and partitions that gave records go to the end of
    the order. `max.incremental.fetch.session.cache.slots` limits how many there are.
    Before version 4 clients know no record batches: what they fetch is converted to message sets of magic 0 or 1.
    With `isolation_level` 1 (read_committed) a partition gives records up to its last stable offset, and
    `aborted_transactions` names those whose records, up to their markers, the client is to leave out; only what lies before
    that offset counts for `min_bytes`. Markers take an offset each and are among the records in either case.

Versions:
    0-1: message sets of magic 0; 1 adds `throttle_time_ms`. 2: magic 1.
    3: `max_bytes`, and the first batch is given whatever its size (KIP-74). Up to 2 the last message may be cut off.
    4: record batches, `isolation_level`, `last_stable_offset`, `aborted_transactions` (KIP-98).
    5: `log_start_offset` (KIP-107). 6: KAFKA_STORAGE_ERROR is told as such (KIP-112). 7: sessions (KIP-227).
    8: as 7. 9: `current_leader_epoch` (KIP-320). 10: zstd (KIP-110). 11: `rack_id` (KIP-392).
    12: flexible; `last_fetched_epoch` and `diverging_epoch` (KIP-595). 13: topic ids (KIP-516). 14: as 13 (KIP-405).
    15: `replica_state` (KIP-903). 16: leaders and their addresses in errors (KIP-951). 17: `replica_directory_id` (KIP-853).
    18: `high_watermark` of a replica (KIP-1166).

Differs from Apache Kafka:
    There are no replicas: whoever fetches with a replica id gets NOT_LEADER_OR_FOLLOWER, and `rack_id` has no effect.
    A session is told of a log start offset that retention moved with the next news of that partition, not at once.
    Versions 0 to 3, which Kafka 4 has dropped, are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import structlog

from wirekafka.api.registry import Call, serves
from wirekafka.cluster.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID, Asked, FetchSession, SessionPartition
from wirekafka.cluster.partition import Partition
from wirekafka.cluster.purgatory import DelayedFetch
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending
from wirekafka.wire.legacy import down_convert
from wirekafka.wire.types import (
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Records,
    String,
    Uuid,
    nullable,
    since,
    tag,
    until,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker

log = structlog.get_logger(__name__)

FIRST_VERSION_OF_MAGIC_1 = 2
FIRST_VERSION_THAT_GIVES_A_BATCH = 3
FIRST_VERSION_WITH_BATCHES = 4
FIRST_VERSION_WITH_STORAGE_ERROR = 6
FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 16

READ_COMMITTED = 1


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, since(9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, since(12)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, tag(0, since=17)] = ZERO_TOPIC_ID
    high_watermark: Annotated[Int64, tag(1, since=18)] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class FetchRequest(Message):
    cluster_id: Annotated[NullableString, tag(0, since=12), nullable(12)] = None
    replica_id: Annotated[Int32, until(14)] = -1
    replica_state: Annotated[ReplicaState | None, tag(1, since=15)] = None
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Annotated[Int32, since(3)] = 0x7FFFFFFF
    isolation_level: Annotated[Int8, since(4)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    session_epoch: Annotated[Int32, since(7)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], since(7)] = []
    rack_id: Annotated[String, since(11)] = ""


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Annotated[Int64, since(4)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, tag(0, since=12)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, tag(1, since=12)] = None
    snapshot_id: Annotated[SnapshotId | None, tag(2, since=12)] = None
    aborted_transactions: Annotated[list[AbortedTransaction] | None, since(4), nullable(4)] = []
    preferred_read_replica: Annotated[Int32, since(11)] = -1
    records: Annotated[Records, nullable(0)] = None


class FetchableTopicResponse(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, nullable(16)] = None


class FetchResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, since(7)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], tag(0, since=16)] = []


@serves(1, FetchRequest, FetchResponse, versions=range(19), flexible_since=12)
def fetch(broker: Broker, call: Call[FetchRequest]) -> FetchResponse | Pending[Any]:
    """Reads now, or waits until there is enough to read."""
    request = call.request
    if request.replica_id >= 0 or (request.replica_state is not None and request.replica_state.replica_id >= 0):
        return _refuse_replica(request)
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return _fetch_news(broker, call)
    if request.session_id != NO_SESSION_ID:
        broker.fetch_sessions.remove(request.session_id)
    return _fetch_all(broker, call)


def _fetch_all(broker: Broker, call: Call[FetchRequest]) -> FetchResponse | Pending[Any]:
    """A full fetch: of the partitions that the request names, with or without a session to come."""
    request = call.request
    reading = _Reading(broker, call)
    responses = _read_all(broker, call, reading)
    if reading.is_enough or not request.topics:
        return _full_answer(broker, call, responses, reading)

    def answer() -> FetchResponse:
        again = _Reading(broker, call)
        return _full_answer(broker, call, _read_all(broker, call, again), again)

    delayed = reading.delay(answer)
    for partition, asked in reading.watched:
        delayed.watch(partition, asked.partition_max_bytes)
    return delayed.pending


def _read_all(broker: Broker, call: Call[FetchRequest], reading: _Reading) -> list[FetchableTopicResponse]:
    responses = []
    uses_topic_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for asked_topic in call.request.topics:
        if uses_topic_ids:
            topic = broker.topics.find_by_id(asked_topic.topic_id)
        else:
            topic = broker.topics.find(asked_topic.topic)
        partitions = topic.partitions if topic is not None else ()
        answers = []
        for asked in asked_topic.partitions:
            index = asked.partition
            if 0 <= index < len(partitions):
                answers.append(reading.read(partitions[index], asked))
            elif topic is None and uses_topic_ids:
                answers.append(reading.refuse(index, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                answers.append(reading.refuse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        responses.append(FetchableTopicResponse(topic=asked_topic.topic, topic_id=asked_topic.topic_id, partitions=answers))
    return responses


def _full_answer(
    broker: Broker, call: Call[FetchRequest], responses: list[FetchableTopicResponse], reading: _Reading
) -> FetchResponse:
    session_id = NO_SESSION_ID
    if call.request.session_epoch == INITIAL_EPOCH:
        session_id = _open_session(broker, call, responses)
    return FetchResponse(session_id=session_id, responses=responses, node_endpoints=reading.node_endpoints)


def _open_session(broker: Broker, call: Call[FetchRequest], responses: list[FetchableTopicResponse]) -> int:
    """Remembers what was asked and told; returns the session's id, or none if there is no room for one."""
    topics = call.request.topics
    uses_topic_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    count = sum(len(topic.partitions) for topic in topics)
    session = broker.fetch_sessions.create(count, uses_topic_ids=uses_topic_ids, now_ms=call.now_ms)
    if session is None:
        return NO_SESSION_ID
    for topic, response in zip(topics, responses, strict=True):
        for asked, data in zip(topic.partitions, response.partitions, strict=True):
            entry = session.put(topic.topic, topic.topic_id, asked)
            if not data.error_code:
                entry.locate(broker.topics)
            entry.told(_size(data.records), data.error_code, data.high_watermark, data.log_start_offset)
    return session.session_id


def _fetch_news(broker: Broker, call: Call[FetchRequest]) -> FetchResponse | Pending[Any]:
    """An incremental fetch: of what a session remembers, changed by what the request names."""
    request = call.request
    sessions = broker.fetch_sessions
    session = sessions.get(request.session_id)
    if session is None:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != request.session_epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.uses_topic_ids != (call.version >= FIRST_VERSION_WITH_TOPIC_IDS):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    for topic in request.topics:
        for asked in topic.partitions:
            session.put(topic.topic, topic.topic_id, asked)
    for forgotten in request.forgotten_topics_data:
        session.forget(forgotten.topic, forgotten.topic_id, forgotten.partitions)
    if not session.partitions:
        sessions.remove(session.session_id)
        return FetchResponse()
    sessions.touch(session, call.now_ms)
    session.advance_epoch()
    return _read_session(broker, call, session)


def _read_session(broker: Broker, call: Call[FetchRequest], session: FetchSession) -> FetchResponse | Pending[Any]:
    reading = _Reading(broker, call)
    news = _read_dirty(broker, session, reading)
    if reading.is_enough:
        return _tell(session, news, reading)
    epoch = session.epoch

    def answer() -> FetchResponse:
        session.waiting = None
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id)
        again = _Reading(broker, call)
        return _tell(session, _read_dirty(broker, session, again), again)

    delayed = reading.delay(answer)
    session.wait(delayed)
    return delayed.pending


News = list[tuple[SessionPartition, PartitionData]]


def _read_dirty(broker: Broker, session: FetchSession, reading: _Reading) -> News:
    news: News = []
    for entry in tuple(session.dirty):
        try:
            data = reading.read(entry.locate(broker.topics), entry.asked)
        except KafkaError as error:
            data = reading.refuse(entry.asked.partition, error.code)
        is_news = data.diverging_epoch is not None
        if entry.settle(_size(data.records), data.error_code, data.high_watermark, data.log_start_offset) or is_news:
            news.append((entry, data))
    return news


def _tell(session: FetchSession, news: News, reading: _Reading) -> FetchResponse:
    """The answer of a session: its news, by topic as long as one follows itself."""
    responses: list[FetchableTopicResponse] = []
    last: FetchableTopicResponse | None = None
    for entry, data in news:
        entry.told(_size(data.records), data.error_code, data.high_watermark, data.log_start_offset)
        if last is None or last.topic != entry.topic or last.topic_id != entry.topic_id:
            last = FetchableTopicResponse(topic=entry.topic, topic_id=entry.topic_id)
            responses.append(last)
        last.partitions.append(data)
    return FetchResponse(session_id=session.session_id, responses=responses, node_endpoints=reading.node_endpoints)


def _size(records: Any) -> int:
    return 0 if records is None else len(records)


def _refuse_replica(request: FetchRequest) -> FetchResponse:
    """No other broker replicates from this one: whoever says that it is a replica is answered as an unknown one."""
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[_failure(asked.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=responses)


def _failure(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, records=b"")


class _Reading:
    """One pass over the partitions of a fetch: what its limits leave, and what it has found.

    The first partition that has records gives at least one batch, whatever the limits say (KIP-74), so that a consumer gets
    past a batch that is larger than they are. Up to version 2 there was no such rule: each partition gives as many bytes
    as it may, the last message cut off if need be, from which a client sees that it must ask for more.

    Attributes:
        found_bytes: the bytes of each partition that has some.
        watched: the partitions that were read, in case the fetch must wait.
        must_answer: an error or a diverging epoch, with which there is no waiting.
        node_endpoints: where the leaders are that the answer names (KIP-951).
    """

    __slots__ = (
        "_broker", "_call", "_left_bytes", "_min_bytes", "_must_give_a_batch", "_only_stable", "_sum_bytes",
        "found_bytes", "must_answer", "node_endpoints", "watched",
    )  # fmt: skip

    def __init__(self, broker: Broker, call: Call[FetchRequest]) -> None:
        request = call.request
        self._broker = broker
        self._call = call
        self._left_bytes = min(request.max_bytes, broker.config.integer("fetch.max.bytes"))
        self._min_bytes = min(request.min_bytes, self._left_bytes)
        self._must_give_a_batch = call.version >= FIRST_VERSION_THAT_GIVES_A_BATCH
        self._only_stable = request.isolation_level == READ_COMMITTED
        self._sum_bytes = 0
        self.found_bytes: dict[Partition, int] = {}
        self.watched: list[tuple[Partition, Asked]] = []
        self.must_answer = False
        self.node_endpoints: list[NodeEndpoint] = []

    @property
    def is_enough(self) -> bool:
        """Whether the fetch is answered at once."""
        return self.must_answer or self._sum_bytes >= self._min_bytes or self._call.request.max_wait_ms <= 0

    def delay(self, answer: Callable[[], FetchResponse]) -> DelayedFetch:
        """The fetch that waits for what this reading did not find."""

        def answer_whatever_happens() -> FetchResponse:
            try:
                return answer()
            except Exception:
                log.exception("a delayed fetch failed", client=self._call.client.host)
                return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

        return DelayedFetch(
            self._broker.purgatory,
            max_wait_ms=self._call.request.max_wait_ms,
            missing_bytes=self._min_bytes - self._sum_bytes,
            counted_bytes=self.found_bytes,
            answer=answer_whatever_happens,
            only_stable=self._only_stable,
        )

    def read(self, partition: Partition, asked: Asked) -> PartitionData:
        """What one partition has for this fetch, within what the limits leave."""
        try:
            if asked.current_leader_epoch >= 0:
                partition.check_leader_epoch(asked.current_leader_epoch)
            source = partition.log
            if source.offline_reason is not None:
                partition.check_online()
            diverging_epoch = None
            if asked.last_fetched_epoch >= 0:
                diverging_epoch = partition.find_divergence(asked.last_fetched_epoch, asked.fetch_offset)
            records: Any = b""
            if diverging_epoch is not None:
                self.must_answer = True
            elif asked.fetch_offset != source.high_watermark:
                records = self._take(partition, asked)
            aborted = partition.aborted_in_read(asked.fetch_offset, len(records)) if self._only_stable else None
        except KafkaError as error:
            return self.refuse(asked.partition, error.code, partition)
        self.watched.append((partition, asked))
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=source.high_watermark,
            last_stable_offset=source.last_stable_offset,
            log_start_offset=source.log_start_offset,
            records=records,
        )
        data.aborted_transactions = None
        if aborted is not None:
            data.aborted_transactions = [AbortedTransaction(producer_id=each, first_offset=first) for each, first in aborted]
        if diverging_epoch is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging_epoch[0], end_offset=diverging_epoch[1])
        return data

    def _take(self, partition: Partition, asked: Asked) -> Any:
        """Takes records off the limits, converted for a client that knows message sets only.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, UNSUPPORTED_COMPRESSION_TYPE.
        """
        version = self._call.version
        if version < FIRST_VERSION_WITH_ZSTD and partition.log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        max_bytes = min(asked.partition_max_bytes, self._left_bytes)
        must_give_a_batch = self._must_give_a_batch or version < FIRST_VERSION_THAT_GIVES_A_BATCH
        records = partition.read(
            asked.fetch_offset, max_bytes=max(0, max_bytes), min_one_batch=must_give_a_batch, only_stable=self._only_stable
        )
        size_bytes = len(records)
        if size_bytes:
            self._must_give_a_batch = False
            self._left_bytes = max(0, self._left_bytes - size_bytes)
            self._sum_bytes += size_bytes
            self.found_bytes[partition] = size_bytes
            if version < FIRST_VERSION_WITH_BATCHES:
                return _message_set(records, asked, version)
        return records

    def refuse(self, index: int, code: ErrorCode, partition: Partition | None = None) -> PartitionData:
        """What a partition that cannot be read gives; the fetch does not wait then."""
        self.must_answer = True
        version = self._call.version
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_VERSION_WITH_STORAGE_ERROR:
            # A client that does not know the error would not retry (KafkaApis.maybeDownConvertStorageError).
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = _failure(index, code)
        if code is ErrorCode.FENCED_LEADER_EPOCH and partition is not None and version >= FIRST_VERSION_WITH_LEADERS:
            data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
            if not self.node_endpoints:
                host, port = self._broker.advertised_address(self._call.client)
                self.node_endpoints = [NodeEndpoint(node_id=self._broker.node_id, host=host, port=port)]
        return data


def _message_set(records: Any, asked: Asked, version: int) -> bytes:
    """Batches as a client of before 2017 reads them.

    Up to version 2 the bytes end where the limit says, in the middle of a message if need be: a client that gets not one
    whole message knows that it must ask for more.

    Raises:
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE, for zstd.
    """
    batches = records if isinstance(records, bytes) else records.read()
    magic = 1 if version >= FIRST_VERSION_OF_MAGIC_1 else 0
    messages = down_convert(batches, magic, asked.fetch_offset)
    if version < FIRST_VERSION_THAT_GIVES_A_BATCH:
        return messages[: max(0, asked.partition_max_bytes)]
    return messages
