"""Counts requests, their bytes and their errors, by API.

How it works: the meter stands around the dispatcher's `handle`, and sees each frame and each answer. The routes of a metered
dispatcher show it each response before it is encoded; it counts the error codes in the response, wherever they stand.

Differs from Apache Kafka: a response that a handler has encoded itself, the usual one to Fetch, has no errors, and is not
searched for them.

Source: kafka.network.RequestMetrics (RequestsPerSec, RequestBytes, ErrorsPerSec).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, get_args, get_type_hints

from wirekafka.api.index import INDEX
from wirekafka.api.registry import Client
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.pending import Pending
from wirekafka.server.connection import Answer
from wirekafka.server.metrics.text import Kind, Metric
from wirekafka.wire.types import Message

OTHER = "other"
"""The name of all APIs that do not exist; a client can send any key."""

Handle = Callable[[memoryview, Client, int], "Answer | Pending[Any]"]


@dataclass(slots=True)
class ApiCounts:
    """What is counted of one API.

    Attributes:
        errors: the responses and parts of responses with each error.
        refused: the requests that ended their connection without a response.
    """

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    refused: int = 0
    errors: Counter[int] = field(default_factory=Counter)


class RequestMeter:
    """The counts of all requests since the broker has started.

    Attributes:
        counts: by the name of the API.
    """

    def __init__(self) -> None:
        self.counts: dict[str, ApiCounts] = {}

    def of(self, api_key: int) -> ApiCounts:
        """Returns the counts of an API."""
        known = INDEX.get(api_key)
        return self.counts.setdefault(OTHER if known is None else known.name, ApiCounts())

    def measured(self, handle: Handle) -> Handle:
        """Returns a function that handles requests as `handle` does, and counts them."""

        def measure(frame: memoryview, client: Client, now_ms: int) -> Answer | Pending[Any]:
            counts = self.of(int.from_bytes(frame[:2], "big"))
            counts.requests += 1
            counts.request_bytes += len(frame) + 4
            try:
                answer = handle(frame, client, now_ms)
            except ProtocolError:
                counts.refused += 1
                raise
            return answer.map(partial(_noted, counts)) if isinstance(answer, Pending) else _noted(counts, answer)

        return measure

    def note_errors(self, api_key: int, response: Message) -> Iterator[None]:
        """Counts the error codes in a response, and yields after each part of it."""
        errors = self.of(api_key).errors
        for code in error_codes(response):
            if code:
                errors[code] += 1
            yield

    def metrics(self) -> list[Metric]:
        """Returns the metrics of all APIs that were asked for."""
        requests = Metric("wirekafka_requests_total", Kind.COUNTER, "Requests that have arrived.")
        request_bytes = Metric("wirekafka_request_bytes_total", Kind.COUNTER, "Bytes of requests.")
        response_bytes = Metric("wirekafka_response_bytes_total", Kind.COUNTER, "Bytes of responses.")
        refused = Metric(
            "wirekafka_refused_requests_total", Kind.COUNTER, "Requests that ended their connection without a response."
        )
        errors = Metric(
            "wirekafka_request_errors_total",
            Kind.COUNTER,
            "Error codes in responses, which may have one for each partition.",
        )
        for name, counts in sorted(self.counts.items()):
            labels = {"api": name}
            requests.samples.append(("", labels, counts.requests))
            request_bytes.samples.append(("", labels, counts.request_bytes))
            response_bytes.samples.append(("", labels, counts.response_bytes))
            refused.samples.append(("", labels, counts.refused))
            for code, count in sorted(counts.errors.items()):
                errors.samples.append(("", labels | {"error": ErrorCode.of(code).name}, count))
        return [requests, request_bytes, response_bytes, refused, errors]


def _noted(counts: ApiCounts, answer: Any) -> Any:
    """Counts an answer, or the ProtocolError of a request that was pending; returns it."""
    match answer:
        case ProtocolError():
            counts.refused += 1
        case list():
            counts.response_bytes += sum(map(len, answer))
        case bytes():
            counts.response_bytes += len(answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a message has error codes: fields of its own, and arrays or structures that have some."""

    own: tuple[str, ...]
    inner: tuple[tuple[str, _Places], ...]


@cache
def _places_in(cls: type[Message]) -> _Places:
    hints = get_type_hints(cls)
    own = tuple(name for name in cls.field_defaults if name.endswith("error_code"))
    inner = []
    for name in cls.field_defaults:
        for each in _messages_in(hints[name]):
            places = _places_in(each)
            if places.own or places.inner:
                inner.append((name, places))
    return _Places(own, tuple(inner))


def _messages_in(hint: Any) -> Iterator[type[Message]]:
    if isinstance(hint, type) and issubclass(hint, Message):
        yield hint
    for argument in get_args(hint):
        yield from _messages_in(argument)


def error_codes(response: Message) -> Iterator[int]:
    """Yields the error codes in a response, 0 for none included."""
    return _codes_in(response, _places_in(type(response)))


def _codes_in(message: Any, places: _Places) -> Iterator[int]:
    for name in places.own:
        yield getattr(message, name)
    for name, inner in places.inner:
        value = getattr(message, name)
        for each in value if isinstance(value, list) else () if value is None else (value,):
            yield from _codes_in(each, inner)
