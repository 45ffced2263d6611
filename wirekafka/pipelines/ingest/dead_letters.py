"""The dead letters of an ingest: records that do not fit, unchanged, with where they come from and why in their headers.

The headers have the names of Kafka Connect's with another first word. The records go through the transactional sink, which skips
what it has written before, so each dead letter is in the topic once.

Source: KIP-298, and https://kafka.apache.org/documentation/#connect_dlq
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOPIC_HEADER = "__wirekafka.errors.topic"
PARTITION_HEADER = "__wirekafka.errors.partition"
OFFSET_HEADER = "__wirekafka.errors.offset"
TIMESTAMP_HEADER = "__wirekafka.errors.timestamp"
REASON_HEADER = "__wirekafka.errors.exception.message"
QUERY_HEADER = "__wirekafka.errors.query"

KIND = "dead-letters"
"""The kind of the transactional sink."""


def dead_letters(decoded: DataFrame, topic: str, query_id: str) -> DataFrame:
    """Returns the records that have a reason, as rows of the transactional sink.

    Args:
        decoded: the records with the column `reason`.
        topic: the dead-letter topic.
        query_id: the id of the streaming query that fills the lake. It tells the letters of a lake from those of an earlier one.
    """
    time_ms = functions.expr("unix_millis(timestamp)")
    return decoded.where("reason IS NOT NULL").select(
        functions.col("topic").alias("source_topic"),
        functions.col("partition").alias("source_partition"),
        functions.col("offset").alias("source_offset"),
        functions.lit(topic).alias("topic"),
        functions.lit(None).cast("int").alias("partition"),
        "key",
        "value",
        functions.concat(functions.coalesce("headers", _no_headers()), _headers(query_id)).alias("headers"),
        functions.when(time_ms >= 0, time_ms).alias("timestamp_ms"),
    )


def origins(letters: DataFrame, query_id: str | None) -> DataFrame:
    """Returns topic, partition, offset and timestamp of the records that are dead letters.

    The timestamp is that of the header, because the dead-letter topic may have message.timestamp.type=LogAppendTime. A letter of
    an earlier version has no such header; then it is the letter's own.

    A dead letter that was read again and did not fit again has each header twice; the last one counts.

    Args:
        letters: the records of a dead-letter topic, at least headers and timestamp.
        query_id: the id of the query whose dead letters are returned.
    """

    def last(name: str) -> str:
        return f"CAST(try_element_at(filter(headers, each -> each.key = '{name}'), -1).value AS string)"

    return letters.where(functions.expr(last(QUERY_HEADER)) == query_id).selectExpr(
        f"{last(TOPIC_HEADER)} AS topic",
        f"TRY_CAST({last(PARTITION_HEADER)} AS int) AS partition",
        f"TRY_CAST({last(OFFSET_HEADER)} AS bigint) AS offset",
        f"coalesce(timestamp_millis(TRY_CAST({last(TIMESTAMP_HEADER)} AS bigint)), timestamp) AS timestamp",
    )


def _headers(query_id: str) -> Column:
    values = {
        TOPIC_HEADER: functions.col("topic"),
        PARTITION_HEADER: functions.col("partition").cast("string"),
        OFFSET_HEADER: functions.col("offset").cast("string"),
        TIMESTAMP_HEADER: functions.expr("unix_millis(timestamp)").cast("string"),
        REASON_HEADER: functions.col("reason"),
        QUERY_HEADER: functions.lit(query_id),
    }
    return functions.array(
        *(
            functions.struct(functions.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in values.items()
        )
    )


def _no_headers() -> Column:
    return functions.array().cast("array<struct<key:string,value:binary>>")
