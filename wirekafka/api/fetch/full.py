"""Full fetches: the request names the partitions. It has no session, or opens one.

How it works: a fetch of a few partitions is read, and answered or delayed, in one call. A fetch of more than
`PARTITIONS_AT_ONCE` is read in slices. While a fetch waits, its partitions are counted in `HeldPartitions`.

Source: kafka.server.FullFetchContext, KIP-227.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

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
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Resource
from wirekafka.pending import Work, finish
from wirekafka.replication.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID
from wirekafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.replication.fetch_sessions import Asked
    from wirekafka.replication.partition import Partition

Watched = list[tuple["Partition", "Asked"]]
"""The partitions that were read, in case the fetch must wait."""


def fetch_all(
    broker: Broker, call: Call[FetchRequest], pass_type: type[FetchPass] = FetchPass, *, may_wait: bool = True
) -> Reply:
    """Reads the partitions that the request names.

    Args:
        pass_type: reads for a consumer, or for a follower.
        may_wait: Whether the fetch waits if it finds too little. Otherwise the response has what there is.
    """
    request = call.request
    if partition_count(request.topics) > PARTITIONS_AT_ONCE:
        return broker.slices.run(_fetch_in_slices(broker, call, pass_type, may_wait))
    reading = pass_type(broker, call)
    watched: Watched = []
    responses = [
        topic_response(topic.topic, topic.topic_id, _read(broker, call, reading, topic, topic.partitions, watched))
        for topic in request.topics
    ]
    if may_wait and watched and not reading.is_enough:
        return _wait(broker, call, reading, responses, watched)
    if request.session_epoch == FINAL_EPOCH:
        if len(responses) == 1 and len(responses[0].partitions) == 1:
            [topic] = responses
            encoded = encode_one(call.version, NO_SESSION_ID, topic.topic, topic.topic_id, topic.partitions[0])
            if encoded is not None:
                return encoded
        return fetch_response(NO_SESSION_ID, responses, reading.node_endpoints)
    return finish(_answer(broker, call, reading, responses))


def _fetch_in_slices(broker: Broker, call: Call[FetchRequest], pass_type: type[FetchPass], may_wait: bool) -> Work[Reply]:
    reading = pass_type(broker, call)
    ends = ReadEnds()
    watched: Watched = []
    responses = []
    for topic in call.request.topics:
        response = topic_response(topic.topic, topic.topic_id, [])
        for start in range(0, len(topic.partitions), PARTITIONS_A_STEP):
            watched_before = len(watched)
            response.partitions += _read(
                broker, call, reading, topic, topic.partitions[start : start + PARTITIONS_A_STEP], watched
            )
            ends.note(partition for partition, _ in watched[watched_before:])
            yield
        responses.append(response)
    if may_wait and watched and not reading.is_enough and not ends.have_moved:
        return _wait(broker, call, reading, responses, watched)
    return (yield from _answer(broker, call, reading, responses))


def _read(
    broker: Broker,
    call: Call[FetchRequest],
    reading: FetchPass,
    topic: FetchTopic,
    partitions: list[FetchPartition],
    watched: Watched,
) -> list[PartitionData]:
    """Reads partitions of one topic."""
    name = topic.topic_id if call.version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.topic
    answers = []
    for asked in partitions:
        try:
            partition = broker.topics.find_partition(name, asked.partition)
            call.authorize(READ, Resource.topic(partition.topic))
        except KafkaError as error:
            answers.append(reading.refuse(asked.partition, error.code))
        else:
            watched.append((partition, asked))
            answers.append(reading.read(partition, asked))
    return answers


def _wait(
    broker: Broker, call: Call[FetchRequest], reading: FetchPass, responses: list[FetchableTopicResponse], watched: Watched
) -> Reply:
    """Waits until there is enough to read, or the time is over; then the fetch reads again."""
    held, count = broker.fetch_sessions.held, len(watched)
    if not held.fits(count):
        # The client fetches again, after an answer without records, as after a wait.
        return finish(_answer(broker, call, reading, responses))
    held.take(count)
    read_again = partial(fetch_all, broker, call, reading.after_wait, may_wait=False)
    delayed = reading.delay(read_again, on_end=lambda: held.give_back(count))
    for partition, asked in watched:
        delayed.watch(partition, asked.partition_max_bytes)
    return delayed.pending


def _answer(
    broker: Broker, call: Call[FetchRequest], reading: FetchPass, responses: list[FetchableTopicResponse]
) -> Work[FetchResponse]:
    """Returns the response, and opens a session if the request asks for one and there is room for it."""
    session_id = NO_SESSION_ID
    if call.request.session_epoch == INITIAL_EPOCH:
        session_id = yield from _open_session(broker, call, reading, responses)
    return fetch_response(session_id, responses, reading.node_endpoints)


def _open_session(
    broker: Broker, call: Call[FetchRequest], reading: FetchPass, responses: list[FetchableTopicResponse]
) -> Work[int]:
    """Opens a session with what the request asks for and the response has; returns its id, or none if there is no room for it."""
    topics = call.request.topics
    session = reading.open_session(partition_count(topics), uses_topic_ids=call.version >= FIRST_VERSION_WITH_TOPIC_IDS)
    if session is None:
        return NO_SESSION_ID
    for topic, response in zip(topics, responses, strict=True):
        for number, (asked, data) in enumerate(zip(topic.partitions, response.partitions, strict=True)):
            entry = session.put(topic.topic, topic.topic_id, asked)
            if not data.error_code:
                entry.locate(broker.topics)
            if data.preferred_read_replica < 0:
                entry.told(len(data.records), data.error_code, data.high_watermark, data.log_start_offset)
            if number % PARTITIONS_A_STEP == 0:
                yield
    return session.session_id
