"""Keys, values and other bytes as printable text."""

from __future__ import annotations

import base64
from enum import Enum

from wirekafka.names import ZERO_TOPIC_ID, format_topic_id
from wirekafka.wire.types import Message


class BytesStyle(Enum):
    """How bytes are shown. TEXT escapes bytes that are not UTF-8; HEX and BASE64 lose nothing."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def show_bytes(data: bytes | None, style: BytesStyle) -> str | None:
    r"""Returns the bytes as text; None stays None. In `TEXT`, bytes that are not UTF-8 are written as `\xNN`."""
    if data is None:
        return None
    match style:
        case BytesStyle.TEXT:
            return data.decode("utf-8", errors="backslashreplace")
        case BytesStyle.HEX:
            return data.hex()
        case BytesStyle.BASE64:
            return base64.b64encode(data).decode("ascii")


def show_message(message: Message, style: BytesStyle) -> dict[str, object]:
    """Returns the fields of a message by name. A value of -1 becomes None if -1 is the default, because it means "none"."""
    shown = {}
    for name, default in message.field_defaults.items():
        value = getattr(message, name)
        shown[name] = None if value == default == -1 else _show_field(name, value, style)
    return shown


def _show_field(name: str, value: object, style: BytesStyle) -> object:
    match value:
        case Message():
            return show_message(value, style)
        case list():
            return [_show_field(name, item, style) for item in value]
        case bytes() if name.endswith("topic_id"):
            return None if value == ZERO_TOPIC_ID else format_topic_id(value)
        case bytes():
            return show_bytes(value, style)
        case _:
            return value
