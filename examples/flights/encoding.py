"""Encodes records for Kafka: as JSON, as bare Avro, or as Avro with Confluent's framing.

Source (framing): https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from examples.flights.schemas import schema

Encoder = Callable[[dict[str, Any]], bytes]


class Format(StrEnum):
    """How the values of the records are encoded."""

    JSON = "json"
    AVRO = "avro"
    CONFLUENT_AVRO = "confluent-avro"


def encoder(record_format: Format, schema_id: int) -> Encoder:
    """Returns the function that encodes records of one schema."""
    if record_format is Format.JSON:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        return lambda record: encode(record).encode()
    prefix = framing(schema_id) if record_format is Format.CONFLUENT_AVRO else b""
    return _avro_encoder(schema_id, prefix)


def framing(schema_id: int) -> bytes:
    """Returns the five bytes before a record of Avro: the magic byte 0 and the id of the schema, big-endian."""
    return b"\0" + schema_id.to_bytes(4, "big")


def _avro_encoder(schema_id: int, prefix: bytes) -> Encoder:
    import fastavro

    parsed = fastavro.parse_schema(schema(schema_id))

    def encode(record: dict[str, Any]) -> bytes:
        buffer = io.BytesIO(prefix)
        buffer.seek(len(prefix))
        fastavro.schemaless_writer(buffer, parsed, record)
        return buffer.getvalue()

    return encode
