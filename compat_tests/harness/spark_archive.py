"""Makes the archive of Spark's classes: a session does once what most tests do, and its JVM writes the classes at its end.

python -m compat_tests.harness.spark_archive ARCHIVE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, WIREKAFKA, running
from compat_tests.harness.spark import spark_session
from compat_tests.harness.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "words"


def use_spark(spark: SparkSession, bootstrap: str, directory: Path) -> None:
    """Writes a topic, and counts it in a stream with state into Parquet and Delta Lake."""
    from pyspark.sql import functions

    create_topic(bootstrap, TOPIC, 2)
    words = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "to_json(struct(id)) AS value")
    words.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC).save()

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(str(directory / "delta"))
        batch.write.partitionBy("topic").mode("append").parquet(str(directory / "parquet"))

    source: Any = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    records = source.option("startingOffsets", "earliest").load().withWatermark("timestamp", "1 day")
    records = records.withColumn("word", functions.from_json(functions.col("value").cast("string"), "id bigint"))
    counts = records.groupBy("topic", "word.id", functions.window("timestamp", "1 hour")).count()
    stream = counts.writeStream.outputMode("update").foreachBatch(write_batch)
    query = stream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    for kind in ("delta", "parquet"):
        assert spark.read.format(kind).load(str(directory / kind)).select("id").toArrow().num_rows == 20


def main(archive: str) -> None:
    """Runs the session until its JVM has written the archive."""
    from pyspark import SparkContext

    options = (*jars.QUICK_START, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with running(CLASSES[WIREKAFKA](directory / "broker")) as broker, spark_session(directory, options) as spark:
            use_spark(spark, broker.bootstrap, directory)
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        assert gateway.proc.wait(200) == 0


if __name__ == "__main__":
    main(sys.argv[1])
