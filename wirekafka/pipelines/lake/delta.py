"""The tables of a lake as Delta tables, whose own log makes each batch and each compaction one transaction.

A batch is recognised by `txnAppId` and `txnVersion`: Delta stores both in the commit, and skips an append that it has.

Source: https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.compaction import CompactionResult
from wirekafka.pipelines.lake.session_settings import changed_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DeltaTables:
    """The Delta tables of a lake. Nothing is prepared or settled: Delta's log has no half transactions."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def prepare(self) -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing."""

    def write_batch(self, frames: Sequence[DataFrame], query_id: str, batch_id: int) -> None:
        """Adds records to each topic's table unless the batch was written there before."""
        from pyspark.sql import functions

        for frame in frames:
            for row in frame.select("topic").distinct().collect():
                self._append(frame.where(functions.col("topic") == row.topic), self._table(row.topic), query_id, batch_id)

    def read(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the newest version of a topic's table. A column that it lacks is null."""
        from pyspark.sql import functions

        found = self._spark.read.format("delta").load(self._table(topic))
        missing = [
            functions.lit(None).cast(field.dataType).alias(field.name) for field in schema if field.name not in found.columns
        ]
        return found.select("*", *missing).select(*schema.names)

    def snapshot(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the newest version of a topic's table."""
        return self.read(topic, schema)

    def compact(self, topic: str, schema: Callable[[], StructType], target_bytes: int) -> CompactionResult:
        """Merges small files by OPTIMIZE. The old files stay until the user runs VACUUM."""
        sizes = {f"spark.databricks.delta.optimize.{name}": str(target_bytes) for name in ("minFileSize", "maxFileSize")}
        with changed_settings(self._spark, sizes):
            metrics = self._sql(f"OPTIMIZE {_quoted_table(self._table(topic))}").first()["metrics"]
        return CompactionResult(metrics["numFilesRemoved"], metrics["numFilesAdded"])

    def _append(self, frame: DataFrame, table: str, query_id: str, batch_id: int) -> None:
        self._prepare_columns(table, frame.schema)
        writer = frame.write.format("delta").mode("append").partitionBy("date").option("mergeSchema", True)
        writer.option("txnAppId", query_id).option("txnVersion", batch_id).save(table)

    def _prepare_columns(self, table: str, schema: StructType) -> None:
        """Prepares a table for records of another schema.

        `mergeSchema` adds the new columns, but it does not widen int to double or decimal, or date to timestamp_ntz.

        Source: https://docs.delta.io/latest/delta-type-widening.html
        """
        if not self._is_table(table):
            return
        before = self._spark.read.format("delta").load(table).schema
        changes = list(changed_types(before, schema))
        properties = ["'delta.enableTypeWidening' = 'true'"] if changes else []
        if has_timestamp_ntz(schema) and not has_timestamp_ntz(before):
            properties.append("'delta.feature.timestampNtz' = 'supported'")
        if properties:
            self._sql(f"ALTER TABLE {_quoted_table(table)} SET TBLPROPERTIES ({', '.join(properties)})")
        for column, name in changes:
            self._sql(f"ALTER TABLE {_quoted_table(table)} ALTER COLUMN {column} TYPE {name}")

    def _is_table(self, table: str) -> bool:
        jvm: Any = self._spark._jvm
        return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(self._spark._jsparkSession, table))

    def _sql(self, statement: str) -> DataFrame:
        return self._spark.sql(statement)

    def _table(self, topic: str) -> str:
        return f"{self._path}/{layout.table_directory(topic)}"


def changed_types(before: Any, after: Any, column: str = "") -> Iterator[tuple[str, str]]:
    """Yields the columns and fields of both types whose own types differ, with the SQL name of the new type.

    Args:
        before: a type of Spark.
        after: the type that it becomes; structs, arrays and maps stay what they are.
        column: the name of the column or field of this type, quoted for SQL.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(before, StructType) and isinstance(after, StructType):
        for field in after.fields:
            if field.name in before.names:
                name = f"{column}.{_quoted(field.name)}" if column else _quoted(field.name)
                yield from changed_types(before[field.name].dataType, field.dataType, name)
    elif isinstance(before, ArrayType) and isinstance(after, ArrayType):
        yield from changed_types(before.elementType, after.elementType, f"{column}.element")
    elif isinstance(before, MapType) and isinstance(after, MapType):
        yield from changed_types(before.keyType, after.keyType, f"{column}.key")
        yield from changed_types(before.valueType, after.valueType, f"{column}.value")
    elif before != after:
        yield column, after.simpleString()


def has_timestamp_ntz(kind: Any) -> bool:
    """Whether a type of Spark is timestamp_ntz, or has such a field, element, key or value at any depth.

    Delta has this type as a table feature. A table whose first schema has the type has the feature.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampNTZType

    if isinstance(kind, StructType):
        return any(has_timestamp_ntz(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_timestamp_ntz(kind.elementType)
    if isinstance(kind, MapType):
        return has_timestamp_ntz(kind.keyType) or has_timestamp_ntz(kind.valueType)
    return isinstance(kind, TimestampNTZType)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _quoted_table(path: str) -> str:
    return f"delta.{_quoted(path)}"
