"""The streaming queries of the analytics: each reads the events, drops duplicates, and fills one table of the results."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from examples.flights import aircraft_days, topics
from examples.flights.decoding import decoded_rows, latest_by_key, malformed_records
from examples.flights.encoding import Format
from examples.flights.results import DAYS, DELAYS, DEPARTURES, MALFORMED, Results, Table
from examples.flights.schemas import AIRPORT_ID, EVENT_ID, PLANE_ID, WEATHER_ID
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.running import stoppable

DELAYED_MINUTES = 15
"""A departure counts as delayed from this on, as in the statistics of the US Department of Transportation."""

# The workers of a cluster do not have this package, so its function travels with the query.
cloudpickle.register_pickle_by_value(aircraft_days)


@dataclass(slots=True, frozen=True)
class Analytics:
    """The queries, and what they have in common.

    Attributes:
        watermark: how late an event may come, in Spark's words: "14 days".
        max_offsets: the most records that a batch takes from the events, and from the weather.
        runs_once: the queries end when they have read what is there now.
    """

    spark: SparkSession
    cluster: Cluster
    results: Results
    record_format: Format
    watermark: str
    max_offsets: int
    runs_once: bool

    def start_delays(self) -> StreamingQuery:
        """Counts and delays by airport and hour of the event; a batch updates the hours that it has events of."""
        airport = f.when(f.col("kind") == "arrival", f.col("dest")).otherwise(f.col("origin")).alias("airport")
        hours = self._events("departure", "arrival", "cancellation").groupBy(airport, f.window("event_time", "1 hour"))
        is_departure, is_arrival = f.col("kind") == "departure", f.col("kind") == "arrival"
        delay = f.col("delay_minutes")
        totals = hours.agg(
            f.count_if(is_departure).alias("departures"),
            f.sum(f.when(is_departure, delay)).alias("departure_delay_minutes"),
            f.count_if(is_departure & (delay >= DELAYED_MINUTES)).alias("delayed_departures"),
            f.count_if(is_arrival).alias("arrivals"),
            f.sum(f.when(is_arrival, delay)).alias("arrival_delay_minutes"),
            f.count_if(f.col("kind") == "cancellation").alias("cancellations"),
        )
        rows = totals.withColumn("hour", f.col("window.start")).drop("window")
        return self._start(DELAYS, rows, "update")

    def start_departures(self) -> StreamingQuery:
        """Joins each departure with the weather of its scheduled hour, and with what is known of its plane and destination."""
        # Both sides read both topics and have the same watermark. Spark takes the lowest watermark of a join, and forgets after a
        # restart what a side without new records had reached, so a side that reads the weather alone would hold up the other.
        both = (topics.EVENTS, topics.WEATHER)
        departures = self._events("departure", read=both)
        departures = departures.withColumn("hour", f.date_trunc("hour", f.timestamp_millis("scheduled_ms")))
        weather = decoded_rows(self._records(*both), topics.WEATHER, self.record_format, WEATHER_ID, "event_time")
        weather = weather.withColumnRenamed("event_time", "weather_hour").withColumnRenamed("origin", "weather_origin")
        # The bounds on the time of the departure let Spark forget old weather. Delays were at most 22 hours.
        condition = (
            (f.col("origin") == f.col("weather_origin"))
            & (f.col("hour") == f.col("weather_hour"))
            & (f.col("event_time") >= f.col("weather_hour") - f.expr("INTERVAL 1 HOUR"))
            & (f.col("event_time") <= f.col("weather_hour") + f.expr("INTERVAL 1 DAY"))
        )
        return self._start(DEPARTURES, departures.join(weather, condition, "left_outer"), "append")

    def start_days(self) -> StreamingQuery:
        """Sums up each aircraft's day; the row comes when the day is over."""
        events = self._events("departure", "arrival").filter("tailnum IS NOT NULL")
        event = f.to_json(f.struct(*aircraft_days.FIELDS)).alias("event")
        days = (
            events.select("tailnum", "event_time", event)
            .groupBy("tailnum")
            .applyInPandasWithState(
                aircraft_days.update_days, aircraft_days.OUTPUT, aircraft_days.STATE, "append", GroupStateTimeout.EventTimeTimeout
            )
        )
        rows = days.select(
            "tailnum",
            f.col("service_date").cast("date").alias("service_date"),
            "departures",
            "arrivals",
            f.timestamp_millis("first_ms").alias("first_event"),
            f.timestamp_millis("last_ms").alias("last_event"),
            "distance_miles",
            "air_time_minutes",
            "departure_delay_minutes",
        )
        return self._start(DAYS, rows, "append")

    def start_malformed(self) -> StreamingQuery:
        """Keeps the records that cannot be decoded."""
        rows = malformed_records(self._stream(topics.EVENTS), self.record_format, EVENT_ID)
        return self._start(MALFORMED, rows.select(*MALFORMED.column_names()), "append")

    def _stream(self, *names: str) -> DataFrame:
        """Returns the records of these topics."""
        source = self.spark.readStream.format("kafka").options(**self.cluster.spark_options())
        source = source.option("subscribe", ",".join(names)).option("startingOffsets", "earliest")
        return source.option("maxOffsetsPerTrigger", self.max_offsets).load()

    def _records(self, *names: str) -> DataFrame:
        """Returns the records of these topics with a watermark on their timestamps, which are the times of the events."""
        return self._stream(*names).withColumnRenamed("timestamp", "event_time").withWatermark("event_time", self.watermark)

    def _events(self, *kinds: str, read: tuple[str, ...] = (topics.EVENTS,)) -> DataFrame:
        """Returns the events of these kinds, each once, without those behind the watermark of the topics that are read."""
        events = decoded_rows(self._records(*read), topics.EVENTS, self.record_format, EVENT_ID, "event_time")
        return events.filter(f.col("kind").isin(*kinds)).dropDuplicatesWithinWatermark(["event_id"])

    def _start(self, table: Table, rows: DataFrame, mode: str) -> StreamingQuery:
        write = self.results.batch_writer(table, self.cluster)

        def write_batch(batch: DataFrame, batch_id: int) -> None:
            write(self._enriched(batch) if table is DEPARTURES else batch, batch_id)

        writer = rows.writeStream.queryName(table.name).outputMode(mode).foreachBatch(stoppable(write_batch))
        writer = writer.option("checkpointLocation", self.results.checkpoint(table))
        return (writer.trigger(availableNow=True) if self.runs_once else writer).start()

    def _enriched(self, departures: DataFrame) -> DataFrame:
        """Adds the plane and the destination as the compacted topics have them now; they are read again for each batch."""
        spark = departures.sparkSession
        planes = latest_by_key(spark, self.cluster, topics.PLANES, self.record_format, PLANE_ID)
        airports = latest_by_key(spark, self.cluster, topics.AIRPORTS, self.record_format, AIRPORT_ID)
        planes = planes.select("tailnum", "manufacturer", "model", "seats")
        airports = airports.select(
            f.col("faa").alias("dest"), *(f.col(name).alias(f"dest_{name}") for name in ("name", "lat", "lon", "alt"))
        )
        rows = departures.join(f.broadcast(planes), "tailnum", "left").join(f.broadcast(airports), "dest", "left")
        return rows.withColumn("scheduled", f.timestamp_millis("scheduled_ms")).select(*DEPARTURES.column_names())
