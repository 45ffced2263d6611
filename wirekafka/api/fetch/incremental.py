"""Incremental fetches: a session has the partitions, and the request changes them.

How it works: only the dirty partitions of the session are read, and the response has the partitions with news. More than
`PARTITIONS_AT_ONCE` of them are read in slices. If the session gets its next request or ends meanwhile, the fetch ends too.

Source: kafka.server.IncrementalFetchContext, KIP-227.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wirekafka.api.fetch.fetch_pass import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    PARTITIONS_A_STEP,
    PARTITIONS_AT_ONCE,
    READ,
    FetchPass,
    ReadEnds,
    fetch_response,
    partition_count,
    topic_response,
)
from wirekafka.api.fetch.one_partition import Reply, encode_one
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Resource
from wirekafka.pending import Pending, Work
from wirekafka.replication.fetch_sessions import FetchSession, HeldPartitions, SessionPartition
from wirekafka.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker

News = list[tuple[SessionPartition, PartitionData]]
"""The partitions of the response: those with records, an error, or offsets that the client does not know."""


def fetch_news(broker: Broker, call: Call[FetchRequest], pass_type: type[FetchPass], session_type: type[FetchSession]) -> Reply:
    """Changes the session by the request, and reads its dirty partitions.

    Args:
        pass_type: reads for a consumer, or for a follower.
        session_type: the sessions of consumers, or of followers. A session serves the one of them that opened it.
    """
    request = call.request
    sessions = broker.fetch_sessions
    session = sessions.get(request.session_id)
    if session is None or type(session) is not session_type:
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
    return _read_session(broker, call, session, pass_type(broker, call))


def _fits(held: HeldPartitions, session: FetchSession, request: FetchRequest) -> bool:
    """Whether the sessions' limit of partitions allows the partitions that the request adds to the session."""
    topics = request.topics
    if held.fits(partition_count(topics)):
        return True
    names = ((topic.topic_id if session.uses_topic_ids else topic.topic, topic.partitions) for topic in topics)
    new = {(name, asked.partition) for name, partitions in names for asked in partitions} - session.partitions.keys()
    return held.fits(len(new))


def _read_session(
    broker: Broker, call: Call[FetchRequest], session: FetchSession, reading: FetchPass, *, may_wait: bool = True
) -> Reply:
    """Reads the dirty partitions of the session.

    Args:
        may_wait: Whether the fetch waits if it finds too little. Otherwise the response has what there is.
    """
    entries = tuple(session.dirty)
    if len(entries) > PARTITIONS_AT_ONCE:
        return broker.slices.run(_read_in_slices(broker, call, session, reading, entries, may_wait))
    news = _read(broker, call, entries, reading)
    if may_wait and not reading.is_enough:
        return _wait(broker, call, session, reading)
    return _tell(call, session, news, reading)


def _read_in_slices(
    broker: Broker,
    call: Call[FetchRequest],
    session: FetchSession,
    reading: FetchPass,
    entries: Sequence[SessionPartition],
    may_wait: bool,
) -> Work[Reply]:
    epoch = session.epoch
    ends = ReadEnds()
    news: News = []
    for start in range(0, len(entries), PARTITIONS_A_STEP):
        some = entries[start : start + PARTITIONS_A_STEP]
        news += _read(broker, call, some, reading)
        ends.note([entry.partition for entry in some if entry.partition is not None])
        yield
        if session.epoch != epoch:
            return _superseded(session)
    if may_wait and not reading.is_enough and not ends.have_moved:
        return _wait(broker, call, session, reading)
    return _tell(call, session, news, reading)


def _wait(broker: Broker, call: Call[FetchRequest], session: FetchSession, reading: FetchPass) -> Pending[Any]:
    """Waits until there is enough to read, or the time is over; then the fetch reads again."""
    epoch = session.epoch

    def answer() -> Reply:
        session.waiting = None
        if session.epoch != epoch:
            return _superseded(session)
        return _read_session(broker, call, session, reading.after_wait(broker, call), may_wait=False)

    delayed = reading.delay(answer)
    session.wait(delayed)
    return delayed.pending


def _superseded(session: FetchSession) -> FetchResponse:
    """Returns the response to a fetch whose session has ended, or has had its next request."""
    return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id)


def _read(broker: Broker, call: Call[FetchRequest], entries: Sequence[SessionPartition], reading: FetchPass) -> News:
    """Reads partitions of a session, and marks those clean that have nothing new and are read to their end."""
    news: News = []
    for entry in entries:
        try:
            partition = entry.partition
            if partition is None or partition.is_gone:
                partition = entry.locate(broker.topics)
            call.authorize(READ, Resource.topic(partition.topic))
            data = reading.read(partition, entry.asked)
        except KafkaError as error:
            data = reading.refuse(entry.asked.partition, error.code)
        if (
            data.records
            or data.diverging_epoch is not None
            or data.preferred_read_replica >= 0
            or entry.settle(0, data.error_code, data.high_watermark, data.log_start_offset)
        ):
            news.append((entry, data))
    return news


def _tell(call: Call[FetchRequest], session: FetchSession, news: News, reading: FetchPass) -> Reply:
    """Returns the response of a session. Neighbours of the same topic have one entry."""
    if len(news) == 1:
        [(entry, data)] = news
        encoded = encode_one(call.version, session.session_id, entry.topic, entry.topic_id, data)
        if encoded is not None:
            entry.told(len(data.records), 0, data.high_watermark, data.log_start_offset)
            return encoded
    responses: list[FetchableTopicResponse] = []
    last: FetchableTopicResponse | None = None
    for entry, data in news:
        # A partition that the client should read elsewhere stays dirty, until the client forgets it.
        if data.preferred_read_replica < 0:
            entry.told(len(data.records), data.error_code, data.high_watermark, data.log_start_offset)
        if last is not None and last.topic == entry.topic and last.topic_id == entry.topic_id:
            last.partitions.append(data)
            continue
        last = topic_response(entry.topic, entry.topic_id, [data])
        responses.append(last)
    return fetch_response(session.session_id, responses, reading.node_endpoints)
