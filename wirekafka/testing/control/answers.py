"""Answers the requests of the control port: checks who asks and for what, and gives results and errors their JSON.

Rules of this file: only programs of this machine are served. A page in a browser could send requests from this machine too. So a
request is refused if its Host is not this machine (a page that has rebound its name), if it has a foreign Origin, or if its body
is not declared as JSON, which a form of a page cannot do.

Source: RFC 9110, 7.2 (Host); the Fetch standard (Origin, Sec-Fetch-Site, simple requests).
"""

from __future__ import annotations

import json
from typing import Any

import trio

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once
from wirekafka.server.http.messages import Request, Response
from wirekafka.server.running import only_cause
from wirekafka.testing.async_broker import CannotReplaceError
from wirekafka.testing.control import openapi
from wirekafka.testing.control.form_reader import read_json, read_parameters
from wirekafka.testing.control.forms import HealthReport, Problem
from wirekafka.testing.control.routes import MOST_WAITS, C, Call, ConflictError, NotFoundError, Route, TooManyError

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


async def answer(control: C, routes: tuple[Route[C], ...], request: Request) -> Response:
    """Answers a request.

    Args:
        control: what the port controls.
        routes: the requests that it serves.
    """
    problem = _foreign(request)
    if problem is not None:
        return _problem(403, problem)
    if request.path == openapi.PATH and request.method in ("GET", "HEAD"):
        return Response.of_json(200, openapi.document(routes))
    matching = [(route, names) for route in routes if (names := route.match(request.segments)) is not None]
    method = "GET" if request.method == "HEAD" else request.method
    found = [(route, names) for route, names in matching if route.method == method]
    if not found:
        methods = ", ".join(route.method for route, _ in matching)
        return _problem(405, f"only {methods} is served here") if matching else _problem(404, f"see {openapi.PATH}")
    [(route, names)] = found
    try:
        form = _form(route, request)
        result = await _result(control, route, Call(names, form, request.until_gone))
    except Exception as error:  # noqa: BLE001 - one place maps all errors
        return _failure(error, request)
    is_unhealthy = isinstance(result, HealthReport) and not result.ready
    return Response.of_json(503 if is_unhealthy else route.status, result)


def _foreign(request: Request) -> str | None:
    """Returns why a request is not from a program of this machine; None if it is."""
    host = request.headers.get("host", "")
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    if name.lower() not in LOCAL_NAMES:
        return f"the Host is not this machine; one of {', '.join(LOCAL_NAMES)} is served"
    if request.headers.get("origin", f"http://{host}") != f"http://{host}":
        return "pages of another origin are not served"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "pages of another site are not served"
    return None


class _MediaTypeError(Exception):
    """The body is not declared as JSON."""


def _form(route: Route[C], request: Request) -> Any:
    """Returns what a request holds.

    Raises:
        ValueError: it is wrong.
        _MediaTypeError: a body is not declared as JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.body and kind != "application/json":
        raise _MediaTypeError("a body has Content-Type: application/json")
    if route.body is not None:
        return read_json(route.body, _json(request.body))
    if route.query is not None:
        return read_parameters(route.query, request.query())
    return None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None


async def _result(control: C, route: Route[C], call: Call) -> Any:
    """Returns the result.

    Raises:
        TooManyError: there are as many waits as the port serves.
        ConflictError: a wait has ended with its client, who may read on although it sends no more.
    """
    if not route.is_wait:
        return await route.handle(control, call)
    token = object()
    try:
        control.waits.acquire_on_behalf_of_nowait(token)
    except trio.WouldBlock:
        raise TooManyError(f"there are {MOST_WAITS} waits already: end some, or wait for less at a time") from None
    try:
        return await _wait(control, route, call)
    finally:
        control.waits.release_on_behalf_of(token)


async def _wait(control: C, route: Route[C], call: Call) -> Any:
    """Returns the result of a wait, which ends with its client.

    Raises:
        ConflictError: the client has closed the connection.
    """
    results: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await call.until_gone()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        results.append(await route.handle(control, call))
        nursery.cancel_scope.cancel()
    if not results:
        raise ConflictError("the client has closed the connection")
    return results[0]


def _failure(failure: Exception, request: Request) -> Response:
    error = only_cause(failure)
    match error:
        case TimeoutError():
            return _problem(504, str(error))
        case _MediaTypeError():
            return _problem(415, str(error))
        case ValueError():
            return _problem(400, str(error))
        case TooManyError():
            return _problem(429, str(error))
        case NotFoundError():
            return _problem(404, str(error))
        case ConflictError() | CannotReplaceError():
            return _problem(409, str(error))
        case KafkaError():
            status = 404 if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else 409
            return _problem(status, str(error), error.code.name)
    log_once(error, "A request of the control port failed", method=request.method, path=request.path[:100])
    return _problem(500, "the request failed; the log of the broker says why")


def _problem(status: int, text: str, kafka_error: str | None = None) -> Response:
    return Response.of_json(status, Problem(text, kafka_error))
