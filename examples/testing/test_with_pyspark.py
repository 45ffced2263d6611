"""PySpark in a test: a streaming query sums orders by customer, is stopped, and goes on from its checkpoint.

Spark runs in a JVM, a process of its own. It connects to the broker of the test like any other client.

Run: pip install wirekafka pytest pyspark==4.0.0 confluent-kafka; pytest examples/testing/test_with_pyspark.py
Spark needs Java 17, and fetches its Kafka connector from Maven Central the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from wirekafka.testing import EmbeddedBroker

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Returns a small Spark for all tests; its start takes longer than the tests."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", CONNECTOR)
    session = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    yield session
    session.stop()


def sum_up(orders: DataFrame, directory: Path) -> StreamingQuery:
    """Starts a query that reads what is there, and appends it to files by customer. This is the program under test."""
    parsed = orders.selectExpr("CAST(key AS STRING) AS customer", "CAST(CAST(value AS STRING) AS INT) AS amount")
    writer = parsed.writeStream.format("json").option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(availableNow=True).start(str(directory / "orders"))


def order(broker: EmbeddedBroker, topic: str, customer: str, *amounts: int) -> None:
    """Writes orders of a customer."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for amount in amounts:
        producer.produce(topic, key=customer, value=str(amount))
    assert producer.flush(30) == 0


def test_query_goes_on_from_its_checkpoint(
    spark: SparkSession, kafka_broker: EmbeddedBroker, kafka_topic: str, tmp_path: Path
) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka_broker.bootstrap)
    orders = source.option("subscribe", kafka_topic).option("startingOffsets", "earliest").load()
    order(kafka_broker, kafka_topic, "ann", 1, 2)
    assert sum_up(orders, tmp_path).awaitTermination(120)
    order(kafka_broker, kafka_topic, "ben", 30)
    order(kafka_broker, kafka_topic, "ann", 4)
    assert sum_up(orders, tmp_path).awaitTermination(120)
    sums = spark.read.json(str(tmp_path / "orders")).groupBy("customer").sum("amount")
    assert sorted(map(tuple, sums.collect())) == [("ann", 7), ("ben", 30)]
