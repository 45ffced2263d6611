"""Writes frames of Spark into Kafka exactly once, with the records' own timestamps.

Spark's own sink writes at least once, and cannot set timestamps. This one writes each source partition in transactions that hold
its progress too; see `delivery` for the protocol.
"""

from wirekafka.pipelines.transactional_sink.failures import SinkInterrupted
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import MappedRun, Run, read_progress, read_runs
from wirekafka.pipelines.transactional_sink.topics import prepare_topics, topic_settings
from wirekafka.pipelines.transactional_sink.writing import PartitionResult, WriteResult, write

__all__ = [
    "MappedRun",
    "PartitionResult",
    "Run",
    "SinkInterrupted",
    "SinkOptions",
    "WriteResult",
    "prepare_topics",
    "read_progress",
    "read_runs",
    "topic_settings",
    "write",
]
