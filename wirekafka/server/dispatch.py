"""The dispatcher decodes a frame, calls the handler of its API, and encodes the response.

Rules of this file: the functions and headers of a version are looked up once and kept as a `Route`; a request makes no closure.
Only this file maps the exceptions of handlers: it logs the traceback, and sets the top-level error code of the response. If the
response has no such field, the connection is closed.

Source: kafka.server.KafkaApis.handle; org.apache.kafka.common.requests.RequestContext (ApiVersions of an unknown version).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import structlog

from wirekafka.api.api_versions import unsupported_version
from wirekafka.api.awaited_clients import AwaitedClients
from wirekafka.api.index import INDEX
from wirekafka.api.kafka_apis import API_NAMES, api_name
from wirekafka.api.registry import API_VERSIONS_KEY, Api, Call, Client, Handler, Shortcut, find_api, served_versions, versions_on
from wirekafka.api.releases import releases_of
from wirekafka.api.told_errors import telling
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.faults import log_once
from wirekafka.log.storage import FileRegion
from wirekafka.pending import Pending, Work
from wirekafka.server.connection import Answer
from wirekafka.server.receive_buffers import is_mapped
from wirekafka.troubles import short_name
from wirekafka.wire.codec import (
    ELEMENTS_AT_ONCE,
    ElementBudget,
    LargeMessageError,
    Piece,
    StepBudget,
    fields_of,
    has_records,
    skip_tagged_fields,
)
from wirekafka.wire.frames import WITHOUT_CLIENT_ID_BYTES, RequestHeader, has_client_id, read_request_header
from wirekafka.wire.types import Message

if TYPE_CHECKING:
    from wirekafka.broker import Broker

log = structlog.get_logger(__name__)

T = TypeVar("T")

TOLD_LIMIT = 1000
"""The number of failures that are kept, so that each is logged once."""

SHORTCUT_LIMIT = 4096
"""The most shortcuts of all connections together; each takes 1 to 2 KiB."""

HEAD_SIZES_LIMIT = 4
"""The most different sizes of the heads of a connection's shortcuts. Each size costs one lookup for each request."""

SHORTCUT_HEAD_BYTES = 512
"""The longest head that is kept: a topic's name may have 249 bytes, a client id 32 KiB."""

MOST_RESPONSE_BYTES = 1 << 26
"""The largest response, regions of files left out. librdkafka takes 100,000,000 bytes (receive.message.max.bytes)."""

PIECES_AT_ONCE = 8_192
"""If a response is encoded in steps, this many pieces are joined at once, in 0.3 ms (2026-11)."""

BROKEN_REQUEST_ERRORS = (struct.error, IndexError, UnicodeDecodeError, ProtocolError, MemoryError)
"""The exceptions of the codec's functions if the bytes are not a request, or if there is no memory."""

SMALL_REQUEST_BYTES = 4 * ELEMENTS_AT_ONCE
"""The elements of requests up to this size are not counted: an element that costs much to read has several bytes."""

METADATA_KEY = 3

SASL_APIS = (17, 36)
"""SaslHandshake and SaslAuthenticate."""

_HEAD_AT = 8
"""The position after the correlation id, where the head of a request begins that other requests may share."""

_HEADER = struct.Struct(">Iih")
"""API key and version in one number, which is the key of a route; correlation id; length of the client id.
`frames.read_request_header` reads the same fields into an object, which would cost each request 0.8 us (2026-11)."""

_NO_SHORTCUTS: dict[int, dict[bytes, Shortcut]] = {}

_RESPONSE_HEADER = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = struct.Struct(">iix")


class Route:
    """One version of one API, with the functions and headers that its requests need.

    Attributes:
        has_client_id: the header of a request has a client id. A route without it is not kept, so that other requests need not
            look at this.
        has_regions: a response may hold records, and so regions of files.
        header_bytes: the bytes of a response's header after its size.
    """

    __slots__ = (
        "_budget",
        "_most_elements",
        "api",
        "handler",
        "has_client_id",
        "has_regions",
        "has_tagged_header",
        "header_bytes",
        "make_shortcut",
        "pack_header",
        "read",
        "version",
        "write",
    )

    def __init__(self, api: Api, version: int, handler: Handler, *, is_member: bool = False) -> None:
        self.api = api
        self._most_elements = api.most_elements(is_member=is_member)
        self.version = version
        self.handler = handler
        self.make_shortcut = api.make_shortcut
        self.read = api.request_reader(version)
        self.write = api.response_counting_writer(version)
        self._budget = StepBudget()
        """The budget of elements; it is reset for each response."""
        self.has_client_id = has_client_id(api.key, version)
        self.has_tagged_header = api.is_flexible(version)
        is_flexible = api.has_flexible_response_header(version)
        header = _FLEXIBLE_RESPONSE_HEADER if is_flexible else _RESPONSE_HEADER
        self.pack_header = header.pack
        self.header_bytes = header.size - 4
        self.has_regions = has_records(api.response)

    def __str__(self) -> str:
        return f"{self.api.name} {self.version}"

    def read_large(self, frame: memoryview, pos: int, end: int) -> tuple[Any, int]:
        """Reads the body of a request that may have many elements.

        Raises:
            LargeMessageError: the request has more elements than are read in one step.
            ProtocolError: the request is broken.
        """
        return self.api.large_request_reader(self.version)(frame, pos, end, StepBudget())

    def read_in_steps(self, frame: memoryview, pos: int) -> Work[Any]:
        """Reads the body of a request that has many elements.

        Raises:
            ProtocolError: the request is broken, or has more elements than a request may have.
        """
        try:
            budget = ElementBudget(self._most_elements)
            request, _ = yield from self.api.request_step_reader(self.version)(frame, pos, len(frame), budget)
        except BROKEN_REQUEST_ERRORS as error:
            raise self.broken(error, frame) from None
        return request

    def broken(self, error: Exception, frame: memoryview) -> ProtocolError:
        """Returns the error that ends the connection of a request that cannot be read."""
        if isinstance(error, MemoryError):
            return ProtocolError(f"a {self} request of {len(frame)} bytes needs more memory than there is")
        return ProtocolError(f"a broken {self} request: {error}")

    def encode(self, correlation_id: int, response: Message | list[Piece]) -> bytes | list[Piece]:
        """Returns the framed response, in one piece unless it has regions of files.

        Args:
            response: a message, or the pieces of a response that its handler has encoded, bytes first.

        Raises:
            KafkaError: INVALID_REQUEST, the response would be larger than `MOST_RESPONSE_BYTES`.
            LargeMessageError: the response has more elements than are written in one step.
        """
        if type(response) is list:
            size = sum(map(len, response))
            response[0] = self.pack_header(self.header_bytes + size, correlation_id) + response[0]
            return response
        pieces: list[Piece] = []
        budget = self._budget
        budget.left = ELEMENTS_AT_ONCE
        self.write(pieces.append, response, budget)
        kinds = [*map(type, pieces)] if self.has_regions else []
        if FileRegion in kinds:
            framed = _joined(pieces, kinds)
            size = sum(map(len, framed))
            if size > MOST_RESPONSE_BYTES:
                _check_size(_memory_bytes(framed))
            framed[0] = self.pack_header(self.header_bytes + size, correlation_id) + framed[0]
            return framed
        body = b"".join(pieces)
        if len(body) > MOST_RESPONSE_BYTES:
            _check_size(len(body))
        return self.pack_header(self.header_bytes + len(body), correlation_id) + body

    def encode_in_steps(self, correlation_id: int, response: Message) -> Work[list[Piece]]:
        """Returns the framed response in pieces.

        Raises:
            KafkaError: INVALID_REQUEST, the response would be larger than `MOST_RESPONSE_BYTES`.
        """
        framed: list[Piece] = [b""]
        recent: list[Piece] = []
        memory_bytes = 0
        for _ in self.api.response_step_writer(self.version)(recent.append, response):
            if len(recent) >= PIECES_AT_ONCE:
                memory_bytes += _memory_bytes(recent)
                _check_size(memory_bytes)
                framed += _joined(recent, [*map(type, recent)])
                recent.clear()
            yield
        _check_size(memory_bytes + _memory_bytes(recent))
        framed += _joined(recent, [*map(type, recent)])
        framed[0] = self.pack_header(self.header_bytes + sum(map(len, framed)), correlation_id)
        return framed

    def error_response(self, error: KafkaError) -> Message | None:
        """Returns the response for a request that failed as a whole; None if this version has no top-level error code."""
        names = {field.name for field in fields_of(self.api.response, self.version, self.api.is_flexible(self.version))}
        if "error_code" not in names:
            return None
        response: Any = self.api.response()
        response.error_code = error.code
        if "error_message" in names:
            response.error_message = error.message
        return response  # type: ignore[no-any-return]


class Meter(Protocol):
    """Counts requests, as `metrics.request_meter.RequestMeter` does."""

    def measured(
        self, handle: Callable[[memoryview, Client, int], Answer | Pending[Any]]
    ) -> Callable[[memoryview, Client, int], Answer | Pending[Any]]:
        """Returns a function that handles requests as `handle` does, and counts them."""

    def note_errors(self, api_key: int, response: Message) -> Iterator[None]:
        """Counts the error codes in a response, and yields after each part of it."""


class MeteredRoute(Route):
    """A route that shows each response to a meter before it is encoded."""

    __slots__ = ("_meter",)

    def __init__(self, api: Api, version: int, handler: Handler, meter: Meter, *, is_member: bool) -> None:
        super().__init__(api, version, handler, is_member=is_member)
        self._meter = meter

    def encode(self, correlation_id: int, response: Message | list[Piece]) -> bytes | list[Piece]:
        """Returns the framed response, as `Route.encode` does; a response that is encoded in steps is counted there."""
        framed = super().encode(correlation_id, response)
        if isinstance(response, Message):
            for _ in self._meter.note_errors(self.api.key, response):
                pass
        return framed

    def encode_in_steps(self, correlation_id: int, response: Message) -> Work[list[Piece]]:
        """Returns the framed response in pieces, as `Route.encode_in_steps` does."""
        yield from self._meter.note_errors(self.api.key, response)
        return (yield from super().encode_in_steps(correlation_id, response))


def _memory_bytes(pieces: list[Piece]) -> int:
    """Returns the bytes of the pieces that are in memory; regions of files are not."""
    return sum(len(piece) for piece in pieces if isinstance(piece, (bytes, bytearray, memoryview)))


def _check_size(memory_bytes: int) -> None:
    """Raises unless a response may have this many bytes in memory.

    Raises:
        KafkaError: INVALID_REQUEST, the response would be larger than `MOST_RESPONSE_BYTES`.
    """
    if memory_bytes > MOST_RESPONSE_BYTES:
        reason = f"the response would have more than {MOST_RESPONSE_BYTES} bytes; ask for fewer things at once"
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _joined(pieces: list[Piece], kinds: list[type]) -> list[Piece]:
    """Returns the pieces with all bytes joined that no region of a file separates; the first piece is bytes.

    The driver takes 0.1 us for each piece of a response. A response with one region has three pieces joined, and nine otherwise
    (2026-11).

    Args:
        kinds: the types of the pieces.
    """
    joined: list[Piece] = []
    start = 0
    for _ in range(kinds.count(FileRegion)):
        stop = kinds.index(FileRegion, start)
        joined += b"".join(pieces[start:stop]), pieces[stop]
        start = stop + 1
    rest = b"".join(pieces[start:])
    if rest or not joined:
        joined.append(rest)
    return joined


class Dispatcher:
    """Hands each request to its handler.

    Attributes:
        now_ms: the broker's wall clock.
        max_request_bytes: the largest frame that is read.
        handle: handles one request. Its arguments are the frame, which is valid only until `handle` returns, the client and the
            time in ms. Returns the response or a `Pending` of it. Raises ProtocolError: the request cannot be answered, and its
            connection ends.

    Args:
        logs_requests: each request is logged at level debug, with its API, version, client id and the time that it took.
        meter: counts the requests; None if nobody reads the counts.
    """

    __slots__ = (
        "_awaited", "_broker", "_meter", "_released", "_remembered", "_returns", "_routes", "_served", "_told",
        "handle", "max_request_bytes", "now_ms",
    )  # fmt: skip

    def __init__(self, broker: Broker, *, logs_requests: bool = False, meter: Meter | None = None) -> None:
        self.handle: Callable[[memoryview, Client, int], Answer | Pending[Any]] = (
            self._log_request if logs_requests else self._handle
        )
        self._released = {name: versions_on(broker.config, name) for name in releases_of(broker.config)}
        if self._released:
            self.handle = partial(self._handle_as_release, self.handle)
        self._meter = meter
        if meter is not None:
            self.handle = meter.measured(self.handle)
        self.now_ms: Callable[[], int] = broker.clock.now_ms
        self.max_request_bytes: int = broker.config.integer("socket.request.max.bytes")
        self._broker = broker
        self._routes: dict[int, Route] = {}
        self._remembered: dict[tuple[Client, object, bytes], int] = {}
        """The shortcuts of all connections by client, route and head, with the size of the head; the oldest first."""
        self._served = served_versions(broker.config, broker.topics.features.level)
        broker.topics.features.on_change.append(self._refresh)
        self._told: set[tuple[object, ...]] = set()
        self._returns = AwaitedClients(broker, lambda host: any(client.host == host for client, _, _ in self._remembered))
        self._awaited = self._returns.by_name

    @property
    def is_busy(self) -> bool:
        """Whether so many requests are handled in slices that no further large request may begin, except for a Produce."""
        return self._broker.slices.is_busy

    def serves(self, api_key: int, version: int, listener: str) -> bool:
        """Whether clients of a listener are served a version of an API; its release may have fewer than the broker."""
        return version in self._released.get(listener, self._served).get(api_key, ())

    def _refresh(self) -> None:
        """Serves other versions from now on, because features have changed: their routes are made again."""
        self._served = served_versions(self._broker.config, self._broker.topics.features.level)
        self._routes.clear()

    def _log_request(self, frame: memoryview, client: Client, now_ms: int) -> Answer | Pending[Any]:
        """Handles a request as `_handle` does, and logs the request once its response is complete."""
        header = read_request_header(frame)
        begun = time.perf_counter()

        def log_it(answer: T) -> T:
            outcome = {"error": str(answer)} if isinstance(answer, ProtocolError) else {}
            log.debug(
                "Request",
                client=f"{client.host}:{client.port}",
                client_id=header.client_id,
                api=API_NAMES.get(header.api_key, str(header.api_key)),
                version=header.api_version,
                correlation_id=header.correlation_id,
                ms=round((time.perf_counter() - begun) * 1000, 3),
                **outcome,
            )
            return answer

        try:
            answer = self._handle(frame, client, now_ms)
        except ProtocolError as error:
            raise log_it(error) from None
        return answer.map(log_it) if isinstance(answer, Pending) else log_it(answer)

    def _handle(self, frame: memoryview, client: Client, now_ms: int) -> Answer | Pending[Any]:
        """Handles one request; see `handle`."""
        key_and_version, correlation_id, client_id_size = _HEADER.unpack_from(frame)
        route = self._routes.get(key_and_version)
        if route is None:
            found = self._find_route(frame, client)
            if isinstance(found, bytes):
                return found
            route = found
            if not route.has_client_id:
                return self._ask_handler_later(route, frame, WITHOUT_CLIENT_ID_BYTES, None, client, now_ms)
        shortcut = None
        if route.make_shortcut is not None and client.shortcuts is not None:
            for head_size, by_head in client.shortcuts.get(route, _NO_SHORTCUTS).items():
                shortcut = by_head.get(frame[_HEAD_AT:head_size].tobytes())
                if shortcut is not None:
                    try:
                        answer = shortcut.answer(client, frame, correlation_id, now_ms)
                    except Exception as error:  # noqa: BLE001 - `_failure` answers it, whatever it is
                        return self._failure(route, correlation_id, error)
                    if answer is not None:
                        return answer
                    break
        if self._awaited:
            client_id = str(frame[10 : 10 + client_id_size], "utf-8", "replace") if client_id_size >= 0 else None
            self._returns.note_request(route.api.key, client, client_id)
        return self._ask_handler(route, frame, client, now_ms, correlation_id, client_id_size, shortcut)

    def _ask_handler(
        self,
        route: Route,
        frame: memoryview,
        client: Client,
        now_ms: int,
        correlation_id: int,
        client_id_size: int,
        shortcut: Shortcut | None,
    ) -> Answer | Pending[Any]:
        """Decodes a request that no shortcut has answered, and hands it to its handler.

        Args:
            client_id_size: the length in the header; -1 if the client id is null.
            shortcut: the shortcut that could not answer; None if such requests have none yet.

        Raises:
            ProtocolError: the request cannot be decoded, or its response has no field for the error.
        """
        try:
            size = len(frame)
            pos = 10
            client_id = None
            if client_id_size >= 0:
                pos += client_id_size
                if pos > size:
                    raise ProtocolError("the client id ends after it")
                client_id = str(frame[10:pos], "utf-8")
            if route.has_tagged_header:
                if frame[pos]:
                    pos = skip_tagged_fields(frame, pos, size)
                else:
                    pos += 1
            # Bytes after the body are ignored, as in Kafka.
            read = route.read if size <= SMALL_REQUEST_BYTES else route.read_large
            request, _ = read(frame, pos, size)
        except BROKEN_REQUEST_ERRORS as error:
            raise route.broken(error, frame) from None
        except LargeMessageError:
            return self._ask_handler_later(route, frame, pos, client_id, client, now_ms)
        try:
            call = Call(request, route.version, client_id, client, now_ms, correlation_id)
            response = route.handler(self._broker, call)
            if isinstance(response, Pending):
                return response.map(partial(self._encode_late, route, correlation_id))
            if route.make_shortcut is not None and shortcut is None:
                self._remember(route, call, frame)
            if response is None:
                return None
            try:
                return route.encode(correlation_id, response)
            except LargeMessageError:
                assert isinstance(response, Message), "an encoded response is not large"
                return self._encode_in_slices(route, correlation_id, response)
        except Exception as error:  # noqa: BLE001 - `_failure` answers it, whatever it is
            return self._failure(route, correlation_id, error)

    def _ask_handler_later(
        self, route: Route, frame: memoryview, pos: int, client_id: str | None, client: Client, now_ms: int
    ) -> Answer | Pending[Any]:
        """Decodes a request of many elements, or of a rare version, in slices, and calls its handler.

        The frame is copied if the connection uses the memory of the frame again.

        Raises:
            ProtocolError: the request cannot be decoded, or its response has no field for the error.
        """
        _, correlation_id, _ = _HEADER.unpack_from(frame)
        try:
            kept = frame if is_mapped(frame) else memoryview(bytes(frame))
        except MemoryError as error:
            raise route.broken(error, frame) from None

        def ask(request: Any) -> Any:
            if isinstance(request, Exception):
                return self._encode_late(route, correlation_id, request)
            try:
                call = Call(request, route.version, client_id, client, now_ms, correlation_id)
                response = route.handler(self._broker, call)
            except Exception as error:  # noqa: BLE001 - `_failure` answers it, whatever it is
                return self._encode_late(route, correlation_id, error)
            if isinstance(response, Pending):
                return response.map(partial(self._encode_late, route, correlation_id))
            return self._encode_late(route, correlation_id, response)

        read = self._broker.slices.run(route.read_in_steps(kept, pos))
        answer = read.map(ask) if isinstance(read, Pending) else ask(read)
        if isinstance(answer, ProtocolError):
            raise answer
        return cast("Answer | Pending[Any]", answer)

    def _encode_in_slices(self, route: Route, correlation_id: int, response: Message) -> Answer | Pending[Any]:
        """Returns the framed response of many elements, or a Pending of it.

        Raises:
            KafkaError: INVALID_REQUEST, the response is too large.
        """
        encoded = self._broker.slices.run(route.encode_in_steps(correlation_id, response))
        if not isinstance(encoded, Pending):
            return encoded
        return encoded.map(
            lambda answer: self._encode_late(route, correlation_id, answer) if isinstance(answer, Exception) else answer
        )

    def _remember(self, route: Route, call: Call[Any], frame: memoryview) -> None:
        """Keeps a shortcut for requests of this connection that are like this one, if the API has shortcuts for them.

        If there are too many shortcuts, the oldest one of all connections is removed. The shortcuts of a connection are removed
        with the connection.
        """
        assert route.make_shortcut is not None
        made = route.make_shortcut(self._broker, call, frame, route.encode)
        if made is None or made[0] > SHORTCUT_HEAD_BYTES:
            return
        head_size, shortcut = made
        client, head = call.client, frame[_HEAD_AT:head_size].tobytes()
        if client.shortcuts is None:
            client.shortcuts = {}
            client.on_close = client.on_close or {}
            client.on_close[self] = partial(self._forget, client)
        by_size = client.shortcuts.setdefault(route, {})
        if head_size not in by_size and len(by_size) == HEAD_SIZES_LIMIT:
            for oldest in by_size.pop(next(iter(by_size))):
                del self._remembered[client, route, oldest]
        by_size.setdefault(head_size, {})[head] = shortcut
        self._remembered[client, route, head] = head_size
        if len(self._remembered) > SHORTCUT_LIMIT:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        client, route, head = oldest = next(iter(self._remembered))
        assert client.shortcuts is not None, "a client whose shortcuts are remembered has some"
        by_size = client.shortcuts[route]
        head_size = self._remembered.pop(oldest)
        del by_size[head_size][head]
        if not by_size[head_size]:
            del by_size[head_size]

    def _forget(self, client: Client) -> None:
        """Removes the shortcuts of a connection that has ended."""
        shortcuts, client.shortcuts = client.shortcuts or {}, None
        for route, by_size in shortcuts.items():
            for by_head in by_size.values():
                for head in by_head:
                    del self._remembered[client, route, head]

    def _encode_late(self, route: Route, correlation_id: int, response: Message | list[Piece] | Exception | None) -> Any:
        """Encodes a reply that was pending, or the failure of its request.

        Returns:
            The answer, or a Pending of it. Errors are returned and not raised.
        """
        if response is None:
            return None
        try:
            if isinstance(response, Exception):
                raise response
            try:
                return route.encode(correlation_id, response)
            except LargeMessageError:
                assert isinstance(response, Message), "an encoded response is not large"
                return self._encode_in_slices(route, correlation_id, response)
        except Exception as error:  # noqa: BLE001 - the caller only completes a pending reply, and has no part in it
            try:
                return self._failure(route, correlation_id, error)
            except ProtocolError as refusal:
                return refusal

    def _failure(self, route: Route, correlation_id: int, error: Exception) -> Answer:
        """Returns the response for a request that failed.

        Raises:
            ProtocolError: `error` is a ProtocolError, or the response has no field for the error.
        """
        if isinstance(error, ProtocolError):
            raise error
        if not isinstance(error, KafkaError):
            is_first = self._note_first(route.api.key, type(error), error.__traceback__ and error.__traceback__.tb_lasti)
            log.error("A request failed", request=str(route), error=repr(error), exc_info=error if is_first else None)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        response = route.error_response(error)
        if response is None:
            raise ProtocolError(f"a {route} request failed with {error}, which its response cannot say")
        return route.encode(correlation_id, response)

    def _find_route(self, frame: memoryview, client: Client) -> Route | bytes:
        """Returns the route of a version at its first request, or the answer to an unknown version of ApiVersions.

        Raises:
            ProtocolError: the API or its version is not served; Kafka closes the connection too.

        Source: KIP-511 (an unknown version of ApiVersions is answered in version 0).
        """
        header = read_request_header(frame)
        key, version = header.api_key, header.api_version
        api = self._import_api(key)
        served = self._served.get(key)
        if api is not None and served is not None and version in served:
            route = self._make_route(api, version)
            if route.has_client_id:
                self._routes[(key & 0xFFFF) << 16 | version] = route
            return route
        return self._refuse_version(header, client, self._served)

    def _handle_as_release(
        self,
        handle: Callable[[memoryview, Client, int], Answer | Pending[Any]],
        frame: memoryview,
        client: Client,
        now_ms: int,
    ) -> Answer | Pending[Any]:
        """Handles a request of a listener that may behave as a release; refuses what that release does not serve."""
        served = self._released.get(client.listener)
        if served is not None:
            header = read_request_header(frame)
            if header.api_version not in served.get(header.api_key, ()):
                return self._refuse_version(header, client, served)
        return handle(frame, client, now_ms)

    def _refuse_version(self, header: RequestHeader, client: Client, all_served: dict[int, range]) -> bytes:
        """Returns the answer to an unknown version of ApiVersions.

        Raises:
            ProtocolError: the API or its version is not served.
        """
        key, version = header.api_key, header.api_version
        api, served = self._import_api(key), all_served.get(key)
        if api is None or served is None:
            reason = f"{api_name(key)} version {version} is not served"
        else:
            reason = f"{api.name} version {version} is not served, only versions {served[0]} to {served[-1]}"
        if api is None or served is None or key != API_VERSIONS_KEY:
            raise self._broker.troubles.refusal(client, reason, header.client_id, _remedy(key, served))
        if self._broker.troubles.is_new(client.host, reason, header.client_id):
            told = f"{reason} (client id {short_name(header.client_id)!r})"
            log.info("Client told which versions are served", client=f"{client.host}:{client.port}", reason=told)
        answer = Route(api, 0, api.handler).encode(header.correlation_id, unsupported_version(served))
        assert isinstance(answer, bytes)
        return answer

    def _make_route(self, api: Api, version: int) -> Route:
        handler, is_member = telling(api.key, api.handler_on(self._broker)), self._broker.config.is_member
        if api.key == METADATA_KEY:
            handler = self._returns.watching(handler)
        if self._meter is None:
            return Route(api, version, handler, is_member=is_member)
        return MeteredRoute(api, version, handler, self._meter, is_member=is_member)

    @staticmethod
    def _import_api(key: int) -> Api | None:
        """Imports the API with this key at its first request; returns None if there is no such API.

        If the import fails, the connection is closed: the schema of the response is in the module that cannot be imported. Apache
        Kafka closes the connection too if it cannot read a request. The client connects and asks again, which imports again.

        Raises:
            ProtocolError: the code cannot be imported, for example because file descriptors or memory are exhausted.
        """
        try:
            return find_api(key)
        except Exception as error:  # noqa: BLE001 - an import may raise anything
            remedy = "Check the installation, and the limits on open files and on memory. The next request tries again"
            log_once(error, "The code of an API cannot be imported", remedy=remedy, api=api_name(key))
            raise ProtocolError(f"the code of {api_name(key)} cannot be imported") from None

    def refusal(self, client: Client, reason: str) -> ProtocolError:
        """Returns the error that ends a connection; a `RepeatedError` if the log has this reason for this client already."""
        return self._broker.troubles.refusal(client, reason)

    def _note_first(self, *what: object) -> bool:
        """Stores a failure; returns False if it was stored before."""
        if what in self._told:
            return False
        if len(self._told) >= TOLD_LIMIT:
            self._told.clear()
        self._told.add(what)
        return True


def _remedy(key: int, served: range | None) -> str:
    """Returns what the operator can do about a request that is not served.

    Args:
        served: the versions of its API that are served.
    """
    if key in SASL_APIS:
        return "The client wants SASL, and this listener is PLAINTEXT: set security.protocol=PLAINTEXT in the client"
    if served is not None:
        return "Use another release of the client, or let the client choose its versions itself (by ApiVersions)"
    if key in INDEX:
        return "wirekafka.api.versions.max hides this API, or only members of a cluster serve it"
    return "wirekafka does not have this API: let the client do without it (docs/differences.md)"
