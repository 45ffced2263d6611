"""Faults that a test orders: the broker answers a request with an error, late, or not at all.

    with broker.fault(api="Produce", topic="orders", error="NOT_ENOUGH_REPLICAS", times=3) as fault:
        ...
    assert len(fault.hits) == 3

How it works: while there is a fault, the injector stands between the connections and the dispatcher. It looks at the header of
each request, and decodes the request if a fault asks for a topic or a group. What no fault hits reaches the dispatcher as always.

Rules of this file:
    The log, the coordinators and the codec stay as they are: a fault happens before a request is handled, or after it.
    Of several faults that match a request, the one that was ordered first hits it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from wirekafka.api.kafka_apis import API_NAMES
from wirekafka.api.metadata import MetadataResponse, MetadataResponseTopic
from wirekafka.api.offset_fetch import OffsetFetchResponse
from wirekafka.api.registry import Api, Client, find_api
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.log.storage import FileRegion
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending
from wirekafka.server.dispatch import BROKEN_REQUEST_ERRORS, Route
from wirekafka.testing.error_responses import has_elements, merge, refusal_of, split
from wirekafka.testing.fillable_storage import disk_of
from wirekafka.wire.codec import decode, encode, skip_tagged_fields
from wirekafka.wire.frames import RequestHeader, read_request_header
from wirekafka.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from wirekafka.server.connection import Answer
    from wirekafka.server.running import RunningBroker
    from wirekafka.wire.types import Message

API_KEYS = {name: key for key, name in API_NAMES.items()}

FETCH_KEY = 1

FETCH_SESSION_ERRORS = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR}
)
"""The errors of a whole Fetch, which name no partition; all others are those of partitions.

Source: kafka.server.FetchManager.newContext, FetchRequest.getErrorResponse.
"""

OFFSET_ERRORS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""The errors of OffsetFetch that a partition may have; all others are those of the group."""

FIRST_VERSION_WITH_GROUP_ERROR = 2
"""Before this version of OffsetFetch, each partition has the error of its group."""

MOST_THROTTLE_MS = (1 << 31) - 1
"""The greatest number of the field in a response."""

MOST_DELAY_SECONDS = 1e6

MOST_BYTES_PER_S = 1_000_000_000

MOST_HITS = 10_000
"""A fault remembers the first hits only, and cuts their client ids, which a client may make 32 KiB long."""

MOST_CLIENT_ID_LENGTH = 255

TRICKLE_SECONDS = 0.05
"""The time between two parts of a response that trickles."""

Lost = Literal["request", "reply"]
Cut = Literal["request", "reply", "mid_reply"]
Move = Literal["moving", "loading"]

FIND_COORDINATOR_KEY = 10

COORDINATOR_KEYS = frozenset({8, 9, 10, 11, 12, 13, 14, 15, 22, 24, 25, 26, 28, 42, 47, 68, 69, 76, 77})
"""The APIs whose requests go to the coordinator of a group or of a transactional id, and FindCoordinator."""

STALE_METADATA_VERSION = 12
"""The version of Metadata in which a fault keeps the topics: it has their names, ids and leader epochs."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A request that a fault has hit.

    Attributes:
        time_ms: the broker's time.
        api, version, correlation_id, client_id: of the request.
    """

    time_ms: int
    api: str
    version: int
    correlation_id: int
    client_id: str | None


EFFECTS = ("error", "lose", "disconnect", "trickle_bytes_per_s", "throttle_ms", "stale_metadata", "coordinator", "full_disk")
"""The fields of `FaultSpec` of which a fault has one at most."""


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """Which requests are hit, and what happens to them. One of the effects is given at most; `delay_s`
    and `reply_delay_s` may be given beside it, or alone.

    Attributes:
        api: the name of the API; None for every API.
        topic, partition: of requests that name topics. An error answers these partitions only; the others are handled.
        client_id, group: of the request.
        skip: so many matching requests pass before the first is hit.
        times: so many are hit; None for all.
        probability, seed: each matching request is hit by chance; the seed repeats the choices.
        error: the name of an error code, which answers the request instead of handling it.
        lose: "request": it is neither handled nor answered; "reply": it is handled and not answered.
        disconnect: the connection is closed before the "request" is handled, before the "reply" is sent, or in the middle of it.
        trickle_bytes_per_s: the response is sent at this rate.
        throttle_ms: the response tells the client to wait so long.
        stale_metadata: Metadata describes the topics as they were when the fault was ordered.
        coordinator: of requests to the coordinator of a group or a transactional id. "moving": they get NOT_COORDINATOR, and
            FindCoordinator gets COORDINATOR_NOT_AVAILABLE; "loading": they get COORDINATOR_LOAD_IN_PROGRESS.
        full_disk: the disk is full until the request is answered: every write fails with ENOSPC.
        delay_s: the request is handled so much later.
        reply_delay_s: the response is sent so much later than the request was handled, as by a slow disk.
    """

    api: str | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    group: str | None = None
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    error: str | None = None
    lose: Lost | None = None
    disconnect: Cut | None = None
    trickle_bytes_per_s: int | None = None
    throttle_ms: int | None = None
    stale_metadata: bool = False
    coordinator: Move | None = None
    full_disk: bool = False
    delay_s: float | None = None
    reply_delay_s: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FaultSpec:
        """Returns the fault with these fields.

        Raises:
            ValueError: there is no such field.
        """
        names = [each.name for each in fields(cls)]
        for name in given:
            if name not in names:
                raise ValueError(f"a fault has no field {name!r}; it has {', '.join(names)}")
        return cls(**given)

    def check(self) -> None:
        """Raises unless the fault can be ordered.

        Raises:
            ValueError: the text names the field and what it takes.
        """
        if self.api is not None and self.api not in API_KEYS:
            raise ValueError(f"api={self.api!r} is not an API; the names are those of Kafka, such as Produce and OffsetCommit")
        if self.error is not None and self.error not in ErrorCode.__members__:
            raise ValueError(f"error={self.error!r} is not an error code of Kafka, such as NOT_ENOUGH_REPLICAS")
        for name, value, allowed in (
            ("lose", self.lose, ("request", "reply")),
            ("disconnect", self.disconnect, ("request", "reply", "mid_reply")),
            ("coordinator", self.coordinator, ("moving", "loading")),
        ):
            if value is not None and value not in allowed:
                raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")
        given = sum(effect is not None and effect is not False for effect in map(partial(getattr, self), EFFECTS))
        if given > 1 or (given == 0 and self.delay_s is None and self.reply_delay_s is None):
            raise ValueError(f"a fault has one of {', '.join(EFFECTS)}, delay_s and reply_delay_s")
        if self.stale_metadata and self.api not in (None, "Metadata"):
            raise ValueError(f"stale_metadata is a fault of Metadata, not of {self.api}")
        if self.partition is not None and self.topic is None:
            raise ValueError("partition is given without topic")
        for name, number, least, most in (
            ("skip", self.skip, 0, math.inf),
            ("times", self.times, 0, math.inf),
            ("probability", self.probability, 0, 1),
            ("trickle_bytes_per_s", self.trickle_bytes_per_s, 1, MOST_BYTES_PER_S),
            ("throttle_ms", self.throttle_ms, 0, MOST_THROTTLE_MS),
            ("delay_s", self.delay_s, 0, MOST_DELAY_SECONDS),
            ("reply_delay_s", self.reply_delay_s, 0, MOST_DELAY_SECONDS),
        ):
            if number is not None and not (isinstance(number, (int, float)) and least <= number <= most):
                raise ValueError(f"{name}={number!r} is not between {least} and {most:g}")


@dataclass(slots=True, eq=False)
class ActiveFault:
    """A fault that was ordered.

    Attributes:
        spec: what was ordered.
        hits: the requests that it has hit, in order; the first `MOST_HITS`.
        hit_count: the number of all requests that it has hit.
        metadata: all topics when the fault was ordered, for stale metadata.
    """

    spec: FaultSpec
    hits: list[Hit] = field(default_factory=list)
    hit_count: int = 0
    metadata: MetadataResponse = field(default_factory=MetadataResponse)
    _matched: int = 0
    _dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._dice.seed(self.spec.seed)

    @property
    def is_over(self) -> bool:
        """Whether it has hit as many requests as it was ordered for."""
        return self.spec.times is not None and self.hit_count >= self.spec.times

    def takes(self, hit: Hit) -> bool:
        """Whether a matching request is hit; it is noted then."""
        if self.is_over:
            return False
        self._matched += 1
        if self._matched <= self.spec.skip or self._dice.random() >= self.spec.probability:
            return False
        self.hit_count += 1
        if len(self.hits) < MOST_HITS:
            is_short = len(hit.client_id or "") <= MOST_CLIENT_ID_LENGTH
            self.hits.append(hit if is_short else replace(hit, client_id=(hit.client_id or "")[:MOST_CLIENT_ID_LENGTH]))
        return True


class FaultInjector:
    """Carries out the faults of one broker."""

    def __init__(self, running: RunningBroker, faults: list[ActiveFault]) -> None:
        self._broker = running.broker
        self._driver = running.driver
        self._inner = running.dispatcher.handle
        self._dispatcher = running.dispatcher
        self._faults = faults

    def begin(self) -> None:
        """Stands between the connections and the dispatcher from now on."""
        self._dispatcher.handle = self.handle

    def end(self) -> None:
        """Lets the dispatcher handle all requests itself again."""
        self._dispatcher.handle = self._inner

    def handle(self, frame: memoryview, client: Client, now_ms: int) -> Answer | Pending[Any]:
        """Handles a request as `Dispatcher.handle` does, or carries out a fault. The broker itself refuses other versions."""
        header = read_request_header(frame)
        if not self._dispatcher.serves(header.api_key, header.api_version, client.listener):
            return self._inner(frame, client, now_ms)
        name = API_NAMES.get(header.api_key, str(header.api_key))
        hit = Hit(now_ms, name, header.api_version, header.correlation_id, header.client_id)
        request = _Request(frame, header)
        if self._hides_topics(request):
            return self._end_session(request)
        for fault in self._faults:
            if self._matches(fault.spec, hit, request) and fault.takes(hit):
                return self._carry_out(fault, request, client, now_ms)
        return self._inner(frame, client, now_ms)

    def _hides_topics(self, request: _Request) -> bool:
        """Whether a fault asks for topics, and a Fetch of a session names only those that have changed."""
        if request.header.api_key != FETCH_KEY or not any(self._may_hit_topics(each, request) for each in self._faults):
            return False
        body = request.body()
        return isinstance(body, FetchRequest) and body.session_id != 0 and body.session_epoch > 0

    def _may_hit_topics(self, fault: ActiveFault, request: _Request) -> bool:
        spec = fault.spec
        is_for_client = spec.api in (None, "Fetch") and spec.client_id in (None, request.header.client_id)
        is_of_partitions = spec.error is not None and ErrorCode[spec.error] not in FETCH_SESSION_ERRORS
        return (spec.topic is not None or is_of_partitions) and is_for_client and not fault.is_over

    def _end_session(self, request: _Request) -> Answer:
        """Answers that there is no such fetch session. The client sends all topics then."""
        assert request.api is not None, "its body was decoded"
        route = Route(request.api, request.header.api_version, request.api.handler_on(self._broker))
        return route.encode(request.header.correlation_id, FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))

    def _matches(self, spec: FaultSpec, hit: Hit, request: _Request) -> bool:
        if spec.api not in (None, hit.api) or spec.client_id not in (None, hit.client_id):
            return False
        if spec.group is not None and spec.group not in request.groups():
            return False
        if spec.stale_metadata and hit.api != "Metadata":
            return False
        if spec.coordinator is not None and not request.needs_coordinator(spec.coordinator):
            return False
        return spec.topic is None or self._split(spec, request)[0] is not None

    def _split(self, spec: FaultSpec, request: _Request) -> tuple[Message | None, Message | None]:
        """Returns the part of a request that a fault is about, and the other part."""
        body = request.body()
        if body is None:
            return None, None
        if spec.topic is None:
            return body, None

        def matches(topic: Any, index: int | None) -> bool:
            return self._name_of(topic) == spec.topic and (index is None or spec.partition in (None, index))

        return split(body, request.header.api_version, matches, is_flexible=request.is_flexible)

    def _name_of(self, topic: Any) -> str | None:
        if isinstance(topic, str):
            return topic
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        topic_id = getattr(topic, "topic_id", None)
        if name or not topic_id:
            return name
        found = self._broker.topics.find_by_id(topic_id)
        return None if found is None else found.name

    def _carry_out(self, fault: ActiveFault, request: _Request, client: Client, now_ms: int) -> Answer | Pending[Any]:
        delay_s = fault.spec.delay_s
        if delay_s is None:
            return self._act(fault, request, client, now_ms)
        kept = request.kept()
        pending: Pending[Any] = Pending(on_abandon=lambda: timer.cancel())

        def act() -> None:
            try:
                pending.complete_with(self._act(fault, kept, client, now_ms))
            except Exception as error:  # noqa: BLE001 - the connection would wait for ever
                pending.complete(_as_refusal(error))

        timer = self._broker.clock.call_later(delay_s * 1000, act)
        return pending

    def _act(self, fault: ActiveFault, request: _Request, client: Client, now_ms: int) -> Answer | Pending[Any]:
        spec = fault.spec
        if spec.lose == "request":
            # A client that wants no response sends on; any other request of the connection waits with this one.
            return None if request.wants_no_response else Pending()
        if spec.disconnect == "request":
            raise ProtocolError("a test has ordered it")
        error = _error_of(spec, request)
        if error is not None:
            return self._late(spec, self._refuse(spec, error, request, client, now_ms))
        answer = self._handle_with(spec, request, client, now_ms)
        if isinstance(answer, Pending):
            request = request.kept()
        after = partial(self._after, fault, request, client)
        return self._late(spec, answer.map(_guarded(after)) if isinstance(answer, Pending) else after(answer))

    def _handle_with(self, spec: FaultSpec, request: _Request, client: Client, now_ms: int) -> Answer | Pending[Any]:
        """Lets the broker handle a request; on a full disk if the fault says so."""
        if not spec.full_disk:
            return self._inner(request.frame, client, now_ms)
        with ExitStack() as stack:
            stack.enter_context(disk_of(self._broker).full())
            answer = self._inner(request.frame, client, now_ms)
            if not isinstance(answer, Pending):
                return answer
            empty_again = stack.pop_all().close

        def abandon() -> None:
            empty_again()
            answer.abandon()

        def finish(result: Any) -> None:
            empty_again()
            pending.complete(result)

        pending: Pending[Any] = Pending(on_abandon=abandon)
        answer.then(finish)
        return pending

    def _late(self, spec: FaultSpec, answer: Answer | Pending[Any]) -> Answer | Pending[Any]:
        """Returns the answer, or a Pending that completes so much later than the answer as the fault says."""
        delay_s = spec.reply_delay_s
        if delay_s is None or answer is None:
            return answer

        def hold(result: Any) -> Any:
            if result is None:
                return None
            data = result if isinstance(result, ProtocolError) else _bytes_of(result)
            pending: Pending[Any] = Pending(on_abandon=lambda: timer.cancel())
            timer = self._broker.clock.call_later(delay_s * 1000, lambda: pending.complete(data))
            return pending

        return answer.map(_guarded(hold)) if isinstance(answer, Pending) else hold(answer)

    def _after(self, fault: ActiveFault, request: _Request, client: Client, answer: Any) -> Any:
        """Does to an answer what a fault does after a request was handled."""
        spec = fault.spec
        if answer is None or isinstance(answer, ProtocolError):
            return answer
        if spec.lose is not None:
            return Pending()
        if spec.disconnect == "reply":
            return _gone()
        data = _bytes_of(answer)
        if spec.throttle_ms is not None:
            return request.changed(data, partial(_throttle, spec.throttle_ms))
        if spec.stale_metadata:
            return request.changed(data, partial(_make_stale, fault.metadata, request.names_all_topics, spec.topic))
        if spec.disconnect == "mid_reply":
            self._driver.send_early(client, data[: len(data) // 2])
            return _gone()
        if spec.trickle_bytes_per_s is not None:
            return self._trickle(client, data, spec.trickle_bytes_per_s)
        return answer

    def _trickle(self, client: Client, data: bytes, bytes_per_s: int) -> Pending[Any]:
        size = max(1, round(bytes_per_s * TRICKLE_SECONDS))
        pause_ms = 1000 * size / bytes_per_s
        pending: Pending[Any] = Pending()

        def send(at: int) -> None:
            # The rest of a large response is not copied for each part.
            if pending.is_done:
                return
            if len(data) - at <= size:
                pending.complete(data[at:])
                return
            self._driver.send_early(client, data[at : at + size])
            self._broker.clock.call_later(pause_ms, partial(send, at + size))

        self._broker.clock.call_later(0, partial(send, 0))
        return pending

    def _refuse(self, spec: FaultSpec, code: ErrorCode, request: _Request, client: Client, now_ms: int) -> Answer | Pending[Any]:
        """Answers the part of a request that a fault is about with its error, and lets the other part be handled.

        Raises:
            ProtocolError: the response has no field for an error.
        """
        assert request.api is not None, "a fault has hit a served API"
        api, header = request.api, request.header
        refused, handled = self._split(spec, request)
        version, is_flexible = header.api_version, request.is_flexible
        route = Route(api, version, api.handler_on(self._broker))
        made = None if refused is None else refusal_of(refused, api.response, code, version, is_flexible=is_flexible)
        if made is None:
            raise ProtocolError(f"a test has ordered {code.name}, which a {route} response cannot say")
        if isinstance(made, FetchResponse) and code in FETCH_SESSION_ERRORS:
            made.responses = []
        elif isinstance(made, OffsetFetchResponse) and spec.topic is None and code not in OFFSET_ERRORS:
            _leave_error_of_groups(made, version)
        elif (spec.topic is not None or isinstance(made, FetchResponse)) and has_elements(made) and hasattr(made, "error_code"):
            # The error is that of the partitions: clients that find one of the whole response read no further.
            made.error_code = ErrorCode.NONE
        if handled is None:
            return None if request.wants_no_response else route.encode(header.correlation_id, made)

        def join(answer: Any) -> Any:
            if answer is None or isinstance(answer, ProtocolError):
                return answer
            body = _bytes_of(answer)[4 + route.header_bytes :]
            return route.encode(header.correlation_id, merge(decode(api.response, version, is_flexible, body), made))

        if isinstance(handled, FetchRequest):
            # In a session, later requests would name changed partitions only.
            handled.session_id, handled.session_epoch = 0, -1
        answer = self._inner(request.with_body(handled), client, now_ms)
        return answer.map(_guarded(join)) if isinstance(answer, Pending) else join(answer)


def _error_of(spec: FaultSpec, request: _Request) -> ErrorCode | None:
    """Returns the error that answers the request; None if the broker handles it."""
    if spec.error is not None:
        return ErrorCode[spec.error]
    if spec.coordinator is None:
        return None
    if spec.coordinator == "loading":
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    is_search = request.header.api_key == FIND_COORDINATOR_KEY
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_search else ErrorCode.NOT_COORDINATOR


def _leave_error_of_groups(response: OffsetFetchResponse, version: int) -> None:
    """Removes the partitions from a response whose error is that of the groups.

    Source: OffsetFetchRequest.getErrorResponse.
    """
    if version < FIRST_VERSION_WITH_GROUP_ERROR:
        return
    response.topics = []
    for group in response.groups:
        group.topics = []


def _throttle(throttle_ms: int, response: Any) -> None:
    if "throttle_time_ms" in type(response).field_defaults:
        response.throttle_time_ms = throttle_ms


def _make_stale(former: MetadataResponse, names_all: bool, name: str | None, response: Any) -> None:
    """Replaces the topics of a response by what they were.

    Args:
        names_all: the request is about all topics.
        name: only this topic is replaced; None for all.
    """
    by_name = {topic.name: topic for topic in former.topics}
    kept = [topic for topic in response.topics if name not in (None, topic.name)]
    asked = [topic for topic in response.topics if name in (None, topic.name)]
    if names_all:
        replaced = [topic for topic in former.topics if name in (None, topic.name)]
    else:
        replaced = [by_name.get(topic.name) or _unknown(topic) for topic in asked]
    response.topics = kept + replaced


def _unknown(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=topic.name, topic_id=ZERO_TOPIC_ID)


def _as_refusal(error: Exception) -> ProtocolError:
    return error if isinstance(error, ProtocolError) else ProtocolError(f"a fault has failed: {error!r}")


def _guarded(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function for late answers: its exception ends the connection, and not what has completed the answer."""

    def guarded(answer: Any) -> Any:
        try:
            return change(answer)
        except Exception as error:  # noqa: BLE001 - see above
            return _as_refusal(error)

    return guarded


def _gone() -> Pending[Any]:
    """Returns a reply that ends the connection."""
    pending: Pending[Any] = Pending()
    pending.complete(ProtocolError("a test has ordered it"))
    return pending


def _bytes_of(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return b"".join(piece.read() if isinstance(piece, FileRegion) else bytes(piece) for piece in answer)


class _Request:
    """One request of a version that is served; its body is decoded when it is first needed."""

    def __init__(self, frame: memoryview, header: RequestHeader) -> None:
        self.frame = frame
        self.header = header
        self.api: Api | None = find_api(header.api_key)
        self._body: Message | None = None

    @property
    def is_flexible(self) -> bool:
        """Whether its version has compact lengths and tagged fields."""
        return self.api is not None and self.api.is_flexible(self.header.api_version)

    @property
    def _body_at(self) -> int:
        at = self.header.body_offset
        return skip_tagged_fields(self.frame, at, len(self.frame)) if self.is_flexible else at

    def body(self) -> Message | None:
        """Returns the decoded body; None if the API is not known."""
        if self._body is None and self.api is not None:
            # Bytes after the body are ignored, as by the dispatcher: librdkafka sends some in Metadata.
            try:
                self._body, _ = self.api.request_reader(self.header.api_version)(self.frame, self._body_at, len(self.frame))
            except BROKEN_REQUEST_ERRORS as error:
                raise ProtocolError(f"a broken {self.api.name} request: {error}") from None
        return self._body

    @property
    def wants_no_response(self) -> bool:
        """Whether it is a Produce with acks=0."""
        return getattr(self.body(), "acks", None) == 0

    def kept(self) -> _Request:
        """Returns a copy that lasts longer than the frame."""
        return _Request(memoryview(bytearray(self.frame)), self.header)

    def groups(self) -> list[str]:
        """Returns the groups that it names."""
        body: Any = self.body()
        if body is None:
            return []
        many = getattr(body, "groups", None) or getattr(body, "group_ids", None) or []
        named = [each if isinstance(each, str) else getattr(each, "group_id", None) for each in many]
        if self.header.api_key == FIND_COORDINATOR_KEY:
            named = [body.key, *body.coordinator_keys]
        return [getattr(body, "group_id", ""), *filter(None, named)]

    @property
    def names_all_topics(self) -> bool:
        """Whether a Metadata request is about all topics."""
        topics = getattr(self.body(), "topics", None)
        return topics is None or (self.header.api_version == 0 and not topics)

    def needs_coordinator(self, move: Move) -> bool:
        """Whether a request goes to a coordinator that moves, or looks for it."""
        if self.header.api_key not in COORDINATOR_KEYS or (move == "loading" and self.header.api_key == FIND_COORDINATOR_KEY):
            return False
        # An InitProducerId without a transactional id goes to any broker.
        return getattr(self.body(), "transactional_id", "") is not None

    def with_body(self, body: Message) -> memoryview:
        """Returns the frame of a request with the same header and another body."""
        encoded = encode(body, self.header.api_version, self.is_flexible)
        return memoryview(bytearray(bytes(self.frame[: self._body_at]) + encoded))

    def changed(self, data: bytes, change: Callable[[Any], object]) -> bytes:
        """Returns a response after `change` has changed its message."""
        assert self.api is not None, "an answered request is of a served API"
        version, is_flexible = self.header.api_version, self.is_flexible
        at = 8 + self.api.has_flexible_response_header(version)
        message: Any = decode(self.api.response, version, is_flexible, data[at:])
        change(message)
        body = encode(message, version, is_flexible)
        return (at - 4 + len(body)).to_bytes(4, "big") + data[4:at] + body
