"""The progress of Spark's streaming queries, as their checkpoint directories have it.

A checkpoint has a file in `offsets/` for each batch that was planned, and one in `commits/` for each batch that was completed. A
file of `offsets/` has the version, then a JSON object with the time of the batch, then for each source a line with the offsets at
which the batch ends. `sources/N/0` has the offsets at which a source of Kafka began.

Rules of this file: the functions `parse_*` are pure.

Source: org.apache.spark.sql.execution.streaming.{OffsetSeqLog, CommitLog}, org.apache.spark.sql.kafka010.
{KafkaSourceOffset, KafkaSourceInitialOffsetWriter}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.audit.offsets import Offsets, Place
from wirekafka.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from wirekafka.pipelines.lake.files import Files

NO_OFFSETS = "-"
"""Stands in the file of a batch for a source without data."""


@dataclass(slots=True)
class Checkpoint:
    """The progress of a streaming query.

    Attributes:
        path: the checkpoint directory.
        query_id: the id of the query.
        batch: the number of the last completed batch; None if no batch is complete.
        batch_time_ms: the time when that batch began.
        first_offsets: where the query began, in the partitions that existed then.
        end_offsets: one past the last record of the completed batches, in each partition.
        planned_offsets: the same of the newest batch that was planned, which may not be complete.
    """

    path: str
    query_id: str
    batch: int | None = None
    batch_time_ms: int | None = None
    first_offsets: dict[Place, int] = field(default_factory=dict)
    end_offsets: dict[Place, int] = field(default_factory=dict)
    planned_offsets: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class QueryLag:
    """How far a streaming query is behind in one partition.

    Attributes:
        checkpoint: the checkpoint directory.
        batch: the number of the last completed batch; None if no batch is complete.
        batch_time_ms: the time when that batch began.
        end_offset: one past the last record that the query has processed; None if it has not seen the partition.
        lag: the offsets from there to the log end offset, or from the log start offset.
    """

    checkpoint: str
    query_id: str
    batch: int | None
    batch_time_ms: int | None
    topic: str
    partition: int
    end_offset: int | None
    log_end_offset: int
    lag: int


def read_checkpoint(files: Files, path: str) -> Checkpoint:
    """Reads a checkpoint directory; a running query may write to it.

    Args:
        files: the files below the directory.
        path: how the directory is named in the report.

    Raises:
        PipelineError: the directory is no checkpoint of a streaming query.
    """
    metadata = files.read("metadata")
    if metadata is None:
        raise PipelineError(f"{path} is no checkpoint of a streaming query: it has no file metadata")
    found = Checkpoint(path, json.loads(metadata)["id"])
    for source in files.names("sources"):
        text = files.read(f"sources/{source}/0")
        found.first_offsets |= parse_initial_offsets(text.decode()) if text is not None else {}
    found.end_offsets = dict(found.first_offsets)
    committed = [int(name) for name in files.names("commits") if name.isdigit()]
    if committed:
        found.batch = max(committed)
        text = files.read(f"offsets/{found.batch}")
        if text is None:
            raise PipelineError(f"the checkpoint {path} is damaged: it has commits/{found.batch}, and no offsets/{found.batch}")
        found.batch_time_ms, offsets = parse_batch(text.decode())
        found.end_offsets |= offsets
    planned = [int(name) for name in files.names("offsets") if name.isdigit()]
    text = files.read(f"offsets/{max(planned)}") if planned else None
    found.planned_offsets = parse_batch(text.decode())[1] if text is not None else {}
    return found


def query_lags(checkpoint: Checkpoint, offsets: Offsets) -> list[QueryLag]:
    """Returns the lag of a query in the partitions of `offsets` whose topics it reads."""
    topics = {place.topic for place in checkpoint.end_offsets}
    lags = []
    for place, each in sorted(offsets.items()):
        if place.topic in topics:
            end = checkpoint.end_offsets.get(place)
            lag = max(each.log_end_offset - (each.log_start_offset if end is None else end), 0)
            query = (checkpoint.path, checkpoint.query_id, checkpoint.batch, checkpoint.batch_time_ms)
            lags.append(QueryLag(*query, *place, end, each.log_end_offset, lag))
    return lags


def parse_batch(text: str) -> tuple[int | None, dict[Place, int]]:
    """Returns the time of a batch in ms, and the offsets of Kafka at which it ends, from a file of `offsets/`."""
    lines = text.splitlines()
    time_ms = json.loads(lines[1]).get("batchTimestampMs") if len(lines) > 1 and lines[1].startswith("{") else None
    found: dict[Place, int] = {}
    for line in lines[2:]:
        found |= _kafka_offsets(line)
    return time_ms, found


def parse_initial_offsets(text: str) -> dict[Place, int]:
    """Returns the offsets at which a source of Kafka began, from its file `0`; none for a source of another kind."""
    version, _, offsets = text.lstrip("\0").partition("\n")
    return _kafka_offsets(offsets) if version.startswith("v") else {}


def _kafka_offsets(text: str) -> dict[Place, int]:
    """Returns offsets in the form {"topic": {"partition": offset}}; none if the text has another form."""
    try:
        topics = json.loads(text) if text != NO_OFFSETS else {}
    except ValueError:
        return {}
    if not _is_object_of(topics, dict):
        return {}
    found: dict[Place, int] = {}
    for topic, partitions in topics.items():
        if _is_object_of(partitions, int):
            found |= {Place(topic, int(number)): offset for number, offset in partitions.items() if number.isdigit()}
    return found


def _is_object_of(value: Any, kind: type) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, kind) for each in value.values())
