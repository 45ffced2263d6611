"""Properties of every version of every message that brokers and clients exchange; nothing here names an API."""

import struct
import tracemalloc
import typing
from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any

import pytest

import wirekafka.api  # noqa: F401 (fills the registry)
from wirekafka.api.registry import all_apis
from wirekafka.errors import ProtocolError
from wirekafka.tests.wire.request_types import all_request_types
from wirekafka.wire.codec import Field, decode, encode, fields_of
from wirekafka.wire.types import Bytes, Message, tag

SERVED_APIS = all_apis()

CASES = [
    pytest.param(message, version, api.is_flexible(version), id=f"{message.__name__}-{version}")
    for api in SERVED_APIS
    for message in (api.request, api.response)
    for version in api.versions
]
FLEXIBLE_CASES = [case for case in CASES if case.values[2]]
every_version = pytest.mark.parametrize(("cls", "version", "flexible"), CASES)
every_flexible_version = pytest.mark.parametrize(("cls", "version", "flexible"), FLEXIBLE_CASES)


def full_message(cls: type[Message], version: int, flexible: bool) -> Any:
    """Makes a message whose fields all differ from their defaults."""
    return _message(cls, version, flexible, count(1))


def _message(cls: type[Message], version: int, flexible: bool, numbers: Iterator[int]) -> Any:
    message = cls()
    for field in fields_of(cls, version, flexible):
        setattr(message, field.name, _value(field, version, flexible, numbers))
    return message


def _value(field: Field, version: int, flexible: bool, numbers: Iterator[int]) -> Any:
    number = next(numbers)
    if field.struct is not None:
        return _message(field.struct, version, flexible, numbers)
    if field.element is not None:
        return [_value(field.element, version, flexible, numbers) for _ in range(2)]
    assert field.wire is not None
    match field.wire.name:
        case "bool":
            return not field.default
        case "string":
            return f"ü{number}"
        case "bytes" | "records":
            return b"\xff\0" * (number % 100)
        case "uuid":
            return number.to_bytes(16, "big")
        case "float64":
            return number / 8
        case "uint16" | "uint32":
            return number
    return -number if field.wire.name == "int64" else number % 128 or 1


def null_message(cls: type[Message], version: int, flexible: bool) -> Any:
    """Makes a full message with null in every field that may be null."""
    message = full_message(cls, version, flexible)
    for field in fields_of(cls, version, flexible):
        if field.can_be_null:
            setattr(message, field.name, None)
        elif field.element is not None and field.element.struct is not None:
            setattr(message, field.name, [null_message(field.element.struct, version, flexible)])
    return message


@every_version
def test_message_with_every_field_set_survives_the_wire(cls: type[Message], version: int, flexible: bool) -> None:
    message = full_message(cls, version, flexible)
    assert decode(cls, version, flexible, memoryview(encode(message, version, flexible))) == message


@every_version
def test_message_with_nulls_survives_the_wire(cls: type[Message], version: int, flexible: bool) -> None:
    message = null_message(cls, version, flexible)
    assert decode(cls, version, flexible, memoryview(encode(message, version, flexible))) == message


@every_version
def test_message_cut_anywhere_is_refused(cls: type[Message], version: int, flexible: bool) -> None:
    whole = encode(full_message(cls, version, flexible), version, flexible)
    for cut in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode(cls, version, flexible, memoryview(whole)[:cut])


@every_version
def test_message_with_bytes_behind_it_is_refused(cls: type[Message], version: int, flexible: bool) -> None:
    whole = encode(full_message(cls, version, flexible), version, flexible)
    with pytest.raises(ProtocolError, match="too many"):
        decode(cls, version, flexible, whole + b"\0")


def in_the_future(cls: type[Message]) -> type[Message]:
    """Returns the message as a later release might declare it: with one more tagged field, in every inner structure too."""
    hints = {
        name: _in_the_future(hint)
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        if name in cls.field_defaults
    }
    hints["from_the_future"] = Annotated[Bytes, tag(9_999, since=0)]
    namespace = {"__annotations__": hints, "__module__": __name__, **cls.field_defaults, "from_the_future": b""}
    declare: Any = type(Message)
    return declare(cls.__name__, (Message,), namespace)


def _in_the_future(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        return Annotated[(_in_the_future(hint.__origin__), *hint.__metadata__)]
    if typing.get_origin(hint) is list:
        return list[_in_the_future(typing.get_args(hint)[0])]
    if type(None) in typing.get_args(hint):
        return typing.Optional[_in_the_future(typing.get_args(hint)[0])]  # noqa: UP045
    return in_the_future(hint) if isinstance(hint, type) and issubclass(hint, Message) else hint


def without_the_future(message: Any, cls: type[Message], version: int, flexible: bool) -> Any:
    """Returns the message that today's reader decodes from bytes of such a later release."""
    known = cls()
    for field in fields_of(cls, version, flexible):
        value = getattr(message, field.name)
        inner = field.struct or (field.element.struct if field.element else None)
        if inner is not None and isinstance(value, list):
            value = [without_the_future(item, inner, version, flexible) for item in value]
        elif inner is not None and value is not None:
            value = without_the_future(value, inner, version, flexible)
        setattr(known, field.name, value)
    return known


@every_flexible_version
def test_unknown_tagged_fields_are_skipped(cls: type[Message], version: int, flexible: bool) -> None:
    message = full_message(in_the_future(cls), version, flexible)
    decoded = decode(cls, version, flexible, memoryview(encode(message, version, flexible)))
    assert decoded == without_the_future(message, cls, version, flexible)


@every_version
def test_huge_lengths_are_refused_without_taking_memory(cls: type[Message], version: int, flexible: bool) -> None:
    """If a field has a huge length, memory stays in proportion to the message."""
    whole = encode(full_message(cls, version, flexible), version, flexible)
    huge = b"\xff\xff\xff\xff\x07" if flexible else struct.pack(">i", 0x7FFFFFFF)
    tracemalloc.start()
    try:
        for pos in range(len(whole)):
            hostile = memoryview(whole[:pos] + huge + whole[pos + len(huge) :])
            try:
                decode(cls, version, flexible, hostile)
            except ProtocolError:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_messages_under_test_are_those_of_the_registry_and_of_brokers() -> None:
    assert {sent.key for sent in all_request_types()} < {api.key for api in SERVED_APIS}
    assert len(CASES) == sum(2 * len(api.versions) for api in SERVED_APIS)
