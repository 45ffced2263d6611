"""The driver's part of the sink: it prepares the topics, and lets Spark run the writers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S
from wirekafka.pipelines.transactional_sink.delivery import RESULT_SCHEMA, Plan, Target, write_partitions
from wirekafka.pipelines.transactional_sink.failures import SinkInterrupted, failure
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.rows import COLUMNS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import DataFrame

MIN_TASKS = 8
"""With a few more tasks than cores, two large source partitions seldom fall into one task."""

STORED_TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""The settings of the topics of a sink; small segments are compacted soon."""


@dataclass(slots=True, frozen=True)
class PartitionResult:
    """What one call of `write` did with one source partition.

    Attributes:
        written: the number of records that it wrote.
        skipped: the number of records that were written before.
        next_offset: the first source offset that is not written.
    """

    source_topic: str
    source_partition: int
    written: int
    skipped: int
    next_offset: int


@dataclass(slots=True, frozen=True)
class WriteResult:
    """What one call of `write` did."""

    partitions: list[PartitionResult]

    @property
    def written(self) -> int:
        """The number of records that were written."""
        return sum(each.written for each in self.partitions)

    @property
    def skipped(self) -> int:
        """The number of records that were written before."""
        return sum(each.skipped for each in self.partitions)


def write(frame: DataFrame, sink: SinkOptions) -> WriteResult:
    """Writes each row of a frame to its topic exactly once, however often the frame, or a later one, has the same rows.

    The frame has the columns `source_topic`, `source_partition`, `source_offset`, `topic`, `partition` (null: chosen by the hash
    of the key, as Kafka's Java client does, or at random without a key), `key`, `value`, `headers` (array of struct of `key` and
    `value`) and `timestamp_ms` (null: now). A row whose source offset is below the sink's progress is skipped, so the frames of
    one sink have ascending source offsets in each source partition; the offsets may have gaps.

    Durability: on return, all rows are in committed transactions.

    Raises:
        PipelineError: a target topic is missing, or refuses a record, or a source topic was created again.
        SinkInterrupted: the brokers did not answer; write the frame again.
    """
    from pyspark.errors import PySparkException

    _check_columns(frame)
    plan = Plan(sink, _prepare_topics(sink))
    tasks = max(int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")), MIN_TASKS)
    source = ("source_topic", "source_partition")
    sorted_rows = (
        frame.selectExpr(*(f"CAST({name} AS {kind}) AS {name}" for name, kind in COLUMNS.items()))
        .repartition(tasks, *source)
        .sortWithinPartitions(*source, "source_offset")
    )
    written = sorted_rows.mapInArrow(partial(write_partitions, plan), RESULT_SCHEMA)
    try:
        rows = written.collect()
    except PySparkException as error:
        raise _task_failure(error) or error from None
    return WriteResult([PartitionResult(**row.asDict()) for row in rows])


def _check_columns(frame: DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise PipelineError(f"the frame has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")


def _task_failure(error: Exception) -> Exception | None:
    """Returns the error that a writer raised in a task, which Spark reports as the text of a traceback."""
    found = re.search(r"^(?:\w+\.)*(PipelineError|SinkInterrupted): (.+)$", str(error), re.MULTILINE)
    if found is None:
        return None
    return PipelineError(found[2]) if found[1] == "PipelineError" else SinkInterrupted(found[2])


def _prepare_topics(sink: SinkOptions) -> dict[str, Target]:
    """Creates the topics that are missing; returns the target topics."""
    from confluent_kafka import KafkaException

    admin = sink.cluster.admin()
    try:
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        partitions = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        _create_topics(admin, sink, partitions)
        limits = _max_message_bytes(admin, list(sink.targets))
    except KafkaException as error:
        raise failure(error.args[0], f"cannot prepare the topics at {sink.cluster.bootstrap}") from None
    return {name: Target(partitions[name], limits[name]) for name in sink.targets}


def _create_topics(admin: AdminClient, sink: SinkOptions, partitions: dict[str, int]) -> None:
    """Creates the target topics and the sink's own topics that are missing, and adds them to `partitions`."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    own = [sink.progress_topic, sink.runs_topic] if sink.maps_offsets else [sink.progress_topic]
    missing = [NewTopic(name, 1, config=STORED_TOPIC_SETTINGS) for name in own if name not in partitions]
    for name, count in sink.targets.items():
        if name in partitions:
            continue
        if count is None:
            raise PipelineError(f"the topic {name} does not exist at {sink.cluster.bootstrap}: create it first")
        missing.append(NewTopic(name, count))
    if not missing:
        return
    for created in admin.create_topics(missing, request_timeout=REQUEST_TIMEOUT_S).values():
        try:
            created.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    partitions.update({topic.topic: topic.num_partitions for topic in missing})


def _max_message_bytes(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources: list[Any] = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    if not resources:
        return {}
    found = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    return {resource.name: int(future.result()["max.message.bytes"].value) for resource, future in found.items()}
