"""Producers and consumers, which record their requests and responses in the history.

How it works: a client asks any broker, until one of them is the leader. A producer sends one batch after the other, to any
partition. With acks=all and idempotence it sends a batch again until it gets an answer, to whichever broker; after too many
attempts it gives up, and goes on with the next producer epoch. With acks=1 it sends each batch once. A consumer reads a partition
from its beginning on, all records or those of committed transactions only. Another client asks for the ends of partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.events import MS, Process
from wirekafka.simulation.exchange import PRODUCE, Peer
from wirekafka.simulation.history import EndOffsetRead, RecordRead, RecordSent, SendAcknowledged, SendFailed, SendUnknown
from wirekafka.wire.batch import TRANSACTIONAL_MASK, Record, build_batch, iterate_records, whole_batches
from wirekafka.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

MOST_ATTEMPTS = 12
MOST_RECORDS = 4
MOST_END_OFFSET_PAUSE_MS = 60

LATEST = -1
"""The timestamp of ListOffsets for the end."""
NO_REPLICA = -1
"""The replica id of a client."""

NEVER_APPENDED = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS})
"""Errors of an attempt that has appended nothing. With acks=all, a broker answers NOT_LEADER_OR_FOLLOWER also if it was the
leader at the append, and no longer at the commit."""


class Client:
    """What producers and consumers share: the brokers, and the one that was the leader last."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.process = Process(cluster.events, name)
        self.dice = cluster.dice.fork(name)
        self._correlation_ids = count(1)
        self._peers: dict[int, Peer] = {}
        self._leaders: dict[int, int] = {}

    def leader_of(self, partition: int) -> Peer:
        """Returns the broker that was the leader last, or any broker."""
        broker_id = self._leaders.get(partition)
        if broker_id is None:
            broker_id = self._leaders[partition] = self.dice.choose(self.cluster.broker_ids)
        if broker_id not in self._peers:
            target = self.cluster.address_of(broker_id)
            self._peers[broker_id] = Peer(self.cluster.network, self.process, self.name, target, self._correlation_ids)
        return self._peers[broker_id]

    def forget_leader(self, partition: int) -> None:
        """Lets the next request go to any broker."""
        self._leaders.pop(partition, None)

    def stop(self) -> None:
        """Ends the client."""
        self.process.end()


class Batch:
    """A batch in flight.

    Attributes:
        is_unknown: an attempt may have appended it.
    """

    def __init__(self, partition: int, payloads: list[str], sequence: int) -> None:
        self.partition = partition
        self.payloads = payloads
        self.sequence = sequence
        self.attempt_count = 0
        self.is_unknown = False


class Writer(Client):
    """A client that sends records until `finish` is called.

    Attributes:
        is_stopping: whether it sends no new batches.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.is_stopping = False
        self.process.call_later(self.pause_us(), self.send_next)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is in flight, and the client will send no other one."""
        raise NotImplementedError

    def finish(self) -> None:
        """Sends no new batches. Batches in flight are completed."""
        self.is_stopping = True

    def pause_us(self) -> int:
        """Returns how long to wait until the next records."""
        return self.dice.between(0, 2 * self.cluster.options.send_interval_ms * MS)

    def send_next(self) -> None:
        """Sends the next records."""
        raise NotImplementedError


class Producer(Writer):
    """A producer.

    Args:
        is_idempotent: it sends with acks=all, and again after errors; otherwise with acks=1, once.
    """

    def __init__(self, cluster: Cluster, number: int, *, is_idempotent: bool) -> None:
        super().__init__(cluster, f"producer {number}")
        self._is_idempotent = is_idempotent
        self._producer_id = 1000 + number
        self._epoch = 0
        self._sequences: dict[int, int] = {}
        self._count = 0
        self._batch: Batch | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is in flight, and the producer will send no other one."""
        return self.is_stopping and self._batch is None

    def send_next(self) -> None:
        """Sends the next batch."""
        if self.is_stopping:
            return
        partition = self.dice.between(0, self.cluster.options.partition_count - 1)
        count = self.dice.between(1, MOST_RECORDS)
        payloads = [f"{self.name}-{self._count + number}" for number in range(count)]
        self._count += count
        sequence = self._sequences.get(partition, 0)
        self._batch = batch = Batch(partition, payloads, sequence)
        for number, payload in enumerate(payloads):
            self.cluster.record(
                RecordSent(
                    self.name,
                    self.cluster.topic,
                    partition,
                    payload,
                    acks=-1 if self._is_idempotent else 1,
                    producer_id=self._producer_id if self._is_idempotent else None,
                    producer_epoch=self._epoch if self._is_idempotent else None,
                    sequence=sequence + number if self._is_idempotent else None,
                )
            )
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        options = self.cluster.options
        batch.attempt_count += 1
        now_ms = self.cluster.wall_clock_ms()
        records = [Record(key=None, value=payload.encode(), timestamp=now_ms) for payload in batch.payloads]
        if self._is_idempotent:
            data = build_batch(records, producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=batch.sequence)
        else:
            data = build_batch(records)
        partition_data = PartitionProduceData(index=batch.partition, records=memoryview(data))
        request = ProduceRequest(
            acks=-1 if self._is_idempotent else 1,
            timeout_ms=options.request_timeout_ms,
            topic_data=[TopicProduceData(name=self.cluster.topic, partition_data=[partition_data])],
        )
        timeout_us = 2 * options.request_timeout_ms * MS
        peer = self.leader_of(batch.partition)
        peer.ask(PRODUCE, request, lambda response: self._take(batch, response), timeout_us=timeout_us)

    def _take(self, batch: Batch, response: ProduceResponse | None) -> None:
        if response is None:
            batch.is_unknown = True
            self._retry(batch, "no answer")
            return
        answer = response.responses[0].partition_responses[0]
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.NONE:
            for number, payload in enumerate(batch.payloads):
                self.cluster.record(SendAcknowledged(payload, answer.base_offset + number))
            self._sequences[batch.partition] = batch.sequence + len(batch.payloads)
            self._end_batch()
            return
        was_refused = error is ErrorCode.NOT_LEADER_OR_FOLLOWER and not self._is_idempotent
        batch.is_unknown |= error not in NEVER_APPENDED and not was_refused
        self._retry(batch, error.name)

    def _retry(self, batch: Batch, reason: str) -> None:
        self.forget_leader(batch.partition)
        if batch.attempt_count < MOST_ATTEMPTS and (self._is_idempotent or not batch.is_unknown):
            self.process.call_later(self.dice.between(1, self.cluster.options.back_off_ms) * MS, lambda: self._send(batch))
            return
        for payload in batch.payloads:
            self.cluster.record(SendUnknown(payload, reason) if batch.is_unknown else SendFailed(payload, reason))
        if batch.is_unknown:
            # The next batches must not continue sequences whose outcome is unknown.
            self._epoch += 1
            self._sequences.clear()
        self._end_batch()

    def _end_batch(self) -> None:
        self._batch = None
        self.process.call_later(self.pause_us(), self.send_next)


class Consumer(Client):
    """A consumer of one partition, from the beginning of its log.

    Args:
        is_read_committed: it leaves out the records of aborted transactions, and waits for the end of open ones.

    Attributes:
        position: the offset that it reads next.
    """

    def __init__(self, cluster: Cluster, name: str, partition: int, *, is_read_committed: bool) -> None:
        super().__init__(cluster, name)
        self.partition = partition
        self.position = 0
        self._is_read_committed = is_read_committed
        self._delivered_to = 0
        """One past the last record that it has recorded."""
        self.process.call_later(0, self._fetch)

    def _fetch(self) -> None:
        options = self.cluster.options
        partition = FetchPartition(
            partition=self.partition, fetch_offset=self.position, partition_max_bytes=options.fetch_max_bytes
        )
        request = FetchRequest(
            isolation_level=int(self._is_read_committed),
            topics=[FetchTopic(topic_id=self.cluster.topic_id, partitions=[partition])],
        )
        self.leader_of(self.partition).ask(FETCH, request, self._take, timeout_us=options.request_timeout_ms * MS)

    def _take(self, response: FetchResponse | None) -> None:
        pause_ms = self.dice.between(1, self.cluster.options.fetch_wait_ms)
        if response is None or response.responses[0].partitions[0].error_code:
            self.forget_leader(self.partition)
        else:
            data = response.responses[0].partitions[0]
            if data.records is not None and len(data.records):
                self._read(data.records, _committed_batches(data) if self._is_read_committed else _data_batches(data.records))
                pause_ms = 0
        if self.dice.chance(0.02):
            self.forget_leader(self.partition)
        self.process.call_later(pause_ms * MS, self._fetch)

    def _read(self, records: memoryview, batches: Iterable[memoryview]) -> None:
        topic, is_read_committed = self.cluster.topic, self._is_read_committed
        for batch in batches:
            for record in iterate_records(batch):
                if record.offset < self.position:
                    continue
                payload, position = (record.value or b"").decode(), self._delivered_to
                self.cluster.record(
                    RecordRead(self.name, topic, self.partition, record.offset, payload, is_read_committed, position)
                )
                self._delivered_to = record.offset + 1
        for header, _ in whole_batches(records):
            self.position = max(self.position, header.last_offset + 1)


def _data_batches(records: memoryview) -> Iterator[memoryview]:
    return (batch for header, batch in whole_batches(records) if not header.is_control)


def _committed_batches(data: PartitionData) -> Iterator[memoryview]:
    """Yields the batches that are not of aborted transactions.

    Source: org.apache.kafka.clients.consumer.internals.CompletedFetch.nextFetchedRecord.
    """
    aborted = deque(sorted(data.aborted_transactions or (), key=lambda each: each.first_offset))
    aborting: set[int] = set()
    for header, batch in whole_batches(data.records or b""):
        while aborted and aborted[0].first_offset <= header.last_offset:
            aborting.add(aborted.popleft().producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL_MASK and header.producer_id in aborting):
            yield batch


class EndOffsetReader(Client):
    """Repeatedly asks for the high watermark or the last stable offset of some partition."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "end offset reader")
        self.process.call_later(0, self._ask)

    def _ask(self) -> None:
        partition = self.dice.between(0, self.cluster.options.partition_count - 1)
        is_read_committed = self.dice.chance(0.5)
        asked = self.cluster.history.last_order
        request = ListOffsetsRequest(
            replica_id=NO_REPLICA,
            isolation_level=int(is_read_committed),
            topics=[
                ListOffsetsTopic(
                    name=self.cluster.topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=LATEST)]
                )
            ],
        )

        def take(response: ListOffsetsResponse | None) -> None:
            self._take(response, partition, asked, is_read_committed=is_read_committed)

        self.leader_of(partition).ask(LIST_OFFSETS, request, take, timeout_us=self.cluster.options.request_timeout_ms * MS)

    def _take(self, response: ListOffsetsResponse | None, partition: int, asked: int, *, is_read_committed: bool) -> None:
        answer = None if response is None else response.topics[0].partitions[0]
        if answer is None or answer.error_code:
            self.forget_leader(partition)
        else:
            epoch = None if answer.leader_epoch < 0 else answer.leader_epoch
            self.cluster.record(EndOffsetRead(self.cluster.topic, partition, answer.offset, epoch, is_read_committed, asked))
        self.process.call_later(self.dice.between(1, MOST_END_OFFSET_PAUSE_MS) * MS, self._ask)
