"""The declarations of messages, compared with Kafka's own.

Kafka's JSON files, which kafka-python contains, define each version of each message from the oldest that Kafka 4 serves. kio's
codecs, generated from the same files by an independent project, must decode the bytes. Older versions are compared with
kafka-python's classes for them.
"""

import importlib.util
import io
import json
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from pkgutil import iter_modules
from typing import Any, cast

import kafka.protocol.old
import kio.serial
import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

import wirekafka.api  # noqa: F401 (fills the registry)
from wirekafka.api.registry import all_apis
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.test_messages import CASES, full_message
from wirekafka.wire.codec import Field, encode, fields_of
from wirekafka.wire.types import Message

FOREVER = 1 << 15
OLD_MODULES = [
    importlib.import_module(f"kafka.protocol.old.{module.name}") for module in iter_modules(kafka.protocol.old.__path__)
]

WRONG_THERE = {"DescribeLogDirsRequest_v0"}
"""kafka-python declares one partition where Kafka has an array of partitions."""


REMOVED_IN_KAFKA_4 = ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition")
"""Messages that only the brokers of clusters with ZooKeeper exchange; compat_tests compares them with Kafka 3.9's own classes."""


def snake(name: str) -> str:
    """Converts Kafka's name of a field to the name in this code base."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def within(versions: str | None, version: int) -> bool:
    """Returns whether Kafka's range `0+`, `3-9`, `2` or `none` contains the version."""
    if versions in (None, "none", ""):
        return False
    first, _, last = versions.replace("+", f"-{FOREVER}").partition("-")
    return int(first) <= version <= int(last or first)


@cache
def kafka_schema(name: str) -> Any:
    """Returns Kafka's JSON of a message; None for messages that kafka-python does not have."""
    file = resources.files("kafka.protocol.schemas") / "resources" / f"{name}.json"
    return json.loads(re.sub(r"(?m)//.*$", "", file.read_text())) if file.is_file() else None


def kafka_shape(fields: list[Any], structs: dict[str, Any], version: int) -> list[Any]:
    """Returns the fields of a version by Kafka's JSON: name, type, nullability, tag and inner fields; tagged fields last."""
    shape = []
    for field in fields:
        if not within(field["versions"], version):
            continue
        kind = field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(kind)
        shape.append(
            (
                field["tag"] if within(field.get("taggedVersions"), version) else None,
                snake(field["name"]),
                "[]" * field["type"].startswith("[]") + ("struct" if inner else kind),
                within(field.get("nullableVersions"), version),
                kafka_shape(inner, structs, version) if inner else [],
            )
        )
    return [f for f in shape if f[0] is None] + sorted((f for f in shape if f[0] is not None), key=lambda f: f[0] or 0)


def our_shape(cls: type[Message], version: int, flexible: bool) -> list[Any]:
    shape = []
    for field in fields_of(cls, version, flexible):
        element = field.element or field
        kind = "struct" if element.struct else element.wire.name if element.wire else None
        inner = our_shape(element.struct, version, flexible) if element.struct else []
        shape.append((field.tag, field.name, "[]" * (field.element is not None) + str(kind), field.can_be_null, inner))
    return [f for f in shape if f[0] is None] + sorted((f for f in shape if f[0] is not None), key=lambda f: f[0] or 0)


def versions_where(is_known: Callable[[type[Message], int, bool], bool]) -> pytest.MarkDecorator:
    """The versions of messages that another implementation has."""
    return pytest.mark.parametrize(
        ("cls", "version", "flexible"), [case for case in CASES if is_known(*cast("tuple[Any, ...]", case.values))]
    )


def is_in_kafka_4(cls: type[Message], version: int, flexible: bool) -> bool:
    schema = kafka_schema(cls.__name__)
    return schema is not None and within(schema["validVersions"], version)


@versions_where(is_in_kafka_4)
def test_fields_are_kafkas(cls: type[Message], version: int, flexible: bool) -> None:
    schema = kafka_schema(cls.__name__)
    assert within(schema["flexibleVersions"], version) == flexible
    structs = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    assert our_shape(cls, version, flexible) == kafka_shape(schema["fields"], structs, version)


DEFAULT_OF_TYPE = {"string": "", "bool": "false", "bytes": "", "uuid": ""}


def kafka_default(field: dict[str, Any]) -> Any:
    kind = field["type"]
    text = str(field.get("default", DEFAULT_OF_TYPE.get(kind, "0")))
    if text == "null":
        return None
    if kind == "string":
        return text
    if kind == "bool":
        return text == "true"
    return int(text, 0)


@pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)
def test_defaults_are_kafkas(api: Any) -> None:
    for cls in (api.request, api.response):
        schema = kafka_schema(cls.__name__)
        if schema is None:
            continue
        structs = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
        wrong: list[str] = []
        compare_defaults(cls, schema["fields"], structs, api, wrong)
        assert not wrong


def compare_defaults(cls: type[Message], fields: list[Any], structs: dict[str, Any], api: Any, wrong: list[str]) -> None:
    newest = api.versions[-1]
    inner_of: dict[str, Field] = {}
    for version in api.versions:
        inner_of |= {field.name: field for field in fields_of(cls, version, api.is_flexible(version))}
    for field in fields:
        name = snake(field["name"])
        if name not in inner_of:
            continue
        nested = (inner_of[name].element or inner_of[name]).struct
        if nested is not None:
            compare_defaults(nested, field.get("fields") or structs[field["type"].removeprefix("[]")], structs, api, wrong)
        elif field["type"] in ("string", "bool", "int8", "int16", "int32", "int64", "uint16", "uint32"):
            default = cls.field_defaults[name]
            if default != kafka_default(field) and within(field["versions"], newest):
                wrong.append(f"{cls.__name__}.{name}: {default!r}, Kafka has {kafka_default(field)!r}")


def kio_module(cls: type[Message], version: int) -> str:
    package, part = re.fullmatch(r"(.+)_(request|response)", snake(cls.__name__)).groups()  # type: ignore[union-attr]
    return f"kio.schema.{package}.v{version}.{part}"


def is_in_kio(cls: type[Message], version: int, flexible: bool) -> bool:
    try:
        return importlib.util.find_spec(kio_module(cls, version)) is not None
    except ModuleNotFoundError:
        return False


@versions_where(is_in_kio)
def test_kio_reads_and_writes_the_same_bytes(cls: type[Message], version: int, flexible: bool) -> None:
    theirs = getattr(importlib.import_module(kio_module(cls, version)), cls.__name__)
    message = full_message(cls, version, flexible)
    make_plausible(message)
    ours = encode(message, version, flexible)
    decoded, size = kio.serial.entity_reader(theirs)(ours, 0)
    assert size == len(ours)
    out = io.BytesIO()
    kio.serial.entity_writer(theirs)(out, decoded)
    assert out.getvalue() == ours


def make_plausible(message: Any) -> None:
    """The types of kio are narrower than the protocol: error codes must exist, times and durations must not be negative."""
    for name in message.field_defaults:
        value = getattr(message, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                make_plausible(inner)
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(message, name, abs(value))


def old_class(cls: type[Message], version: int) -> Any:
    name = f"{cls.__name__}_v{version}"
    return next((getattr(module, name) for module in OLD_MODULES if hasattr(module, name) and name not in WRONG_THERE), None)


def is_in_old_kafka_python(cls: type[Message], version: int, flexible: bool) -> bool:
    return not flexible and old_class(cls, version) is not None


@versions_where(is_in_old_kafka_python)
def test_old_kafka_python_reads_and_writes_the_same_bytes(cls: type[Message], version: int, flexible: bool) -> None:
    message = full_message(cls, version, flexible)
    if cls.__name__ == "ApiVersionsResponse":
        message.error_code = 0  # with an error, the clients read it as version 0 (KIP-511)
    ours = encode(message, version, flexible)
    assert old_class(cls, version).decode(io.BytesIO(ours)).encode() == ours


def test_every_version_is_known_to_somebody() -> None:
    somebody = (is_in_kafka_4, is_in_kio, is_in_old_kafka_python)
    unknown = [case.id for case in CASES if not any(knows(*cast("tuple[Any, ...]", case.values)) for knows in somebody)]
    same_as_version_1 = ["AlterReplicaLogDirsRequest-0", "AlterReplicaLogDirsResponse-0", "DescribeLogDirsRequest-0"]
    version_1_is_the_same_but_flexible = ["WriteTxnMarkersRequest-0", "WriteTxnMarkersResponse-0"]
    served = [case for case in unknown if not str(case).startswith(REMOVED_IN_KAFKA_4)]
    assert served == version_1_is_the_same_but_flexible + same_as_version_1


def test_error_codes_are_kios() -> None:
    assert {error.name.upper(): error.value for error in KioErrorCode} == {error.name: error.value for error in ErrorCode}
