"""The settings of a pipeline's session, and the checks before Spark starts."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from wirekafka.pipelines import session
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.session import Connector, SessionOptions, local_cores, settings_of, told_if_slow

ALL = frozenset(Connector)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Returns a directory with a jar of each connector."""
    for connector in Connector:
        (tmp_path / f"{connector.value}-4.0.0.jar").touch()
    return tmp_path


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2)])
def test_the_threads_of_a_local_master_are_read(master: str, cores: int) -> None:
    assert local_cores(master) == cores


def test_all_cores_are_those_of_this_process() -> None:
    assert local_cores("local[*]") == len(os.sched_getaffinity(0))


def test_a_malformed_local_master_is_an_error() -> None:
    with pytest.raises(PipelineError, match="write local"):
        settings_of(frozenset(), SessionOptions("local[two]"), "4.0.0")


def test_the_connectors_come_from_maven_without_a_directory() -> None:
    packages = settings_of(ALL, SessionOptions(), "4.0.1")["spark.jars.packages"].split(",")
    assert packages == [
        "io.delta:delta-spark_2.13:4.0.0",
        "org.apache.spark:spark-avro_2.13:4.0.1",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1",
    ]


def test_delta_of_an_unknown_spark_is_an_error() -> None:
    with pytest.raises(PipelineError, match="no Delta Lake is known for Spark 4.9.0"):
        settings_of(ALL, SessionOptions(), "4.9.0")


def test_the_jars_of_a_directory_replace_the_packages(jars: Path) -> None:
    settings = settings_of(ALL, SessionOptions(jars=jars), "4.0.0")
    assert "spark.jars.packages" not in settings
    assert len(settings["spark.jars"].split(",")) == len(Connector)


def test_a_directory_without_a_connector_is_an_error(jars: Path) -> None:
    (jars / "spark-avro_2.13-4.0.0.jar").unlink()
    with pytest.raises(PipelineError, match=r"no spark-avro_2.13-\*.jar: copy org.apache.spark:spark-avro_2.13:4.0.0"):
        settings_of(ALL, SessionOptions(jars=jars), "4.0.0")


def test_delta_has_its_extension() -> None:
    assert settings_of(ALL, SessionOptions(), "4.0.0")["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert "spark.sql.extensions" not in settings_of(frozenset({Connector.KAFKA}), SessionOptions(), "4.0.0")


def test_a_local_session_has_as_many_shuffle_partitions_as_threads() -> None:
    assert settings_of(frozenset(), SessionOptions("local[3]"), "4.0.0")["spark.sql.shuffle.partitions"] == "3"


def test_a_cluster_keeps_sparks_number_of_shuffle_partitions() -> None:
    assert "spark.sql.shuffle.partitions" not in settings_of(frozenset(), SessionOptions("spark://h:7077"), "4.0.0")


def test_the_settings_of_the_user_override_the_others() -> None:
    conf = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "9"}
    settings = settings_of(frozenset(), SessionOptions(conf=conf), "4.0.0")
    assert conf.items() <= settings.items()


def test_a_java_home_without_java_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="has no bin/java"):
        session.check_java()


def test_no_java_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="Spark needs Java 17"):
        session.check_java()


def test_a_standalone_master_that_does_not_listen_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        session.check_standalone_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(PipelineError, match=f"no Spark master answers at spark://127.0.0.1:{port}"):
        session.check_standalone_master(f"spark://127.0.0.1:{port}")


def test_one_of_several_standalone_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()[1]
        other.close()
        session.check_standalone_master(f"spark://127.0.0.1:{closed},127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port"])
def test_a_malformed_standalone_master_is_an_error(master: str) -> None:
    with pytest.raises(PipelineError, match="write spark://HOST:PORT"):
        session.check_standalone_master(master)


def test_other_masters_are_left_to_spark() -> None:
    for master in ("local[2]", "yarn", "k8s://https://host:6443"):
        session.check_standalone_master(master)


def test_a_slow_start_of_spark_is_told() -> None:
    told: list[str] = []
    came = threading.Event()

    def notify(message: str) -> None:
        told.append(message)
        came.set()

    with told_if_slow("still starting", notify, after_s=0):
        assert came.wait(10)
    assert told == ["still starting"]


def test_a_quick_start_of_spark_is_not_told() -> None:
    told: list[str] = []
    with told_if_slow("still starting", told.append, after_s=60):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(10)
    assert timers
    assert told == []
