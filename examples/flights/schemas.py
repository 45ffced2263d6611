"""The schemas of the records, one file for each schema id, as Avro and as Spark see them.

1 FlightEvent    2 Weather    3 Plane    4 Airport
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "avro"

EVENT_ID, WEATHER_ID, PLANE_ID, AIRPORT_ID = 1, 2, 3, 4

SPARK_TYPES = {"string": "STRING", "long": "BIGINT", "int": "INT", "double": "DOUBLE"}


@cache
def schema_text(schema_id: int) -> str:
    """Returns the Avro schema as JSON."""
    return (DIRECTORY / f"{schema_id}.avsc").read_text()


@cache
def schema(schema_id: int) -> dict[str, Any]:
    """Returns the Avro schema as a dict."""
    found: dict[str, Any] = json.loads(schema_text(schema_id))
    return found


def field_names(schema_id: int) -> list[str]:
    """Returns the names of the fields in their order."""
    return [field["name"] for field in schema(schema_id)["fields"]]


def spark_columns(schema_id: int) -> str:
    """Returns the same schema as columns of Spark."""
    return ", ".join(f"{field['name']} {SPARK_TYPES[_type_of(field)]}" for field in schema(schema_id)["fields"])


def _type_of(field: dict[str, Any]) -> str:
    """Returns the type of a field; of a field that may be null, the other type."""
    declared = field["type"]
    return declared if isinstance(declared, str) else declared[1]


def required_names(schema_id: int) -> list[str]:
    """Returns the names of the fields that are never null."""
    return [field["name"] for field in schema(schema_id)["fields"] if isinstance(field["type"], str)]
