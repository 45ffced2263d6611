"""The executor of the coordinators that keep their state in an internal topic: groups, transactions, the state of share groups.

How it works: a pure core decides, and returns records. `append` writes the records to a partition of the topic, in chunks
that the topic's settings allow, and the core replays them: only replay changes the state, in operation and during a load. Replies
are released by `release` and the `ReplyGate`, once everything that they depend on is committed.

Each partition is loaded and unloaded separately. While a partition is loaded, in slices of a few milliseconds, its requests get
COORDINATOR_LOAD_IN_PROGRESS. After this broker has resigned, they get NOT_COORDINATOR, and the state is removed in slices too. A
broker without other brokers loads all partitions before it listens, without slices. A broker of a cluster loads a partition when
it becomes its leader.

    (no partition) ──► LOADING ──► ACTIVE ──► RESIGNED ──► LOADING (of a later epoch)
                          └──► OFFLINE

Rules of this file:
    Nothing else in `coordinator` appends to an internal topic, except for the markers of transactions.
    Invariant: the state has all records of a partition that is not in `_shards`, because the topic was created after the broker
        had started. In a cluster such a partition is RESIGNED, and the state has no record of it.
    A partition is loaded only after its former state is removed.
    Invariant: `Shard.epoch` never decreases; a load or an unload of an older epoch is ignored.
    Invariant: each partition in `_found` is ACTIVE, or not in `_shards`.

Differs from Apache Kafka:
    A coordinator whose broker is elected again as the leader of its partition, without another role in between, keeps its state
    and the requests that wait. Apache Kafka loads the state again.
    Responses, also those to reads such as OffsetFetch and DescribeGroups, wait until the state that they depend on is committed.
    After `offsets.commit.timeout.ms`, for transactions after 5 s, the error is COORDINATOR_LOAD_IN_PROGRESS. Apache Kafka answers
    reads at once.
    While a partition of state is loaded, its partition count is that of the image of the cluster, or the configured one if the
    image does not have the topic yet. Apache Kafka reads it from ZooKeeper.

Source: org.apache.kafka.coordinator.common.runtime.{CoordinatorRuntime, CoordinatorLoaderImpl}, KIP-848.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice
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
    from wirekafka.clock import Clock, Timer
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.partition import CommitWait, Partition
    from wirekafka.replication.replica_manager import HostedTopics

R = TypeVar("R")

log = structlog.get_logger(__name__)

COMMIT_TIMEOUT_MS = 5_000
"""How long a reply waits for the commit of what it depends on, unless a setting says it."""

RECORDS_IN_CHUNK = 1000
"""The most records in one batch, unless they must stay together."""

RECORDS_IN_SLICE = 300
"""The number of records in one slice of a load, at 3 to 20 us each; clients are served between slices."""

WAITS_AT_ONCE = 200
"""The overdue waits that end in one turn of the loop; each calls the handler of its request again."""

RECORD_OVERHEAD_BYTES = 21
"""The most bytes that the frame of a record adds to its key and value: length, attributes, two deltas, two lengths, no
headers."""

REFUSED_RECORDS = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""The errors of an append that are caused by the records themselves; appends of other records may succeed."""


class StateMachine(Protocol[R]):
    """The state of a `StateTopic`."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]:
        """Returns the key and the value of a record.

        Raises:
            struct.error: a name in the record is too long for a string of a record.
        """

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """Returns a record of the log; None for a type that is not served.

        Raises:
            ProtocolError: the record cannot be read.
        """

    def replay(self, index: int, record: R, offset: int, producer_id: int | None) -> None:
        """Applies a record of a partition.

        Args:
            producer_id: the producer to whose open transaction the record belongs; None for a record without a transaction.

        Raises:
            ProtocolError: the record contradicts the state.
        """

    def on_loaded(self, index: int) -> Iterator[None]:
        """Is called when a partition is loaded and served; for example sets timers. Yields after each slice."""

    def unload(self, index: int) -> Iterator[None]:
        """Removes the state of a partition, and answers parked requests with NOT_COORDINATOR. Yields after each slice.

        The partition is not served from the first slice on.
        """


class ShardState(Enum):
    """The state of a partition. The value is the error for clients; None if requests can be answered."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = None
    RESIGNED = ErrorCode.NOT_COORDINATOR
    OFFLINE = ErrorCode.COORDINATOR_NOT_AVAILABLE


@dataclass(slots=True)
class Shard:
    """One partition of the topic, for its coordinator.

    Attributes:
        epoch: the leader epoch at which the partition was loaded or resigned.
        partition: the partition whose log has the state; None after a resignation.
        loading: the remaining work of the load; None unless the partition is being loaded.
    """

    epoch: int
    state: ShardState
    partition: Partition | None = None
    loading: Iterator[None] | None = None


class StateTopic(Generic[R]):
    """The partitions of one internal topic, and the state in them.

    Args:
        name: the name of the topic.
        subject: the description of the state in log lines, such as "groups and offsets".
        partition_count: the partition count with which the topic is created.
        commit_timeout_ms: how long a reply waits for the commit of what it depends on.
        is_keyed: the last record of each key is the whole state of the key, as in a compacted topic; otherwise all records are
            replayed.
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
        commit_timeout_ms: int = COMMIT_TIMEOUT_MS,
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
        self._commit_timeout_ms = commit_timeout_ms
        self._is_keyed = is_keyed
        self._shards: dict[int, Shard] = {}
        self._unloading: dict[int, Iterator[None]] = {}
        """The remaining work of the removal of a partition's state."""
        self._forgetting: Iterator[None] | None = None
        """The remaining work of the removal of a deleted topic's state."""
        self._slices: deque[Callable[[], bool]] = deque()
        """The next slice of each load and removal; each returns whether there was something to do."""
        self._is_slice_due = False
        self._unknown = Shard(-1, ShardState.ACTIVE)
        """The state of partitions that are not in `_shards`."""
        self._count_in_cluster: Callable[[], int | None] | None = None
        self._awaited: deque[tuple[int, CommitWait]] = deque()
        """The waits of `await_commit` with the times at which they end, the earliest first. Ended waits leave from the front."""
        self._commit_timer: Timer | None = None
        self._found: dict[int, Partition] = {}
        self._failing: set[int] = set()

    def __repr__(self) -> str:
        return f"<StateTopic {self.name}>"

    def join_cluster(self, count_partitions: Callable[[], int | None]) -> None:
        """Serves no partition until `elect` has loaded it, because other brokers lead partitions of the topic.

        Args:
            count_partitions: returns the partition count of the topic in the cluster; None if the topic does not exist.
        """
        self._unknown = Shard(-1, ShardState.RESIGNED)
        self._count_in_cluster = count_partitions
        self.refresh_partition_count()

    def refresh_partition_count(self) -> None:
        """Takes over the partition count of the topic in the cluster, after any change of it."""
        assert self._count_in_cluster is not None, "the broker is in a cluster"
        if self._forgetting is not None:
            return  # the state that is being removed is found by the former count
        self.partition_count = self._count_in_cluster() or self._configured_partition_count

    # The availability of partitions

    def partition_of(self, key: str) -> int:
        """Returns the partition that holds a group or a transactional id."""
        return partition_for(key, self.partition_count)

    def enter(self, index: int, *, is_known: bool = True) -> None:
        """Raises unless the state of a partition is loaded. Every entry point of a coordinator calls this first.

        Args:
            is_known: the state has the subject of the request. If not, and the partition is offline, the state may be incomplete.

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
        """Returns a partition whose state is loaded; None if the topic does not exist, so that there is no state.

        Raises:
            KafkaError: as `enter`, if the state is not loaded.
        """
        shard = self._shards.get(index, self._unknown)
        if shard.state.value is not None:
            raise KafkaError(shard.state.value, f"{self.name}-{index} is {shard.state.name.lower()}")
        partition = shard.partition
        if partition is None or partition.is_gone:
            if self._unknown.state is ShardState.RESIGNED:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.name}-{index} has another leader")
            topic = self._topics.find(self.name)
            if topic is None:
                return None
            partition = topic.partitions[index]
        self._found[index] = partition
        return partition

    def enter_all(self) -> None:
        """Raises while a partition is being loaded; partitions that are led elsewhere, or are offline, are ignored.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        for index in range(self.partition_count):
            if self._shards.get(index, self._unknown).state in (ShardState.ACTIVE, ShardState.LOADING):
                self.enter(index)

    def is_available(self, index: int) -> bool:
        """Whether FindCoordinator should name this broker as the coordinator of the partition."""
        if self._shards.get(index, self._unknown).state in (ShardState.RESIGNED, ShardState.OFFLINE):
            return False
        topic = self._topics.find(self.name)
        return topic is None or not topic.partitions[index].is_offline

    def is_active(self, index: int) -> bool:
        """Whether the state of a partition is loaded and this broker may change it."""
        return self._shards.get(index, self._unknown).state is ShardState.ACTIVE

    # Loading and unloading

    def load_all(self) -> None:
        """Loads every partition. The broker calls it at the start, before it listens.

        A partition that cannot be loaded is not available; the other partitions are loaded all the same.
        """
        topic = self._topics.find(self.name)
        if topic is None:
            return
        self.partition_count = len(topic.partitions)
        for partition in topic.partitions:
            shard = self._begin_loading(partition)
            while shard.loading is not None:
                self._load_next(partition.index, shard)

    def elect(self, partition: Partition, epoch: int) -> None:
        """Loads a partition in slices, because this broker has become its leader. Ignored unless the epoch is a later one.

        If this broker was the leader before, and the partition is the same object, the state stays as it is.

        Source: GroupMetadataManager.scheduleLoadGroupAndOffsets (maybeUpdateCoordinatorEpoch).
        """
        index = partition.index
        known = self._shards.get(index)
        if known is not None:
            if epoch <= known.epoch:
                return
            if known.partition is partition and known.state is ShardState.ACTIVE:
                known.epoch = epoch
                return
        shard = self._begin_loading(partition, epoch)
        # State may exist without an earlier shard too: the topic may have been created while the broker ran.
        self._unloading[index] = chain(self._unloading.pop(index, ()), self._machine.unload(index))
        self._load_slice(index, shard)

    def resign(self, index: int, epoch: int | None = None) -> None:
        """Removes the state of a partition that this broker no longer leads. Ignored if the epoch is older than the known one.

        Args:
            epoch: the epoch of the resignation; None for the epoch at which the partition was loaded.
        """
        known = self._shards.get(index, self._unknown)
        if epoch is None:
            epoch = known.epoch
        if epoch < known.epoch:
            return
        self._found.pop(index, None)
        self._shards[index] = Shard(epoch, ShardState.RESIGNED)
        if known.state is not ShardState.RESIGNED:
            log.info("Resigned as the coordinator of a partition", subject=self._subject, partition=f"{self.name}-{index}")
            self._begin_unloading(index)

    def _begin_unloading(self, index: int) -> None:
        work = self._unloading[index] = chain(self._unloading.pop(index, ()), self._machine.unload(index))
        self._unload_slice(index, work)

    def _unload_slice(self, index: int, work: Iterator[None]) -> bool:
        """Continues to remove the state of a partition; returns False if a new load does it."""
        if self._unloading.get(index) is not work:
            return False
        with isolate("The state of a partition cannot be removed", subject=self._subject, partition=f"{self.name}-{index}"):
            for _ in work:
                self._run_later(partial(self._unload_slice, index, work))
                return True
        if self._unloading.get(index) is work:
            del self._unloading[index]
        return True

    def forget_topic(self) -> None:
        """Removes all state, because the topic was deleted.

        A broker of a cluster does this in slices, and loads the partitions of a new topic of this name afterwards.
        """
        indexes = range(self.partition_count)
        self._found.clear()
        if self._count_in_cluster is not None:
            self._shards.clear()
            self._forgetting = self._forget(indexes)
            self._run_later(partial(self._forget_slice, self._forgetting))
            return
        # A request meanwhile must find neither the old state nor a new topic.
        self._shards = {index: Shard(-1, ShardState.RESIGNED) for index in indexes}
        for index in indexes:
            for _ in chain(self._unloading.pop(index, ()), self._machine.unload(index)):
                pass
        self._shards.clear()
        self.partition_count = self._configured_partition_count

    def _forget(self, indexes: Iterable[int]) -> Iterator[None]:
        for index in indexes:
            with isolate(
                "The state of a deleted topic cannot be removed", subject=self._subject, partition=f"{self.name}-{index}"
            ):
                yield from chain(self._unloading.pop(index, ()), self._machine.unload(index))
            yield

    def _forget_slice(self, work: Iterator[None]) -> bool:
        """Continues to remove the state of a deleted topic; returns False if the topic was deleted again meanwhile."""
        if self._forgetting is not work:
            return False
        for _ in work:
            self._run_later(partial(self._forget_slice, work))
            return True
        self._forgetting = None
        self.refresh_partition_count()
        return True

    def _begin_loading(self, partition: Partition, epoch: int | None = None) -> Shard:
        index = partition.index
        self._found.pop(index, None)
        epoch = partition.leader_epoch if epoch is None else epoch
        shard = self._shards[index] = Shard(epoch, ShardState.LOADING, partition)
        shard.loading = self._load(partition, shard)
        return shard

    def _load_slice(self, index: int, shard: Shard) -> bool:
        """Continues the load of a partition; returns False if it was resigned, or elected again, meanwhile."""
        if self._shards.get(index) is not shard:
            return False
        self._load_next(index, shard)
        if shard.loading is not None:
            self._run_later(partial(self._load_slice, index, shard))
        return True

    def _run_later(self, run_slice: Callable[[], bool]) -> None:
        """Runs a slice in a later turn of the loop; a turn runs one slice, however many partitions are loaded or removed."""
        self._slices.append(run_slice)
        if not self._is_slice_due:
            self._is_slice_due = True
            self._clock.call_later(1, self._run_slice)

    def _run_slice(self) -> None:
        self._is_slice_due = False
        try:
            while self._slices and not self._slices.popleft()():
                pass
        finally:
            if self._slices and not self._is_slice_due:
                self._is_slice_due = True
                self._clock.call_later(1, self._run_slice)

    def _load_next(self, index: int, shard: Shard) -> None:
        """Loads the next slice of a partition. If that fails, the partition is not available, and its state is removed.

        Source: CoordinatorRuntime.CoordinatorContext.transitionTo (FAILED).
        """
        assert shard.loading is not None
        try:
            next(shard.loading, None)
        except Exception as error:  # noqa: BLE001 - then only this partition is not available
            name = f"{self.name}-{index}"
            event = "State is not available: its partition cannot be loaded"
            if isinstance(error, (KafkaError, OSError)):
                remedy = "Start the broker again once the partition can be read"
                log.error(event, subject=self._subject, partition=name, error=str(error), remedy=remedy)
            else:
                log_once(error, event, subject=self._subject, partition=name)
            shard.state, shard.loading = ShardState.OFFLINE, None
            self._found.pop(index, None)
            self._begin_unloading(index)

    def _load(self, partition: Partition, shard: Shard) -> Iterator[None]:
        """Loads a partition; yields after each slice.

        Raises:
            KafkaError: the partition is offline, or cannot be read.
        """
        name = str(partition.topic_partition)
        yield from self._unloading.pop(partition.index, ())
        while self._forgetting is not None:
            yield
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
        shard.state = ShardState.ACTIVE
        yield from self._machine.on_loaded(partition.index)
        shard.loading = None

    def _replay_loaded(self, partition: Partition, entry: Entry) -> bool:
        """Replays a record of the log; returns False if its type is not served."""
        try:
            record = self._machine.decode(entry.key, entry.value)
            if record is None:
                return False
            self._machine.replay(partition.index, record, entry.offset, entry.producer_id)
        except ProtocolError as error:
            name = str(partition.topic_partition)
            log.error("A record of state cannot be read", subject=self._subject, partition=name, key=entry.key, error=str(error))
        except Exception as error:  # noqa: BLE001 - the record costs only itself
            name = str(partition.topic_partition)
            log_once(error, "A record of state cannot be replayed", subject=self._subject, partition=name)
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
        """Appends records to a partition, and replays them before a fetch that waits for them is answered.

        Args:
            is_atomic: all records are appended in one batch; otherwise in chunks, each of which is replayed. If a chunk is
                refused because of its records, the other chunks are appended all the same.
            is_replayed: False if the caller changes the state itself.
            producer: the producer to whose open transaction the records belong.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER if the state of the partition is not loaded; NOT_ENOUGH_REPLICAS if fewer replicas
                are in sync than `min.insync.replicas`; or the error of the append; see `append_error`. If `is_atomic`, nothing
                has changed then.
        """
        partition = self._found.get(index)
        if partition is None or partition.is_gone:
            partition = self._partition_to_append(index)
        is_watched = partition.watchers or partition.replica_watchers
        if is_watched:
            self._gate.begin_step()
        try:
            if is_watched and not partition.is_sole_replica and not partition.has_enough_in_sync_replicas:
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"too few replicas of {self.name}-{index} are in sync")
            try:
                pairs = [*map(self._machine.encode, records)]
            except struct.error as error:
                # A name or an id is longer than a string of a record may be: 32,767 bytes.
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record cannot be written: {error}") from error
            if is_atomic or len(pairs) == 1:
                self._append_batch(partition, records, pairs, is_replayed, producer)
            else:
                self._append_chunks(partition, records, pairs, is_replayed, producer)
        except KafkaError as error:
            self._note_failure(index, error)
            raise
        finally:
            if is_watched:
                self._gate.end_step()
        if self._failing and index in self._failing:
            self._failing.remove(index)
            log.info("State can be stored again", subject=self._subject, partition=f"{self.name}-{index}")

    def _partition_to_append(self, index: int) -> Partition:
        """Returns a partition that was not found before, or not since it was deleted; creates it if there is none yet.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER if the state of the partition is not loaded; the error of its creation.
        """
        if index not in self._found and not self.is_active(index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the state of {self.name}-{index} is not loaded on this broker")
        try:
            return self.partition(index)
        except KafkaError as error:
            self._note_failure(index, error)
            raise

    def _append_chunks(
        self,
        partition: Partition,
        records: Sequence[R],
        pairs: list[tuple[bytes, bytes | None]],
        is_replayed: bool,
        producer: WritingProducer | None,
    ) -> None:
        """Appends as many batches as necessary; a batch that is refused because of its records does not affect the others.

        Raises:
            KafkaError: why a batch was refused; or the error of the disk, in which case no later batch was appended.
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
            # Only the sequence numbers of clients are checked; Kafka's coordinator begins each of its batches with 0.
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
        """Logs the first of several failures in a row, and each refusal of records."""
        name = f"{self.name}-{index}"
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return
        if error.code in REFUSED_RECORDS:
            log.warning("Records of state are refused", subject=self._subject, partition=name, error=str(error))
        elif index not in self._failing:
            self._failing.add(index)
            log.error("State cannot be stored", subject=self._subject, partition=name, error=str(error))

    def partition(self, index: int) -> Partition:
        """Returns a partition of the topic, which is created if it does not exist.

        Raises:
            KafkaError: the topic cannot be created; the errors of `enter`.
        """
        partition = self._found.get(index)
        if partition is not None and not partition.is_gone:
            return partition
        return self._find(index) or self._topics.create_internal(self.name).partitions[index]

    # Committing

    def is_committed(self, index: int) -> bool:
        """Whether everything in a partition that was looked up is certainly committed."""
        partition = self._found.get(index)
        return partition is not None and partition.is_sole_replica and not partition.is_gone

    def on_commit(self, index: int, callback: Callable[[ErrorCode | None], object]) -> CommitWait | None:
        """Calls back once everything that is now in a partition is committed.

        If the partition is lost before that, its coordinator resigns, and the callback gets the error for the client.

        Returns:
            The wait; None if the callback was called at once.
        """
        if self.is_committed(index):
            callback(None)
            return None
        try:
            partition = self._find(index)
        except KafkaError as error:
            callback(error.code)
            return None
        if partition is None:
            callback(None)
            return None
        return partition.on_commit(partition.log.log_end_offset, partial(self._on_committed, index, callback))

    def await_commit(self, index: int, callback: Callable[[ErrorCode | None], object]) -> None:
        """Does what `on_commit` does, for the reply to a client, which must not wait without a limit.

        After `commit_timeout_ms` the callback gets COORDINATOR_NOT_AVAILABLE. Then the records may still be committed later, as
        after a lost reply.

        Source: ReplicaManager.appendRecords (timeout) as GroupMetadataManager calls it.
        """
        wait = self.on_commit(index, callback)
        if wait is None or wait.callback is None:
            return
        awaited = self._awaited
        while awaited and awaited[0][1].callback is None:
            awaited.popleft()
        awaited.append((self._clock.monotonic_ms() + self._commit_timeout_ms, wait))
        if self._commit_timer is None:
            self._commit_timer = self._clock.call_later(self._commit_timeout_ms, self._end_overdue_waits)

    def _end_overdue_waits(self) -> None:
        """Ends the waits that are overdue, `WAITS_AT_ONCE` in a turn of the loop, and sets the timer for the next one."""
        self._commit_timer = None
        now_ms, count, awaited = self._clock.monotonic_ms(), 0, self._awaited
        while awaited and (awaited[0][1].callback is None or (awaited[0][0] <= now_ms and count < WAITS_AT_ONCE)):
            awaited.popleft()[1].end(ErrorCode.REQUEST_TIMED_OUT)
            count += 1
        if awaited and self._commit_timer is None:
            self._commit_timer = self._clock.call_later(max(1, awaited[0][0] - now_ms), self._end_overdue_waits)

    def _on_committed(self, index: int, callback: Callable[[ErrorCode | None], object], error: ErrorCode | None) -> None:
        if error is not None:
            if error is not ErrorCode.REQUEST_TIMED_OUT:
                self.resign(index)
            error = append_error(error)
        callback(error)


def chunk_sizes(pairs: Sequence[tuple[bytes, bytes | None]], limit_bytes: int) -> list[int]:
    """Returns the number of records of each batch; a batch exceeds the limit only if it has one record.

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
