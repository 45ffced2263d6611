"""A lake as the pipelines use it: one table of records a topic, written exactly once by one streaming query."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.compaction import CompactionResult
from wirekafka.pipelines.lake.delta import DeltaTables
from wirekafka.pipelines.lake.description import LakeDescription, refuse_changes
from wirekafka.pipelines.lake.files import Files, open_files
from wirekafka.pipelines.lake.parquet import ParquetTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TARGET_BYTES = 128 * 1024 * 1024
"""The size that files have about after a compaction: that of a block of HDFS."""

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
"""How the path of a lake begins that a file system of Hadoop may have elsewhere."""

DESCRIPTION_ATTEMPT = "description."
"""How the names of attempts at a new description begin."""


class Tables(Protocol):
    """The tables of a lake in one format."""

    def prepare(self) -> None:
        """Removes what killed writers have left; called by the one writer before its first batch."""

    def settle(self) -> None:
        """Finishes the changes that killed writers have decided."""

    def write_batch(self, frames: Sequence[DataFrame], query_id: str, batch_id: int) -> None:
        """Adds records unless the batch was written before."""

    def read(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the records of a topic that has a table."""

    def snapshot(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the records of a topic that has a table, as they were between two batches."""

    def compact(self, topic: str, schema: Callable[[], StructType], target_bytes: int) -> CompactionResult:
        """Merges small files of a topic that has a table. `schema` returns the columns that it has by then."""


class Lake:
    """A directory with the records of some topics.

    Attributes:
        path: the path or URI of the directory.
        description: what the lake holds.
    """

    def __init__(self, spark: SparkSession, path: str, files: Files, description: LakeDescription, number: int) -> None:
        self.path = path
        self.description = description
        self._spark = spark
        self._files = files
        self._number = number
        self._tables: Tables = ParquetTables(spark, path, files) if description.sink == "parquet" else DeltaTables(spark, path)

    @property
    def checkpoint(self) -> str:
        """The directory of the checkpoint of the query that fills the lake."""
        return f"{self.path}/{layout.CHECKPOINT}"

    def topics(self) -> list[str]:
        """Returns the topics that have records in the lake."""
        names = self._files.names("")
        return [name.removeprefix(layout.TOPIC_PREFIX) for name in names if name.startswith(layout.TOPIC_PREFIX)]

    def read(self, topic: str) -> DataFrame:
        """Returns the records of a topic, without an order; no rows if the lake has none.

        Columns: topic, partition, offset, timestamp, timestamp_type, key, headers, value, value_bytes if the lake keeps them,
        and date, the UTC date of the timestamp. `value` is a struct of the topic's schema, or bytes.
        """
        if topic not in self.topics():
            return self._spark.createDataFrame([], self._columns(topic))
        return self._tables.read(topic, self._columns(topic))

    def snapshot(self, topic: str) -> DataFrame:
        """Returns the records of a topic like `read`, with all or none of the records of each batch.

        Raises:
            PipelineError: the writer was too fast to find a moment between two batches.
        """
        self._tables.settle()
        if topic not in self.topics():
            return self._spark.createDataFrame([], self._columns(topic))
        return self._tables.snapshot(topic, self._columns(topic))

    def compact(self, target_bytes: int = TARGET_BYTES) -> CompactionResult:
        """Merges small files of one topic and date to files of about `target_bytes`, which are sorted by partition and offset.

        Parquet: a reader that is not this class misses the records of the files that are replaced for the moment between two
        steps, or, if it has listed the files before, finds some of them deleted and has to be started again. A killed
        compaction is finished when the lake is opened next. Delta: readers see the old files until the user runs VACUUM.
        """
        results = [self._tables.compact(topic, partial(self._columns_now, topic), target_bytes) for topic in self.topics()]
        return sum(results, CompactionResult())

    def compact_if_due(self, batch_id: int, every: int, target_bytes: int = TARGET_BYTES) -> CompactionResult:
        """Compacts the lake after each `every` batches of the query that fills it; 0: never."""
        if not every or (batch_id + 1) % every:
            return CompactionResult()
        return self.compact(target_bytes)

    def schema(self, topic: str) -> StructType | None:
        """Returns the type of the topic's values; None for bytes, or if it is not known yet."""
        return _value_type(self.description, topic)

    def set_schema(self, topic: str, schema: StructType) -> None:
        """Changes the type of the topic's values before records with the new type are written.

        Records that are in the lake are read with the new type too, so it may only add fields, and widen types as Spark's Parquet
        reader does: byte to short to int to bigint; byte, short and int to double; float to double; integers and decimals to
        decimals that hold all their digits. It does not read bigint as double, or numbers as strings.
        """
        self._describe(self.description.with_schema(topic, schema.jsonValue()))

    def write_batch(self, frames: Sequence[DataFrame], query_id: str, batch_id: int) -> None:
        """Adds the records of a batch of a streaming query to the lake, once, however often the batch is repeated.

        Args:
            frames: the records, with the columns of `read` but `date`, in any order. Frames differ in the type of `value`, and
                lack it while the topic has no schema. All records of a topic are in one frame. A frame is computed more than
                once, so persist it if that costs much.
            query_id: the id of the query, which stays when the query is started again from its checkpoint.
            batch_id: the number of the batch.

        Raises:
            PipelineError: another query has filled the lake, or another process writes to it now.
        """
        if self.description.query_id is None:
            self._describe(replace(self.description, query_id=query_id))
        self.refuse_other_query(query_id)
        frames = [_with_date(frame, has_value_bytes=self.description.has_value_bytes) for frame in frames]
        self._tables.write_batch(frames, query_id, batch_id)

    def refuse_other_query(self, query_id: str) -> None:
        """Refuses a query that does not fill the lake.

        Raises:
            PipelineError: another query has filled it.
        """
        if self.description.query_id not in (None, query_id):
            raise PipelineError(
                f"the lake {self.path} was filled by a query with another checkpoint than {self.checkpoint}: restore the"
                " checkpoint, or use another directory"
            )

    def refuse_missing_checkpoint(self) -> None:
        """Refuses to fill a lake that has records, and whose checkpoint was deleted or is that of another query.

        Raises:
            PipelineError: Spark would begin again, from the first offsets.
        """
        metadata = self._files.read(f"{layout.CHECKPOINT}/metadata")
        if metadata is not None:
            self.refuse_other_query(json.loads(metadata)["id"])
        elif self.description.query_id is not None:
            raise PipelineError(
                f"the checkpoint {self.checkpoint} is missing, and the lake has records: restore the checkpoint, or use another"
                " directory"
            )

    def _columns_now(self, topic: str) -> StructType:
        """Returns the columns of a topic's table, also those that another process has added since this one opened the lake."""
        _, description = read_description(self._files)
        return _table_columns(description or self.description, topic)

    def _columns(self, topic: str) -> StructType:
        return _table_columns(self.description, topic)

    def _describe(self, description: LakeDescription) -> None:
        write_description(self._files, description, self._number + 1)
        self._number += 1
        self.description = description


def _value_type(description: LakeDescription, topic: str) -> StructType | None:
    from pyspark.sql.types import StructType

    known = description.schemas.get(topic)
    return None if known is None else StructType.fromJson(known)


def _table_columns(description: LakeDescription, topic: str) -> StructType:
    return layout.columns(_value_type(description, topic), has_value_bytes=description.has_value_bytes)


def create_lake(spark: SparkSession, path: str, description: LakeDescription) -> Lake:
    """Makes a lake, or opens the lake that is there, for the one process that fills it.

    Raises:
        PipelineError: the directory has other files, or is a lake that was made with another description.
    """
    files = open_files(spark, path)
    number, found = read_description(files)
    if found is None:
        foreign = [name for name in files.names("") if name != layout.PRIVATE]
        if foreign:
            raise PipelineError(f"{path} is no lake and not empty ({foreign[0]}): use another directory")
        write_description(files, description, 1)
        number, found = 1, description
    refuse_changes(path, found, description)
    for name in files.names(layout.STAGING):
        if name.startswith(DESCRIPTION_ATTEMPT):
            files.delete(f"{layout.STAGING}/{name}")
    lake = Lake(spark, path, files, found, number)
    lake._tables.prepare()
    return lake


def open_lake(spark: SparkSession, path: str) -> Lake:
    """Opens a lake to read it, beside the process that fills it or after.

    It finishes what a killed writer has decided and not completed, so it needs the right to write.

    Raises:
        PipelineError: the path is no lake.
    """
    files = open_files(spark, path)
    number, found = read_description(files)
    if found is None:
        raise PipelineError(f"{path} is no lake: `wirekafka pipeline ingest` makes one")
    lake = Lake(spark, path, files, found, number)
    lake._tables.settle()
    return lake


def may_be_delta(path: str) -> bool:
    """Whether the connector of Delta is needed to open a lake; False if a local directory shows that it is not.

    It is decided without Spark, which would fetch the connector at its start.
    """
    if REMOTE.match(path) or not Path(path).is_dir():  # it may be on the default file system of Hadoop
        return True
    descriptions = sorted(Path(path, layout.DESCRIPTIONS).glob("*.json"))
    try:
        return bool(descriptions) and LakeDescription.from_json(descriptions[-1].read_bytes()).sink == "delta"
    except OSError:
        return True


def read_description(files: Files) -> tuple[int, LakeDescription | None]:
    """Returns the newest description of a lake with its number; 0 and None if there is none."""
    while True:
        numbers = [int(name.removesuffix(".json")) for name in files.names(layout.DESCRIPTIONS)]
        if not numbers:
            return 0, None
        data = files.read(_description_path(max(numbers)))
        if data is not None:  # otherwise a newer one was written since
            return max(numbers), LakeDescription.from_json(data)


def write_description(files: Files, description: LakeDescription, number: int) -> None:
    """Writes the next description of a lake, and deletes the older ones.

    Raises:
        PipelineError: another process has written one with this number.
    """
    attempt = f"{layout.STAGING}/{DESCRIPTION_ATTEMPT}{number}.{uuid.uuid4().hex}"
    files.write(f"{attempt}/claim", description.to_json())
    try:
        files.claim(f"{attempt}/claim", _description_path(number))
    except (FileExistsError, FileNotFoundError):
        raise PipelineError("another process writes to this lake: stop one of the two") from None
    finally:
        files.delete(attempt)
    for name in files.names(layout.DESCRIPTIONS)[:-1]:
        files.delete(f"{layout.DESCRIPTIONS}/{name}")


def _description_path(number: int) -> str:
    return f"{layout.DESCRIPTIONS}/{number:012d}.json"


def _with_date(frame: DataFrame, *, has_value_bytes: bool) -> DataFrame:
    """Returns the frame with the columns of a table, in their order."""
    from pyspark.sql import functions

    dated = frame.withColumn("date", functions.expr(layout.UTC_DATE))
    names = layout.columns(None, has_value_bytes=has_value_bytes).names
    return dated.select(*(name for name in names if name in dated.columns))
