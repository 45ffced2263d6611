"""Schemas that a user gives in files: of Spark for JSON, of Avro for Avro."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from wirekafka.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def read_spark_schema(path: Path) -> StructType:
    """Returns the schema of a file: fields in Spark's DDL (`id BIGINT, name STRING`), or the JSON of a StructType.

    A SparkSession must run.

    Raises:
        PipelineError: the file cannot be read, or is no schema.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from wirekafka.pipelines.ingest.schema_changes import all_nullable

    text = read_text(path)
    try:
        given = StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        what = _first_line(str(error))
        raise PipelineError(
            f"the schema file {path} is no schema of Spark: {what} (write fields such as `id BIGINT, name STRING`, or what"
            " `schema.json()` of a DataFrame returns)"
        ) from None
    if not isinstance(given, StructType) or not given.fields:
        raise PipelineError(f"the schema file {path} has no fields: write fields such as `id BIGINT, name STRING`")
    return all_nullable(given)


def read_avro_schema(spark: SparkSession, path: Path) -> str:
    """Returns the text of a file with an Avro schema.

    Raises:
        PipelineError: the file cannot be read, or is no schema of a record.
    """
    text = read_text(path)
    try:
        avro_struct(spark, text)
    except ValueError as error:
        raise PipelineError(f"the schema file {path} is no Avro schema of a record: {error}") from None
    return text


END = bytes((0xE1, 0x5F, 0x0B, 0xA2, 0x96, 0x3C, 0x78, 0xD4))
"""The field `end` of an envelope. Its bytes all differ, so bytes of another length before it do not end with it by chance."""


def enveloped(schema: str) -> str:
    """Returns the Avro schema of a record of two fields: `v`, a record of a schema, and `end`, the bytes `END`.

    A record of the schema with `END` after it is a record of the envelope. If bytes are missing or are left over, then they do
    not parse, or `end` has other bytes. Spark's `from_avro` returns null for `v` if the bytes do not parse; without the envelope,
    it returns a struct whose fields are null, which a valid record can be too, and ignores bytes that are left over.

    Raises:
        ValueError: the schema is no JSON.

    Source: https://avro.apache.org/docs/1.12.0/specification/#complex-types-1 (a record is the concatenation of its fields)
    """
    end = {"type": "fixed", "name": "WirekafkaEnd", "size": len(END)}
    fields = [{"name": "v", "type": json.loads(schema)}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "WirekafkaEnvelope", "fields": fields})


def avro_struct(spark: SparkSession, schema: str) -> StructType:
    """Returns the struct that Spark makes of records of an Avro schema.

    Raises:
        ValueError: the text is no Avro schema of a record, or one of too many levels.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.types import StructType

    from wirekafka.pipelines.ingest.schema_changes import MAX_DEPTH, all_nullable, depth

    try:
        frame = spark.range(0).select(from_avro(functions.lit(b""), enveloped(schema), {"mode": "PERMISSIVE"}).alias("e"))
        found = frame.schema["e"].dataType["v"].dataType
        if depth(found) > MAX_DEPTH:
            raise RecursionError
    except RecursionError:
        raise ValueError(f"it has more than {MAX_DEPTH} levels") from None
    except Py4JJavaError as error:
        java_error = error.java_exception
        raise ValueError(_first_line(java_error.getMessage() or java_error.toString())) from None
    except (PySparkException, ValueError) as error:
        raise ValueError(_first_line(str(error))) from None
    if not isinstance(found, StructType):
        raise ValueError(f"it is of type {found.simpleString()}")
    return all_nullable(found)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def read_text(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        PipelineError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"cannot read the schema file {path}: {getattr(error, 'strerror', None) or error}") from None
