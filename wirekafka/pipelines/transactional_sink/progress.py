"""What a sink stores in Kafka about its progress, in the transactions of its records.

Three places, all written in the transaction that has the records:

- the offset of the source partition's group (`SinkOptions.identity`) on partition 0 of the progress topic is the next source
  offset; the offset's metadata is the id of the source topic;
- a record in the progress topic says the same. It remains when the broker has deleted the group's offset, which is
  `offsets.retention.minutes` after its commit (7 days by default);
- with `maps_offsets`, a record in the runs topic has the runs of the transaction: which target offsets the source offsets have.

The runs topic has one record for each transaction; the key has the transaction's first source offset. The pipeline that reads the
runs writes tombstones for those that it does not need any more, as the mirror does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.transactional_sink.failures import failure
from wirekafka.pipelines.transactional_sink.options import SinkOptions

FOLLOW_POLL_S = 0.3

Source = tuple[str, int]
"""A source topic and one of its partitions."""


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a source partition is written.

    Attributes:
        next_offset: the first source offset that is not written.
        source_id: the id of the source topic; empty if the sink was told none.
    """

    next_offset: int = 0
    source_id: str = ""

    def to_json(self) -> str:
        """Returns the metadata of the group's offset, and the value of the record in the progress topic."""
        return json.dumps({"next": self.next_offset, "source_id": self.source_id})

    @classmethod
    def from_json(cls, text: str | bytes) -> Progress:
        """Reads what `to_json` returned."""
        fields = json.loads(text)
        return cls(fields["next"], fields["source_id"])


@dataclass(slots=True, frozen=True)
class Run:
    """Consecutive source offsets that have consecutive target offsets.

    Source offset `source_offset + n` has target offset `target_offset + n`, for each n below `count`.
    """

    source_offset: int
    target_offset: int
    count: int


@dataclass(slots=True, frozen=True)
class TargetRuns:
    """The runs of a transaction in one target partition."""

    topic: str
    partition: int
    runs: list[Run]


@dataclass(slots=True, frozen=True)
class MappedRun:
    """A run, and the partitions on its two sides."""

    source_topic: str
    source_partition: int
    topic: str
    partition: int
    run: Run


def runs_of(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Returns the runs of pairs of a source offset and its target offset, in ascending order."""
    runs: list[Run] = []
    first = target = count = 0
    for source_offset, target_offset in pairs:
        if count and source_offset == first + count and target_offset == target + count:
            count += 1
            continue
        if count:
            runs.append(Run(first, target, count))
        first, target, count = source_offset, target_offset, 1
    if count:
        runs.append(Run(first, target, count))
    return runs


def progress_key(source: Source) -> bytes:
    """Returns the key of a source partition's record in the progress topic."""
    return json.dumps({"topic": source[0], "partition": source[1]}).encode()


def runs_key(source: Source, first_offset: int) -> bytes:
    """Returns the key of the record of the runs of a transaction that begins at a source offset."""
    return json.dumps({"topic": source[0], "partition": source[1], "first": first_offset}).encode()


def runs_value(targets: Iterable[TargetRuns]) -> bytes:
    """Returns the value of the record of a transaction's runs."""
    fields = [
        {
            "topic": target.topic,
            "partition": target.partition,
            "runs": [[run.source_offset, run.target_offset, run.count] for run in target.runs],
        }
        for target in targets
    ]
    return json.dumps({"targets": fields}).encode()


def mapped_runs(key: bytes, value: bytes) -> Iterator[MappedRun]:
    """Yields the runs of a record of the runs topic."""
    source = json.loads(key)
    for target in json.loads(value)["targets"]:
        for numbers in target["runs"]:
            yield MappedRun(source["topic"], source["partition"], target["topic"], target["partition"], Run(*numbers))


def read_progress(sink: SinkOptions) -> dict[Source, int]:
    """Returns the next source offset of each source partition that the sink has written.

    Transactions that are open or in doubt are not in it.

    Raises:
        PipelineError: the broker refuses the client.
        SinkInterrupted: no broker answers.
    """
    return {source: progress.next_offset for source, progress in read_stored_progress(sink).items()}


def read_stored_progress(sink: SinkOptions) -> dict[Source, Progress]:
    """Returns the last record of each source partition in the progress topic; empty if the topic does not exist."""
    found: dict[Source, Progress] = {}
    for message in committed_records(sink.cluster, sink.progress_topic):
        key = json.loads(message.key())
        source = key["topic"], key["partition"]
        if message.value() is None:
            found.pop(source, None)
        else:
            found[source] = Progress.from_json(message.value())
    return found


class Follower(Protocol):
    """What is told of the progress of a sink."""

    def begin(self, positions: Mapping[Source, int]) -> None:
        """Takes the next offset of each source partition that was written before."""

    def add(self, source: Source, next_offset: int) -> None:
        """Takes the next offset of a source partition after a commit."""


@contextmanager
def follow_progress(sink: SinkOptions, follower: Follower) -> Iterator[None]:
    """Tells the follower what is written, and then, in a thread, of each commit of the sink as long as the block runs.

    Raises:
        PipelineError: the broker refuses the client.
        SinkInterrupted: no broker answers.
    """
    told = read_progress(sink)
    follower.begin(told)
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(sink, follower, ended, told), name="wirekafka-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    with suppress(PipelineError):  # no broker answers any more
        for source, next_offset in read_progress(sink).items():
            _tell(follower, told, source, next_offset)


def _follow(sink: SinkOptions, follower: Follower, ended: threading.Event, told: dict[Source, int]) -> None:
    """Tells the follower until the block has ended or the output is closed, which the thread of the block reports."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(_reader_config(sink.cluster))
    try:
        consumer.assign([TopicPartition(sink.progress_topic, 0, OFFSET_BEGINNING)])
        with suppress(BrokenPipeError):
            while not ended.is_set():
                message = consumer.poll(FOLLOW_POLL_S)
                if message is not None and message.error() is None and message.value() is not None:
                    key, progress = json.loads(message.key()), Progress.from_json(message.value())
                    _tell(follower, told, (key["topic"], key["partition"]), progress.next_offset)
    finally:
        consumer.close()


def _tell(follower: Follower, told: dict[Source, int], source: Source, next_offset: int) -> None:
    """Tells the follower of a commit, unless it was told of that or of a later one."""
    if next_offset > told.get(source, -1):
        told[source] = next_offset
        follower.add(source, next_offset)


def read_runs(sink: SinkOptions) -> list[MappedRun]:
    """Returns the runs of the last transactions of each source partition, in the order of their source offsets.

    Raises:
        PipelineError: the broker refuses the client.
        SinkInterrupted: no broker answers.
    """
    latest = {message.key(): message.value() for message in committed_records(sink.cluster, sink.runs_topic)}
    runs = [run for key, value in latest.items() if value is not None for run in mapped_runs(key, value)]
    return sorted(runs, key=lambda each: (each.source_topic, each.source_partition, each.run.source_offset))


def committed_records(cluster: Cluster, topic: str, first_offset: int | None = None) -> Iterator[Any]:
    """Yields the committed records of partition 0 of a topic up to its last stable offset; none if the topic does not exist.

    Args:
        cluster: where the topic is.
        topic: its name.
        first_offset: where to begin; None for the beginning.

    Raises:
        PipelineError: the brokers refuse.
        SinkInterrupted: no broker answers.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(_reader_config(cluster, fetch_wait_max_ms=10))
    try:
        found = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        if found.error is not None:
            return
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING if first_offset is None else first_offset)])
        while True:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            error = KafkaError(KafkaError._TIMED_OUT) if message is None else message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif message is None or not error.retriable():
                raise failure(error, f"cannot read the topic {topic} at {cluster.bootstrap}")
    except KafkaException as error:
        raise failure(error.args[0], f"cannot read the topic {topic} at {cluster.bootstrap}") from None
    finally:
        consumer.close()


def _reader_config(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """Returns the configuration of a consumer that is no member of a group."""
    return cluster.client_config(
        group_id="wirekafka.reader",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        enable_partition_eof=True,
        **more,
    )
