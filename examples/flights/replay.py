"""Sends the flights of 2013 to a broker as events, in event time: real time, faster, or as fast as possible.

python -m examples.flights.replay --bootstrap 127.0.0.1:9092 --speed max
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click
from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from examples.flights import topics
from examples.flights.encoding import Encoder, Format, encoder
from examples.flights.schemas import AIRPORT_ID, EVENT_ID, PLANE_ID, WEATHER_ID
from examples.flights.timeline import Delivery, Disorder, Timeline, build_timeline
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, partition_counts

SCHEMA_IDS = {topics.EVENTS: EVENT_ID, topics.WEATHER: WEATHER_ID, topics.PLANES: PLANE_ID, topics.AIRPORTS: AIRPORT_ID}

FLUSH_S = 120
PROGRESS_RECORDS = 2000
LONGEST_WAIT_S = 0.2


@dataclass(slots=True)
class Sender:
    """Sends deliveries with an idempotent producer.

    Attributes:
        failures: the errors of records that were not acknowledged.
    """

    bootstrap: str
    record_format: Format
    failures: list[KafkaError] = field(default_factory=list)
    _producer: Producer = field(init=False)
    _encoders: dict[str, Encoder] = field(init=False)
    _malformed_count: int = 0

    def __post_init__(self) -> None:
        self._encoders = {topic: encoder(self.record_format, schema_id) for topic, schema_id in SCHEMA_IDS.items()}
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 20,
                # Small batches keep the partitions close to each other in event time, although a second holds many days.
                "batch.num.messages": 1000,
                "compression.type": "lz4",
                "delivery.report.only.error": True,
                # Otherwise librdkafka bootstraps again while the only broker restarts, and forgets its sequence numbers.
                "metadata.recovery.strategy": "none",
            }
        )

    def send(self, delivery: Delivery) -> None:
        """Hands a record to the producer; waits while the producer's queue is full."""
        value = None if delivery.value is None else self._encoders[delivery.topic](delivery.value)
        if delivery.is_malformed and value is not None:
            value = self._damage(value)
        partition = -1 if delivery.partition is None else delivery.partition
        while True:
            try:
                self._producer.produce(
                    delivery.topic, value, delivery.key, partition, timestamp=delivery.timestamp_ms, on_delivery=self._note
                )
                return
            except BufferError:
                self._producer.poll(0.05)

    def poll(self, timeout_s: float = 0) -> None:
        """Lets the producer report, and waits up to the timeout."""
        self._producer.poll(timeout_s)

    def finish(self) -> None:
        """Waits until every record is acknowledged.

        Raises:
            PipelineError: records were not acknowledged.
        """
        outstanding = self._producer.flush(FLUSH_S)
        if outstanding or self.failures:
            reason = f": {self.failures[0].str()}" if self.failures else ""
            raise PipelineError(f"{outstanding + len(self.failures)} records were not acknowledged by {self.bootstrap}{reason}")

    def _damage(self, value: bytes) -> bytes:
        """Returns half of the value, or, every second time, a text that no format accepts."""
        self._malformed_count += 1
        return value[: len(value) // 2] if self._malformed_count % 2 else b"not a flight"

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)


def paced(deliveries: Iterator[Delivery], speed: float | None, sender: Sender) -> Iterator[Delivery]:
    """Yields each delivery when its time has come; `speed` seconds of event time pass in a second, None means at once."""
    begin_s, begin_ms = time.monotonic(), 0
    for delivery in deliveries:
        if speed is not None:
            begin_ms = begin_ms or delivery.at_ms
            due_s = begin_s + (delivery.at_ms - begin_ms) / 1000 / speed
            while (wait_s := due_s - time.monotonic()) > 0:
                sender.poll(min(wait_s, LONGEST_WAIT_S))
        yield delivery


def replay(bootstrap: str, record_format: Format, timeline: Timeline, *, speed: float | None = None) -> dict[str, float]:
    """Sends a timeline to new topics; returns the counts of what was sent, the seconds, and the records a second.

    Raises:
        PipelineError: the topics exist already, or records were not acknowledged.
    """
    present = sorted(partition_counts(Cluster(bootstrap)).keys() & {topics.EVENTS, topics.WEATHER})
    if present:
        raise PipelineError(
            f"{bootstrap} already has {', '.join(present)}: a replay writes into new topics, so delete these first"
        )
    topics.create_topics(bootstrap, topics.SOURCES)
    sender = Sender(bootstrap, record_format)
    begin_s = time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task("", total=len(timeline), rate="")
        for number, delivery in enumerate(paced(timeline.deliveries(), speed, sender), 1):
            sender.send(delivery)
            if number % PROGRESS_RECORDS == 0 or speed is not None:
                sender.poll()
                show(bar, task, number, delivery, begin_s)
        sender.finish()
        show(bar, task, len(timeline), delivery, begin_s)
    seconds = time.monotonic() - begin_s
    return {
        **timeline.counts,
        "records": len(timeline),
        "seconds": round(seconds, 1),
        "records_per_s": round(len(timeline) / seconds),
    }


def progress_bar() -> Progress:
    """Returns a bar on stderr: the date in event time, the records, the rate, and the time that remains."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


def show(bar: Progress, task: TaskID, sent: int, delivery: Delivery, begin_s: float) -> None:
    """Updates the bar."""
    date = datetime.fromtimestamp(delivery.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    rate = f"{sent / max(time.monotonic() - begin_s, 0.001):,.0f}/s"
    bar.update(task, completed=sent, description=date, rate=rate)


def parse_speed(text: str) -> float | None:
    """Returns the seconds of event time in a second; None for as fast as possible.

    Raises:
        click.BadParameter: the text is no speed.
    """
    if text == "max":
        return None
    try:
        speed = float(text.removeprefix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise click.BadParameter(f"{text!r} is no speed: write 1 for real time, x1000, or max")
    return speed


@click.command(help=__doc__)
@click.option("--bootstrap", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of the broker.")
@click.option("--speed", default="max", show_default=True, help="1 is real time, x1000 a thousand times as fast, max no waiting.")
@click.option("--format", "record_format", type=click.Choice([f.value for f in Format]), default="json", show_default=True)
@click.option("--days", type=click.IntRange(1, 365), default=365, show_default=True, help="The first days of 2013.")
@click.option("--seed", default=2013, show_default=True, help="Of the disorder.")
@click.option("--late", default=0.02, show_default=True, help="Share of events that come up to 12 hours late.")
@click.option("--too-late", default=0.001, show_default=True, help="Share of events that come 180 days late.")
@click.option("--duplicates", default=0.01, show_default=True, help="Share of events that come twice.")
@click.option("--malformed", default=0.001, show_default=True, help="Share of events with a damaged copy beside them.")
def main(
    bootstrap: str,
    speed: str,
    record_format: str,
    days: int,
    seed: int,
    late: float,
    too_late: float,
    duplicates: float,
    malformed: float,
) -> None:
    pace = parse_speed(speed)
    timeline = build_timeline(Disorder(seed, late, too_late, duplicates, malformed), days=days)
    try:
        report = replay(bootstrap, Format(record_format), timeline, speed=pace)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit("stopped")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
