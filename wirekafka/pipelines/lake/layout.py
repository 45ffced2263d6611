"""The names of files and directories in a lake, and the columns of its tables.

    LAKE/topic=T/                            the table of a topic: Parquet files, or a Delta table
        date=D/part-*.parquet                the records of one UTC date
    LAKE/_wirekafka/
        description/NUMBER.json              what the lake holds; the highest number counts
        checkpoint/                          Spark's progress of the query that fills the lake
        staging/WRITER.NUMBER.ID/            attempts at commits, see `commits`
        ends/QUERY.NUMBER.json               where the last batch of the query ends
        plans/QUERY.NUMBER.json              how the values of the last batch are decoded
        batches/QUERY/NUMBER.json            the last batch of the query that was written (Parquet)
        compactions/NUMBER.json              the last compaction (Parquet)

Spark, Hive and pyarrow pass over names that begin with `_`, so a reader of LAKE sees the records alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PRIVATE = "_wirekafka"
DESCRIPTIONS = f"{PRIVATE}/description"
CHECKPOINT = f"{PRIVATE}/checkpoint"
STAGING = f"{PRIVATE}/staging"
ENDS = f"{PRIVATE}/ends"
PLANS = f"{PRIVATE}/plans"
BATCHES = f"{PRIVATE}/batches"
COMPACTIONS = f"{PRIVATE}/compactions"

TOPIC_PREFIX = "topic="
HEADERS_TYPE = "array<struct<key:string,value:binary>>"

UTC_DATE = "date_from_unix_date(cast(floor(unix_seconds(timestamp) / 86400) AS int))"
"""The SQL expression of the column `date`; the time zone of the session does not change it."""


def table_directory(topic: str) -> str:
    """Returns the directory of a topic's table."""
    return f"{TOPIC_PREFIX}{topic}"


def columns(value: StructType | None, *, has_value_bytes: bool) -> StructType:
    """Returns the columns of a table; `value` is the type of the column of that name, None for bytes."""
    from pyspark.sql.types import BinaryType, StructType

    parsed = BinaryType() if value is None else value
    names = "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type string, key binary"
    table = StructType.fromDDL(f"{names}, headers {HEADERS_TYPE}").add("value", parsed)
    if has_value_bytes:
        table = table.add("value_bytes", BinaryType())
    return table.add("date", "date")
