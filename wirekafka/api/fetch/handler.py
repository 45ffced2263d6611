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
    Before version 4 clients know no record batches: what they fetch is converted to message sets of magic 0 or 1, at most some
    50,000 records of a partition at once.
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
    This broker has no followers. A fetch with a replica id gets NOT_LEADER_OR_FOLLOWER, and `rack_id` has no effect.
    A session learns of a log start offset that retention moved when something else of that partition changes, not at once.
    All sessions and waiting fetches together name at most 262,144 partitions. A session that would exceed this is not opened,
    or is closed with FETCH_SESSION_ID_NOT_FOUND, and a fetch that would exceed it does not wait.
    Versions 0 to 3, which Kafka 4 has dropped, are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.fetch.conversion import convert, convert_late
from wirekafka.api.fetch.fetch_pass import FIRST_VERSION_WITH_TOPIC_IDS, FetchPass, failure_of
from wirekafka.api.fetch.messages import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending
from wirekafka.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION_ID,
    FetchSession,
    HeldPartitions,
    SessionPartition,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


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
    reading = FetchPass(broker, call)
    responses = _read_all(broker, call, reading)
    if reading.is_enough or not request.topics:
        return convert(broker, call, _full_answer(broker, call, responses, reading))

    def answer() -> FetchResponse:
        again = FetchPass(broker, call)
        return _full_answer(broker, call, _read_all(broker, call, again), again)

    held, count = broker.fetch_sessions.held, sum(len(topic.partitions) for topic in request.topics)
    if not held.fits(count):
        # The client asks again: it is told that there is nothing yet, as after its wait.
        return _full_answer(broker, call, responses, reading)
    held.take(count)
    delayed = reading.delay(answer, on_end=lambda: held.give_back(count))
    for partition, asked in reading.watched:
        delayed.watch(partition, asked.partition_max_bytes)
    return convert_late(broker, call, delayed.pending)


def _read_all(broker: Broker, call: Call[FetchRequest], reading: FetchPass) -> list[FetchableTopicResponse]:
    responses = []
    uses_topic_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for asked_topic in call.request.topics:
        topic = asked_topic.topic_id if uses_topic_ids else asked_topic.topic
        answers = []
        for asked in asked_topic.partitions:
            try:
                partition = broker.topics.find_partition(topic, asked.partition)
                call.authorize(Operation.READ, Resource.topic(partition.topic))
            except KafkaError as error:
                answers.append(reading.refuse(asked.partition, error.code))
            else:
                answers.append(reading.read(partition, asked))
        responses.append(FetchableTopicResponse(topic=asked_topic.topic, topic_id=asked_topic.topic_id, partitions=answers))
    return responses


def _full_answer(
    broker: Broker, call: Call[FetchRequest], responses: list[FetchableTopicResponse], reading: FetchPass
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
    if request.topics and not _fits(sessions.held, session, request):
        sessions.remove(session.session_id)
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
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


def _fits(held: HeldPartitions, session: FetchSession, request: FetchRequest) -> bool:
    """Whether the partitions that the request adds to the session are within what sessions may hold together."""
    topics = request.topics
    if held.fits(len(topics[0].partitions) if len(topics) == 1 else sum(len(topic.partitions) for topic in topics)):
        return True
    names = ((topic.topic_id if session.uses_topic_ids else topic.topic, topic.partitions) for topic in topics)
    new = {(name, asked.partition) for name, partitions in names for asked in partitions} - session.partitions.keys()
    return held.fits(len(new))


def _read_session(broker: Broker, call: Call[FetchRequest], session: FetchSession) -> FetchResponse | Pending[Any]:
    reading = FetchPass(broker, call)
    news = _read_dirty(broker, call, session, reading)
    if reading.is_enough:
        return _tell(session, news, reading)
    epoch = session.epoch

    def answer() -> FetchResponse:
        session.waiting = None
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id)
        again = FetchPass(broker, call)
        return _tell(session, _read_dirty(broker, call, session, again), again)

    delayed = reading.delay(answer)
    session.wait(delayed)
    return delayed.pending


News = list[tuple[SessionPartition, PartitionData]]


def _read_dirty(broker: Broker, call: Call[FetchRequest], session: FetchSession, reading: FetchPass) -> News:
    news: News = []
    for entry in tuple(session.dirty):
        try:
            partition = entry.partition
            if partition is None or partition.is_gone:
                partition = entry.locate(broker.topics)
            call.authorize(Operation.READ, Resource.topic(partition.topic))
            data = reading.read(partition, entry.asked)
        except KafkaError as error:
            data = reading.refuse(entry.asked.partition, error.code)
        if (
            data.records
            or data.diverging_epoch is not None
            or entry.settle(0, data.error_code, data.high_watermark, data.log_start_offset)
        ):
            news.append((entry, data))
    return news


def _tell(session: FetchSession, news: News, reading: FetchPass) -> FetchResponse:
    """The answer of a session: its news, by topic as long as one follows itself."""
    responses: list[FetchableTopicResponse] = []
    last: FetchableTopicResponse | None = None
    for entry, data in news:
        entry.told(_size(data.records), data.error_code, data.high_watermark, data.log_start_offset)
        if last is not None and last.topic == entry.topic and last.topic_id == entry.topic_id:
            last.partitions.append(data)
            continue
        last = FetchableTopicResponse(topic=entry.topic, topic_id=entry.topic_id, partitions=[data])
        responses.append(last)
    return FetchResponse(session_id=session.session_id, responses=responses, node_endpoints=reading.node_endpoints)


def _size(records: Any) -> int:
    return 0 if records is None else len(records)


def _refuse_replica(request: FetchRequest) -> FetchResponse:
    """Refuses a fetch of a follower: no other broker replicates from this one."""
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[failure_of(asked.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=responses)
