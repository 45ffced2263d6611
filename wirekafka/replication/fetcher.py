"""The fetcher for one leader: what the next request to the leader names, and which follower gets which part of an answer.

How it works: `Fetcher.step` takes an event and returns the effects, which the broker executes in their order. At most one request
is in flight. The followers say what they need by `Requested`. The next Fetch names only the partitions whose position the leader
does not know yet, and the partitions to forget, because the leader keeps the others in a fetch session (KIP-227). An idle fetcher
therefore sends and receives a few bytes, whatever the number of its partitions.

Rules of this file:
    Invariant: a partition is in at most one of `_fetching`, `_held_back`, `_asking`, `_delays` and `_answered`.
    Invariant: `_news` are the partitions of `_fetching` that the session has not, or has with another position. `_forgotten` are
    the partitions of the session that are not in `_fetching`.
    A partition in a response leaves `_fetching` until its follower asks again. If the append is still running at the next Fetch,
    that Fetch removes the partition from the session, because the leader would send the same records again. Such a Fetch waits
    only briefly on the leader, because the partition cannot be fetched again before its answer. If the appends of all partitions
    are running, the next Fetch waits for one of them.
    The data of a partition count only if the follower still fetches from the position that the leader knows.
    While the throttle of this broker is exceeded, the throttled partitions that are not in sync are held back from each Fetch.
    After a failure the whole fetcher pauses, and then opens a new session. The followers get no event, so a leader that is down
    costs one attempt for each back-off, and not one event for each partition.
    OffsetForLeaderEpoch is not needed: since version 12 the response to a Fetch says where the logs diverge, and brokers of 2.8
    and later use this version or a newer one.

Differs from Apache Kafka:
    A Fetch names at most 1,000 new partitions, and does not wait on the leader while there are more. So 10,000 new partitions
    never make one long request or response. If the leader has no room for a session, each Fetch names all partitions.
    If a full Fetch is answered with an error of the session, the fetcher pauses before the next one.

Source: kafka.server.AbstractFetcherThread, kafka.server.RemoteLeaderEndPoint, org.apache.kafka.clients.FetchSessionHandler;
KIP-227, KIP-516, KIP-595, KIP-903.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, assert_never

from wirekafka.errors import ErrorCode
from wirekafka.names import NO_LEADER_EPOCH, ZERO_TOPIC_ID
from wirekafka.replication.following import (
    Answered,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BackOffEnded,
    ConnectionLost,
    Fetch,
    OffsetAnswered,
    Refused,
    StopFetching,
)
from wirekafka.replication.following import Event as FollowerEvent
from wirekafka.replication.protocol_versions import NEWEST_VERSIONS, ReplicationVersions
from wirekafka.replication.throttle import ReplicationThrottle
from wirekafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from wirekafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

PARTITIONS_PER_REQUEST = 1_000
"""The most partitions that one request adds to the session."""

MAX_WAIT_DURING_APPENDS_MS = 10
"""How long the leader may wait for records while an append is still running. With `replica.fetch.wait.max.ms`, a partition with
many records would be fetched twice a second if the other partitions of its fetcher had no new records. With no wait, a leader
without new records would answer one Fetch after the other."""

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_REPLICA_STATE = 15

NO_SESSION_ID = 0
FULL_FETCH_EPOCH = 0
MAX_SESSION_EPOCH = 0x7FFFFFFF

LATEST, EARLIEST = -1, -2
"""The timestamps that ask ListOffsets for the ends of a log."""

RENEWED_AT_ONCE = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
"""The leader has dropped the session, for example for a larger one, or has restarted. Another one is opened without a pause."""


class FollowedPartition(NamedTuple):
    """A partition that this broker follows. The id is zero if it is unknown; it tells topics of one name apart."""

    topic: str
    topic_id: bytes
    partition: int


class Position(NamedTuple):
    """The part of a Fetch for one partition."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int | None
    log_start_offset: int


Request = Fetch | StopFetching | AskLatestOffset | AskEarliestOffset | BackOff
Ask = AskLatestOffset | AskEarliestOffset
WireKey = tuple[str | bytes, int]
"""The topic id, or the name if the session uses names, and the index."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A follower needs this now, and nothing that it has requested before.

    Attributes:
        log_start_offset: the start of the own log.
    """

    partition: FollowedPartition
    request: Request
    log_start_offset: int = 0


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """The leader has answered the Fetch."""

    response: FetchResponse


@dataclass(frozen=True, slots=True)
class OffsetsAnswered:
    """The leader has answered the ListOffsets."""

    response: ListOffsetsResponse


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request in flight has failed: no connection, a timeout, or bytes that are no response."""


@dataclass(frozen=True, slots=True)
class SendDue:
    """The event that `SendSoon` or `SendAtOnce` asked for."""


@dataclass(frozen=True, slots=True)
class TimeCame:
    """The time of a `WakeAt` has come."""


Event = Requested | FetchAnswered | OffsetsAnswered | RequestFailed | SendDue | TimeCame


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass an event to the follower of a partition."""

    partition: FollowedPartition
    event: FollowerEvent


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Send the request to the leader, and report `FetchAnswered` or `RequestFailed`."""

    request: FetchRequest
    version: int


@dataclass(frozen=True, slots=True)
class SendListOffsets:
    """Send the request to the leader, and report `OffsetsAnswered` or `RequestFailed`."""

    request: ListOffsetsRequest
    version: int


@dataclass(frozen=True, slots=True)
class SendSoon:
    """Report `SendDue` in a later turn of the loop, so that everything that is requested in this turn goes into one request."""


@dataclass(frozen=True, slots=True)
class SendAtOnce:
    """Report `SendDue` when the effects before this one are executed."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Report `TimeCame` at this time, or earlier."""

    time_ms: int


Effect = Deliver | SendFetch | SendListOffsets | SendSoon | SendAtOnce | WakeAt
Effects = Sequence[Effect]
NO_EFFECTS: Effects = ()


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """The settings of all fetchers of a broker.

    Attributes:
        replica_id: the id of this broker.
        broker_epoch: returns the epoch of its registration.
        versions: the versions of the requests. Kafka's brokers do not ask for ApiVersions before they fetch.
        max_wait_ms, min_bytes: `replica.fetch.wait.max.ms`, `replica.fetch.min.bytes`.
        max_bytes: `replica.fetch.max.bytes`, for each partition.
        response_max_bytes: `replica.fetch.response.max.bytes`.
        back_off_ms: `replica.fetch.backoff.ms`.
        throttle: limits what is fetched for throttled partitions; None for no limit.
    """

    replica_id: int
    broker_epoch: Callable[[], int]
    versions: ReplicationVersions = NEWEST_VERSIONS
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    back_off_ms: int = 1_000
    throttle: ReplicationThrottle | None = None


class _Session:
    """The client's side of a fetch session: its id, its next epoch, and the positions that the leader knows.

    Source: org.apache.kafka.common.requests.FetchMetadata.
    """

    __slots__ = ("entries", "epoch", "is_refused", "session_id", "uses_topic_ids")

    def __init__(self) -> None:
        self.is_refused = False
        """The leader had no room for a session at the last full Fetch."""
        self.session_id = NO_SESSION_ID
        self.epoch = FULL_FETCH_EPOCH
        self.uses_topic_ids = True
        self.entries: dict[WireKey, tuple[FollowedPartition, Position]] = {}

    @property
    def is_full_next(self) -> bool:
        """Whether the next Fetch, or the one in flight, is full: it opens a session, and closes the former one."""
        return self.epoch == FULL_FETCH_EPOCH

    def key_of(self, partition: FollowedPartition) -> WireKey:
        """Returns the key of the partition in requests and responses of this session."""
        return (partition.topic_id if self.uses_topic_ids else partition.topic), partition.partition

    def position_of(self, partition: FollowedPartition) -> Position | None:
        """Returns the position that the leader has for the partition; None if the session does not have the partition."""
        entry = self.entries.get(self.key_of(partition))
        return entry[1] if entry is not None and entry[0] == partition else None

    def renew(self) -> None:
        """Opens a new session with the next Fetch, which closes the present one if the leader still has it."""
        self.epoch = FULL_FETCH_EPOCH
        self.entries = {}

    def take_answer(self, session_id: int) -> None:
        """Takes the session id of a response: the same session, a new session, or no session."""
        self.is_refused = session_id == NO_SESSION_ID and self.is_full_next
        if session_id == NO_SESSION_ID:
            self.session_id, self.epoch, self.entries = NO_SESSION_ID, FULL_FETCH_EPOCH, {}
            return
        self.session_id = session_id
        self.epoch = 1 if self.epoch == MAX_SESSION_EPOCH else self.epoch + 1


class Fetcher:
    """The state of one fetcher.

    Attributes:
        trouble: why the last answer to a Fetch cannot be used; None if it can.
    """

    __slots__ = (
        "_answered", "_asking", "_delayed", "_delays", "_fetching", "_forgotten", "_held_back", "_is_send_due",
        "_leader_watermarks", "_without_id_count", "_news", "_paused_until_ms", "_sent", "_session", "_settings", "trouble",
    )  # fmt: skip

    def __init__(self, settings: FetcherSettings) -> None:
        self._settings = settings
        self._session = _Session()
        self._fetching: dict[FollowedPartition, Position] = {}
        self._news: dict[FollowedPartition, None] = {}
        self._forgotten: dict[WireKey, None] = {}
        self._held_back: dict[FollowedPartition, Position] = {}
        self._leader_watermarks: dict[FollowedPartition, int] = {}
        """The high watermarks in the leader's last responses; empty without a throttle."""
        self._asking: dict[FollowedPartition, Ask] = {}
        self._answered: dict[FollowedPartition, None] = {}
        self._delays: dict[FollowedPartition, int] = {}
        self._delayed: list[tuple[int, FollowedPartition]] = []
        """A heap. An entry counts if `_delays` has the same time for its partition."""
        self._without_id_count = 0
        """The partitions of `_fetching` without a topic id."""
        self._sent: SendFetch | dict[WireKey, tuple[FollowedPartition, Ask]] | None = None
        """The request in flight: a Fetch, or the questions of a ListOffsets."""
        self._is_send_due = False
        self._paused_until_ms = 0
        self.trouble: str | None = None

    def step(self, event: Event, now_ms: int) -> Effects:
        """Handles an event; returns the effects in the order of their execution."""
        match event:
            case Requested(partition, request, log_start_offset):
                return self._take_request(partition, request, log_start_offset)
            case FetchAnswered(response):
                return self._take_fetch(response, now_ms)
            case OffsetsAnswered(response):
                return self._take_offsets(response)
            case RequestFailed():
                return self._fail(now_ms)
            case SendDue():
                self._is_send_due = False
                return self._send(now_ms)
            case TimeCame():
                return self._wake(now_ms)
            case _:
                assert_never(event)

    @property
    def is_in_flight(self) -> bool:
        """Whether the leader has to answer a request."""
        return self._sent is not None

    def _take_request(self, partition: FollowedPartition, request: Request, log_start_offset: int) -> Effects:
        self._answered.pop(partition, None)
        self._held_back.pop(partition, None)
        self._asking.pop(partition, None)
        self._delays.pop(partition, None)
        match request:
            case Fetch(_, leader_epoch, offset, last_fetched_epoch):
                self._put(partition, Position(leader_epoch, offset, last_fetched_epoch, log_start_offset))
                return self._send_soon()
            case AskLatestOffset() | AskEarliestOffset():
                self._drop(partition)
                self._asking[partition] = request
                return self._send_soon()
            case BackOff(until_ms):
                self._drop(partition)
                self._delays[partition] = until_ms
                heappush(self._delayed, (until_ms, partition))
                is_first = self._delayed[0] == (until_ms, partition)
                return [WakeAt(until_ms)] if is_first else NO_EFFECTS
            case StopFetching():
                self._drop(partition)
                self._leader_watermarks.pop(partition, None)
                # The partitions that are still fetched go on. If there are none, the leader can free the session.
                return self._send_soon()
            case _:
                assert_never(request)

    def _send_soon(self) -> Effects:
        if self._is_send_due or self._sent is not None:
            return NO_EFFECTS
        self._is_send_due = True
        return [SendSoon()]

    def _send_at_once(self) -> Effect:
        self._is_send_due = True
        return SendAtOnce()

    def _put(self, partition: FollowedPartition, position: Position) -> None:
        if partition not in self._fetching and partition.topic_id == ZERO_TOPIC_ID:
            self._without_id_count += 1
        self._fetching[partition] = position
        known = self._session.position_of(partition)
        if known is not None:
            self._forgotten.pop(self._session.key_of(partition), None)
        if known == position:
            self._news.pop(partition, None)
        else:
            self._news[partition] = None

    def _drop(self, partition: FollowedPartition) -> None:
        if self._fetching.pop(partition, None) is None:
            return
        if partition.topic_id == ZERO_TOPIC_ID:
            self._without_id_count -= 1
        self._news.pop(partition, None)
        if self._session.position_of(partition) is not None:
            self._forgotten[self._session.key_of(partition)] = None

    def _send(self, now_ms: int) -> Effects:
        if self._sent is not None:
            return NO_EFFECTS
        if now_ms < self._paused_until_ms:
            return [WakeAt(self._paused_until_ms)]
        if self._asking:
            return [self._next_list_offsets()]
        if self._settings.throttle is not None:
            self._hold_back(self._settings.throttle, now_ms)
        fetch = self._next_fetch()
        if self._held_back and not fetch:
            return [WakeAt(now_ms + self._settings.back_off_ms)]
        return fetch

    def _hold_back(self, throttle: ReplicationThrottle, now_ms: int) -> None:
        """Decides anew which partitions are left out of the next Fetch.

        Source: ReplicaFetcherThread.buildFetch, AbstractFetcherThread.shouldFollowerThrottle.
        """
        held_back, self._held_back = self._held_back, {}
        for partition, position in held_back.items():
            self._put(partition, position)
        if not throttle.is_exceeded(now_ms):
            return
        for partition, position in [*self._fetching.items()]:
            if throttle.lists(partition.topic, partition.partition) and not self._is_in_sync(partition, position):
                self._drop(partition)
                self._held_back[partition] = position

    def _is_in_sync(self, partition: FollowedPartition, position: Position) -> bool:
        """Whether the fetch offset has reached the leader's last known high watermark (PartitionFetchState.isReplicaInSync)."""
        watermark = self._leader_watermarks.get(partition)
        return watermark is not None and position.offset >= watermark

    def _note_traffic(
        self, throttle: ReplicationThrottle, partition: FollowedPartition, data: PartitionData, now_ms: int
    ) -> None:
        if not data.error_code:
            self._leader_watermarks[partition] = data.high_watermark
            throttle.record(partition.topic, partition.partition, len(data.records or b""), now_ms)

    def _next_list_offsets(self) -> SendListOffsets:
        asked: dict[WireKey, tuple[FollowedPartition, Ask]] = {}
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition, ask in islice(self._asking.items(), PARTITIONS_PER_REQUEST):
            topic, _, index = partition
            if (topic, index) in asked:
                continue
            asked[topic, index] = partition, ask
            timestamp = LATEST if isinstance(ask, AskLatestOffset) else EARLIEST
            topics.setdefault(topic, []).append(
                ListOffsetsPartition(partition_index=index, current_leader_epoch=ask.leader_epoch, timestamp=timestamp)
            )
        self._sent = asked
        named = [ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()]
        return SendListOffsets(
            ListOffsetsRequest(replica_id=self._settings.replica_id, topics=named), self._settings.versions.list_offsets
        )

    def _next_fetch(self) -> Effects:
        session = self._session
        self._choose_names()
        if not self._fetching and (self._answered or session.is_full_next):
            return NO_EFFECTS
        named = list(islice(self._news, None if session.is_refused else PARTITIONS_PER_REQUEST))
        for partition in named:
            del self._news[partition]
            key = session.key_of(partition)
            # A leader that knows topics by their names adds a partition before it forgets one of the same name.
            self._forgotten.pop(key, None)
            session.entries[key] = partition, self._fetching[partition]
        forgotten = list(islice(self._forgotten, PARTITIONS_PER_REQUEST))
        for key in forgotten:
            del self._forgotten[key], session.entries[key]
        self._sent = self._fetch_request(named, forgotten)
        return [self._sent]

    def _choose_names(self) -> None:
        """Decides whether the session uses topic ids. If this changes, a new session is opened.

        Source: FetchSessionHandler.Builder.build (canUseTopicIds).
        """
        session = self._session
        uses_topic_ids = self._settings.versions.fetch >= FIRST_VERSION_WITH_TOPIC_IDS and not self._without_id_count
        if uses_topic_ids != session.uses_topic_ids and self._fetching:
            self._renew()
            session.uses_topic_ids = uses_topic_ids

    def _fetch_request(self, named: Iterable[FollowedPartition], forgotten: Iterable[WireKey]) -> SendFetch:
        settings, session = self._settings, self._session
        version = settings.versions.fetch
        if not session.uses_topic_ids:
            version = min(version, FIRST_VERSION_WITH_TOPIC_IDS - 1)
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms(),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=self._topics(named),
            forgotten_topics_data=self._forgotten_topics(forgotten),
        )
        if version >= FIRST_VERSION_WITH_REPLICA_STATE:
            request.replica_state = ReplicaState(replica_id=settings.replica_id, replica_epoch=settings.broker_epoch())
        else:
            request.replica_id = settings.replica_id
        return SendFetch(request, version)

    def _max_wait_ms(self) -> int:
        if self._news or self._forgotten:
            return 0
        longest_ms = self._settings.max_wait_ms
        return min(longest_ms, MAX_WAIT_DURING_APPENDS_MS) if self._answered else longest_ms

    def _topics(self, named: Iterable[FollowedPartition]) -> list[FetchTopic]:
        topics: dict[tuple[str, bytes], FetchTopic] = {}
        max_bytes, fetching = self._settings.max_bytes, self._fetching
        for partition in named:
            topic, topic_id, index = partition
            entry = topics.get((topic, topic_id))
            if entry is None:
                entry = topics[topic, topic_id] = FetchTopic(topic=topic, topic_id=topic_id, partitions=[])
            leader_epoch, offset, last_fetched_epoch, log_start_offset = fetching[partition]
            entry.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=NO_LEADER_EPOCH if last_fetched_epoch is None else last_fetched_epoch,
                    log_start_offset=log_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
        return list(topics.values())

    @staticmethod
    def _forgotten_topics(forgotten: Iterable[WireKey]) -> list[ForgottenTopic]:
        topics: dict[str | bytes, ForgottenTopic] = {}
        for name, index in forgotten:
            entry = topics.get(name)
            if entry is None:
                entry = topics[name] = ForgottenTopic(partitions=[])
                if isinstance(name, bytes):
                    entry.topic_id = name
                else:
                    entry.topic = name
            entry.partitions.append(index)
        return list(topics.values())

    def _take_fetch(self, response: FetchResponse, now_ms: int) -> Effects:
        self._sent = self.trouble = None
        if response.error_code:
            return self._fail_session(error_of(response.error_code), now_ms)
        session = self._session
        answers = self._match(response)
        if answers is None:
            self.trouble = "it names other partitions than the request"
            return self._pause(now_ms)
        throttle = self._settings.throttle
        delivered: list[Effect] = []
        for partition, position, data in answers:
            if self._fetching.get(partition) != position:
                continue
            if throttle is not None:
                self._note_traffic(throttle, partition, data, now_ms)
            delivered.append(Deliver(partition, answer_of(position, data)))
            self._drop(partition)
            self._answered[partition] = None
        session.take_answer(response.session_id)
        if session.is_full_next:
            self._note_new_session()
        return [*delivered, self._send_at_once()]

    def _match(self, response: FetchResponse) -> list[tuple[FollowedPartition, Position, PartitionData]] | None:
        """Finds the partitions of a response; returns None if it names others than the request, or if a full one lacks some."""
        session = self._session
        entries, by_id = session.entries, session.uses_topic_ids
        answers = []
        seen: set[WireKey] = set()
        for topic in response.responses:
            name: str | bytes = bytes(topic.topic_id) if by_id else topic.topic
            for data in topic.partitions:
                key = name, data.partition_index
                entry = entries.get(key)
                if entry is None or key in seen:
                    return None
                seen.add(key)
                answers.append((*entry, data))
        return None if session.is_full_next and len(seen) != len(entries) else answers

    def _fail_session(self, error: ErrorCode, now_ms: int) -> Effects:
        session = self._session
        was_full = session.is_full_next
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            session.session_id = NO_SESSION_ID
        if was_full or error not in RENEWED_AT_ONCE:
            self.trouble = error.name
            return self._pause(now_ms)
        self._renew()
        return [self._send_at_once()]

    def _renew(self) -> None:
        self._session.renew()
        self._note_new_session()

    def _note_new_session(self) -> None:
        self._news = dict.fromkeys(self._fetching)
        self._forgotten = {}

    def _pause(self, now_ms: int) -> Effects:
        """Sends nothing until the back-off has ended, and then opens a new session."""
        self._renew()
        self._paused_until_ms = now_ms + self._settings.back_off_ms
        return [WakeAt(self._paused_until_ms)]

    def _take_offsets(self, response: ListOffsetsResponse) -> Effects:
        asked = self._take_asked()
        found: dict[WireKey, ListOffsetsPartitionResponse] = {
            (topic.name, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
        }
        delivered: list[Effect] = []
        for key, (partition, ask) in asked.items():
            if self._asking.get(partition) is ask:
                del self._asking[partition]
                delivered.append(Deliver(partition, offset_answer_of(ask, found.get(key))))
        return [*delivered, self._send_at_once()]

    def _take_asked(self) -> Mapping[WireKey, tuple[FollowedPartition, Ask]]:
        asked, self._sent = self._sent, None
        assert isinstance(asked, dict), "no ListOffsets is in flight"
        return asked

    def _fail(self, now_ms: int) -> Effects:
        self._is_send_due = False  # after a defect, the effect that would report `SendDue` may not have been executed
        if not isinstance(self._sent, dict):
            self._sent = None
            return self._pause(now_ms)
        asked = self._take_asked()
        lost = [partition for partition, ask in asked.values() if self._asking.get(partition) is ask]
        for partition in lost:
            del self._asking[partition]
        return [*(Deliver(partition, ConnectionLost()) for partition in lost), *self._pause(now_ms)]

    def _wake(self, now_ms: int) -> Effects:
        effects: list[Effect] = [Deliver(partition, BackOffEnded()) for partition in self._end_delays(now_ms)]
        if now_ms >= self._paused_until_ms:
            effects += self._send_soon()
        else:
            effects.append(WakeAt(self._paused_until_ms))
        if self._delayed:
            effects.append(WakeAt(self._delayed[0][0]))
        return effects

    def _end_delays(self, now_ms: int) -> Iterator[FollowedPartition]:
        while self._delayed and (self._delayed[0][0] <= now_ms or self._is_outdated(*self._delayed[0])):
            entry = heappop(self._delayed)
            if not self._is_outdated(*entry):
                del self._delays[entry[1]]
                yield entry[1]

    def _is_outdated(self, until_ms: int, partition: FollowedPartition) -> bool:
        return self._delays.get(partition) != until_ms


def error_of(code: int) -> ErrorCode:
    """Returns the error with a code; UNKNOWN_SERVER_ERROR for a code that no known version has."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def answer_of(position: Position, data: PartitionData) -> FollowerEvent:
    """Returns what the answer for one partition means to its follower, which has asked for `position`."""
    if data.error_code:
        return Refused(position.leader_epoch, error_of(data.error_code))
    diverging = data.diverging_epoch
    return Answered(
        position.leader_epoch,
        position.offset,
        b"" if data.records is None else data.records,
        data.high_watermark,
        data.log_start_offset,
        None if diverging is None or diverging.epoch < 0 else (diverging.epoch, diverging.end_offset),
    )


def offset_answer_of(ask: Ask, answer: ListOffsetsPartitionResponse | None) -> FollowerEvent:
    """Returns what the answer for one partition means to its follower. A response without the partition counts as a failure."""
    if answer is None:
        return ConnectionLost()
    if answer.error_code:
        return Refused(ask.leader_epoch, error_of(answer.error_code))
    if answer.offset < 0:
        return ConnectionLost()
    return OffsetAnswered(ask.leader_epoch, answer.offset)
