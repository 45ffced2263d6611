from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.pipelines.check.options import CheckOptions, connectors
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.description import LakeDescription, Sink
from wirekafka.pipelines.session import Connector


def make_lake(path: Path, *sinks: Sink) -> str:
    """Makes a directory with these descriptions of a lake, the newest last; returns its path."""
    folder = path / layout.DESCRIPTIONS
    folder.mkdir(parents=True)
    for number, sink in enumerate(sinks):
        (folder / f"{number:012d}.json").write_bytes(LakeDescription(sink).to_json())
    return str(path)


def test_the_check_of_a_parquet_lake_and_files_needs_no_connector(tmp_path: Path) -> None:
    options = CheckOptions(make_lake(tmp_path, "parquet"), Cluster("broker:9092"), (tmp_path,))

    assert connectors(options) == set()


def test_the_check_of_a_parquet_lake_and_brokers_needs_the_connector_of_kafka(tmp_path: Path) -> None:
    assert connectors(CheckOptions(make_lake(tmp_path, "parquet"), Cluster("broker:9092"))) == {Connector.KAFKA}


def test_the_check_of_a_delta_lake_needs_the_connector_of_delta(tmp_path: Path) -> None:
    assert connectors(CheckOptions(make_lake(tmp_path, "delta", "delta"))) == {Connector.DELTA}


@pytest.mark.parametrize("path", ["hdfs://host/lake", "s3a://bucket/lake", "file:///lake"])
def test_the_check_of_a_lake_that_only_spark_can_open_needs_the_connector_of_delta(path: str) -> None:
    assert connectors(CheckOptions(path)) == {Connector.DELTA}


def test_the_check_of_a_directory_that_is_no_lake_needs_no_connector_to_say_so(tmp_path: Path) -> None:
    assert connectors(CheckOptions(str(tmp_path))) == set()
