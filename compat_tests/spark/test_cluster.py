"""The pipelines on a standalone cluster of Spark, unchanged but for `--master`, while one of its two workers is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest
from confluent_kafka import Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.spark_cluster import StandaloneCluster
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.spark.conftest import MakePipeline

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-cluster"), pytest.mark.timeout(500)]

PARTITIONS = 4
PER_PARTITION = 3000


def fill(bootstrap: str, topic: str) -> None:
    """Writes the same number of records to each partition, in small batches."""
    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 50})
    for number in range(PARTITIONS * PER_PARTITION):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.wirekafka_only("the data source reads any broker's directory, see test_log_source")
def test_the_data_source_reads_all_records_though_a_worker_is_killed(
    broker: Broker, cluster: StandaloneCluster, pipeline: MakePipeline, topic: str
) -> None:
    fill(broker.bootstrap, topic)
    reader = pipeline(broker.data_dir, topic, session=cluster.session(), program=("-m", "compat_tests.spark.log_totals"))
    reader.start()
    wait_until(
        lambda: any(line.get("tasks", 0) >= 4 for line in reader.json_lines()) or not reader.is_running(),
        timeout_s=200,
        what="some tasks have ended",
    )
    assert reader.is_running(), reader.log_text()
    cluster.workers[0].kill()
    assert reader.wait(240) == 0, reader.log_text()
    offsets = PER_PARTITION * (PER_PARTITION - 1) // 2
    assert reader.json_lines()[-1] == {"totals": [[partition, PER_PARTITION, offsets] for partition in range(PARTITIONS)]}


def test_an_ingest_writes_each_record_once_though_a_worker_is_killed(
    broker: Broker, cluster: StandaloneCluster, pipeline: MakePipeline, topic: str, tmp_path: Path
) -> None:
    fill(broker.bootstrap, topic)
    batches = ["--max-offsets-per-batch", 1500, "--once"]
    stream = pipeline(
        *("ingest", tmp_path / "lake", "--bootstrap", broker.bootstrap, "--topic", topic, *batches), session=cluster.session()
    )
    stream.start()
    stream.wait_for_batches(2, timeout_s=200)
    cluster.workers[0].kill()
    assert stream.wait(240) == 0, stream.log_text()
    assert len(stream.json_lines()) > 2, "the worker was killed in the middle"
    rows = Counter[tuple[int, int]]()
    for file in (tmp_path / "lake").glob("topic=*/**/*.parquet"):
        table = pyarrow.parquet.ParquetFile(file).read(["partition", "offset"]).to_pydict()
        rows.update(zip(table["partition"], table["offset"], strict=True))
    assert rows == Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION))
