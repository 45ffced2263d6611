"""The committed offsets of groups, their deletion and their expiry.

How it works: an offset that is committed in a transaction is pending until the partition of __consumer_offsets has the
marker of the transaction. Of two commits the later one in the log counts. So the end of a transaction does not undo a commit
that was made outside the transaction meanwhile.

Rules of this file: offsets change in `replay` and `complete_transaction` only; every other change is a record that is replayed.
    Invariant: a group that has offsets is in `groups`; a group that exists for its offsets only is a simple one, without a
        protocol.
    Invariant: `_groups_by_topic[topic]` has the ids of the groups that have a committed offset in the topic, and no others.
    Invariant: `_last_offsets[index]` is the offset of the last record that was replayed from that partition of
        __consumer_offsets.

Source: OffsetMetadataManager, OffsetExpirationConditionImpl, ClassicGroup (validateOffsetCommit, offsetExpirationCondition);
KIP-211 for expiration.
"""

from __future__ import annotations

from collections.abc import Iterator

from wirekafka.coordinator.effects import Effects, WritingProducer
from wirekafka.coordinator.groups.classic.group import PREPARING_REBALANCE, STABLE, ClassicGroup
from wirekafka.coordinator.groups.classic.rebalance import Rebalancer
from wirekafka.coordinator.groups.pending_offsets import OpenTransaction, PendingOffsets
from wirekafka.coordinator.groups.records import MAX_STRING_BYTES, CommittedOffset, OffsetRecord
from wirekafka.coordinator.groups.requests import CommitRequest, GroupOffsets
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.types import Group
from wirekafka.errors import NONE, ErrorCode, KafkaError

MAX_TIMESTAMP_MS = 0x7FFFFFFFFFFFFFFF

EXAMINED_AT_ONCE = 1000
"""The most offsets that one piece of work examines: a few milliseconds if all of them get tombstones."""


class Offsets:
    """The committed offsets of all groups.

    Args:
        groups: all groups, by id; shared with the rest of the coordinator.

    Attributes:
        pending: the offsets of open transactions.
    """

    def __init__(self, groups: dict[str, Group], settings: GroupSettings, rebalancer: Rebalancer) -> None:
        self._groups = groups
        self._settings = settings
        self._rebalancer = rebalancer
        self._by_group: dict[str, GroupOffsets] = {}
        self._groups_by_topic: dict[str, set[str]] = {}
        self._last_offsets: dict[int, int] = {}
        self.pending = PendingOffsets()

    def of_group(self, group_id: str) -> GroupOffsets:
        """Returns the committed offsets of a group; empty if there is no such group. The caller must not change them."""
        return self._by_group.get(group_id, {})

    def count(self) -> int:
        """Returns the number of all committed offsets."""
        return sum(len(partitions) for topics in self._by_group.values() for partitions in topics.values())

    def fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> GroupOffsets:
        """Returns the committed offsets of a group; empty if there is no such group, or if its type has no offsets.

        Args:
            member_epoch: the epoch of the member that reads; -1 for a client that is not a member.

        Raises:
            KafkaError: the errors of the group's `check_fetch`.

        Source: OffsetMetadataManager.fetchOffsets.
        """
        group = self._groups.get(group_id)
        if group is None:
            return {}
        try:
            group.check_fetch(member_id, member_epoch)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return {}
            raise
        return self.of_group(group_id)

    def commit(self, request: CommitRequest, now_ms: int) -> tuple[list[ErrorCode], Effects]:
        """Commits offsets; each gets an error or NONE, in the order of the request.

        A commit of a member renews its session. A client that is not a member may commit while the group has no members.

        Raises:
            KafkaError: an error for all offsets: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND,
                REBALANCE_IN_PROGRESS. The error for a single offset is OFFSET_METADATA_TOO_LARGE.
        """
        effects = Effects()
        group = self._check_commit(request)
        if isinstance(group, ClassicGroup) and (group.state is STABLE or group.state is PREPARING_REBALANCE):
            self._rebalancer.renew_session(group, group.members[request.member_id], effects)
        return self._write(request, now_ms, effects), effects

    def commit_in_transaction(
        self, request: CommitRequest, producer: WritingProducer, now_ms: int
    ) -> tuple[list[ErrorCode], Effects]:
        """Commits offsets as part of a producer's transaction: they take effect when the transaction is committed.

        A request that names a generation and a member must name the current ones (KIP-447); old producers name none. The
        commit does not renew the session of a member.

        Raises:
            KafkaError: an error for all offsets: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. The error for a
                single offset is OFFSET_METADATA_TOO_LARGE.

        Source: OffsetMetadataManager.commitTransactionalOffset.
        """
        effects = Effects(producer=producer)
        self._check_transactional_commit(request)
        return self._write(request, now_ms, effects), effects

    def _write(self, request: CommitRequest, now_ms: int, effects: Effects) -> list[ErrorCode]:
        expire_timestamp_ms = None
        if request.retention_time_ms is not None:
            expire_timestamp_ms = min(now_ms + request.retention_time_ms, MAX_TIMESTAMP_MS)
        errors = []
        for commit in request.commits:
            if commit.metadata and self._is_too_large(commit.metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(NONE)
            timestamp_ms = now_ms if commit.commit_timestamp_ms is None else commit.commit_timestamp_ms
            value = CommittedOffset(commit.offset, commit.leader_epoch, commit.metadata, timestamp_ms, expire_timestamp_ms)
            effects.records.append(OffsetRecord(request.group_id, commit.topic, commit.partition, value))
        return errors

    def delete(self, group_id: str, partitions: list[tuple[str, int]]) -> tuple[list[ErrorCode], Effects]:
        """Deletes offsets of topics without subscribers; each gets GROUP_SUBSCRIBED_TO_TOPIC or NONE.

        Raises:
            KafkaError: an error for all offsets: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if the members' topics are
                not known to the coordinator.
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        effects = Effects()
        errors = []
        committed = self.of_group(group_id)
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            errors.append(ErrorCode.NONE)
            if partition in committed.get(topic, {}) or self.pending.has((group_id, topic, partition)):
                effects.records.append(OffsetRecord(group_id, topic, partition, None))
        return errors, effects

    def tombstones(self, group_id: str) -> Iterator[OffsetRecord]:
        """Yields the tombstones of all offsets of a group, pending ones included."""
        committed = self.of_group(group_id)
        for topic, partitions in committed.items():
            for partition in partitions:
                yield OffsetRecord(group_id, topic, partition, None)
        for topic, partition in self.pending.of_group(group_id):
            if partition not in committed.get(topic, {}):
                yield OffsetRecord(group_id, topic, partition, None)

    def topics(self) -> set[str]:
        """Returns the topics with committed or pending offsets of any group."""
        return {*self._groups_by_topic, *self.pending.topics()}

    def groups_of_topic(self, topic: str) -> list[str]:
        """Returns the ids of the groups that have committed or pending offsets in a topic."""
        return [*{*self._groups_by_topic.get(topic, ()), *self.pending.groups_of_topic(topic)}]

    def last_offsets(self) -> dict[int, int]:
        """Returns, for each partition of __consumer_offsets, the offset of the last replayed record; a copy."""
        return dict(self._last_offsets)

    def tombstones_of_topic(self, group_id: str, topic: str, last_offset: int) -> Iterator[OffsetRecord]:
        """Yields the tombstones of the offsets of a group in a topic, pending ones included.

        Args:
            last_offset: offsets whose record is after this offset stay.
        """
        committed = self.of_group(group_id).get(topic, {})
        for partition, offset in committed.items():
            if offset.record_offset <= last_offset:
                yield OffsetRecord(group_id, topic, partition, None)
        for pending_topic, partition in self.pending.of_group(group_id):
            if pending_topic == topic and partition not in committed:
                yield OffsetRecord(group_id, topic, partition, None)

    def count_of_group(self, group_id: str) -> int:
        """Returns the number of committed offsets of a group."""
        return sum(map(len, self.of_group(group_id).values()))

    def expired(self, group: Group, now_ms: int) -> Iterator[list[OffsetRecord]]:
        """Yields the tombstones of a group's expired offsets, in pieces of at most `EXAMINED_AT_ONCE`, which may be empty.

        The offsets may change between two pieces. An offset that a transaction is about to change does not expire.

        Source: OffsetMetadataManager.cleanupExpiredOffsets.
        """
        group_id = group.group_id
        for topic in [*self.of_group(group_id)]:
            if group.is_subscribed_to(topic):
                continue
            partitions = [*self.of_group(group_id).get(topic, ())]
            for start in range(0, len(partitions), EXAMINED_AT_ONCE):
                committed = self.of_group(group_id).get(topic, {})
                yield [
                    OffsetRecord(group_id, topic, partition, None)
                    for partition in partitions[start : start + EXAMINED_AT_ONCE]
                    if partition in committed
                    if self._is_expired(group, committed[partition], now_ms)
                    if not self.pending.has((group_id, topic, partition))
                ]

    def has_offsets(self, group_id: str) -> bool:
        """Whether a group has committed or pending offsets."""
        return group_id in self._by_group or self.pending.has_group(group_id)

    def replay(self, record: OffsetRecord, offset: int) -> None:
        """Applies a record, which is at this offset of its partition.

        Source: OffsetMetadataManager.replay.
        """
        value = record.value
        if value is None:
            self._forget(record)
            return
        value.record_offset = offset
        self._last_offsets[self._groups[record.group_id].partition] = offset
        self._offsets_of(record.group_id, record.topic)[record.partition] = value

    def replay_in_transaction(self, record: OffsetRecord, offset: int, transaction: OpenTransaction) -> None:
        """Applies a record of an open transaction."""
        assert record.value is not None, "no transaction deletes offsets"
        record.value.record_offset = offset
        self._last_offsets[transaction.partition] = offset
        self.pending.add(transaction, record)

    def complete_transaction(self, log_partition: int, producer_id: int, *, is_commit: bool) -> None:
        """Commits or drops the pending offsets of a transaction that a marker in a partition of __consumer_offsets has ended.

        Source: OffsetMetadataManager.replayEndTransactionMarker.
        """
        taken = self.pending.take(OpenTransaction(log_partition, producer_id))
        if not is_commit:
            return
        for (group_id, topic, partition), offset in taken.items():
            by_partition = self._offsets_of(group_id, topic)
            known = by_partition.get(partition)
            if known is None or known.record_offset < offset.record_offset:
                by_partition[partition] = offset

    def _offsets_of(self, group_id: str, topic: str) -> dict[int, CommittedOffset]:
        """Returns the offsets of a group in a topic, which the caller may change."""
        by_topic = self._by_group.get(group_id)
        if by_topic is None:
            by_topic = self._by_group[group_id] = {}
        by_partition = by_topic.get(topic)
        if by_partition is None:
            by_partition = by_topic[topic] = {}
            self._groups_by_topic.setdefault(topic, set()).add(group_id)
        return by_partition

    def _forget(self, record: OffsetRecord) -> None:
        if self.pending:
            self.pending.drop((record.group_id, record.topic, record.partition))
        by_topic = self._by_group.get(record.group_id)
        by_partition = None if by_topic is None else by_topic.get(record.topic)
        if by_topic is None or by_partition is None:
            return
        by_partition.pop(record.partition, None)
        if by_partition:
            return
        del by_topic[record.topic]
        group_ids = self._groups_by_topic[record.topic]
        group_ids.remove(record.group_id)
        if not group_ids:
            del self._groups_by_topic[record.topic]
        if not by_topic:
            del self._by_group[record.group_id]

    def find(self, record: OffsetRecord) -> CommittedOffset | None:
        """Returns the committed offset that a record would replace; None if there is none."""
        return self.of_group(record.group_id).get(record.topic, {}).get(record.partition)

    def forget_group(self, group_id: str) -> None:
        """Removes the offsets of a group, because this broker has lost the partition that holds the group."""
        for topic in self._by_group.pop(group_id, {}):
            group_ids = self._groups_by_topic[topic]
            group_ids.remove(group_id)
            if not group_ids:
                del self._groups_by_topic[topic]

    def forget_partition(self, partition: int) -> None:
        """Removes the open transactions in a partition of __consumer_offsets, because this broker has lost the partition."""
        self._last_offsets.pop(partition, None)
        self.pending.forget_partition(partition)

    def _check_commit(self, request: CommitRequest) -> Group | None:
        """Returns the group, or None if the commit creates it.

        Source: OffsetMetadataManager.validateOffsetCommit.
        """
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation_id < 0:
                return None
            is_known = request.knows_consumer_protocol
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION)
        group.check_commit(request, is_transactional=False)
        return group

    def _check_transactional_commit(self, request: CommitRequest) -> None:
        """Source: OffsetMetadataManager.validateTransactionalOffsetCommit."""
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        try:
            group.check_commit(request, is_transactional=True)
        except KafkaError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from None
            raise

    def _is_too_large(self, metadata: str) -> bool:
        return len(metadata) > self._settings.offset_metadata_max_bytes or len(metadata.encode()) > MAX_STRING_BYTES

    def _is_expired(self, group: Group, offset: CommittedOffset, now_ms: int) -> bool:
        """Whether the retention of an offset is over.

        The retention that a commit names takes precedence over the one of the broker.
        """
        since_ms = group.offset_age_starts_ms(offset)
        if since_ms is None:
            return False
        if offset.expire_timestamp_ms is not None:
            return now_ms >= offset.expire_timestamp_ms
        return now_ms - since_ms >= self._settings.offsets_retention_ms
