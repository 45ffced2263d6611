"""The messages that brokers exchange, read and written by the classes of Kafka 3.9, the last release with ZooKeeper."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from compat_tests.harness import jars
from wirekafka.tests.api.test_messages import full_message
from wirekafka.tests.wire.request_types import all_request_types
from wirekafka.wire.codec import encode, fields_of
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

LAST_VERSIONS = {"Fetch": 17, "ListOffsets": 9, "WriteTxnMarkers": 1}
"""The last versions of Kafka 3.9 where later releases have added some."""

OF_KAFKA_4 = ("ShareGroupState", "ShareGroupStateSummary")
"""The ends of the names of messages that Kafka 3.9 does not have in their final form."""


@dataclass
class Copied:
    """A message as Kafka has written it: its bytes and its fields."""

    data: bytes
    fields: Any


def cases() -> list[tuple[RequestType[Any, Any], type[Message], int]]:
    return [
        (sent, cls, version)
        for sent in all_request_types()
        if not sent.name.endswith(OF_KAFKA_4)
        for cls in (sent.request, sent.response)
        for version in sent.versions
        if version <= LAST_VERSIONS.get(sent.name, version)
    ]


def ours(sent: RequestType[Any, Any], cls: type[Message], version: int) -> bytes:
    flexible = sent.is_flexible(version)
    return encode(full_message(cls, version, flexible), version, flexible)


@pytest.fixture(scope="module")
def copies() -> dict[tuple[type[Message], int], Copied]:
    missing = jars.missing_program()
    if missing is not None:
        pytest.skip(missing)
    lines = [
        f"{sent.key} {'request' if cls is sent.request else 'response'} {version} {ours(sent, cls, version).hex()}"
        for sent, cls, version in cases()
    ]
    command = jars.java_command(jars.OLDER_KAFKA, "Messages", programs=("messages",))
    ended = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = [line.split(" ", 1) for line in ended.stdout.splitlines()]
    return {
        (cls, version): Copied(bytes.fromhex(data), json.loads(fields))
        for (_, cls, version), (data, fields) in zip(cases(), answers, strict=True)
    }


def json_name(name: str) -> str:
    """Converts a name in this code base to the name in Kafka's JSON."""
    first, *others = name.replace("is_kraft", "is_k_raft").split("_")
    return first + "".join(word.capitalize() for word in others)


def as_json(message: Any, version: int, flexible: bool) -> Any:
    """Returns the fields as Kafka's converters to JSON render them."""
    cls: type[Message] = type(message)
    return {
        json_name(field.name): rendered(getattr(message, field.name), version, flexible)
        for field in fields_of(cls, version, flexible)
        if not (field.wire is not None and field.wire.name == "records")
    }


def rendered(value: Any, version: int, flexible: bool) -> Any:
    match value:
        case Message():
            return as_json(value, version, flexible)
        case list():
            return [rendered(element, version, flexible) for element in value]
        case bytes():
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    return value


def without_records(fields: Any) -> Any:
    """Removes the sizes of records, which Kafka's JSON has in place of the records."""
    match fields:
        case dict():
            return {
                name: without_records(value) for name, value in fields.items() if name not in ("records", "recordsSizeInBytes")
            }
        case list():
            return [without_records(value) for value in fields]
    return fields


every_case = pytest.mark.parametrize(
    ("sent", "cls", "version"), [pytest.param(*case, id=f"{case[1].__name__}-{case[2]}") for case in cases()]
)


@pytest.mark.java
@every_case
def test_kafka_writes_the_same_bytes(
    copies: dict[tuple[type[Message], int], Copied], sent: RequestType[Any, Any], cls: type[Message], version: int
) -> None:
    assert copies[cls, version].data == ours(sent, cls, version)


@pytest.mark.java
@every_case
def test_kafka_reads_the_same_fields(
    copies: dict[tuple[type[Message], int], Copied], sent: RequestType[Any, Any], cls: type[Message], version: int
) -> None:
    flexible = sent.is_flexible(version)
    assert without_records(copies[cls, version].fields) == as_json(full_message(cls, version, flexible), version, flexible)
