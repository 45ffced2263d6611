"""Which source offsets are where at the target: the runs and the progress that the sink has written, read as they come."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from wirekafka.names import TopicPartition
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.mirror.compacted import CompactedTopic, write_records
from wirekafka.pipelines.mirror.registry import Registry
from wirekafka.pipelines.mirror.topics import offset_ranges
from wirekafka.pipelines.mirror.translation import Places
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import Progress, Run, mapped_runs


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
        self._chunks: dict[TopicPartition, dict[bytes, list[Run]]] = defaultdict(dict)
        self._next: dict[TopicPartition, int] = {}
        self._places: dict[TopicPartition, Places] = {}
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
        self._runs.refresh()
        for key in self._runs.changed:
            partition, value = _source(key), self._runs.records.get(key)
            self._places.pop(partition, None)
            if value is None:
                self._chunks[partition].pop(key, None)
            else:
                self._chunks[partition][key] = [each.run for each in mapped_runs(key, value)]

    def places(self, partition: TopicPartition) -> Places:
        """Returns what is known of a source partition."""
        found = self._places.get(partition)
        if found is None:
            runs = sorted((run for chunk in self._chunks[partition].values() for run in chunk), key=_source_offset)
            found = self._places[partition] = Places(runs, 0)
        found.next_source_offset = self._next.get(partition, 0)
        return found

    def prune(self) -> int:
        """Deletes the mapping records whose records retention has deleted at the target; returns how many.

        The last one of each partition stays: it says where the end is.

        Raises:
            PipelineError: no broker answers.
        """
        targets = {
            source: TopicPartition(self.topics[source.topic], source.partition)
            for source in self._chunks
            if source.topic in self.topics
        }
        ranges = offset_ranges(self._target, targets.values(), committed=False)
        dead = [
            key
            for source, target in targets.items()
            if target in ranges
            for key in dead_chunks(self._chunks[source], ranges[target].start)
        ]
        if dead:
            write_records(self._target, self._runs.name, dict.fromkeys(dead))
        return len(dead)


def dead_chunks(chunks: Mapping[bytes, list[Run]], log_start_offset: int) -> list[bytes]:
    """Returns the keys of the mapping records of one partition that say nothing of any record that the target still has."""
    ends = {key: max(run.target_offset + run.count for run in runs) for key, runs in chunks.items()}
    last = max(ends.values(), default=0)
    return [key for key, end in ends.items() if end <= log_start_offset and end != last]


def _source(key: bytes) -> TopicPartition:
    fields = json.loads(key)
    return TopicPartition(fields["topic"], fields["partition"])


def _source_offset(run: Run) -> int:
    return run.source_offset
