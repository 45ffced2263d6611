"""What a task of the sink does: it writes the rows of source partitions in transactions, each with the progress it makes.

For each source partition, in this order:

1. `init_transactions` with the partition's transactional id. Kafka ends a pending transaction of an earlier producer with this
   id, and refuses that producer from then on, so a task that Spark believes dead cannot write any more.
2. Read the progress. It is read after step 1, because the pending transaction may have committed in step 1.
3. Skip the rows below the progress. Send the others and the new progress in one transaction; a long partition in several.

So each source record is in a committed transaction once, whenever the task, the driver or the broker is killed: a transaction
that did not commit has neither its records nor its progress.

Source: KIP-98 (transactional ids and fencing), KIP-447 (committing offsets in a transaction).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.transactional_sink.failures import failure, is_final
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import (
    Progress,
    Source,
    TargetRuns,
    progress_key,
    read_stored_progress,
    runs_key,
    runs_of,
    runs_value,
)
from wirekafka.pipelines.transactional_sink.rows import SLICE_ROWS, Rows, rows_of, source_slices

if TYPE_CHECKING:
    import pyarrow
    from confluent_kafka import KafkaException

TRANSACTION_TIMEOUT_MS = 60_000
"""The broker aborts the transaction of a killed task after this time, unless the task runs again before."""

CALL_TIMEOUT_S = 60.0
ABORT_TIMEOUT_S = 5.0
ANY_PARTITION = -1

MAX_CLIENT_MESSAGE_BYTES = 1_000_000_000
"""librdkafka's greatest `message.max.bytes`: the topic's own limit decides."""

MAX_BATCH_BYTES = 1_000_000
BATCH_OVERHEAD_BYTES = 1_024

QUEUE_POLL_S = 0.05
COORDINATOR_POLL_S = 0.2

MAX_GAPS = 20_000
"""A transaction with so many gaps in its source offsets is committed, so that the record of its runs stays below 1 MB."""

RESULT_TYPES = {
    "source_topic": "string",
    "source_partition": "int32",
    "written": "int64",
    "skipped": "int64",
    "next_offset": "int64",
}
"""The columns of a task's results, and their types in Arrow."""

RESULT_SCHEMA = "source_topic string, source_partition int, written bigint, skipped bigint, next_offset bigint"
"""The same for Spark."""


@dataclass(slots=True, frozen=True)
class Target:
    """A target topic: the number of its partitions, and its `max.message.bytes`."""

    partitions: int
    max_message_bytes: int


@dataclass(slots=True, frozen=True)
class Plan:
    """What the driver hands to each task."""

    sink: SinkOptions
    targets: Mapping[str, Target]


class Transaction:
    """What the open transaction of a writer has sent so far."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.records = self.bytes = 0
        self.largest = (0, 0)  # bytes of the largest record, and its source offset
        self.first_offset: int | None = None
        self.gaps = 0  # in the source offsets
        self.sent: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        self.delivered: dict[tuple[str, int | None], list[int]] = defaultdict(list)

    def add(self, rows: Rows) -> None:
        """Counts rows that were sent."""
        sizes = rows.sizes()
        self.records += len(sizes)
        self.bytes += sum(sizes)
        self.largest = max(self.largest, max(zip(sizes, rows.offsets, strict=True)))

    def add_offsets(self, rows: Rows) -> None:
        """Notes the source offsets of rows that were sent."""
        if self.first_offset is None:
            self.first_offset = rows.offsets[0]
        for topic, partition, offset in zip(rows.topics, rows.partitions, rows.offsets, strict=True):
            offsets = self.sent[topic, partition]
            if offsets and offset != offsets[-1] + 1:
                self.gaps += 1
            offsets.append(offset)

    def runs(self) -> list[TargetRuns]:
        """Returns the runs of the records, all of which are delivered.

        An idempotent producer keeps the order of a partition's records, so the n-th sent has the n-th target offset.
        """
        found = []
        for (topic, partition), offsets in self.sent.items():
            assert partition is not None, "a sink that maps offsets refuses rows without a partition"
            found.append(
                TargetRuns(topic, partition, runs_of(zip(offsets, sorted(self.delivered[topic, partition]), strict=True)))
            )
        return found


class SourcePartitionWriter:
    """Writes the rows of one source partition, in the order of their source offsets."""

    def __init__(self, plan: Plan, source: Source) -> None:
        """Fences earlier writers of the source partition, and reads its progress."""
        from confluent_kafka import Consumer, KafkaException, Producer

        self._plan, self._sink, self.source = plan, plan.sink, source
        self._name = f"source topic {source[0]} partition {source[1]}"
        self._transaction: Transaction | None = None
        self._delivery_error: tuple[Any, Any] | None = None
        self._known_targets: set[tuple[str, int | None]] = set()
        self.written = self.skipped = 0
        identity = self._sink.identity(*source)
        client = self._sink.cluster.client_config
        try:
            self._producer = Producer(self._producer_config(identity))
            self._producer.init_transactions(CALL_TIMEOUT_S)
            self._consumer = Consumer(client(group_id=identity, isolation_level="read_committed", enable_auto_commit=False))
            self._progress = self._read_progress()
        except KafkaException as error:
            raise failure(error.args[0], f"cannot begin to write {self._name}") from None

    def _producer_config(self, identity: str) -> dict[str, Any]:
        smallest = min((target.max_message_bytes for target in self._plan.targets.values()), default=MAX_BATCH_BYTES)
        settings = self._sink.cluster.client_config(
            linger_ms=20,
            partitioner="murmur2_random",
            message_max_bytes=MAX_CLIENT_MESSAGE_BYTES,
            batch_size=max(1, min(MAX_BATCH_BYTES, smallest - BATCH_OVERHEAD_BYTES)),
            queue_buffering_max_messages=2 * self._sink.chunk_records + SLICE_ROWS,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            # With the default, a transactional producer of librdkafka 2.16 hangs after all brokers were away at once.
            metadata_recovery_strategy="none",
        )
        reports = {"delivery.report.only.error": not self._sink.maps_offsets, "on_delivery": self._on_delivery}
        return {**settings, **reports, "transactional.id": identity}

    def _read_progress(self) -> Progress:
        """Returns the group's offset, or, if it expired, the record in the progress topic.

        That record lies below the topic's last stable offset: the group's offset expires days after its transaction, and open
        transactions are at most minutes old.
        """
        found = self._committed()
        if found.offset >= 0:
            # A user who resets the group's offset leaves no metadata.
            stored = Progress.from_json(found.metadata) if found.metadata else Progress()
            progress = replace(stored, next_offset=found.offset)
        else:
            progress = read_stored_progress(self._sink).get(self.source, Progress())
        self._refuse_another_topic(progress)
        return progress

    def _committed(self) -> Any:
        """Returns the group's offset; asks again for some time if the group's coordinator is not ready.

        librdkafka returns NOT_COORDINATOR while Kafka makes the topic of the offsets, or has just started.
        """
        from confluent_kafka import KafkaException, TopicPartition

        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                (found,) = self._consumer.committed([TopicPartition(self._sink.progress_topic, 0)], timeout=CALL_TIMEOUT_S)
                if found.error is None:
                    return found
                raise KafkaException(found.error)
            except KafkaException as error:
                if is_final(error.args[0]) or time.monotonic() > deadline_s:
                    raise
            time.sleep(COORDINATOR_POLL_S)

    def _refuse_another_topic(self, progress: Progress) -> None:
        source_id = self._sink.source_ids.get(self.source[0], "")
        if progress.source_id and source_id and progress.source_id != source_id:
            raise PipelineError(
                f"the source topic {self.source[0]} is not the one of which {progress.next_offset} offsets of partition "
                f"{self.source[1]} were written: it was created again (its id was {progress.source_id}, is {source_id}). "
                f"Use another name, or delete the topic {self._sink.progress_topic} to write all of it"
            )

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Sends the rows of a slice that are not written yet; commits when the transaction is large or old enough.

        Raises:
            PipelineError: the target refuses a record, or is not a target of the sink.
            SinkInterrupted: the transaction cannot commit.
        """
        if batch.column("source_offset")[-1].as_py() < self._progress.next_offset:
            self.skipped += batch.num_rows
            return
        new = rows_of(batch).after(self._progress.next_offset)
        self.skipped += batch.num_rows - len(new.offsets)
        self._check_targets(new)
        with self._mapped_errors():
            self._send(new)
            self._producer.poll(0)
        if self._delivery_error is not None or self._is_full():
            self.commit()

    def _is_full(self) -> bool:
        sink, transaction = self._sink, self._transaction
        if transaction is None:
            return False
        age_s = time.monotonic() - transaction.began_s
        is_large = transaction.records >= sink.chunk_records or transaction.bytes >= sink.chunk_bytes
        return is_large or transaction.gaps >= MAX_GAPS or age_s >= sink.chunk_s

    def _check_targets(self, rows: Rows) -> None:
        unknown = set(zip(rows.topics, rows.partitions, strict=True)) - self._known_targets
        for topic, partition in unknown:
            fault = self._target_fault(topic, partition)
            if fault is not None:
                index = next(
                    i for i, pair in enumerate(zip(rows.topics, rows.partitions, strict=True)) if pair == (topic, partition)
                )
                raise PipelineError(f"{self._name} offset {rows.offsets[index]}: {fault}")
        self._known_targets |= unknown

    def _target_fault(self, topic: str, partition: int | None) -> str | None:
        target = self._plan.targets.get(topic)
        if target is None:
            return f"the topic {topic} is none of the sink's targets ({', '.join(sorted(self._plan.targets)) or 'none'})"
        if partition is None:
            return "a sink that maps offsets needs a partition in each row" if self._sink.maps_offsets else None
        if not 0 <= partition < target.partitions:
            return f"the topic {topic} has no partition {partition}, it has {target.partitions}: extend it, or write by the key"
        return None

    def _send(self, rows: Rows) -> None:
        if self._transaction is None:
            self._producer.begin_transaction()
            self._transaction = Transaction()
        produce = self._producer.produce
        for topic, partition, key, value, headers, timestamp in zip(
            rows.topics, rows.partitions, rows.keys, rows.values, rows.headers, rows.timestamps, strict=True
        ):
            to = ANY_PARTITION if partition is None else partition
            # librdkafka writes the present time for timestamp 0 (rd_kafka_msg_new0), so 0 becomes 1 ms.
            time_ms = 0 if timestamp is None else timestamp or 1
            while True:
                try:
                    produce(topic, value, key, to, timestamp=time_ms, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(QUEUE_POLL_S)
        self._transaction.add(rows)
        if self._sink.maps_offsets:
            self._transaction.add_offsets(rows)
        self._progress = replace(self._progress, next_offset=rows.offsets[-1] + 1)

    def _on_delivery(self, error: Any, message: Any) -> None:
        """Takes the report of a record; poll() and flush() call it."""
        if error is not None:
            self._delivery_error = self._delivery_error or (error, message)
        elif self._transaction is not None:
            self._transaction.delivered[message.topic(), message.partition()].append(message.offset())

    def commit(self) -> None:
        """Commits the open transaction with the progress that its records make; without an open transaction, does nothing."""
        transaction = self._transaction
        if transaction is None:
            return
        with self._mapped_errors():
            self._producer.flush()
            if self._delivery_error is not None:
                raise self._delivery_failure(*self._delivery_error)
            self._send_progress(transaction)
            self._producer.commit_transaction(CALL_TIMEOUT_S)
        self.written += transaction.records
        self._transaction = None

    def _send_progress(self, transaction: Transaction) -> None:
        from confluent_kafka import TopicPartition

        source_id = self._sink.source_ids.get(self.source[0], self._progress.source_id)
        if transaction.first_offset is not None:
            key, value = runs_key(self.source, transaction.first_offset), runs_value(transaction.runs())
            self._producer.produce(self._sink.runs_topic, value, key, 0)
        self._progress = progress = Progress(self._progress.next_offset, source_id)
        self._producer.produce(self._sink.progress_topic, progress.to_json(), progress_key(self.source), 0)
        place = TopicPartition(self._sink.progress_topic, 0, progress.next_offset, progress.to_json())
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([place], group, CALL_TIMEOUT_S)

    def _delivery_failure(self, error: Any, message: Any) -> Exception:
        topic = message.topic()
        if error.name() != "MSG_SIZE_TOO_LARGE" or self._transaction is None:
            return failure(error, f"cannot write {self._name} to the topic {topic}")
        size, offset = self._transaction.largest
        limit = self._plan.targets[topic].max_message_bytes
        return failure(error, f"{self._name} offset {offset} has {size} bytes, and the topic {topic} takes {limit}")

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        """Raises PipelineError or SinkInterrupted for an error of the client.

        If the client learns that the producer is fenced while it calls `_on_delivery`, Python reports a SystemError. Its cause is
        the error of the client, or the error is lost.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, SystemError) as raised:
            error = self._error_behind(raised) if isinstance(raised, SystemError) else raised
            if error is None:
                raise
            if self._delivery_error is not None:
                raise self._delivery_failure(*self._delivery_error) from None
            raise failure(error.args[0], f"cannot write {self._name}") from None

    def _error_behind(self, raised: SystemError) -> KafkaException | None:
        """Returns the error of the client for which Python reports a SystemError; None if there is none.

        The next call raises a fatal error again. An abort harms nothing, because the transaction cannot be committed any more.
        """
        from confluent_kafka import KafkaException

        if isinstance(raised.__cause__, KafkaException):
            return raised.__cause__
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT_S)
        except KafkaException as error:
            return error
        return None

    @property
    def next_offset(self) -> int:
        """The first source offset that is not written, after a commit."""
        return self._progress.next_offset

    def close(self) -> None:
        """Aborts an open transaction, so that consumers do not wait for its time-out, and closes the clients.

        If the abort fails, the next writer of the source partition ends the transaction.
        """
        from confluent_kafka import KafkaException

        if self._transaction is not None:
            with suppress(KafkaException):
                self._producer.abort_transaction(ABORT_TIMEOUT_S)
            self._transaction = None
        self._consumer.close()
        del self._producer  # which refers to this writer by its callback


def write_partitions(plan: Plan, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Writes the batches of a task, which are sorted by source; yields one row of `RESULT_SCHEMA` for each source partition."""
    writer: SourcePartitionWriter | None = None
    try:
        for batch in batches:
            for source, rows in source_slices(batch):
                if writer is not None and writer.source != source:
                    finished, writer = writer, None
                    yield _finish(finished)
                if writer is None:
                    writer = SourcePartitionWriter(plan, source)
                writer.write(rows)
        if writer is not None:
            finished, writer = writer, None
            yield _finish(finished)
    finally:
        if writer is not None:
            writer.close()


def _finish(writer: SourcePartitionWriter) -> pyarrow.RecordBatch:
    """Commits the last transaction of a source partition; returns its row."""
    import pyarrow

    try:
        writer.commit()
    finally:
        writer.close()
    row = {
        "source_topic": writer.source[0],
        "source_partition": writer.source[1],
        "written": writer.written,
        "skipped": writer.skipped,
        "next_offset": writer.next_offset,
    }
    types = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in RESULT_TYPES.items()])
    return pyarrow.RecordBatch.from_pylist([row], schema=types)
