"""ShareFetch: gives a member of a share group records that no other member has acquired, or waits until there are some.

Behaviour:
    A session stores the partitions. Epoch 0 opens a session with the partitions of the request. Any other epoch continues it, and
    the request names partitions to add and to remove. Epoch -1 ends it, and so does the end of the connection; both release the
    records that the member has. A session that is opened again leaves the member its records. The broker keeps at most
    `group.share.max.share.sessions` sessions; beyond that the answer is SHARE_SESSION_LIMIT_REACHED, after `max_wait_ms`.
    Acknowledgements in the request are applied first, as by ShareAcknowledge; their errors are in the response beside the
    records. Records are sent in whole batches as they were stored, from the file. `acquired_records` has the offsets that the
    member has acquired, and their delivery counts. Their locks last for `acquisition_lock_timeout_ms`. A fetch goes through the
    partitions of the session, beginning with another partition each time. It acquires at most `max_records` records (in mode 0
    more, so that batches stay whole), out of at most `max_bytes`. With fewer than `min_bytes` the fetch waits, for at most
    `max_wait_ms`. A record whose deliveries have reached half the limit is delivered together with fewer and fewer records, and
    the last time alone. After `share.delivery.count.limit` deliveries it is archived.
    With share.isolation.level=read_committed, records of aborted transactions are skipped, and records of open ones wait.
    A partition that the group was never assigned gets UNKNOWN_SERVER_ERROR. In a cluster, NOT_LEADER_OR_FOLLOWER comes with the
    leader of the partition and its address (KIP-951).

Versions:
    1: as described (KIP-932). 2: `share_acquire_mode` (KIP-1206), `is_renew_ack` (KIP-1222).

Differs from Apache Kafka:
    With another error, `current_leader` is -1 (no leader). Apache Kafka leaves it at 0, and some clients then look for broker 0.
    Version 0, of an early preview that Apache Kafka 4 does not serve, is not served.
    The start offset of a new group is written when the group first fetches from the partition. Apache Kafka writes it with the
    first acknowledgement. So a group that begins at the latest record misses no records if the broker restarts in between.
    If no records follow the time of a share.auto.offset.reset by_duration, the group begins at the end. Apache Kafka answers
    OFFSET_NOT_AVAILABLE until such records exist.
    If __share_group_state is deleted, groups begin again by share.auto.offset.reset. Apache Kafka answers UNKNOWN_SERVER_ERROR
    for the partitions of the groups from then on.
    An unknown topic gets UNKNOWN_TOPIC_ID, and the others are fetched. Apache Kafka 4.3.1 answers the whole request with
    UNKNOWN_SERVER_ERROR.

Source: KafkaApis.handleShareFetchRequest, SharePartitionManager.newContext, ShareSessionContext.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.list_offsets import TimestampSearch, TimestampSearches
from wirekafka.api.registry import Call, serves
from wirekafka.api.share_acknowledge import (
    AcknowledgeTopic,
    LeaderHints,
    LeaderIdAndEpoch,
    NodeEndpoint,
    acknowledge_all,
    check_leader,
    session_key,
)
from wirekafka.coordinator.share_delivery.acquisition import AcquireMode
from wirekafka.coordinator.share_delivery.fetching import Fetched, FetchResult, FetchWish
from wirekafka.coordinator.share_delivery.sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, SessionKey, ShareSession
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.wire.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse
from wirekafka.wire.types import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Records,
    Uuid,
    nullable,
    since,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.replication.partition import Partition

ANSWERS_A_STEP = 200
"""The partitions that are put into the response between two yields."""


class ForgottenTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class ShareFetchRequest(Message):
    group_id: Annotated[NullableString, nullable(0)] = None
    member_id: Annotated[NullableString, nullable(0)] = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, since(2)] = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: list[AcknowledgeTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


class AcquiredRecords(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: Annotated[NullableString, nullable(0)] = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    records: Records = b""
    acquired_records: list[AcquiredRecords] = []


class ShareFetchableTopicResponse(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[PartitionData] = []


class ShareFetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []


@serves(78, ShareFetchRequest, ShareFetchResponse, versions=range(1, 3), flexible_since=0)
def share_fetch(broker: Broker, call: Call[ShareFetchRequest]) -> ShareFetchResponse | Pending[Any]:
    """Applies the member's acknowledgements, and gives the member further records."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id or ""))
    key = session_key(request.group_id, request.member_id)
    if request.share_acquire_mode not in AcquireMode.__members__.values():
        # Apache Kafka fails on the number, and answers with this error.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if request.is_renew_ack and (request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records):
        # A request that renews locks must not fetch.
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _fetch(broker, call, key))


def _fetch(broker: Broker, call: Call[ShareFetchRequest], key: SessionKey) -> Work[ShareFetchResponse | Pending[Any]]:
    request = call.request
    try:
        session = _session(broker, call, key)
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            return _answered_later(broker, request.max_wait_ms, error)
        raise
    errors: dict[PartitionKey, KafkaError | None] = {}
    if _says_something(request):
        errors = yield from acknowledge_all(broker, call, key, request.topics, is_renewal=request.is_renew_ack)
    if session is None:
        broker.share_groups.close_session(key)
    if session is None or request.is_renew_ack:
        return (yield from _response(broker, call, key, {}, errors))
    epoch = session.epoch
    is_new = request.share_session_epoch == INITIAL_EPOCH
    unknown, known = yield from _sorted_out(broker, call, session, request.share_session_epoch)
    wish = FetchWish(
        group_id=key.group_id,
        member_id=key.member_id,
        partitions=[ShareKey(key.group_id, *partition) for partition in known],
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, broker.config.integer("fetch.max.bytes")),
        max_records=request.max_records,
        batch_size=max(1, request.batch_size),
        mode=AcquireMode(request.share_acquire_mode),
        is_current=lambda: broker.share_groups.sessions.find(key) is session and session.epoch == epoch,
    )

    def answer(result: FetchResult) -> ShareFetchResponse | Pending[Any]:
        if not wish.is_current():
            return ShareFetchResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        found = unknown | {(name.topic_id, name.partition): fetched for name, fetched in result.items()}
        return broker.slices.run(_response(broker, call, key, found, errors, session, is_new=is_new))

    return (yield from _start(broker, wish, answer))


Answer = Callable[[FetchResult], ShareFetchResponse | Pending[Any]]


def _start(broker: Broker, wish: FetchWish, answer: Answer) -> Work[Pending[Any]]:
    """Loads the share partitions, and starts the fetch. In a cluster their states are read from the share coordinators first."""
    reading = broker.share_groups.read_states(wish.partitions)
    if reading is None:
        return (yield from _start_known(broker, wish, answer))
    return reading.map(lambda _: broker.reply_gate.run_late(broker.slices, lambda: _start_known(broker, wish, answer)))


def _start_known(broker: Broker, wish: FetchWish, answer: Answer) -> Work[Pending[Any]]:
    """Loads the share partitions, and starts the fetch; where a group begins at a time, the offset is searched first."""
    searches = TimestampSearches(broker)
    found: dict[ShareKey, tuple[Partition, ListOffsetsPartitionResponse]] = {}
    for name in wish.partitions:
        _begin_search(broker, name, searches, found)
        yield

    def begin() -> Work[Pending[ShareFetchResponse]]:
        starts = {
            name: answer.offset if answer.offset >= 0 else partition.log.high_watermark
            for name, (partition, answer) in found.items()
            if not answer.error_code
        }
        partitions = broker.share_groups.partitions
        yield from partitions.load_all(wish.partitions, starts)
        pending = yield from broker.share_groups.fetches.fetch(wish)
        partitions.forget_unused(wish.partitions)
        return pending.map(answer)

    ended = searches.answer(ListOffsetsResponse())
    if isinstance(ended, Pending):
        return ended.map(lambda _: broker.reply_gate.run_late(broker.slices, begin))
    return (yield from begin())


def _begin_search(
    broker: Broker,
    name: ShareKey,
    searches: TimestampSearches,
    found: dict[ShareKey, tuple[Partition, ListOffsetsPartitionResponse]],
) -> None:
    """Searches the first offset of a group in a partition if it is that of a time; what takes long runs in a thread later."""
    wanted = broker.share_groups.partitions.time_to_search(name)
    if wanted is None:
        return
    partition, time_ms = wanted
    answer = ListOffsetsPartitionResponse(partition_index=name.partition)
    found[name] = partition, answer
    try:
        searches.run(TimestampSearch(partition.log.search_timestamp(time_ms), partition.log.high_watermark, answer))
    except KafkaError as error:
        answer.error_code = error.code


def _session(broker: Broker, call: Call[ShareFetchRequest], key: SessionKey) -> ShareSession | None:
    """Returns the member's session, advanced by one epoch; None if the request ends the session.

    Raises:
        KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED; INVALID_REQUEST for
            acknowledgements in a request that opens a session.
    """
    request, sessions = call.request, broker.share_groups.sessions
    named = [(topic.topic_id, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    if request.share_session_epoch == FINAL_EPOCH:
        sessions.get(key)
        return None
    if request.share_session_epoch == INITIAL_EPOCH:
        if _says_something(request):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if call.client.on_close is None:
            call.client.on_close = {}
        return broker.share_groups.open_session(key, named, call.client.on_close)
    session = sessions.proceed(key, request.share_session_epoch)
    forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
    session.update(named, forgotten)
    return session


def _says_something(request: ShareFetchRequest) -> bool:
    """Whether a request acknowledges records."""
    return any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions)


def _answered_later(broker: Broker, delay_ms: int, error: KafkaError) -> Pending[Any]:
    """Answers with an error after a delay, so that the client does not retry at once."""
    pending: Pending[Any] = Pending(on_abandon=lambda: timer.cancel())
    response = ShareFetchResponse(error_code=error.code, error_message=error.message)
    timer = broker.clock.call_later(max(0, delay_ms), lambda: pending.complete(response))
    return pending


def _sorted_out(
    broker: Broker, call: Call[ShareFetchRequest], session: ShareSession, epoch: int
) -> Work[tuple[dict[PartitionKey, Fetched], list[PartitionKey]]]:
    """Returns the session's unknown partitions with their errors, and its existing partitions."""
    unknown: dict[PartitionKey, Fetched] = {}
    known = []
    for topic_id, index in session.rotated(epoch):
        try:
            partition = broker.topics.find_partition(topic_id, index)
            call.authorize(Operation.READ, Resource.topic(partition.topic))
            check_leader(broker, partition)
        except KafkaError as error:
            unknown[topic_id, index] = Fetched(KafkaError(error.code))  # Kafka gives no message in this case
        else:
            known.append((topic_id, index))
        yield
    return unknown, known


def _response(
    broker: Broker,
    call: Call[ShareFetchRequest],
    key: SessionKey,
    found: dict[PartitionKey, Fetched],
    errors: dict[PartitionKey, KafkaError | None],
    session: ShareSession | None = None,
    *,
    is_new: bool = False,
) -> Work[ShareFetchResponse]:
    """Returns the response with the fetched records and the errors of the acknowledgements.

    Args:
        session: The session, which decides what must be told; None if nothing was fetched.
        is_new: Whether the request opens the session: then everything is told.
    """
    by_topic: dict[bytes, ShareFetchableTopicResponse] = {}
    hints = LeaderHints(broker, call)
    for number, partition in enumerate({**found, **errors}, 1):
        if number % ANSWERS_A_STEP == 0:
            yield
        topic_id, index = partition
        data = PartitionData(partition_index=index)
        fetched, refusal = found.get(partition), errors.get(partition)
        must_tell = partition in errors
        if fetched is not None and session is not None:
            is_news = session.must_tell(partition, has_records=bool(len(fetched.records)), is_error=fetched.error is not None)
            if is_news or is_new:
                must_tell = True
                _tell(data, fetched)
                if fetched.error is not None:
                    data.current_leader = hints.leader_of(partition, fetched.error)
        if not must_tell:
            continue
        if refusal is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = refusal.code, refusal.message
        response = by_topic.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id, partitions=[]))
        response.partitions.append(data)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=broker.share_groups.partitions.limits(key.group_id).lock_duration_ms,
        responses=list(by_topic.values()),
        node_endpoints=hints.node_endpoints,
    )


def _tell(data: PartitionData, fetched: Fetched) -> None:
    """Puts the records of a partition, or its error, into the response."""
    data.records = fetched.records
    data.acquired_records = [
        AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count) for first, last, count in fetched.acquired
    ]
    if fetched.error is not None:
        data.error_code = fetched.error.code
