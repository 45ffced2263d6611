"""The edge of the stored state of share partitions: __share_group_state.

Theory of operation: a change of a share partition is one record, appended to the partition of the topic that its key belongs
to, and replayed (`StateTopic`). The topic is not compacted: a snapshot makes all older records of its share partition worthless,
so the records before the oldest of the newest snapshots are deleted, from time to time. Share partitions that do not change are
given new snapshots for that.

Rules of this file:
    Invariant: `_snapshot_offsets[index]` has the offset of the newest snapshot of each share partition in that partition.

Source: ShareCoordinatorService, ShareCoordinatorOffsetsManager, SharePartitionKey.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.share_state.batches import StateChange
from wirekafka.coordinator.share_state.records import ShareKey, ShareSnapshotValue, ShareStateRecord, decode, encode
from wirekafka.coordinator.share_state.state import ShareState, ShareStates
from wirekafka.coordinator.state_topic import StateTopic
from wirekafka.errors import KafkaError
from wirekafka.faults import isolate
from wirekafka.names import SHARE_STATE_TOPIC
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

log = structlog.get_logger(__name__)


class ShareStateLog:
    """The stored state of the share partitions of one broker.

    Attributes:
        state: the partitions of __share_group_state.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, topics: HostedTopics, gate: ReplyGate) -> None:
        self._clock = clock
        self._topics = topics
        self._gate = gate
        self._prune_interval_ms = config.integer("share.coordinator.state.topic.prune.interval.ms")
        self._cold_interval_ms = config.integer("share.coordinator.cold.partition.snapshot.interval.ms")
        self._states = ShareStates(config.integer("share.coordinator.snapshot.update.records.per.snapshot"))
        self._snapshot_offsets: defaultdict[int, dict[ShareKey, int]] = defaultdict(dict)
        self.state: StateTopic[ShareStateRecord] = StateTopic(
            SHARE_STATE_TOPIC,
            "share groups",
            self,
            clock,
            topics,
            gate,
            partition_count=config.integer("share.coordinator.state.topic.num.partitions"),
            compression=Compression(config.integer("share.coordinator.state.topic.compression.codec")),
            is_keyed=False,
        )

    def load(self) -> None:
        """Brings all states back; to be called once, on the loop, before the broker listens.

        Raises:
            KafkaError: the log cannot be read.
        """
        self.state.load_all()
        if self._states.by_key:
            log.info("Loaded the state of share groups", share_partitions=len(self._states.by_key))
        self._topics.on_delete.append(self._on_topic_deleted)
        self._clock.call_later(self._prune_interval_ms, self._prune)
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)

    # What the executor asks for

    def encode(self, record: ShareStateRecord) -> tuple[bytes, bytes | None]:
        """See `StateMachine.encode`."""
        return encode(record)

    def decode(self, key: bytes | None, value: bytes | None) -> ShareStateRecord | None:
        """See `StateMachine.decode`."""
        return decode(key, value)

    def replay(self, index: int, record: ShareStateRecord, offset: int, producer_id: int | None) -> None:
        """See `StateMachine.replay`."""
        self._states.replay(record)
        if record.value is None:
            self._snapshot_offsets[index].pop(record.key, None)
        elif isinstance(record.value, ShareSnapshotValue):
            self._snapshot_offsets[index][record.key] = offset

    def on_loaded(self, index: int) -> None:
        """See `StateMachine.on_loaded`: deletes the state of topics that were deleted meanwhile."""
        gone = [key for key in self._states.by_key if self._topics.find_by_id(key.topic_id) is None]
        self._delete_if_possible(key for key in gone if self.partition_of(key) == index)

    def unload(self, index: int) -> None:
        """See `StateMachine.unload`."""
        for key in [key for key in self._states.by_key if self.partition_of(key) == index]:
            del self._states.by_key[key]
        self._snapshot_offsets.pop(index, None)

    def enter(self, key: ShareKey) -> None:
        """Raises unless this broker knows the state of a share partition, and may answer for it.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """
        self.state.enter(self.partition_of(key), is_known=key in self._states.by_key)

    def get(self, key: ShareKey) -> ShareState | None:
        """What is known of a share partition; None if it was never initialised. Not to be changed."""
        return self._states.by_key.get(key)

    def keys_of_topic(self, topic_id: bytes) -> list[ShareKey]:
        """The share partitions of a topic."""
        return [key for key in self._states.by_key if key.topic_id == topic_id]

    def partition_of(self, key: ShareKey) -> int:
        """The partition of __share_group_state that holds a share partition."""
        return self.state.partition_of(str(key))

    def is_available(self, key: ShareKey) -> bool:
        """Whether clients should look for the coordinator of a share partition here."""
        return self.state.is_available(self.partition_of(key))

    def initialize(self, start_offsets: dict[ShareKey, int | None], state_epoch: int) -> None:
        """Makes share partitions known, each with where the group begins; None leaves that to the first fetch.

        Raises:
            KafkaError: what an append ended with; some may be known then.
        """
        now_ms = self._clock.now_ms()
        self._append(
            self._states.initialize(key, state_epoch, start_offset, now_ms) for key, start_offset in start_offsets.items()
        )

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int) -> None:
        """Remembers a change of a share partition that is known.

        Raises:
            KafkaError: what the append ended with; nothing is remembered then.
        """
        self._append([self._states.write(key, change, leader_epoch, self._clock.now_ms())])

    def delete(self, keys: Iterable[ShareKey]) -> None:
        """Forgets share partitions.

        Raises:
            KafkaError: what an append ended with; some may be forgotten then.
        """
        self._append([ShareStateRecord(key, None) for key in keys if key in self._states.by_key])

    def _append(self, records: Iterable[ShareStateRecord]) -> None:
        """Appends records, to each partition what belongs there.

        Raises:
            KafkaError: what went wrong first; all that could be appended was.
        """
        by_partition: defaultdict[int, list[ShareStateRecord]] = defaultdict(list)
        for record in records:
            by_partition[self.partition_of(record.key)].append(record)
        failure: KafkaError | None = None
        for index, of_partition in by_partition.items():
            self._gate.begin_step()
            try:
                self.state.enter(index)
                self.state.append(index, of_partition, is_atomic=False)
            except KafkaError as error:
                failure = failure or KafkaError(append_error(error.code), error.message)
            finally:
                self._gate.end_step()
        if failure is not None:
            raise failure

    def _prune(self) -> None:
        """Cuts off what newer snapshots have made worthless."""
        self._clock.call_later(self._prune_interval_ms, self._prune)
        topic = self._topics.find(SHARE_STATE_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            with isolate("Old state of share groups cannot be cut off", partition=str(partition.topic_partition)):
                if self.state.is_active(partition.index):
                    self._prune_partition(partition)

    def _prune_partition(self, partition: Partition) -> None:
        high_watermark = partition.log.high_watermark
        redundant = min([high_watermark, *self._snapshot_offsets[partition.index].values()])
        if redundant > partition.log.log_start_offset and not partition.is_offline:
            try:
                partition.delete_records(redundant)
            except KafkaError as error:
                log.error("Old state of share groups cannot be cut off", partition=partition.index, error=str(error))

    def _snapshot_cold(self) -> None:
        """Writes whole what has not been for long."""
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)
        with isolate("Cold share partitions get no snapshots"), suppress(KafkaError):
            # What could not be stored is tried again the next time; the executor has logged it.
            self._append(self._states.cold_snapshots(self._cold_interval_ms, self._clock.now_ms()))

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        if topic.name == SHARE_STATE_TOPIC:
            log.warning("The topic of the state of share groups was deleted, and that state with it")
            self.state.forget_topic()
            return
        self._delete_if_possible(self.keys_of_topic(topic.topic_id))

    def _delete_if_possible(self, keys: Iterable[ShareKey]) -> None:
        """Deletes the state of topics that are gone."""
        try:
            self.delete(list(keys))
        except KafkaError:
            return  # the log has said so; a topic id never comes back, so nobody asks for this state
