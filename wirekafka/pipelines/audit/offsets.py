"""The offsets of the partitions that an audit compares: from the brokers, or from data directories.

Source: ListOffsets of the Kafka protocol; KIP-98 for the last stable offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import OffsetSpec

    from wirekafka.pipelines.log_source.plan import Selection
    from wirekafka.pipelines.log_source.transactions import AbortedBatches, AbortedRange


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(slots=True, frozen=True)
class PartitionOffsets:
    """The offsets of a partition when the audit began.

    Attributes:
        log_start_offset: the first offset that retention has left.
        first_offset: the first offset that is counted; later than the log start offset if the audit begins at a time.
        last_stable_offset: one past the last offset that is counted.
        log_end_offset: one past the last record; greater than the last stable offset while a transaction is open.

    Invariant: log_start_offset <= first_offset <= last_stable_offset <= log_end_offset
    """

    log_start_offset: int
    first_offset: int
    last_stable_offset: int
    log_end_offset: int


Offsets = Mapping[Place, PartitionOffsets]


def offsets_of_cluster(cluster: Cluster, partitions: Mapping[str, int], since_ms: int | None) -> dict[Place, PartitionOffsets]:
    """Returns the offsets of all partitions of topics.

    Args:
        cluster: the brokers.
        partitions: the number of partitions of each topic.
        since_ms: the records before the first one with this timestamp or a later one are not counted; None for all.

    Raises:
        PipelineError: a broker does not answer.
    """
    from confluent_kafka import IsolationLevel
    from confluent_kafka.admin import OffsetSpec

    places = [Place(topic, number) for topic, count in partitions.items() for number in range(count)]
    starts = _list_offsets(cluster, places, OffsetSpec.earliest())
    stable = _list_offsets(cluster, places, OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED)
    ends = _list_offsets(cluster, places, OffsetSpec.latest())
    firsts = starts if since_ms is None else _list_offsets(cluster, places, OffsetSpec.for_timestamp(since_ms))
    found = {}
    for place in places:
        start, end = starts[place], max(stable[place], starts[place])
        first = end if firsts[place] < 0 else min(max(firsts[place], start), end)
        found[place] = PartitionOffsets(start, first, end, max(ends[place], end))
    return found


def _list_offsets(cluster: Cluster, places: Iterable[Place], spec: OffsetSpec, **more: Any) -> dict[Place, int]:
    from confluent_kafka import KafkaException, TopicPartition

    wanted = {TopicPartition(*place): spec for place in places}
    if not wanted:
        return {}
    admin = cluster.admin()  # without a reference, the client would be deleted, and its futures would never end
    try:
        futures = admin.list_offsets(wanted, request_timeout=REQUEST_TIMEOUT_S, **more)
        return {Place(each.topic, each.partition): future.result().offset for each, future in futures.items()}
    except KafkaException as error:
        raise PipelineError(f"the offsets cannot be read at {cluster.bootstrap}: {error.args[0].str()}") from None


def topic_configs(cluster: Cluster, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of topics.

    Raises:
        PipelineError: a broker does not answer.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    if not wanted:
        return {}
    admin = cluster.admin()
    try:
        futures = admin.describe_configs(wanted, request_timeout=REQUEST_TIMEOUT_S)
        return {
            resource.name: {name: entry.value for name, entry in future.result().items()} for resource, future in futures.items()
        }
    except KafkaException as error:
        raise PipelineError(f"the settings of topics cannot be read at {cluster.bootstrap}: {error.args[0].str()}") from None


def places_in(data_dirs: Iterable[Path]) -> list[Place]:
    """Returns the partitions that data directories have.

    Raises:
        PipelineError: a directory is no data directory.
    """
    return [place for _, place in _folders(data_dirs)]


def _folders(data_dirs: Iterable[Path]) -> Iterator[tuple[str, Place]]:
    from wirekafka.inspection.files import holds_data, partition_folders
    from wirekafka.log.directory import partition_of_folder
    from wirekafka.names import CLUSTER_METADATA_TOPIC

    for directory in data_dirs:
        if not directory.is_dir() or not holds_data(str(directory)):
            raise PipelineError(f"{directory} is no data directory of a broker: name one of its log.dirs")
        for folder in partition_folders(str(directory)):
            name = partition_of_folder(os.path.basename(os.path.abspath(folder)))
            if name is not None and name.topic != CLUSTER_METADATA_TOPIC:
                yield folder, Place(name.topic, name.partition)


def offsets_of_data_dirs(data_dirs: Iterable[Path], topics: Iterable[str], since_ms: int | None) -> dict[Place, PartitionOffsets]:
    """Returns the offsets of the partitions that data directories have of some topics.

    Args:
        data_dirs: the directories.
        topics: the names of the topics.
        since_ms: records before this timestamp are not counted, so the first offset may be greater; None for all.

    Raises:
        PipelineError: a directory is no data directory, or cannot be read.
    """
    from wirekafka.inspection.files import DamageError
    from wirekafka.pipelines.log_source.plan import Selection
    from wirekafka.pipelines.log_source.segments import list_segments

    directories, wanted = tuple(data_dirs), frozenset(topics)
    try:
        everything = _ranges(directories, Selection(wanted))
        committed = _ranges(directories, Selection(wanted, is_committed=True))
        timely = _ranges(directories, Selection(wanted, is_committed=True, starting_timestamp=since_ms))
        found = {}
        for folder, place in _folders(directories):
            if place.topic in wanted:
                segments = list_segments(folder)
                empty = segments[-1].base_offset if segments else 0
                start, end = everything.get(place, (empty, empty))
                stable = committed.get(place, (start, start))[1]
                first = timely.get(place, (stable, stable))[0]
                found[place] = PartitionOffsets(start, first, stable, end)
    except (OSError, DamageError) as error:
        raise PipelineError(f"the data directory cannot be read: {error}") from None
    return found


def outcomes_of_data_dirs(data_dirs: Iterable[Path], topics: Iterable[str]) -> dict[Place, AbortedBatches]:
    """Returns the aborted transactions of the partitions that data directories have of some topics.

    Raises:
        PipelineError: a directory is no data directory, or cannot be read.
    """
    from wirekafka.inspection.files import DamageError
    from wirekafka.pipelines.log_source.plan import Selection, plan
    from wirekafka.pipelines.log_source.transactions import AbortedBatches

    directories, wanted = tuple(data_dirs), frozenset(topics)
    found: dict[Place, set[AbortedRange]] = {place: set() for place in places_in(directories) if place.topic in wanted}
    try:
        for directory in directories:
            for split in plan(str(directory), Selection(wanted, is_committed=True)):
                found[Place(split.topic, split.partition)].update(split.aborted)
    except (OSError, DamageError) as error:
        raise PipelineError(f"the data directory cannot be read: {error}") from None
    return {place: AbortedBatches(aborted) for place, aborted in found.items()}


def _ranges(directories: Iterable[Path], selection: Selection) -> dict[Place, tuple[int, int]]:
    """Returns the first offset of each partition with selected records, and one past the last."""
    from wirekafka.pipelines.log_source.plan import plan

    found: dict[Place, tuple[int, int]] = {}
    for directory in directories:
        for split in plan(str(directory), selection):
            place = Place(split.topic, split.partition)
            first, end = found.get(place, (split.first_offset, split.end_offset))
            found[place] = (min(first, split.first_offset), max(end, split.end_offset))
    return found
