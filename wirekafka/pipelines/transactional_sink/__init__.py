"""Writes frames of Spark into Kafka exactly once, with the records' own timestamps.

Spark's own sink writes at least once, and cannot set timestamps. This one writes each source partition in transactions that hold
its progress too; see `delivery` for the protocol.
"""

from wirekafka.pipelines.transactional_sink.failures import SinkInterrupted
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import (
    MappedRun,
    Run,
    Source,
    follow_progress,
    read_progress,
    read_runs,
    read_stored_progress,
)
from wirekafka.pipelines.transactional_sink.topics import prepare_topics, topic_settings
from wirekafka.pipelines.transactional_sink.writing import PartitionResult, WriteResult, write

__all__ = [
    "MappedRun",
    "PartitionResult",
    "Run",
    "SinkInterrupted",
    "SinkOptions",
    "Source",
    "WriteResult",
    "follow_progress",
    "prepare_topics",
    "read_progress",
    "read_runs",
    "read_stored_progress",
    "topic_settings",
    "write",
]
