"""Schemas from a registry over HTTP and from a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.ingest import schema_registry
from wirekafka.pipelines.ingest.schema_registry import UnknownSchemaError, open_registry

ANSWERS: dict[str, tuple[int, object]] = {
    "/api/schemas/ids/1": (200, {"schema": '"string"'}),
    "/api/schemas/ids/2": (200, {"schema": "x", "schemaType": "JSON"}),
    "/api/schemas/ids/3": (200, {"schema": "x", "references": [{"name": "y"}]}),
    "/api/schemas/ids/4": (200, []),
    "/api/schemas/ids/5": (503, {}),
    "/api/schemas/ids/7": (429, {}),
    "/api/schemas/ids/6": (200, {"schema": "x" * 10_000_000}),
    "/api/schemas/ids/9": (404, {"error_code": 40403}),
}


class Handler(BaseHTTPRequestHandler):
    requests: list[tuple[str, str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:  # noqa: N802
        self.requests.append((self.path, self.headers["Authorization"]))
        if "odd" in self.path:
            self.answer_oddly()
            return
        status, answer = ANSWERS.get(self.path, (404, {"error_code": 404}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def answer_oddly(self) -> None:
        """Sends a redirection to itself, JSON of many levels, no JSON, or an answer that never ends."""
        number = int(self.path.rpartition("/")[2])
        self.send_response(302 if number == 0 else 200)
        self.send_header("Location", f"http://{self.headers['Host']}/api/schemas/ids/1?token=t")
        self.end_headers()
        with suppress(OSError):  # the client has closed the connection
            self.wfile.write((b"", b'{"a":' * 100_000, b"<html>", b"")[number])
            while number == 3:
                self.wfile.write(b" ")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Returns the address of a registry that runs; requests are repeated at once."""
    monkeypatch.setattr(schema_registry, "RETRY_DELAY_S", 0.0)
    Handler.requests.clear()
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_schema_from_a_url_with_a_user_is_asked_for_once_with_the_user(address: str) -> None:
    registry = open_registry(f"http://me:p%3Aw@{address}/api/")
    assert [registry.schema(1), registry.schema(1)] == ['"string"'] * 2
    assert Handler.requests == [("/api/schemas/ids/1", "Basic bWU6cDp3")]


@pytest.mark.parametrize(("schema_id", "words"), [(2, "of type JSON"), (3, "refers to other"), (9, "no schema with id 9")])
def test_schema_that_is_no_avro_schema_is_unknown(address: str, schema_id: int, words: str) -> None:
    with pytest.raises(UnknownSchemaError, match=words):
        open_registry(f"http://{address}/api").schema(schema_id)


@pytest.mark.parametrize(("schema_id", "status"), [(5, 503), (7, 429)])
def test_schema_from_a_registry_that_fails_is_asked_for_again_and_then_an_error_without_the_password(
    address: str, schema_id: int, status: int
) -> None:
    with pytest.raises(UnreachableError, match=rf"http://{address}/api does not answer: {status}") as error:
        open_registry(f"http://me:secret@{address}/api").schema(schema_id)
    assert len(Handler.requests) == schema_registry.ATTEMPTS
    assert "secret" not in str(error.value)


def test_schema_from_an_answer_that_is_no_object_is_an_error(address: str) -> None:
    with pytest.raises(PipelineError, match="does not answer"):
        open_registry(f"http://{address}/api").schema(4)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("odd/0", r"302 Found \(redirected to http://127.0.0.1:\d+/api/schemas/ids/1\): check its URL"),
        ("odd/1", "no JSON"),
        ("odd/2", "no JSON"),
        ("api/6", "more than 8 MiB"),
    ],
)
def test_schema_from_an_odd_answer_is_an_error_at_once(address: str, path: str, words: str) -> None:
    place, _, number = path.partition("/")
    with pytest.raises(PipelineError, match=words) as error:
        open_registry(f"http://me:secret@{address}/{place}").schema(int(number))
    assert not isinstance(error.value, UnreachableError)
    assert len(Handler.requests) == 1


def test_schema_from_a_registry_whose_answer_has_no_end_is_unreachable(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(schema_registry, "MAX_ANSWER_BYTES", 1 << 40)
    monkeypatch.setattr(schema_registry, "ATTEMPTS", 1)
    with pytest.raises(UnreachableError, match=r"takes more than 0.3 s"):
        open_registry(f"http://{address}/odd").schema(3)


def test_schema_from_a_url_without_a_registry_is_an_error_and_no_unknown_schema(address: str) -> None:
    with pytest.raises(PipelineError, match="does not answer: 404"):
        open_registry(f"http://{address}/wrong").schema(1)


def test_schema_from_a_place_where_nobody_listens_is_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "REQUEST_TIMEOUT_S", 5.0)
    with pytest.raises(PipelineError, match="does not answer"):
        open_registry("http://127.0.0.1:1").schema(1)


def test_schema_from_a_directory_is_the_file_of_its_id(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text('"int"')
    assert open_registry(str(tmp_path)).schema(7) == '"int"'
    with pytest.raises(UnknownSchemaError, match="has no 8.avsc"):
        open_registry(str(tmp_path)).schema(8)


def test_open_registry_at_a_place_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no URL .* and no directory"):
        open_registry(str(tmp_path / "absent"))
