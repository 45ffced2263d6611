"""The data source as PySpark calls it, without a SparkSession."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines import register
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.log_source.columns import SCHEMA
from wirekafka.pipelines.log_source.options import OptionError
from wirekafka.pipelines.log_source.source import LogDataSource, LogReader, PushDownLogReader
from wirekafka.tests.inspection.folders import BATCHES, batch_at, make_data, overwrite, segment_file, write_log
from wirekafka.wire.batch import CRC_OFFSET, Record, build_batch
from wirekafka.wire.compression import Compression


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


# Files and folders that cannot be read


def refusal(path: Path, **options: str) -> str:
    """Returns the error of a query."""
    with pytest.raises(PipelineError) as caught:
        query(path, **options)
    return str(caught.value)


def query(path: Path, **options: str) -> list[int]:
    """Returns the offsets that a query reads."""
    source = LogDataSource({"path": str(path), **options})
    source.schema()
    return offsets_of(source.reader(None))


def test_a_damaged_batch_is_an_error_that_says_how_to_read_the_others(tmp_path: Path) -> None:
    path = segment_file(make_data(tmp_path), 0, ".log")
    overwrite(path, CRC_OFFSET, b"\0\0\0\0")

    assert re.match(
        f"{path}, at byte 0, offset 0: the checksum is wrong: .*the options startingOffset and endingOffset leave a batch out",
        refusal(tmp_path),
    )
    assert query(tmp_path, startingOffset="1") == list(range(1, BATCHES))


def test_a_batch_beyond_the_option_is_read_with_a_higher_one(tmp_path: Path) -> None:
    write_log(tmp_path, build_batch([Record(None, bytes(5000))], compression=Compression.ZSTD))

    assert "at most 4000 are read. The option maxBatchBytes allows more" in refusal(tmp_path, maxBatchBytes="4000")
    assert query(tmp_path, maxBatchBytes="6000") == [0]


def test_a_file_without_permission_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path / "readable")
    path = segment_file(make_data(tmp_path / "forbidden"), 0, ".log")
    open_file = os.open

    def open_permitted(name: str, *args: Any) -> int:
        if name == str(path):  # the tests may run as root, who is never refused
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return open_file(name, *args)

    monkeypatch.setattr(os, "open", open_permitted)

    assert refusal(tmp_path / "forbidden").startswith(f"cannot read {path}: Permission denied")
    assert query(tmp_path / "readable") == list(range(BATCHES))


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling(path: Path) -> None:
    path.symlink_to(path.with_name("none"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_directory, "this is not a regular file"),
        (make_pipe, "this is not a regular file"),
        (make_loop, "Too many levels of symbolic links"),
        (make_dangling, "No such file or directory"),
    ],
)
@pytest.mark.parametrize("base_offset", [0, BATCHES])
def test_a_segment_that_is_no_file_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None], reason: str, base_offset: int
) -> None:
    path = segment_file(make_data(tmp_path), base_offset, ".log")
    path.unlink(missing_ok=True)
    make(path)

    assert refusal(tmp_path).startswith(f"cannot read {path}: {reason}. ")


@pytest.mark.parametrize("folder", ["data dir", "data%20dir", "topic=a"])
@pytest.mark.parametrize("topic", ["__HIVE_DEFAULT_PARTITION__", "a.b..c", "a-1", "_"])
def test_unusual_names_of_topics_and_directories_are_read(tmp_path: Path, folder: str, topic: str) -> None:
    (tmp_path / folder).mkdir()
    write_log(tmp_path / folder, batch_at(0), topic=topic)

    assert query(tmp_path / folder, topic=topic) == [0, 1]


def test_partitions_without_records_have_no_rows(tmp_path: Path) -> None:
    for number in range(100):
        path = write_log(tmp_path, topic=f"empty-{number}")
        if number % 2:
            path.unlink()

    assert query(tmp_path) == []


# Push-down


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
