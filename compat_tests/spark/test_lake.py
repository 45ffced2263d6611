"""A lake in Spark: what readers see of its tables, Parquet and Delta, and what killed and repeated batches leave."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.description import LakeDescription
from wirekafka.pipelines.lake.files import Files, HadoopFiles, LocalFiles
from wirekafka.pipelines.lake.lake import Lake, create_lake, open_lake
from wirekafka.tests.pipelines.lake.files_contract import FilesContract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-lake")]

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
BYTES = "cast(concat(id) AS binary)"
QUERY = "9ad5e5a2-1c2e-4f4e-8a1e-6a1f2c3d4e5f"


class Killed(BaseException):
    """Stands for a kill of the driver; no code of the pipelines handles it."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, operation: str, nth: int, *, after: bool) -> Iterator[None]:
    """Ends the block as a kill would, before or after the nth operation of this name on the files of the lake."""
    real, calls = getattr(LocalFiles, operation), []

    def die(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) < nth:
            return real(*arguments)
        if after:
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LocalFiles, operation, die)
        yield


@pytest.fixture(params=["parquet", "delta"])
def sink(request: pytest.FixtureRequest) -> Any:
    return request.param


def records(
    spark: SparkSession,
    count: int,
    value: str = "cast(concat(id) AS binary)",
    *,
    topic: str = "orders",
    first: int = 0,
    per_day: int = 100,
) -> DataFrame:
    """Returns records of a partition from an offset on; `per_day` of them are of one date. `value` is SQL."""
    return spark.range(first, first + count, numPartitions=2).selectExpr(
        f"'{topic}' AS topic",
        "0 AS partition",
        "id AS offset",
        f"timestamp_millis({START_MS} + id div {per_day} * {DAY_MS}) AS timestamp",
        "'CreateTime' AS timestamp_type",
        "cast(concat('key-', id) AS binary) AS key",
        "array(named_struct('key', 'trace', 'value', cast(concat(id) AS binary))) AS headers",
        f"{value} AS value",
    )


def struct_of(frame: DataFrame) -> Any:
    return frame.schema["value"].dataType


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("topic=*/date=*/part-*"))


def make(spark: SparkSession, path: Path, sink: Any, **fields: Any) -> Lake:
    return create_lake(spark, str(path), LakeDescription(sink, topics=("orders",), **fields))


class TestHadoopFiles(FilesContract):
    @pytest.fixture
    def files(self, spark: SparkSession, tmp_path: Path) -> Files:
        return HadoopFiles(spark, f"file:{tmp_path}")


def test_records_are_read_as_they_were_written(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink)
    written = records(spark, 30, per_day=10)
    lake.write_batch([written], QUERY, 0)
    found = open_lake(spark, str(tmp_path / "lake")).read("orders")
    assert found.drop("date").exceptAll(written).count() == written.exceptAll(found.drop("date")).count() == 0
    assert sorted({str(row.date) for row in found.collect()}) == ["2023-11-14", "2023-11-15", "2023-11-16"]


def test_lake_whose_path_has_characters_of_patterns_and_urls_is_written_compacted_and_read(
    spark: SparkSession, sink: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a [1] {b,c} *?\\ %20#+"
    (tmp_path / "a 1 b xx").mkdir()
    lake = make(spark, path, sink)
    for batch in range(3):
        lake.write_batch([records(spark, 10, first=10 * batch)], QUERY, batch)
        assert offsets(lake.read("orders")) == list(range(10 * batch + 10))
    assert lake.compact().added_files == 1
    assert offsets(open_lake(spark, str(path)).snapshot("orders")) == list(range(30))


def test_date_is_that_of_utc_in_a_session_of_another_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    lake = make(session, tmp_path / "lake", "parquet")
    lake.write_batch([records(session, 1)], QUERY, 0)
    assert [path.parent.name for path in data_files(tmp_path / "lake")] == ["date=2023-11-14"]


def test_repeated_batches_add_nothing(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    for batch in (0, 1, 1, 0):
        lake = make(spark, tmp_path / "lake", sink)
        lake.write_batch([records(spark, 10, first=10 * batch)], QUERY, batch)
    assert offsets(lake.read("orders")) == list(range(20))


def test_topics_of_a_batch_have_tables_of_their_own_schema(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink, record_format="json")
    frames = {
        "orders": records(spark, 4, "named_struct('id', id)"),
        "bills": records(spark, 5, "named_struct('paid', true)", topic="bills"),
    }
    for topic, frame in frames.items():
        lake.set_schema(topic, struct_of(frame))
    lake.write_batch(list(frames.values()), QUERY, 0)
    assert lake.topics() == ["bills", "orders"]
    assert sorted(row.value.id for row in lake.read("orders").collect()) == [0, 1, 2, 3]
    assert [row.value.paid for row in lake.read("bills").collect()] == [True] * 5
    assert lake.read("unknown").count() == 0


def test_pandas_reads_a_parquet_lake_without_its_private_files(spark: SparkSession, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    for batch in range(2):
        lake.write_batch([records(spark, 10, first=10 * batch)], QUERY, batch)
    found = pandas.read_parquet(tmp_path / "lake")
    assert sorted(found["offset"]) == list(range(20))
    assert found["timestamp"].min() == pandas.Timestamp(START_MS, unit="ms", tz="UTC")


def test_lake_leaves_only_the_last_batch_of_its_bookkeeping(spark: SparkSession, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    for batch in range(3):
        lake.write_batch([records(spark, 2, first=2 * batch)], QUERY, batch)
    private = tmp_path / "lake" / "_wirekafka"
    found = sorted(str(path.relative_to(private)) for path in private.rglob("*") if path.is_file())
    assert found == [f"batches/{QUERY}/000000000002.json", "description/000000000002.json"]


@pytest.mark.parametrize(
    ("operation", "nth", "after"),
    [("write", 2, False), ("claim", 1, False), ("claim", 1, True), ("move", 1, True)],
    ids=["before_the_manifest", "before_the_claim", "after_the_claim", "half_moved"],
)
def test_batch_is_in_the_table_once_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, nth: int, after: bool
) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    lake.write_batch([records(spark, 4, per_day=2)], QUERY, 0)
    with killed_at(monkeypatch, operation, nth, after=after):
        lake.write_batch([records(spark, 4, first=4, per_day=2)], QUERY, 1)
    seen = offsets(spark.read.parquet(str(tmp_path / "lake")))
    assert len(seen) == len(set(seen))
    restarted = make(spark, tmp_path / "lake", "parquet")
    restarted.write_batch([records(spark, 4, first=4, per_day=2)], QUERY, 1)
    restarted.write_batch([records(spark, 4, first=8, per_day=2)], QUERY, 2)
    assert offsets(restarted.read("orders")) == offsets(spark.read.parquet(str(tmp_path / "lake"))) == list(range(12))
    assert list((tmp_path / "lake/_wirekafka/staging").iterdir()) == []


def test_batch_whose_files_cannot_be_written_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    failing = records(spark, 10, "cast(concat(assert_true(id < 7, 'no space left'), id) AS binary)")
    with pytest.raises(Exception, match="no space left"):
        lake.write_batch([failing], QUERY, 0)
    assert list((tmp_path / "lake/_wirekafka/staging").iterdir()) == []
    lake.write_batch([records(spark, 10)], QUERY, 0)
    assert offsets(lake.read("orders")) == list(range(10))


def test_snapshot_finishes_a_batch_that_a_killed_writer_has_half_moved(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LocalFiles, "move", die)
        lake.write_batch([records(spark, 6)], QUERY, 0)
    assert lake.topics() == []
    assert offsets(lake.snapshot("orders")) == list(range(6))


def test_lake_refuses_a_query_with_another_checkpoint(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink)
    lake.write_batch([records(spark, 2)], QUERY, 0)
    with pytest.raises(PipelineError, match="another checkpoint"):
        make(spark, tmp_path / "lake", sink).write_batch([records(spark, 2)], "another", 0)


def test_lake_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    make(spark, tmp_path / "lake", "parquet")
    with pytest.raises(PipelineError, match="the sink of the lake .* cannot change from parquet to delta"):
        make(spark, tmp_path / "lake", "delta")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    with pytest.raises(PipelineError, match=r"no lake and not empty \(notes.txt\)"):
        make(spark, tmp_path / "other", "delta")
    with pytest.raises(PipelineError, match="is no lake"):
        open_lake(spark, str(tmp_path / "missing"))


WIDENINGS = {
    "byte_to_int": ("tinyint", "int"),
    "short_to_bigint": ("smallint", "bigint"),
    "int_to_bigint": ("int", "bigint"),
    "int_to_double": ("int", "double"),
    "float_to_double": ("float", "double"),
    "int_to_decimal": ("int", "decimal(12,2)"),
    "bigint_to_decimal": ("bigint", "decimal(20,0)"),
    "decimal_to_decimal": ("decimal(10,2)", "decimal(14,4)"),
    "date_to_timestamp_ntz": ("date", "timestamp_ntz"),
}


TIMES = ("date", "timestamp_ntz")
DAY = "date'2013-01-07'"


def nested(kinds: dict[str, str], more: str = "") -> str:
    """Returns SQL for a struct with a value of each type: as a field, in an array, in a map, in structs within them."""
    fields = []
    for name, kind in kinds.items():
        value = f"cast({DAY if kind in TIMES else 7} as {kind})"
        shapes = f"'f', {value}, 'l', array({value}), 'm', map('k', {value}), 's', array(named_struct('x', {value}{more}))"
        fields.append(f"'{name}', named_struct({shapes})")
    return f"named_struct({', '.join(fields)}{more})"


def test_older_records_are_read_with_added_columns_and_widened_types(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink, record_format="json")
    before = records(spark, 2, nested({name: kinds[0] for name, kinds in WIDENINGS.items()}))
    after = records(spark, 2, nested({name: kinds[1] for name, kinds in WIDENINGS.items()}, ", 'more', 'text'"), first=2)
    for batch, frame in enumerate((before, after)):
        lake.set_schema("orders", struct_of(frame))
        lake.write_batch([frame], QUERY, batch)
    lake.compact()
    found = open_lake(spark, str(tmp_path / "lake")).read("orders")
    assert struct_of(found).simpleString() == struct_of(after).simpleString()
    rows = {row.offset: row.value.asDict(recursive=True) for row in found.collect()}
    for offset, value in rows.items():
        assert value.pop("more") == (None if offset < 2 else "text")
        for name, shapes in value.items():
            expected = datetime(2013, 1, 7) if name == "date_to_timestamp_ntz" else 7  # noqa: DTZ001 - a type without a time zone
            assert [shapes["f"], *shapes["l"], *shapes["m"].values(), shapes["s"][0]["x"]] == [expected] * 4
    assert list(rows[0]) == list(WIDENINGS)


def test_topics_with_odd_names_have_tables_of_their_own(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    names = ["__HIVE_DEFAULT_PARTITION__", "a..b", "1", "Orders", "orders", "x" * 249]
    lake = make(spark, tmp_path / "lake", sink)
    frames = [records(spark, 2, topic=name) for name in names]
    lake.write_batch([reduce(lambda first, second: first.unionAll(second), frames)], QUERY, 0)
    assert lake.compact().added_files == len(names)
    assert lake.topics() == sorted(names)
    for name in names:
        rows = lake.read(name).select("topic", "offset").collect()
        assert sorted((row.topic, row.offset) for row in rows) == [(name, offset) for offset in range(2)]


def test_records_of_a_topic_without_a_schema_have_null_values(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink, record_format="json")
    lake.write_batch([records(spark, 2).drop("value")], QUERY, 0)
    assert [row.value for row in lake.read("orders").collect()] == [None, None]
    typed = records(spark, 1, "named_struct('id', id, 'at', timestamp_ntz'2013-01-07 00:00:00')", first=2)
    lake.set_schema("orders", struct_of(typed))
    lake.write_batch([typed], QUERY, 1)
    assert sorted((row.offset, row.value and row.value.id) for row in lake.read("orders").collect()) == [
        (0, None),
        (1, None),
        (2, 2),
    ]


def test_compaction_merges_the_files_of_each_date_and_keeps_the_records(spark: SparkSession, sink: Any, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", sink)
    for batch in range(4):
        lake.write_batch([records(spark, 30, first=30 * batch, per_day=60)], QUERY, batch)
    written = {(row.offset, bytes(row.value), bytes(row.key)) for row in lake.read("orders").collect()}
    result = lake.compact()
    assert result.removed_files == 8 and result.added_files == 2
    found = [(row.offset, bytes(row.value), bytes(row.key)) for row in lake.read("orders").collect()]
    assert len(found) == 120 and set(found) == written
    if sink == "parquet":
        assert len(data_files(tmp_path / "lake")) == 2
        assert offsets(spark.read.parquet(str(tmp_path / "lake"))) == list(range(120))
    assert lake.compact().removed_files == 0


def test_compaction_splits_the_records_of_a_date_at_the_target_size(spark: SparkSession, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    for batch in range(4):
        digest = "unhex(sha2(concat(id), 512))"
        lake.write_batch([records(spark, 1000, digest, first=1000 * batch, per_day=10_000)], QUERY, batch)
    total = sum(path.stat().st_size for path in data_files(tmp_path / "lake"))
    assert lake.compact(total // 3).added_files == 3
    ranges = []
    for path in data_files(tmp_path / "lake"):
        found = [row.offset for row in spark.read.parquet(str(path)).select("offset").collect()]
        assert found == sorted(found)
        ranges.append((found[0], found[-1]))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(sorted(ranges)))
    assert sum(last - first + 1 for first, last in ranges) == 4000


def test_compaction_keeps_columns_that_another_process_has_added(spark: SparkSession, tmp_path: Path) -> None:
    writer = make(spark, tmp_path / "lake", "parquet", record_format="json")
    schemas = ("named_struct('a', id)", "named_struct('a', id, 'b', 'text')")
    writer.set_schema("orders", struct_of(records(spark, 1, schemas[0])))
    writer.write_batch([records(spark, 2, schemas[0])], QUERY, 0)
    compacter = open_lake(spark, str(tmp_path / "lake"))
    writer.set_schema("orders", struct_of(records(spark, 1, schemas[1])))
    writer.write_batch([records(spark, 2, schemas[1], first=2)], QUERY, 1)
    assert compacter.compact().added_files == 1
    rows = writer.read("orders").orderBy("offset").collect()
    assert [row.value.b for row in rows] == [None, None, "text", "text"]


def test_compaction_is_due_after_every_so_many_batches(spark: SparkSession, tmp_path: Path) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    counts = []
    for batch in range(5):
        lake.write_batch([records(spark, 2, first=2 * batch)], QUERY, batch)
        counts.append(lake.compact_if_due(batch, every=2).removed_files)
    assert counts == [0, 4, 0, 5, 0]
    assert lake.compact_if_due(3, every=0).removed_files == 0


@pytest.mark.parametrize(
    ("operation", "nth", "after"),
    [("claim", 1, False), ("claim", 1, True), ("delete", 1, True), ("move", 1, True)],
    ids=["before_the_claim", "after_the_claim", "half_removed", "half_moved"],
)
def test_records_are_in_the_table_once_after_a_killed_compaction(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, nth: int, after: bool
) -> None:
    lake = make(spark, tmp_path / "lake", "parquet")
    for batch in range(4):
        lake.write_batch([records(spark, 20, first=20 * batch, per_day=40)], QUERY, batch)
    with killed_at(monkeypatch, operation, nth, after=after):
        lake.compact()
    seen = offsets(spark.read.schema("offset bigint").parquet(str(tmp_path / "lake")))
    assert len(seen) == len(set(seen))
    restarted = make(spark, tmp_path / "lake", "parquet")
    assert offsets(restarted.read("orders")) == list(range(80))
    restarted.compact()
    assert offsets(restarted.read("orders")) == list(range(80))
