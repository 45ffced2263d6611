"""A request and a response of HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import trio

MOST_PARAMETERS = 50

STATUS = {
    200: "OK",
    201: "Created",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
"""The reasons of the statuses that the broker sends."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was received as a whole.

    Attributes:
        method: such as GET.
        target: the path and the query, as the client has sent them.
        headers: by names in lower case.
        body: empty without one.
        until_gone: returns once the client has closed the connection.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    until_gone: Callable[[], Awaitable[None]] = trio.sleep_forever

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path between slashes, decoded; a part may have a slash then."""
        return tuple(unquote(part) for part in self.path.split("/")[1:])

    def query(self) -> dict[str, str]:
        """Returns the parameters of the target; of a repeated one, the last.

        Raises:
            ValueError: there are too many.
        """
        found = parse_qsl(self.target.partition("?")[2], keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
        return dict(found)


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    Attributes:
        status: one of `STATUS`.
        body: is not sent to HEAD.
        content_type: of the body.
    """

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    @classmethod
    def of_text(cls, status: int, text: str) -> Response:
        """Returns a response for people."""
        return cls(status, text.encode())

    @classmethod
    def of_json(cls, status: int, value: object) -> Response:
        """Returns a response for programs. A dataclass becomes an object with its fields."""
        text = json.dumps(value, separators=(",", ":"), default=_fields_of)
        return cls(status, text.encode() + b"\n", "application/json")


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass. `dataclasses.asdict` would copy all that they hold, which takes longer than the JSON."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


Answer = Callable[[Request], Awaitable[Response]]
"""Answers a request. An exception is logged, and answered with 500."""
