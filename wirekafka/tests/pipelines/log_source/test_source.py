"""The data source as PySpark calls it, without a SparkSession."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines import register
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.log_source.columns import SCHEMA
from wirekafka.pipelines.log_source.options import OptionError
from wirekafka.pipelines.log_source.source import LogDataSource, LogReader, PushDownLogReader
from wirekafka.tests.inspection.folders import BATCHES, make_data


@dataclass
class EqualTo:
    """A filter of PySpark 4.1, by the name of its class."""

    attribute: tuple[str, ...]
    value: Any


@dataclass
class IsNotNull:
    """A filter without a value."""

    attribute: tuple[str, ...]


def offsets_of(reader: LogReader) -> list[int]:
    """Returns the offsets that the tasks of a query read; reader and partitions are pickled for the tasks."""
    partitions = pickle.loads(pickle.dumps(list(reader.partitions())))
    reader = pickle.loads(pickle.dumps(reader))
    return [offset for each in partitions for columns in reader.read(each) for offset in columns["offset"].to_pylist()]


def test_a_session_gets_the_format() -> None:
    registered: list[Any] = []

    class Sources:
        register = staticmethod(registered.append)

    class Session:
        dataSource = Sources  # noqa: N815 - PySpark's name

    register(Session())

    assert [source.name() for source in registered] == ["wirekafka-log"]


def test_the_schema_has_the_columns_of_the_batches(tmp_path: Path) -> None:
    make_data(tmp_path)

    assert LogDataSource({"path": str(tmp_path)}).schema().names == SCHEMA.names


def test_a_read_of_a_missing_directory_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no directory"):
        LogDataSource({"path": str(tmp_path / "none")}).schema()


def test_the_tasks_of_a_query_read_each_record_once(tmp_path: Path) -> None:
    make_data(tmp_path)
    source = LogDataSource({"path": str(tmp_path), "splitBytes": "1500"})

    reader = source.reader(source.schema())

    assert len(reader.partitions()) > 3
    assert offsets_of(reader) == list(range(BATCHES))


def test_a_task_without_a_split_reads_nothing(tmp_path: Path) -> None:
    make_data(tmp_path)
    reader = LogDataSource({"path": str(tmp_path), "partition": "7"}).reader(None)

    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_a_task_on_a_machine_without_the_directory_says_so(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    reader = LogDataSource({"path": str(tmp_path)}).reader(None)
    (partition,) = reader.partitions()
    folder.rename(tmp_path / "elsewhere")

    with pytest.raises(PipelineError, match=f"there is no directory {folder}: each executor needs"):
        list(reader.read(partition))


def test_pushed_filters_narrow_the_plan_and_stay_with_spark(tmp_path: Path) -> None:
    make_data(tmp_path)
    reader = LogDataSource({"path": str(tmp_path), "pushFilters": "true"}).reader(None)
    assert isinstance(reader, PushDownLogReader)
    filters = [EqualTo(("offset",), 7), EqualTo(("headers", "key"), "k"), IsNotNull(("key",))]

    left = list(reader.pushFilters(filters))

    assert left == filters
    assert offsets_of(reader) == [7]


def test_a_reader_without_the_option_has_no_push_down_which_pyspark_4_1_would_refuse(tmp_path: Path) -> None:
    make_data(tmp_path)
    reader = LogDataSource({"path": str(tmp_path)}).reader(None)

    assert not isinstance(reader, PushDownLogReader)
    assert "pushFilters" not in vars(LogReader)
