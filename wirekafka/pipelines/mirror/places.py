"""Which source offsets are where at the target: the runs and the progress that the sink has written, read as they come."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import UnreachableError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.mirror.chunk_index import Chunk, ChunkIndex, RunCache
from wirekafka.pipelines.mirror.compacted import CompactedTopic, write_records
from wirekafka.pipelines.mirror.registry import Registry
from wirekafka.pipelines.mirror.topics import offset_ranges
from wirekafka.pipelines.mirror.translation import Places
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import Progress, Run, mapped_runs, runs_key

MOST_RUNS = 500_000
"""The runs that are kept in memory, about 100 MB. Groups at the end of their partitions need the last ones only."""


class OffsetMap:
    """The offsets of one mirror.

    Attributes:
        topics: the names of the mirrors by those of the topics.
    """

    def __init__(self, target: Cluster, sink: SinkOptions, registry: Registry) -> None:
        self._target = target
        self._registry = registry
        self._progress = CompactedTopic(target, sink.progress_topic)
        self._runs = CompactedTopic(target, sink.runs_topic)
        self._chunks: dict[TopicPartition, ChunkIndex] = defaultdict(ChunkIndex)
        self._cache = RunCache(MOST_RUNS)
        self._next: dict[TopicPartition, int] = {}
        self.topics: dict[str, str] = {}

    def refresh(self) -> None:
        """Reads what is new at the target.

        Raises:
            PipelineError: no broker answers.
        """
        self.topics = {topic: entry.target for topic, entry in self._registry.read().items()}
        # First the progress, then the runs: they are written together, so the runs are never behind the progress.
        self._progress.refresh()
        self._next = {_source(key): Progress.from_json(value).next_offset for key, value in self._progress.records.items()}
        for message in self._runs.new_records():
            self._take(message)

    def _take(self, message: Any) -> None:
        key, value = message.key(), message.value()
        chunks, first = self._chunks[_source(key)], json.loads(key)["first"]
        self._cache.remove(key)
        if value is None:
            chunks.remove(first)
            return
        runs = _runs_of(key, value)
        last = runs[-1]
        chunks.put(Chunk(first, last.source_offset + last.count, last.target_offset + last.count, message.offset()))
        self._cache.put(key, runs)

    def places(self, partition: TopicPartition, source_offset: int) -> Places:
        """Returns what is known of a source partition near an offset.

        Raises:
            PipelineError: no broker answers.
        """
        chunk = self._chunks[partition].containing(source_offset)
        return Places([] if chunk is None else self._read(partition, chunk), self._next.get(partition, 0))

    def _read(self, partition: TopicPartition, chunk: Chunk) -> list[Run]:
        """Returns the runs of a chunk."""
        key = runs_key((partition.topic, partition.partition), chunk.first)
        runs = self._cache.get(key)
        if runs is None:
            message = next(self._runs.records_from(chunk.log_offset), None)
            if message is None or message.key() != key or message.value() is None:
                raise UnreachableError(f"the mapped offsets of {partition} are written again")
            runs = _runs_of(key, message.value())
            self._cache.put(key, runs)
        return runs

    def target_ends(self) -> dict[TopicPartition, int]:
        """Returns one past the last offset that was written to each partition of the target."""
        return {target: self._chunks[source].target_end() for source, target in self._targets().items()}

    def prune(self) -> int:
        """Deletes the mapping records whose records retention has deleted at the target; returns how many.

        The last one of each partition stays: it says where the end is.

        Raises:
            PipelineError: no broker answers.
        """
        targets = self._targets()
        ranges = offset_ranges(self._target, targets.values(), committed=False)
        dead = [
            runs_key((source.topic, source.partition), first)
            for source, target in targets.items()
            if target in ranges
            for first in self._chunks[source].dead(ranges[target].start)
        ]
        if dead:
            write_records(self._target, self._runs.name, dict.fromkeys(dead))
        return len(dead)

    def _targets(self) -> dict[TopicPartition, TopicPartition]:
        """Returns the partition of the target for each source partition that has chunks."""
        return {
            source: TopicPartition(self.topics[source.topic], source.partition)
            for source, chunks in self._chunks.items()
            if source.topic in self.topics and len(chunks)
        }


def _runs_of(key: bytes, value: bytes) -> list[Run]:
    return [each.run for each in mapped_runs(key, value)]


def _source(key: bytes) -> TopicPartition:
    fields = json.loads(key)
    return TopicPartition(fields["topic"], fields["partition"])
