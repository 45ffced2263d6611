"""Streams that are stopped, whose brokers go away, and that cannot run: what `wirekafka pipeline` does and says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker
from compat_tests.harness.pipelines import ROOT, session_members, small_session
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.spark.conftest import MakePipeline

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-running"), pytest.mark.timeout(400)]

PER_BATCH = 100


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Writes numbered records to partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def ingest(bootstrap: str, topic: str, lake: Path) -> list[object]:
    """Returns the arguments of an ingest of small batches."""
    batches = ["--max-offsets-per-batch", PER_BATCH, "--interval", "0 seconds"]
    return ["ingest", lake, "--bootstrap", bootstrap, "--topic", topic, *batches]


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(60)


def test_a_stream_stops_after_its_batch_at_a_signal_and_goes_on_later(
    broker: Broker, pipeline: MakePipeline, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 20 * PER_BATCH)
    stream = pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"))
    for number in (signal.SIGTERM, signal.SIGINT):
        stream.start()
        stream.wait_for_batches(1)
        stream.terminate(number)
        assert stream.wait() == 0, stream.log_text()
    batches = [line["batch"] for line in stream.json_lines()]
    assert batches == list(range(len(batches))), "no batch was interrupted and done again"
    assert all(line["records"] == PER_BATCH for line in stream.json_lines())
    assert stream.json_lines()[0]["lag"] == {topic: 19 * PER_BATCH}


def test_a_command_that_is_stopped_while_spark_starts_leaves_no_process(
    broker: Broker, pipeline: MakePipeline, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    stream = pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"))
    stream.start()
    wait_until(lambda: len(session_members(stream.process_id)) > 1, timeout_s=60, what="the JVM is started")
    stream.terminate()
    assert stream.wait() != 0
    wait_until(lambda: not session_members(stream.process_id), timeout_s=60, what="the JVM has ended")
    assert "Traceback" not in stream.log_text()


def test_a_stream_whose_broker_was_away_goes_on(
    make_broker: Callable[..., Broker], pipeline: MakePipeline, topic: str, tmp_path: Path
) -> None:
    broker = make_broker(keeps_address=True)
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 10)
    settings = ["--kafka-option", "default.api.timeout.ms=3000", "--kafka-option", "request.timeout.ms=1000"]
    stream = pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"), *settings)
    stream.start()
    stream.wait_for_batches(1)
    broker.kill()
    wait_until(lambda: "the pipeline tries again in" in stream.log_text(), timeout_s=120, what="the stream noticed the outage")
    broker.start()
    produce(broker.bootstrap, topic, 10)
    wait_until(lambda: len(stream.json_lines()) == 2, timeout_s=120, what="the stream goes on")
    stream.terminate()
    assert stream.wait() == 0
    assert [line["records"] for line in stream.json_lines()] == [10, 10]


def test_records_that_retention_deleted_are_an_error(broker: Broker, pipeline: MakePipeline, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 10)
    stream = pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--once")
    stream.check()
    produce(broker.bootstrap, topic, 10)
    delete_records(broker.bootstrap, topic, 15)
    assert stream.run() == 1
    assert "the brokers deleted records before the pipeline read them" in stream.log_text()
    assert "--allow-data-loss" in stream.log_text()
    assert len(stream.log_text().splitlines()) == 1, stream.log_text()


def test_a_checkpoint_of_another_topic_is_an_error(broker: Broker, pipeline: MakePipeline, topic: str, tmp_path: Path) -> None:
    for name in (topic, f"{topic}-other"):
        create_topic(broker.bootstrap, name)
        produce(broker.bootstrap, name, 10)
    pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--once").check()
    other = pipeline(*ingest(broker.bootstrap, f"{topic}-other", tmp_path / "lake"), "--once")
    assert other.run() == 1
    assert len(other.log_text().splitlines()) == 1, other.log_text()
    assert topic in other.log_text()


def test_an_unknown_topic_is_an_error(broker: Broker, pipeline: MakePipeline, topic: str, tmp_path: Path) -> None:
    stream = pipeline(*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--once")
    assert stream.run() == 1
    assert stream.log_text().startswith(f"wirekafka: unknown topic {topic} at {broker.bootstrap}; the topics there: ")


def test_a_dry_run_needs_no_java(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    done = run(*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--dry-run", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    assert topic in done.stdout
    assert not (tmp_path / "lake").exists()


def test_packages_that_cannot_be_fetched_are_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="main"/><resolvers>'
        '<ibiblio name="main" m2compatible="true" root="http://127.0.0.1:9/"/></resolvers></ivysettings>'
    )
    settings = [f"spark.jars.ivySettings={tmp_path / 'ivy.xml'}", f"spark.jars.ivy={tmp_path / 'ivy'}"]
    conf = [word for setting in settings for word in ("--conf", setting)]
    assert_fails("Maven Central cannot be reached", *ingest(broker.bootstrap, topic, tmp_path / "lake"), *conf)


def test_a_directory_of_jars_without_the_connector_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    assert_fails(
        f"the directory {tmp_path} has no spark-sql-kafka-0-10_2.13-*.jar",
        *ingest(broker.bootstrap, topic, tmp_path / "lake"),
        *("--jars", tmp_path),
    )


def test_an_unknown_master_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    arguments = [*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--jars", jars.jars(jars.SPARK_PIPELINES), "--master"]
    assert_fails("is unknown to Spark", *arguments, "sparky")
    assert_fails("no Spark master answers at spark://127.0.0.1:9", *arguments, "spark://127.0.0.1:9")


def test_a_setting_that_kafka_refuses_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    arguments = [*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--once", *small_session()]
    assert_fails("Kafka's client refuses a setting", *arguments, "--kafka-option", "security.protocol=NONE")


def test_no_java_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    assert_fails("Java is missing", *ingest(broker.bootstrap, topic, tmp_path / "lake"), PATH=str(tmp_path), JAVA_HOME="")


def test_an_old_java_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main >&2\nexit 1\n")
    java.chmod(0o755)
    arguments = [*ingest(broker.bootstrap, topic, tmp_path / "lake"), "--jars", jars.jars(jars.SPARK_PIPELINES)]
    assert_fails("Java is too old", *arguments, JAVA_HOME=str(tmp_path))


def test_no_pyspark_is_an_error(broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, topic)
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('pyspark')\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    assert_fails("PySpark is missing: pip install", *ingest(broker.bootstrap, topic, tmp_path / "lake"), PYTHONPATH=paths)


def test_no_broker_is_an_error(tmp_path: Path, topic: str) -> None:
    assert_fails("no broker answers at 127.0.0.1:9", *ingest("127.0.0.1:9", topic, tmp_path / "lake"), "--dry-run")


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of `wirekafka pipeline` that ends before Spark's JVM runs long."""
    command = [sys.executable, "-m", "wirekafka", "pipeline", *map(str, arguments)]
    places = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        command, env={**os.environ, **places, **environment}, capture_output=True, text=True, timeout=200, check=False
    )


def assert_fails(message: str, *arguments: object, **environment: str) -> None:
    """Runs a command that must print this message, in one line, and exit with 1."""
    done = run(*arguments, **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("wirekafka: ")
    assert done.stderr.count("\n") == 1, done.stderr
