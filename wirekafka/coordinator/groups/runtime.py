"""The runtime of the group coordinator: its requests, its timers, and the execution of its steps.

How it works: a request becomes one step of `GroupCoordinator`, and `_run` executes its effects: it sets timers, appends
records to the group's partition of __consumer_offsets and replays them (`StateTopic`), and releases the replies once everything
in the partition is committed. All of this except the wait for the commit happens inside the call, on the broker's loop. A reply
may let its connection handle the next request, which may call this module again; the state is consistent by then.

Rules of this file: no other module of the group coordinator does I/O or reads the clock.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.coordinator.effects import BackgroundWork, Effects, TimerEvent, WritingProducer, append_error
from wirekafka.coordinator.groups.coordinator import GroupCoordinator, Piece
from wirekafka.coordinator.groups.records import CommittedOffset, CoordinatorRecord, OffsetRecord, decode
from wirekafka.coordinator.groups.requests import (
    CommitRequest,
    DescribedGroup,
    GroupOffsets,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.timers import GroupTimers
from wirekafka.coordinator.state_topic import StateTopic
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending, Work
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.cluster import CoordinatorCluster
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

log = structlog.get_logger(__name__)

GROUPS_IN_SLICE = 100
"""The groups in one slice of a load or an unload; a member costs some 10 us."""

SLICE_MS = 5
"""The longest time for which work on many groups holds the loop in one turn."""


class GroupRuntime:
    """The groups of one broker.

    Args:
        submit: Runs a function off the loop, then calls back on the loop, as `Workers.submit` does.
        new_uuid: Returns a new random UUID in its textual form.

    Attributes:
        coordinator: The groups. `run` executes the steps that it returns.
        state: The partitions of __consumer_offsets.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: HostedTopics,
        gate: ReplyGate,
        submit: Callable[[Callable[[], Any], Callable[[Any], None]], object],
        new_uuid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._check_interval_ms = config.integer("offsets.retention.check.interval.ms")
        self._gate = gate
        self._submit = submit
        self.state: StateTopic[CoordinatorRecord] = StateTopic(
            GROUP_METADATA_TOPIC,
            "groups and offsets",
            self,
            clock,
            topics,
            gate,
            partition_count=config.integer("offsets.topic.num.partitions"),
            compression=Compression(config.integer("offsets.topic.compression.codec")),
            commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
        )
        self.coordinator = GroupCoordinator(GroupSettings.of(config), self.partition_of, new_uuid)
        self._timers = GroupTimers(clock, self._on_timer)
        self._unforgotten: list[tuple[OffsetRecord, CommittedOffset]] = []

    def load(self) -> None:
        """Loads all groups and offsets from the log. The broker calls it once, on the loop, before it listens.

        All topics are known before. Offsets of a topic that does not exist are deleted: a crash came between the deletion of the
        topic and that of its offsets, and a new topic of the same name must not inherit them.
        """
        self.state.load_all()
        groups = self.coordinator.groups.values()
        if groups:
            log.info("Loaded groups", groups=len(groups), committed_offsets=self.coordinator.offsets.count())
        self._forget_unknown_topics()
        self._topics.on_delete.append(self._on_topic_deleted)
        self._expire_later()

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Prepares for a cluster; the broker calls it instead of `load`. Groups are served once their partition is loaded."""
        self.state.join_cluster(partial(cluster.partition_count, GROUP_METADATA_TOPIC))
        self._topics.on_change.append(lambda _: self.state.refresh_partition_count())
        self._topics.on_delete.append(self._on_topic_deleted)
        self._expire_later()

    def load_partition(self, partition: Partition) -> None:
        """Loads the groups of a partition that this broker leads now, in slices.

        Source: GroupCoordinator.onElection.
        """
        self.state.elect(partition, partition.leader_epoch)

    def unload_partition(self, index: int, leader_epoch: int | None) -> None:
        """Removes the groups of a partition that this broker no longer leads, in slices; parked requests get NOT_COORDINATOR.

        Args:
            leader_epoch: The epoch of the new leader; None if the partition is deleted.

        Source: GroupCoordinator.onResignation.
        """
        self.state.resign(index, leader_epoch)

    # The interface for the executor (`StateMachine`)

    encode = staticmethod(methodcaller("encode"))
    """See `StateMachine.encode`; a call of a method would cost each commit 0.1 us."""

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `StateMachine.decode`."""
        return decode(key, value, self.coordinator.decoders)

    def replay(self, index: int, record: CoordinatorRecord, offset: int, producer_id: int | None) -> None:
        """See `StateMachine.replay`."""
        self.coordinator.replay(record, offset, producer_id)

    def on_loaded(self, index: int) -> Iterator[None]:
        """See `StateMachine.on_loaded`: starts the sessions of the members."""
        for number, piece in enumerate(self.coordinator.on_loaded(self._clock.now_ms, index), 1):
            with isolate("A step of a group failed", partition=f"{GROUP_METADATA_TOPIC}-{index}"):
                self._run(*piece)
            if number % GROUPS_IN_SLICE == 0:
                yield

    def unload(self, index: int) -> Iterator[None]:
        """See `StateMachine.unload`."""
        for number, effects in enumerate(self.coordinator.unload(index), 1):
            self._timers.apply(effects.timers)
            for pending, result in effects.replies:
                with isolate(
                    "A request of a group that was lost could not be ended", partition=f"{GROUP_METADATA_TOPIC}-{index}"
                ):
                    pending.complete(result)
            if number % GROUPS_IN_SLICE == 0:
                yield

    def partition_of(self, group_id: str) -> int:
        """Returns the partition of __consumer_offsets that holds a group."""
        return self.state.partition_of(group_id)

    def enter(self, group_id: str) -> int:
        """Returns the partition that holds the group. Raises unless this broker is the group's coordinator and has loaded it.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """
        group = self.coordinator.groups.get(group_id)
        if group is not None:
            index = group.partition
            self.state.enter(index)
        else:
            index = self.state.partition_of(group_id)
            self.state.enter(index, is_known=False)
        return index

    def is_available(self, group_id: str) -> bool:
        """Whether FindCoordinator should name this broker as the coordinator of the group."""
        return self.state.is_available(self.partition_of(group_id))

    def join(self, request: JoinRequest) -> Pending[JoinResult]:
        """JoinGroup: see `Membership.join`."""
        pending: Pending[JoinResult] = Pending()
        try:
            self.enter(request.group_id)
        except KafkaError as error:
            pending.complete(JoinResult(error.code, request.member_id))
            return pending
        effects = self.coordinator.membership.join(request, pending, self._clock.now_ms())
        self.run(request.group_id, effects)
        return pending

    def sync(self, request: SyncRequest) -> Pending[SyncResult]:
        """SyncGroup: see `Membership.sync`."""
        pending: Pending[SyncResult] = Pending()
        try:
            self.enter(request.group_id)
        except KafkaError as refused:
            # Source: GroupCoordinator.handleSyncGroup: the rebalance is lost with its barrier, and older clients do not expect
            # COORDINATOR_LOAD_IN_PROGRESS here.
            is_loading = refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            pending.complete(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else refused.code))
            return pending
        effects = self.coordinator.membership.sync(request, pending, self._clock.now_ms())
        self.run(request.group_id, effects)
        return pending

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat: see `Membership.heartbeat`."""
        try:
            self.enter(request.group_id)
        except KafkaError as refused:
            # Source: GroupCoordinatorService.heartbeat: the member keeps its generation while its group is loaded.
            is_loading = refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else refused.code
        error, effects = self.coordinator.membership.heartbeat(request, self._clock.now_ms())
        self._timers.apply(effects.timers)
        return error

    def leave(self, group_id: str, leaving: list[LeavingMember]) -> LeaveResult:
        """LeaveGroup: see `Membership.leave`. Members are removed even if the append fails."""
        try:
            self.enter(group_id)
        except KafkaError as refused:
            return LeaveResult(refused.code)
        result, effects = self.coordinator.membership.leave(group_id, leaving, self._clock.now_ms())
        error = self.run(group_id, effects)
        return result if error is None else LeaveResult(append_error(error))

    def commit_offsets(self, request: CommitRequest) -> list[ErrorCode]:
        """Commits offsets. Returns an error or NONE for each offset, in the order of the request.

        Raises:
            KafkaError: An error for all offsets, as in `Offsets.commit`; or the error of an append: nothing is committed then.
        """
        index = self.enter(request.group_id)
        errors, effects = self.coordinator.offsets.commit(request, self._clock.now_ms())
        self._run_or_raise(index, effects)
        return errors

    def commit_offsets_in_transaction(self, request: CommitRequest, producer: WritingProducer) -> list[ErrorCode]:
        """Commits offsets in a producer's transaction, which must include `partition_of(request.group_id)`.

        Raises:
            KafkaError: An error for all offsets, as in `Offsets.commit_in_transaction`; INVALID_PRODUCER_EPOCH; or the error of
                an append: no offset is pending then.
        """
        index = self.enter(request.group_id)
        errors, effects = self.coordinator.offsets.commit_in_transaction(request, producer, self._clock.now_ms())
        self._run_or_raise(index, effects)
        return errors

    def complete_transaction(
        self,
        partition_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
    ) -> int:
        """Ends a producer's transaction in a partition of __consumer_offsets: commits or drops its pending offsets.

        Returns:
            The offset after the marker. The method does not wait for the commit of the marker.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; the errors of `enter` and `Partition.write_marker`; the transaction is still
                open then.

        Source: CoordinatorRuntime.scheduleTransactionCompletion.
        """
        topic = self._topics.find(GROUP_METADATA_TOPIC)
        if topic is None or not 0 <= partition_index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.state.enter(partition_index)
        self._gate.begin_step()
        try:
            info = self.state.partition(partition_index).write_marker(
                producer_id,
                producer_epoch,
                coordinator_epoch=coordinator_epoch,
                is_commit=is_commit,
                now_ms=self._clock.now_ms(),
                transaction_version=transaction_version,
            )
            self.coordinator.offsets.complete_transaction(partition_index, producer_id, is_commit=is_commit)
        finally:
            self._gate.end_step()
        return info.last_offset + 1

    def has_open_transaction(self, group_id: str, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction in the partition that holds the group's offsets.

        Raises:
            KafkaError: The errors of `enter`.
        """
        index = self.partition_of(group_id)
        self.state.enter(index)
        if self._topics.find(GROUP_METADATA_TOPIC) is None:
            return False
        return self.state.partition(index).log.has_open_transaction(producer_id, producer_epoch)

    def note_beginning(self, group_id: str, producer: WritingProducer) -> None:
        """Notes that the transaction coordinator is asked about a transaction that begins with offsets of the group.

        Raises:
            KafkaError: The errors of `enter`.
        """
        producers = self.state.partition(self.enter(group_id)).log.producers
        producers.note_beginning(*producer, 0, must_be_zero=False, now_ms=self._clock.now_ms())

    def forget_beginning(self, group_id: str, producer_id: int) -> None:
        """Drops what `note_beginning` has noted, because there is no such producer.

        Raises:
            KafkaError: The errors of `enter`.
        """
        self.state.partition(self.enter(group_id)).log.producers.forget_beginning(producer_id)

    def may_begin_transaction(self, group_id: str, producer: WritingProducer) -> bool:
        """Whether the transaction that `note_beginning` has noted has not ended in the group's partition meanwhile.

        Raises:
            KafkaError: The errors of `enter`.

        Source: VerificationGuard.
        """
        log_of_group = self.state.partition(self.enter(group_id)).log
        return log_of_group.producers.has_beginning(*producer) or log_of_group.has_open_transaction(*producer)

    def fetch_offsets(self, group_id: str, member_id: str | None = None, member_epoch: int = -1) -> GroupOffsets:
        """Returns the committed offsets of a group; none if the group does not exist or its type has no offsets.

        The caller must not change the returned dict.

        Raises:
            KafkaError: The errors of `enter`; the group's error for this member.
        """
        self.enter(group_id)
        return self.coordinator.offsets.fetch(group_id, member_id, member_epoch)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has a pending offset for the partition (KIP-447)."""
        return self.coordinator.offsets.pending.has((group_id, topic, partition))

    def delete_offsets(self, group_id: str, partitions: list[tuple[str, int]]) -> list[ErrorCode]:
        """Deletes offsets. Returns an error or NONE for each partition.

        Raises:
            KafkaError: An error for all offsets, as in `Offsets.delete`; or the error of an append: nothing is deleted then.
        """
        index = self.enter(group_id)
        errors, effects = self.coordinator.offsets.delete(group_id, partitions)
        self._run_or_raise(index, effects)
        return errors

    def delete_group(self, group_id: str) -> Work[None]:
        """Deletes a group and its offsets, a thousand offsets in each step.

        Raises:
            KafkaError: The errors of `enter`; GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; or the error of an append: the group still
                exists then, perhaps with fewer offsets.
        """
        self.enter(group_id)
        for effects in self.coordinator.delete_group(group_id):
            self._run_or_raise(self._partition_index(group_id), effects)
            yield
        log.info("Deleted a group", group=group_id)

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> Work[list[ListedGroup]]:
        """Returns the groups in any of the states and of any of the types; an empty argument matches all groups.

        The work is done in steps: see `GroupCoordinator.list_groups`.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.state.enter_all()
        return self.coordinator.list_groups(states, types)

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Returns a description of a classic group and its members; None if there is no such group.

        Raises:
            KafkaError: The errors of `enter`.
        """
        self.enter(group_id)
        return self.coordinator.describe(group_id)

    def has_group(self, group_id: str) -> bool:
        """Whether a group of any type has this id."""
        return group_id in self.coordinator.groups

    def run(self, group_id: str, effects: Effects) -> ErrorCode | None:
        """Executes a step of a group. Returns the error of its append, None if the append succeeded."""
        return self._run(self._partition_index(group_id), effects)

    def _partition_index(self, group_id: str) -> int:
        group = self.coordinator.groups.get(group_id)
        return self.partition_of(group_id) if group is None else group.partition

    def _run_or_raise(self, index: int, effects: Effects) -> None:
        error = self._run(index, effects)
        if error is not None:
            raise KafkaError(append_error(error))

    def _run(self, index: int, effects: Effects) -> ErrorCode | None:
        """Executes a step. Returns the error of its append, None if the append succeeded."""
        replies = effects.replies
        if effects.then is not None:
            replies = []
            self._gate.begin_step()  # the state is consistent after `then`
            try:
                error = self._carry_out(index, effects, replies)
            finally:
                self._gate.end_step()
        else:
            if effects.timers:
                self._timers.apply(effects.timers)
            error = self._append(index, effects) if effects.records else None
        if replies:
            self.state.await_commit(index, partial(_release, replies))
        if error is None and effects.background is not None:
            self._run_in_background(index, effects.background)
        return error

    def _run_in_background(self, index: int, work: BackgroundWork) -> None:
        """Runs work off the loop, and then executes the steps that result from it, in slices."""

        def done(result: Any) -> None:
            if isinstance(result, KafkaError) and result.code is ErrorCode.REQUEST_TIMED_OUT:
                log.info("Work of a group off the loop is put off until the next heartbeat", partition=index, error=str(result))
                result = None
            elif isinstance(result, BaseException):
                log_once(result, "Work of a group off the loop failed", partition=index)
                result = None
            steps = work.then(result, self._clock.now_ms())
            self._run_in_slices(((index, effects) for effects in steps), None)

        if work.begin():
            self._submit(work.compute, done)

    def _carry_out(self, index: int, effects: Effects, replies: list[tuple[Pending[Any], Any]]) -> ErrorCode | None:
        """Executes effects and those that follow in the same step, and collects the replies.

        Returns:
            The error of the append of `effects`; None if it succeeded.
        """
        self._timers.apply(effects.timers)
        error = self._append(index, effects) if effects.records else None
        if effects.then is not None:
            self._carry_out(index, effects.then(error, self._clock.now_ms()), replies)
        replies += effects.replies
        return error

    def _append(self, index: int, effects: Effects) -> ErrorCode | None:
        try:
            self.state.append(
                index,
                effects.records,
                is_atomic=effects.is_atomic,
                is_replayed=effects.is_replayed,
                producer=effects.producer,
            )
        except KafkaError as error:
            return error.code
        return None

    def _on_timer(self, event: TimerEvent) -> None:
        if not self.state.is_active(self._partition_index(event.group_id)):
            return  # the group is being removed
        with isolate("The step of a group's timer failed", group=event.group_id):
            self._run(*self.coordinator.on_timer(event, self._clock.now_ms()))

    def _expire_later(self) -> None:
        self._clock.call_later(self._check_interval_ms, self._expire)

    def _expire(self) -> None:
        self._forget_again()
        pieces: Iterator[Piece] = iter(())
        with isolate("Offsets cannot be expired"):
            pieces = self.coordinator.expire(self._clock.now_ms())
        self._run_in_slices(pieces, "Deleted expired offsets, or groups without offsets", self._expire_later)

    def _run_in_slices(self, pieces: Iterator[Piece], event: str | None, on_end: Callable[[], object] = lambda: None) -> None:
        """Executes long work, `SLICE_MS` in each turn of the loop. A piece that fails affects only its own partition.

        Args:
            event: The message that is logged for each piece; None for no message.
            on_end: Called after the last piece.
        """
        stop_ms = self._clock.monotonic_ms() + SLICE_MS
        while self._clock.monotonic_ms() < stop_ms:
            piece = None
            with isolate("Work on groups ends before it is complete"):
                piece = next(pieces, None)
            if piece is None:
                on_end()
                return
            index, effects = piece
            with isolate("Work on the groups of a partition failed", partition=index):
                if effects.records and self._run(index, effects) is None and event is not None:
                    log.info(event, partition=index, tombstones=len(effects.records))
        self._clock.call_later(0, lambda: self._run_in_slices(pieces, event, on_end))

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        if topic.name == GROUP_METADATA_TOPIC:
            log.warning("The topic of groups was deleted, and all groups and offsets with it")
            self._unforgotten.clear()
            self.state.forget_topic()
            return
        self._forget_topics([topic.name])

    def _forget_unknown_topics(self) -> None:
        unknown = [name for name in self.coordinator.offsets.topics() if self._topics.find(name) is None]
        if unknown:
            log.info("Offsets of topics that do not exist are deleted", topics=len(unknown), first=min(unknown))
            self._forget_topics(unknown)

    def _forget_topics(self, names: list[str]) -> None:
        # `forget_topic` decides now what is deleted, so that offsets for a new topic of the same name stay.
        pieces = chain.from_iterable([self.coordinator.forget_topic(name) for name in names])
        self._run_in_slices(self._noting_failures(pieces), "Deleted offsets of a deleted topic")

    def _noting_failures(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Yields the pieces of a deletion of offsets. Notes the offsets of pieces that fail, to delete them later."""
        for index, effects in pieces:
            offsets = [
                (record, self.coordinator.offsets.find(record)) for record in effects.records if isinstance(record, OffsetRecord)
            ]
            yield index, effects
            self._unforgotten += [
                (record, known) for record, known in offsets if known and self.coordinator.offsets.find(record) is known
            ]

    def _forget_again(self) -> None:
        """Tries again to delete the offsets of deleted topics, except offsets committed for a new topic of the same name."""
        unforgotten, self._unforgotten = self._unforgotten, []
        by_partition: defaultdict[int, Effects] = defaultdict(lambda: Effects(is_atomic=False))
        for record, known in unforgotten:
            if self.coordinator.offsets.find(record) is known:
                by_partition[self._partition_index(record.group_id)].records.append(record)
        pieces = self._noting_failures(iter(by_partition.items()))
        self._run_in_slices(pieces, "Deleted offsets of a deleted topic")


def _release(replies: list[tuple[Pending[Any], Any]], error: ErrorCode | None) -> None:
    """Completes the replies of a step, with an error if the partition was lost or the commit takes too long."""
    for pending, result in replies:
        pending.complete(result if error is None else result.refused(error))
