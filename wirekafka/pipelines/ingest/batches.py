"""Writes one batch of an ingest: the rows into the lake, then the dead letters into their topic."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions

from wirekafka.pipelines.ingest.batch_offsets import note_batch
from wirekafka.pipelines.ingest.batch_plans import stored_plan
from wirekafka.pipelines.ingest.dead_letters import KIND, dead_letters
from wirekafka.pipelines.ingest.formats import ValueFormat, open_format
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.lake.files import open_files
from wirekafka.pipelines.transactional_sink import SinkOptions, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wirekafka.pipelines.lake.lake import Lake

TIMESTAMP_TYPE = "CASE timestampType WHEN 0 THEN 'CreateTime' WHEN 1 THEN 'LogAppendTime' END"

DEAD_LETTER_PARTITIONS = 1
"""With how many partitions a missing dead-letter topic is created."""

DEAD_LETTER_SETTINGS = {"max.message.bytes": str(2**31 - 1)}
"""A dead letter is larger than its record: it has more headers, and it may have been in a compressed batch."""


class BatchWriter:
    """Writes the batches of one query, which may begin with a batch that was written before, as a whole or in part.

    Raises:
        PipelineError: a schema file is wrong or does not merge with the schema of the lake, or the registry's place is wrong.
    """

    def __init__(self, spark: SparkSession, options: IngestOptions, lake: Lake) -> None:
        self._options = options
        self._lake = lake
        self._files = open_files(spark, options.lake)
        self._format = open_format(spark, options, lake)

    def write(self, records: DataFrame, batch_id: int) -> None:
        """Writes a batch; what of it was written before is skipped. Then it merges small files of the lake, if that is due.

        Raises:
            PipelineError: another query fills the lake, the checkpoint is not that of the lake's records, the registry does not
                answer, or the dead-letter topic takes no records.
            SinkInterrupted: the brokers stopped answering. The batch can be written again.
        """
        query_id = records.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self._lake.refuse_other_query(query_id)
        note_batch(self._files, query_id, batch_id)
        if self._format is None and self._options.sink == "parquet":
            self._lake.write_batch([self._rows(records, "value")], query_id, batch_id)
        else:
            self._write_persisted(records, query_id, batch_id)
        self._lake.compact_if_due(batch_id, self._options.compact_every, self._options.file_bytes)

    def _write_persisted(self, records: DataFrame, query_id: str, batch_id: int) -> None:
        """Writes a batch that is read more than once: to plan it, or to find the topics whose Delta tables it reaches."""
        records = records.persist()
        try:
            if self._format is None:
                self._lake.write_batch([self._rows(records, "value")], query_id, batch_id)
            else:
                self._write_decoded(self._format, records, query_id, batch_id)
        finally:
            records.unpersist()

    def _write_decoded(self, value_format: ValueFormat, records: DataFrame, query_id: str, batch_id: int) -> None:
        plan = stored_plan(self._files, query_id, batch_id, lambda: value_format.plan(records))
        decoded = []
        for topic, each in plan.items():
            if each.schema.fields and self._lake.schema(topic) != each.schema:
                self._lake.set_schema(topic, each.schema)
            decoded.append(value_format.decode(records.where(functions.col("topic") == topic), each).persist())
        try:
            rows = [self._rows(each.where("reason IS NULL"), "decoded") for each in decoded]
            self._lake.write_batch(rows, query_id, batch_id)
            if decoded:  # a batch may have only offsets without a record: markers of transactions, and aborted records
                self._write_dead_letters(decoded, query_id)
        finally:
            for frame in decoded:
                frame.unpersist()

    def _write_dead_letters(self, decoded: list[DataFrame], query_id: str) -> None:
        topic = self._options.dead_letter_topic
        assert topic is not None, "raw records all fit"
        letters = reduce(lambda first, second: first.unionAll(second), (dead_letters(each, topic, query_id) for each in decoded))
        if not letters.isEmpty():
            targets = {topic: DEAD_LETTER_PARTITIONS}
            write(letters, SinkOptions(self._options.cluster, KIND, query_id, targets, target_settings=DEAD_LETTER_SETTINGS))

    def _rows(self, records: DataFrame, value: str) -> DataFrame:
        """Returns records as the rows of a table of the lake; their column `value` has a column of the records, if it exists."""
        columns = [
            "topic",
            "partition",
            "offset",
            "timestamp",
            functions.expr(TIMESTAMP_TYPE).alias("timestamp_type"),
            "key",
            "headers",
        ]
        if value in records.columns:
            columns.append(functions.col(value).alias("value"))
        if self._options.keep_value_bytes:
            columns.append(functions.col("value").alias("value_bytes"))
        return records.select(*columns)
