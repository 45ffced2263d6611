"""The executor of everything that keeps its state in an internal topic: groups, transactions, the state of share groups.

Theory of operation: a pure core decides, and gives records. `append` writes them to a partition of the topic, in chunks that the
topic's settings allow, and has each replayed by the core: replay alone changes the state, live and while loading. Replies leave
through `release` and the `ReplyGate`, once everything that they depend on is committed.

Each partition is loaded and unloaded by itself. While it is loaded, in slices of a few milliseconds, requests for it are answered
COORDINATOR_LOAD_IN_PROGRESS; once this broker has resigned, NOT_COORDINATOR. Before the broker listens, all partitions are loaded
in one go.

    (no partition) ──► LOADING ──► ACTIVE ──► RESIGNED ──► LOADING (of a later epoch)
                          └──► OFFLINE

Rules of this file:
    Nothing else in `coordinator` appends to an internal topic, but the markers of transactions.
    Invariant: all records of a partition that is not in `_shards` are in its state: the topic was made after the broker had
        started.
    Invariant: `Shard.epoch` never goes back; a load or an unload of an older epoch is ignored.
    Invariant: each partition in `_found` is ACTIVE, or not in `_shards`.

Source: org.apache.kafka.coordinator.common.runtime.{CoordinatorRuntime, CoordinatorLoaderImpl}, KIP-848.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from wirekafka.coordinator.effects import WritingProducer, append_error
from wirekafka.coordinator.hashing import partition_for
from wirekafka.coordinator.state_loading import Entry, StateReader
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.faults import isolate, log_once
from wirekafka.log.validation import COORDINATOR
from wirekafka.wire.batch import HEADER_SIZE, build_keyed_batch
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopics

R = TypeVar("R")

log = structlog.get_logger(__name__)

RECORDS_IN_CHUNK = 1000
"""How many records go into one batch where they need not stay together."""

RECORDS_IN_SLICE = 300
"""How many records are loaded in one go, at 3 to 20 us each, before clients have their turn."""

RECORD_OVERHEAD_BYTES = 21
"""The most that the frame of a record adds to its key and value: length, attributes, two deltas, two lengths, no headers."""

REFUSED_RECORDS = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""What an append ends with because of the records themselves: others may be appended all the same."""


class StateMachine(Protocol[R]):
    """What a `StateTopic` keeps the state of."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]:
        """The key and the value of a record.

        Raises:
            struct.error: a name in it is longer than a record's string can be.
        """

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """A record of the log; None for a kind that is not served.

        Raises:
            ProtocolError: it cannot be read.
        """

    def replay(self, index: int, record: R, offset: int, producer_id: int | None) -> None:
        """Takes over what a record of a partition says.

        Args:
            producer_id: of the open transaction that it is part of; None if it counts at once.

        Raises:
            ProtocolError: no state can be as the record says.
        """

    def on_loaded(self, index: int) -> None:
        """A partition is loaded: does what follows from its state, such as setting timers."""

    def unload(self, index: int) -> None:
        """Forgets the state of a partition, and answers requests that are parked with NOT_COORDINATOR."""


class ShardState(Enum):
    """What this broker can say of a partition; the value is what a client is told, None if it can be answered."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = None
    RESIGNED = ErrorCode.NOT_COORDINATOR
    OFFLINE = ErrorCode.COORDINATOR_NOT_AVAILABLE


@dataclass(slots=True)
class Shard:
    """One partition of the topic, as its coordinator has it.

    Attributes:
        epoch: the leader epoch at which it was loaded, or resigned.
        loading: what is still to be done to load it; None unless it is being loaded.
    """

    epoch: int
    state: ShardState
    loading: Iterator[None] | None = None


class StateTopic(Generic[R]):
    """The partitions of one internal topic, and the state in them.

    Args:
        name: of the topic.
        subject: what the state is about, for the log: "groups and offsets".
        partition_count: of the topic, if it has to be created.
        is_keyed: the last record of each key says everything about it, as in a compacted topic; else all records are replayed.
    """

    def __init__(
        self,
        name: str,
        subject: str,
        machine: StateMachine[R],
        clock: Clock,
        topics: HostedTopics,
        gate: ReplyGate,
        *,
        partition_count: int,
        compression: Compression = Compression.NONE,
        is_keyed: bool = True,
    ) -> None:
        self.name = name
        self.partition_count = partition_count
        self._subject = subject
        self._machine = machine
        self._clock = clock
        self._topics = topics
        self._gate = gate
        self._configured_partition_count = partition_count
        self._compression = compression
        self._is_keyed = is_keyed
        self._shards: dict[int, Shard] = {}
        self._found: dict[int, Partition] = {}
        self._failing: set[int] = set()

    def __repr__(self) -> str:
        return f"<StateTopic {self.name}>"

    # Which partitions can be asked

    def partition_of(self, key: str) -> int:
        """The partition that holds a group or a transactional id."""
        return partition_for(key, self.partition_count)

    def enter(self, index: int, *, is_known: bool = True) -> None:
        """Raises unless the state of a partition is known; every entry point of a coordinator comes here first.

        Args:
            is_known: there is state of what the request asks for. If not, and the partition is offline, some may have been lost.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR; COORDINATOR_NOT_AVAILABLE, the partition is offline.
        """
        partition = self._found.get(index)
        if partition is None or partition.is_gone:
            partition = self._find(index)
            if partition is None:
                return
        if not is_known and partition.is_offline:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name}-{index} is offline")
        if not partition.is_sole_replica:
            self._gate.note(self, index)

    def _find(self, index: int) -> Partition | None:
        """A partition of which the state is known; None if there is no topic yet, and so no state.

        Raises:
            KafkaError: as `enter`, if the state is not known.
        """
        shard = self._shards.get(index)
        if shard is not None and shard.state.value is not None:
            raise KafkaError(shard.state.value, f"{self.name}-{index} is {shard.state.name.lower()}")
        topic = self._topics.find(self.name)
        if topic is None:
            return None
        partition = self._found[index] = topic.partitions[index]
        return partition

    def enter_all(self) -> None:
        """Raises unless all partitions can be asked; those that are led elsewhere, or are offline, have nothing to say.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        for index in range(self.partition_count):
            shard = self._shards.get(index)
            if shard is None or shard.state in (ShardState.ACTIVE, ShardState.LOADING):
                self.enter(index)

    def is_available(self, index: int) -> bool:
        """Whether clients should look for the coordinator of this partition here."""
        shard = self._shards.get(index)
        if shard is not None and shard.state in (ShardState.RESIGNED, ShardState.OFFLINE):
            return False
        topic = self._topics.find(self.name)
        return topic is None or not topic.partitions[index].is_offline

    def is_active(self, index: int) -> bool:
        """Whether the state of a partition is loaded and this broker's to change."""
        shard = self._shards.get(index)
        return shard is None or shard.state is ShardState.ACTIVE

    # Loading and unloading

    def load_all(self) -> None:
        """Loads every partition; for the start of the broker, before it listens.

        A partition that cannot be loaded is not available, and does not keep the others from being loaded.
        """
        topic = self._topics.find(self.name)
        if topic is None:
            return
        self.partition_count = len(topic.partitions)
        for partition in topic.partitions:
            shard = self._begin_loading(partition)
            while shard.loading is not None:
                self._load_next(partition.index, shard)

    def elect(self, index: int, epoch: int) -> None:
        """This broker has become the leader of a partition: loads it in slices. Ignored unless the epoch is a later one."""
        topic = self._topics.find(self.name)
        known = self._shards.get(index)
        if topic is None or (known is not None and epoch <= known.epoch):
            return
        shard = self._begin_loading(topic.partitions[index], epoch)
        # There may be state without an earlier shard too: that of a topic that was created while the broker ran.
        self._machine.unload(index)
        self.partition_count = len(topic.partitions)
        self._load_slice(index, shard)

    def resign(self, index: int, epoch: int | None = None) -> None:
        """This broker does not lead a partition any more: forgets its state. Ignored if the epoch is older than the known one.

        Args:
            epoch: None for the epoch at which it was loaded.
        """
        known = self._shards.get(index)
        known_epoch = -1 if known is None else known.epoch
        if epoch is None:
            epoch = known_epoch
        if epoch < known_epoch:
            return
        was_resigned = known is not None and known.state is ShardState.RESIGNED
        self._found.pop(index, None)
        self._shards[index] = Shard(epoch, ShardState.RESIGNED)
        if not was_resigned:
            log.info("Resigned as the coordinator of a partition", subject=self._subject, partition=f"{self.name}-{index}")
            self._machine.unload(index)

    def forget_topic(self) -> None:
        """The topic was deleted, and everything in it."""
        indexes = range(self.partition_count)
        self._found.clear()
        # A request that comes meanwhile must find neither the old state nor a new topic.
        self._shards = {index: Shard(-1, ShardState.RESIGNED) for index in indexes}
        for index in indexes:
            self._machine.unload(index)
        self._shards.clear()
        self.partition_count = self._configured_partition_count

    def _begin_loading(self, partition: Partition, epoch: int | None = None) -> Shard:
        index = partition.index
        self._found.pop(index, None)
        shard = self._shards[index] = Shard(partition.leader_epoch if epoch is None else epoch, ShardState.LOADING)
        shard.loading = self._load(partition, shard)
        return shard

    def _load_slice(self, index: int, shard: Shard) -> None:
        """Goes on loading a partition, unless it was resigned, or elected again, meanwhile."""
        if self._shards.get(index) is not shard:
            return
        self._load_next(index, shard)
        if shard.loading is not None:
            self._clock.call_later(1, partial(self._load_slice, index, shard))

    def _load_next(self, index: int, shard: Shard) -> None:
        """Loads the next slice of a partition. If that fails, the partition is not available, and its state is forgotten.

        Source: CoordinatorRuntime.CoordinatorContext.transitionTo (FAILED).
        """
        assert shard.loading is not None
        try:
            next(shard.loading, None)
        except Exception as error:  # noqa: BLE001 - the partition is not available then, and everything else goes on
            name = f"{self.name}-{index}"
            event = "State is not available: its partition cannot be loaded"
            if isinstance(error, (KafkaError, OSError)):
                remedy = "Start the broker again once the partition can be read"
                log.error(event, subject=self._subject, partition=name, error=str(error), remedy=remedy)
            else:
                log_once(error, event, subject=self._subject, partition=name)
            shard.state, shard.loading = ShardState.OFFLINE, None
            self._machine.unload(index)

    def _load(self, partition: Partition, shard: Shard) -> Iterator[None]:
        """Loads a partition; yields after each slice.

        Raises:
            KafkaError: it is offline, or cannot be read.
        """
        name = str(partition.topic_partition)
        reader = StateReader(is_keyed=self._is_keyed)
        partition.check_online()
        yield from reader.read(partition.log, RECORDS_IN_SLICE)
        skipped_count = 0
        entries = reader.entries()
        while found := list(islice(entries, RECORDS_IN_SLICE)):
            skipped_count += sum(not self._replay_loaded(partition, entry) for entry in found)
            yield
        if skipped_count:
            log.warning(
                "Skipped records of kinds that are not served", subject=self._subject, partition=name, records=skipped_count
            )
        shard.state, shard.loading = ShardState.ACTIVE, None
        self._machine.on_loaded(partition.index)

    def _replay_loaded(self, partition: Partition, entry: Entry) -> bool:
        """Replays a record of the log; False if it is of a kind that is not served."""
        name = str(partition.topic_partition)
        with isolate("A record of state cannot be replayed", subject=self._subject, partition=name):
            try:
                record = self._machine.decode(entry.key, entry.value)
                if record is None:
                    return False
                self._machine.replay(partition.index, record, entry.offset, entry.producer_id)
            except ProtocolError as error:
                log.error(
                    "A record of state cannot be read", subject=self._subject, partition=name, key=entry.key, error=str(error)
                )
        return True

    # Appending

    def append(
        self,
        index: int,
        records: Sequence[R],
        *,
        is_atomic: bool = True,
        is_replayed: bool = True,
        producer: WritingProducer | None = None,
    ) -> None:
        """Appends records to a partition, and replays them. To be called between `begin_step` and `end_step` of the gate.

        Args:
            is_atomic: all in one batch; else in chunks that fit, of which each is replayed. If one chunk is refused because of
                its records, the others are appended all the same.
            is_replayed: False if the caller does itself what the records say.
            producer: whose open transaction the records are part of.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, the state of the partition is not known here; or what an append ended with; see
                `append_error`. If `is_atomic`, nothing has changed then.
        """
        partition = self._found.get(index)
        if partition is None and not self.is_active(index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the state of {self.name}-{index} is not known here")
        try:
            if partition is None or partition.is_gone:
                partition = self.partition(index)
            try:
                pairs = [*map(self._machine.encode, records)]
            except struct.error as error:
                # A name or an id is longer than a record's string can be: 32,767 bytes.
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record cannot be written: {error}") from error
            if is_atomic or len(pairs) == 1:
                self._append_batch(partition, records, pairs, is_replayed, producer)
            else:
                self._append_chunks(partition, records, pairs, is_replayed, producer)
        except KafkaError as error:
            self._note_failure(index, error)
            raise
        if self._failing and index in self._failing:
            self._failing.remove(index)
            log.info("State can be stored again", subject=self._subject, partition=f"{self.name}-{index}")

    def _append_chunks(
        self,
        partition: Partition,
        records: Sequence[R],
        pairs: list[tuple[bytes, bytes | None]],
        is_replayed: bool,
        producer: WritingProducer | None,
    ) -> None:
        """Appends in as many batches as it takes; a batch that is refused because of its records costs only itself.

        Raises:
            KafkaError: why a batch was refused; or what the disk said, and nothing of what follows was appended then.
        """
        refusal = None
        start = 0
        for size in chunk_sizes(pairs, _batch_limit(partition)):
            end = start + size
            try:
                self._append_batch(partition, records[start:end], pairs[start:end], is_replayed, producer)
            except KafkaError as error:
                if error.code not in REFUSED_RECORDS:
                    raise
                refusal = refusal or error
            start = end
        if refusal is not None:
            raise refusal

    def _append_batch(
        self,
        partition: Partition,
        records: Sequence[R],
        pairs: list[tuple[bytes, bytes | None]],
        is_replayed: bool,
        producer: WritingProducer | None,
    ) -> None:
        """Appends records as one batch, and replays them.

        Raises:
            KafkaError: nothing was appended.
        """
        now_ms = self._clock.now_ms()
        producer_id = None
        if producer is None:
            batch = build_keyed_batch(pairs, timestamp=now_ms, compression=self._compression)
        else:
            producer_id = producer.producer_id
            # Sequence numbers are the concern of clients; Kafka's coordinator begins each of its batches with 0.
            batch = build_keyed_batch(
                pairs,
                timestamp=now_ms,
                compression=self._compression,
                producer_id=producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
            )
        info = partition.append(memoryview(batch), now_ms=now_ms, origin=COORDINATOR)
        if is_replayed:
            index, replay = partition.index, self._machine.replay
            for offset, record in enumerate(records, info.base_offset):
                replay(index, record, offset, producer_id)

    def _note_failure(self, index: int, error: KafkaError) -> None:
        """Logs the first of a run of failures, and each time that records are refused."""
        name = f"{self.name}-{index}"
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return
        if error.code in REFUSED_RECORDS:
            log.warning("Records of state are refused", subject=self._subject, partition=name, error=str(error))
        elif index not in self._failing:
            self._failing.add(index)
            log.error("State cannot be stored", subject=self._subject, partition=name, error=str(error))

    def partition(self, index: int) -> Partition:
        """A partition of the topic, which is created if there is none yet.

        Raises:
            KafkaError: it cannot be created.
        """
        partition = self._found.get(index)
        if partition is not None and not partition.is_gone:
            return partition
        topic = self._topics.find(self.name) or self._topics.create_internal(self.name)
        return topic.partitions[index]

    # Committing

    def is_committed(self, index: int) -> bool:
        """Whether everything in a partition that was asked for is committed for certain."""
        partition = self._found.get(index)
        return partition is not None and partition.is_sole_replica and not partition.is_gone

    def on_commit(self, index: int, callback: Callable[[ErrorCode | None], object]) -> None:
        """Calls back once everything that is in a partition now is committed.

        If the partition is lost before that, its coordinator resigns, and the callback is told the error of a client.
        """
        if self.is_committed(index):
            callback(None)
            return
        topic = self._topics.find(self.name)
        if topic is None:
            callback(None if self.is_active(index) else ErrorCode.NOT_COORDINATOR)
            return
        partition = topic.partitions[index]
        partition.on_commit(partition.log.log_end_offset, partial(self._on_committed, index, callback))

    def _on_committed(self, index: int, callback: Callable[[ErrorCode | None], object], error: ErrorCode | None) -> None:
        if error is not None:
            self.resign(index)
            error = append_error(error)
        callback(error)


def chunk_sizes(pairs: Sequence[tuple[bytes, bytes | None]], limit_bytes: int) -> list[int]:
    """How many of the records go into each batch, so that none is larger than the limit unless one record is.

    Bytes are counted before compression.
    """
    sizes: list[int] = []
    count, size_bytes = 0, HEADER_SIZE
    for key, value in pairs:
        record_bytes = RECORD_OVERHEAD_BYTES + len(key) + len(value or b"")
        if count and (size_bytes + record_bytes > limit_bytes or count == RECORDS_IN_CHUNK):
            sizes.append(count)
            count, size_bytes = 0, HEADER_SIZE
        count += 1
        size_bytes += record_bytes
    return [*sizes, count] if count else sizes


def _batch_limit(partition: Partition) -> int:
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)
