"""The data source `wirekafka-log` of PySpark: the records in the segment files of a broker, read without the broker.

    wirekafka.pipelines.register(spark)
    spark.read.format("wirekafka-log").option("topic", "orders").load("/var/lib/wirekafka")

How it works: the driver plans splits from the files' headers and indexes (`plan`), and each task reads one split as Arrow batches
(`reading`). The directory must be at the same path on the driver and on each executor. The end of each partition is fixed at
planning, so a query is a consistent prefix of each log beside a running broker. Records that were not replicated yet are part of
it. `options` lists the options, `columns` the columns.

Rules of this file: it holds only what PySpark needs. Everything that it hands to Spark can be pickled.

Source: pyspark.sql.datasource.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from wirekafka.inspection.batches import BatchTooLargeError
from wirekafka.inspection.files import DamageError
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.log_source.columns import SCHEMA
from wirekafka.pipelines.log_source.options import LogOptions, narrow, read_options
from wirekafka.pipelines.log_source.plan import plan
from wirekafka.pipelines.log_source.reading import Reading, read_split
from wirekafka.pipelines.log_source.segments import UnsettledFolderError

FORMAT = "wirekafka-log"
_WITHOUT_PARTITION = "the options topic and partition leave a partition out"
_WITHOUT_OFFSETS = "the options startingOffset and endingOffset leave a batch out"


@contextmanager
def _explained(way_out: str) -> Iterator[None]:
    """Turns errors of files into errors that say what to do.

    Args:
        way_out: how a query leaves a damaged file or batch out.
    """
    try:
        yield
    except BatchTooLargeError as error:
        raise PipelineError(f"{error}. The option maxBatchBytes allows more; {way_out}") from None
    except DamageError as error:
        raise PipelineError(f"{error}. {way_out}; `wirekafka log verify` names all damages of a directory") from None
    except UnsettledFolderError as error:
        raise PipelineError(str(error)) from None
    except OSError as error:
        raise PipelineError(f"cannot read {error.filename}: {error.strerror}. {way_out}") from None


class LogDataSource(DataSource):
    """The records of a data directory."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns.

        Raises:
            PipelineError: an option or the directory cannot be used.
        """
        with _explained(_WITHOUT_PARTITION):
            read_options(self.options).check_data()
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> LogReader:
        """Returns a reader of the records that the options select.

        Raises:
            OptionError: an option cannot be used.
        """
        options = read_options(self.options)
        return PushDownLogReader(options) if options.has_pushed_filters else LogReader(options)


class LogReader(DataSourceReader):
    """Plans the splits on the driver, and reads a split in a task."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Returns a partition of Spark for each split.

        Raises:
            PipelineError: a file cannot be read, or is damaged.
        """
        options = self._options
        with _explained(_WITHOUT_PARTITION):
            splits = plan(options.path, options.selection, options.split_bytes, options.most_batch_bytes)
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the records of a split; of none, because PySpark starts one task without a partition if there is no split.

        Raises:
            PipelineError: a batch is damaged or too large, a file cannot be read, or the folder of the partition is missing
                where the task runs.
        """
        if partition is None:
            return
        split = partition.value
        selection = self._options.selection
        reading = Reading(
            first_timestamp=selection.starting_timestamp,
            end_timestamp=selection.ending_timestamp,
            is_committed=selection.is_committed,
            has_crc_checks=self._options.has_crc_checks,
            most_batch_bytes=self._options.most_batch_bytes,
        )
        with _explained(_WITHOUT_OFFSETS):
            try:
                yield from read_split(split, reading)
            except FileNotFoundError:
                if os.path.isdir(split.folder):
                    raise
                raise PipelineError(
                    f"there is no directory {split.folder}: each executor needs the data directory at the path that the driver "
                    f"read, or the partition was deleted after the query was planned"
                ) from None


class PushDownLogReader(LogReader):
    """The reader with the option `pushFilters`: narrows the selection by the filters of a query.

    PySpark 4.1 to 4.3 keeps the narrowed plan for every later query of the same load(), whatever its filters are, and so loses
    rows of that query. It also refuses a reader that has `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is true.
    So this reader is used only with the option.

    Source: PythonScanBuilder and PythonDataSourceV2.setReadInfo of Spark 4.1; DATA_SOURCE_PUSHDOWN_DISABLED.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterator[Any]:  # noqa: N802 - PySpark's name
        """Narrows the selection; returns all filters, because Spark applies them again. PySpark calls this from 4.1 on."""
        for each in filters:
            column: tuple[str, ...] = getattr(each, "attribute", ())
            if len(column) == 1 and hasattr(each, "value"):
                selection = narrow(self._options.selection, type(each).__name__, column[0], each.value)
                self._options = replace(self._options, selection=selection)
            yield each
