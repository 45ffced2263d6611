"""Responses that refuse a request, for any API, made from the fields of its messages.

How it works: the arrays of a response mirror those of its request: `topic_data` and `responses` of Produce have the same topics,
and these have the same partitions. An element of the request gives its name or number to the element of the response that
refuses it. A request can be split by topic and partition: one part is refused, the other is handled, and the two responses
become one.

Rules of this file: pure.

Source: org.apache.kafka.common.requests, getErrorResponse of each request, and FetchResponse.partitionResponse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wirekafka.wire.codec import Field, fields_of
from wirekafka.wire.types import Message

_SAME = ({"name", "topic", "topic_name", "group_id", "key", "resource_name"}, {"index", "partition", "partition_index"})
"""The names that a field of the same meaning has in requests and responses."""
_NAMES, _INDEXES = _SAME
_CODES = ("error_code", "partition_error_code")
_UNKNOWN = frozenset(
    {
        "base_offset",
        "committed_offset",
        "end_offset",
        "high_watermark",
        "leader_epoch",
        "log_start_offset",
        "low_watermark",
        "node_id",
        "num_partitions",
        "offset",
        "port",
        "producer_epoch",
        "replication_factor",
        "timestamp",
    }
)
"""The fields that are -1 beside an error code. A request may have fields with these names, in which the client says its own."""
_KEYS = (*sorted(_NAMES), "topic_id")

Matches = Callable[[Any, int | None], bool]
"""Whether a topic, by its element of the request, and a partition are refused; the index is None for a whole topic."""


def refusal_of(request: Message, response: type[Message], code: int, version: int, *, is_flexible: bool) -> Message | None:
    """Returns the response that answers all elements of a request with an error code; None if it has no field for it."""
    made = response()
    return made if _refuse(request, made, code, version, is_flexible) else None


def has_elements(response: Message) -> bool:
    """Whether any array of a response has an element, which has an error of its own in a refusal."""
    return any(isinstance(getattr(response, name), list) and getattr(response, name) for name in type(response).field_defaults)


def _refuse(request: Any, response: Any, code: int, version: int, is_flexible: bool) -> bool:
    """Sets the error code wherever a part of the response has one; returns whether any has."""
    fields = _fields_of(response, version, is_flexible)
    can_say = False
    for name in _CODES:
        if name in fields:
            setattr(response, name, code)
            can_say = True
    for name in _UNKNOWN & fields.keys():
        setattr(response, name, -1)
    if "records" in fields:
        # As in Apache Kafka. librdkafka takes null records for a broken response.
        response.records = b""
    for field in fields.values():
        element = field.element.struct if field.element is not None else None
        if element is None or not _has_code(element, version, is_flexible):
            continue
        can_say = True
        for asked in _elements_for(request, field, version, is_flexible):
            made = element()
            _name_after(asked, made)
            _refuse(asked, made, code, version, is_flexible)
            getattr(response, field.name).append(made)
    return can_say


def _fields_of(message: Message, version: int, is_flexible: bool) -> dict[str, Field]:
    return {field.name: field for field in fields_of(type(message), version, is_flexible)}


def _has_code(struct: type[Message], version: int, is_flexible: bool) -> bool:
    return any(
        field.name in _CODES
        or (field.element is not None and field.element.struct and _has_code(field.element.struct, version, is_flexible))
        for field in fields_of(struct, version, is_flexible)
    )


def _elements_for(request: Any, answering: Field, version: int, is_flexible: bool) -> list[Any]:
    """Returns the elements of the request to which the elements of an array of the response belong."""
    if not isinstance(request, Message):
        return []
    arrays = [field.name for field in fields_of(type(request), version, is_flexible) if field.element is not None]
    if not arrays:
        return []
    return getattr(request, answering.name if answering.name in arrays else arrays[0]) or []


def _name_after(asked: Any, made: Any) -> None:
    """Gives an element of a response the name or the number of its element of the request."""
    own = type(made).field_defaults
    if not isinstance(asked, Message):
        name = next((each for each in own if each in (_NAMES if isinstance(asked, str) else _INDEXES)), None)
        if name is not None:
            setattr(made, name, asked)
        return
    for name in type(asked).field_defaults:
        value = getattr(asked, name)
        if isinstance(value, (list, Message, memoryview)):
            continue
        if name in own:
            setattr(made, name, value)
        for names in _SAME:
            if name in names:
                for other in names & own.keys():
                    setattr(made, other, value)


# Parts of a request


def split(request: Message, version: int, matches: Matches, *, is_flexible: bool) -> tuple[Message | None, Message | None]:
    """Returns the part of a request that is refused, and the part that is handled; None for an empty part."""
    name = next((field.name for field in fields_of(type(request), version, is_flexible) if field.element is not None), None)
    refused: list[Any] = []
    handled: list[Any] = []
    for element in (getattr(request, name) or []) if name is not None else []:
        first, second = _split_topic(element, version, matches, is_flexible)
        refused += [] if first is None else [first]
        handled += [] if second is None else [second]
    if name is None or not refused:
        return None, request
    return _with(request, name, refused), _with(request, name, handled) if handled else None


def _split_topic(topic: Any, version: int, matches: Matches, is_flexible: bool) -> tuple[Any, Any]:
    if not isinstance(topic, Message):
        return (topic, None) if matches(topic, None) else (None, topic)
    arrays = [field.name for field in fields_of(type(topic), version, is_flexible) if field.element is not None]
    if not arrays or not matches(topic, None):
        return (topic, None) if matches(topic, None) else (None, topic)
    elements = getattr(topic, arrays[0]) or []
    refused = [each for each in elements if matches(topic, _index_of(each))]
    handled = [each for each in elements if not matches(topic, _index_of(each))]
    return (
        _with(topic, arrays[0], refused) if refused or not elements else None,
        _with(topic, arrays[0], handled) if handled else None,
    )


def _index_of(element: Any) -> int | None:
    if isinstance(element, int):
        return element
    return next((getattr(element, name) for name in type(element).field_defaults if name in _INDEXES), None)


def _with(message: Message, name: str, value: list[Any]) -> Any:
    made = type(message)()
    for each in type(message).field_defaults:
        setattr(made, each, value if each == name else getattr(message, each))
    return made


def merge(handled: Any, refused: Any) -> Any:
    """Adds the elements of the response that refuses one part to the response of the other part, and returns this one."""
    for name in type(handled).field_defaults:
        more = getattr(refused, name)
        if not isinstance(more, list) or not more or not isinstance(more[0], Message):
            continue
        found = {_key_of(each): each for each in getattr(handled, name)}
        for element in more:
            same = found.get(_key_of(element))
            if same is None or _index_of(element) is not None:
                getattr(handled, name).append(element)
            else:
                merge(same, element)
    return handled


def _key_of(element: Any) -> tuple[Any, ...]:
    return tuple(getattr(element, name) for name in _KEYS if name in type(element).field_defaults)
