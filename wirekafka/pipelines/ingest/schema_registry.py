"""Where the Avro schemas of framed records come from: Confluent's schema registry, or a directory.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html#get--schemas-ids-int-%20id
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.ingest.schema_files import read_text

REQUEST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 << 20
PIECE_BYTES = 64 << 10
ATTEMPTS = 3
RETRY_DELAY_S = 1.0
PASSING = frozenset({http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS})
"""Errors 4xx after which a later request may succeed. Source: is_retriable of confluent-kafka-python's client of the registry."""

SCHEMA_NOT_FOUND = 40403
"""The registry's own code in the answer 404 to an unknown id. Another 404 means that no registry is at the URL."""


class UnknownSchemaError(Exception):
    """No Avro schema has this id; the text says why."""


class SchemaRegistry(Protocol):
    """Finds schemas by their ids. The schema of an id never changes."""

    def schema(self, schema_id: int) -> str:
        """Returns the text of an Avro schema.

        Raises:
            UnknownSchemaError: the registry has no Avro schema with this id.
            PipelineError: the registry refuses the request, or is none.
            UnreachableError: the registry does not answer, or answers with an error of its own. It may do so later.
        """


def open_registry(place: str) -> SchemaRegistry:
    """Returns the registry at a URL, which asks for each schema once, or in a directory.

    Raises:
        PipelineError: the place is no URL of HTTP, and no directory.
    """
    if urllib.parse.urlsplit(place).scheme in ("http", "https"):
        return HttpRegistry(place)
    if not Path(place).is_dir():
        raise PipelineError(f"the schema registry {place} is no URL (http://HOST:PORT) and no directory")
    return SchemaDirectory(Path(place))


@dataclass(slots=True, frozen=True)
class SchemaDirectory:
    """A directory with a file ID.avsc for each schema."""

    directory: Path

    def schema(self, schema_id: int) -> str:
        """Returns the text of an Avro schema."""
        path = self.directory / f"{schema_id}.avsc"
        if not path.exists():
            raise UnknownSchemaError(f"the directory {self.directory} has no {path.name}")
        return read_text(path)


class HttpRegistry:
    """A schema registry at a URL, which may hold a user and a password: https://USER:PASSWORD@HOST:PORT/PATH."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._known: dict[int, str] = {}
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"

    def schema(self, schema_id: int) -> str:
        """Returns the text of an Avro schema."""
        if schema_id not in self._known:
            self._known[schema_id] = self._request_schema(schema_id)
        return self._known[schema_id]

    def _request_schema(self, schema_id: int) -> str:
        answer = self._get(f"{self.url}/schemas/ids/{schema_id}")
        if answer is None:
            raise UnknownSchemaError(f"the schema registry has no schema with id {schema_id}")
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise UnknownSchemaError(f"the schema with id {schema_id} is of type {answer['schemaType']}, not AVRO")
        if answer.get("references"):
            raise UnknownSchemaError(f"the schema with id {schema_id} refers to other schemas, which is not supported")
        return str(answer["schema"])

    def _get(self, url: str) -> dict[str, Any] | None:
        """Returns the answer to a request; None if there is no such thing."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                request = urllib.request.Request(url, headers=self._headers)
                with OPENER.open(request, timeout=REQUEST_TIMEOUT_S) as response:
                    return _with_schema(_loaded(response))
            except urllib.error.HTTPError as error:
                with error:
                    if _says_unknown(error):
                        return None
                failure = f"{error.code} {error.reason}{_redirection(error)}"
                if error.code < http.client.INTERNAL_SERVER_ERROR and error.code not in PASSING:
                    raise PipelineError(self._message(failure)) from None
            except (OSError, http.client.HTTPException) as error:
                failure = str(getattr(error, "reason", error))
            except ValueError as error:
                raise PipelineError(self._message(str(error))) from None
            if attempt < ATTEMPTS:
                time.sleep(RETRY_DELAY_S)
        raise UnreachableError(self._message(failure))

    def _message(self, failure: str) -> str:
        return f"the schema registry {self.url} does not answer: {failure}: check its URL, user and password"


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Takes a redirection as an error, because the request would carry the password to another host."""

    def redirect_request(self, *_: object) -> None:
        """Follows no redirection."""


OPENER = urllib.request.build_opener(_NoRedirection)


def _redirection(error: urllib.error.HTTPError) -> str:
    target = error.headers.get("Location")
    return f" (redirected to {urllib.parse.urlsplit(target)._replace(query='').geturl()[:200]})" if target else ""


def _loaded(response: Any) -> Any:
    """Returns the JSON of an answer, which is short and comes soon.

    Raises:
        TimeoutError: the answer takes too long.
        ValueError: it is too long, or no JSON.
    """
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    data = bytearray()
    while piece := response.read1(PIECE_BYTES):
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise ValueError(f"its answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"its answer takes more than {REQUEST_TIMEOUT_S:g} s")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its answer is no JSON: {error}") from None


def _with_schema(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict) or "schema" not in answer:
        raise ValueError("its answer holds no schema")
    return answer


def _says_unknown(error: urllib.error.HTTPError) -> bool:
    if error.code != http.client.NOT_FOUND:
        return False
    try:
        return bool(_loaded(error)["error_code"] == SCHEMA_NOT_FOUND)
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return False
