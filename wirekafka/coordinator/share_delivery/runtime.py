"""The share groups of a broker: membership, share sessions, fetches and offsets.

How it works: the group coordinator owns the membership, and its runtime runs the steps of `ShareGroups`. Share sessions
own the fetches; a session does not require a membership. Both need the state of share partitions: a partition is assigned, and
can be fetched, only after its state is initialized.

Rules of this file:
    The state of share partitions is written before the group's record lists them as initialized, and is deleted before the
    group's record drops them. After a crash between the two writes, the first write is done again.

Source: GroupCoordinatorService (shareGroupHeartbeat, describeShareGroupOffsets, alterShareGroupOffsets,
deleteShareGroupOffsets), SharePartitionManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.effects import Effects, append_error
from wirekafka.coordinator.groups.share.groups import ShareGroups
from wirekafka.coordinator.groups.share.records import InitializedTopics, StatePartitionsRecord
from wirekafka.coordinator.groups.share.requests import DescribedShareGroup, ShareHeartbeat, ShareHeartbeatResult, ShareOffset
from wirekafka.coordinator.share_delivery.cluster_states import ClusterShareStates, LookedUp
from wirekafka.coordinator.share_delivery.fetching import ShareFetches
from wirekafka.coordinator.share_delivery.latest_offsets import LatestOffsets
from wirekafka.coordinator.share_delivery.partitions import SharePartitionManager
from wirekafka.coordinator.share_delivery.persisted_states import PersistedStates
from wirekafka.coordinator.share_delivery.sessions import OnClose, PartitionKey, SessionKey, ShareSession, ShareSessions
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement
from wirekafka.coordinator.share_state.coordinator import ShareCoordinator
from wirekafka.coordinator.share_state.persister import SharePersister, gather
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.share_state.state_log import ShareStateLog
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.names import SHARE_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.cluster import CoordinatorCluster
    from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.coordinator.groups.share.group import ShareGroup
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.pending import Pending, Work
    from wirekafka.replication.purgatory import Purgatory
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

log = structlog.get_logger(__name__)


class ShareGroupRuntime:
    """The share groups of one broker.

    Args:
        groups: The groups of all types. The constructor registers share groups there, so it must run before the groups are
            loaded.
        run_in_slices: Runs long work a few milliseconds at a time, as `Slices.run` does.

    Attributes:
        assignor: The name of the assignor of all share groups (group.share.assignors).
        sessions: The share sessions.
        fetches: Runs the fetches.
        partitions: The share partitions in use.
        states: The stored state of share partitions.
        coordinator: What other brokers may do with this state.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: HostedTopics,
        live: LiveTopics,
        groups: GroupRuntime,
        purgatory: Purgatory,
        gate: ReplyGate,
        run_in_slices: Callable[[Work[None]], object],
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._live = live
        self._gate = gate
        self._persisted: PersistedStates | None = None
        self._elsewhere: ClusterShareStates | None = None
        """The states of a cluster, for the partitions and for the groups of this broker; None without other brokers."""
        (self.assignor,) = config.items("group.share.assignors")
        self.sessions = ShareSessions(config.integer("group.share.max.share.sessions"))
        self.states = ShareStateLog(config, clock, topics, gate, run_in_slices)
        self.coordinator = ShareCoordinator(self.states)
        self.partitions = SharePartitionManager(clock, topics, self.states)
        self.fetches = ShareFetches(self.partitions, purgatory, clock, run_in_slices)
        coordinator = groups.coordinator
        self._share_groups = ShareGroups(
            coordinator.groups,
            live,
            live.hashes,
            topics.group_configs.resolve,
            config.integer("group.share.max.size"),
            groups.partition_of,
            coordinator.forget,
        )
        coordinator.add_kind(self._share_groups)
        topics.features.on_change.append(self._on_features_changed)

    def load(self) -> None:
        """Loads the state of share partitions. The broker calls it once, on the loop, before it listens."""
        self.states.load()
        self._topics.on_delete.append(self._on_topic_deleted)
        for group in self._share_groups.all():
            self._forget_lost(group)

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Prepares for a cluster; the broker calls it instead of `load`."""
        self.states.join_cluster(cluster)
        persister = SharePersister(self.coordinator, cluster, self._gate, self._clock)
        latest_offsets = LatestOffsets(cluster, self._clock, self._topics.find_partition)
        self._elsewhere = ClusterShareStates(persister, latest_offsets)
        self._persisted = PersistedStates(persister, self._gate)
        self.partitions.join_cluster(self._persisted, cluster.node_id)
        self._topics.on_delete.append(self._on_topic_deleted)

    def read_states(self, keys: Iterable[ShareKey]) -> Pending[None] | None:
        """Reads the states of share partitions that are not loaded, before a fetch loads them.

        Returns:
            A Pending that is complete when the states are known; None if there is nothing to wait for.
        """
        if self._persisted is None:
            return None
        unread = self.partitions.unread(keys)
        return self._persisted.read(unread) if unread else None

    def heartbeat(self, request: ShareHeartbeat) -> Work[ShareHeartbeatResult]:
        """ShareGroupHeartbeat: see `ShareGroups.heartbeat`. The state of many new share partitions is initialized in steps.

        In a cluster it is initialized in the background, and a later heartbeat assigns the partitions.

        Raises:
            KafkaError: The errors of `ShareGroups.heartbeat` and of `GroupRuntime.enter`; the error of an append: the member is
                then unchanged.
        """
        self._groups.enter(request.group_id)
        self._live.check_known()
        missing = self._share_groups.uninitialized(request)
        if self._elsewhere is not None:
            return self._heartbeat_in_cluster(self._elsewhere, request, missing)
        if missing:
            group = self._share_groups.group_or_new(request.group_id)
            start_offsets = dict.fromkeys(_keys(request.group_id, missing))
            yield from self.states.initialize(start_offsets, state_epoch=group.group_epoch + 1, is_reset=False)
            # Topics, and what other members have initialized, may have changed between two steps.
            self._groups.enter(request.group_id)
            missing = self._with_state(request.group_id, self._share_groups.uninitialized(request))
        result, effects = self._share_groups.heartbeat(request, missing, self._clock.now_ms())
        self._run(request.group_id, effects)
        return result

    def _heartbeat_in_cluster(
        self, elsewhere: ClusterShareStates, request: ShareHeartbeat, missing: InitializedTopics
    ) -> ShareHeartbeatResult:
        ready = elsewhere.initialized(self._share_groups.find(request.group_id), missing)
        result, effects = self._share_groups.heartbeat(request, ready, self._clock.now_ms())
        self._run(request.group_id, effects)
        group = self._share_groups.find(request.group_id)
        if group is not None:
            elsewhere.begin_initializing(group)
        return result

    def _with_state(self, group_id: str, topics: InitializedTopics) -> InitializedTopics:
        """Returns the partitions that have state."""
        found: InitializedTopics = {}
        for topic_id, (name, partitions) in topics.items():
            known = frozenset(each for each in partitions if self.states.get(ShareKey(group_id, topic_id, each)) is not None)
            if known:
                found[topic_id] = name, known
        return found

    def describe(self, group_id: str) -> DescribedShareGroup:
        """Returns a description of a group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND; the errors of `GroupRuntime.enter`.
        """
        self._groups.enter(group_id)
        return self._share_groups.describe(group_id)

    def acknowledge(
        self, key: SessionKey, said: Mapping[PartitionKey, list[Acknowledgement]]
    ) -> Work[dict[PartitionKey, KafkaError | None]]:
        """Applies the acknowledgements of a member. Returns the error of each partition, None if there is none."""
        errors: dict[PartitionKey, KafkaError | None] = {}
        for (topic_id, index), acknowledgements in said.items():
            errors[topic_id, index] = None
            try:
                self.partitions.acknowledge(ShareKey(key.group_id, topic_id, index), key.member_id, acknowledgements)
            except KafkaError as error:
                errors[topic_id, index] = error
            yield
        return errors

    def open_session(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> ShareSession:
        """Opens a session of a member, which ends with its connection. The member keeps the records of its former session.

        Args:
            on_close: The callbacks of the connection.

        Raises:
            KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        session = self.sessions.open(key, partitions, on_close)
        session.end_with_connection(partial(self.close_session, key))
        return session

    def close_session(self, key: SessionKey) -> None:
        """Ends the session of a member, if any, and releases its records. Unloads the group if it has no other session."""
        session = self.sessions.remove(key)
        if session is not None:
            self._let_go(session)

    def _let_go(self, session: ShareSession) -> None:
        group_id, member_id = session.key
        for topic_id, index in session.partitions:
            self.partitions.release(ShareKey(group_id, topic_id, index), member_id)
        if not self.sessions.has_members(group_id):
            self.partitions.unload_group(group_id)

    def look_up_offsets(self, wanted: Mapping[str, Mapping[str, list[int]] | None]) -> Pending[LookedUp] | None:
        """Asks other brokers for what `describe_offsets` needs of them.

        Args:
            wanted: for each group, the partitions by topic name, or None for all initialized partitions.

        Returns:
            A Pending of it; None without other brokers.
        """
        if self._elsewhere is None:
            return None
        names: dict[ShareKey, TopicPartition] = {}
        for group_id, partitions in wanted.items():
            with suppress(KafkaError):
                self._groups.enter(group_id)
                for name, indexes in self._wanted(group_id, partitions).items():
                    topic = self._topics.find(name)
                    if topic is not None:
                        names |= {ShareKey(group_id, topic.topic_id, each): TopicPartition(name, each) for each in indexes}
        return self._elsewhere.look_up(names)

    def _wanted(self, group_id: str, wanted: Mapping[str, list[int]] | None) -> Mapping[str, list[int]]:
        if wanted is not None:
            return wanted
        group = self._share_groups.find(group_id)
        initialized = {} if group is None else group.initialized
        topics = ((self._topics.find_by_id(topic_id), partitions) for topic_id, (_, partitions) in initialized.items())
        return {topic.name: sorted(partitions) for topic, partitions in topics if topic is not None}

    def describe_offsets(
        self, group_id: str, wanted: Mapping[str, list[int]] | None, looked_up: LookedUp | None = None
    ) -> Work[dict[str, list[ShareOffset]]]:
        """Returns the offsets of a group, by topic name. If `wanted` is None, returns all initialized partitions.

        The work is done in steps of one partition.

        Args:
            looked_up: what `look_up_offsets` has found in a cluster.

        Raises:
            KafkaError: The errors of `GroupRuntime.enter`.

        Source: GroupCoordinatorService.describeShareGroupOffsets, describeShareGroupAllOffsets.
        """
        self._groups.enter(group_id)
        offsets: dict[str, list[ShareOffset]] = {}
        for name, indexes in self._wanted(group_id, wanted).items():
            offsets[name] = []
            for index in indexes:
                if looked_up is None:
                    offsets[name].append(self._offset(group_id, name, index))
                else:
                    offsets[name].append(self._offset_elsewhere(group_id, name, index, looked_up))
                yield
        return offsets

    def alter_offsets(
        self, group_id: str, start_offsets: Mapping[str, Mapping[int, int]]
    ) -> Work[Pending[KafkaError | None] | None]:
        """Sets the start offsets of a group without members in existing partitions. Without offsets, it only checks the group.

        Returns:
            None if it is done; in a cluster a Pending of the error, which is None if all offsets are set.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND for a group of another type; NON_EMPTY_GROUP; the error of an append.
        """
        self._groups.enter(group_id)
        group = self._share_groups.group_or_new(group_id)
        group.check_delete()
        if not start_offsets:
            return None
        keys: dict[ShareKey, int | None] = {}
        altered: dict[bytes, tuple[str, frozenset[int]]] = {}
        for name, offsets in start_offsets.items():
            topic = self._topics.find(name)
            assert topic is not None, "the topic was checked"
            for index, start_offset in offsets.items():
                keys[ShareKey(group_id, topic.topic_id, index)] = start_offset if start_offset >= 0 else None
            altered[topic.topic_id] = name, frozenset(offsets)
        if self._elsewhere is not None:
            # A greater state epoch fences the leaders of the partitions, which may still have the former state.
            resetting = self._elsewhere.reset(keys, group.group_epoch + 1)
            return resetting.map(partial(self._after, lambda: self._note_altered(group_id, altered)))
        yield from self.states.initialize(keys, state_epoch=group.group_epoch)
        self._groups.enter(group_id)
        self.partitions.unload_group(group_id)
        # The group, and the topics, may have changed between two steps.
        self._note_altered(group_id, self._with_state(group_id, altered))
        return None

    def _note_altered(self, group_id: str, altered: InitializedTopics) -> None:
        """Records the partitions whose start offsets were set as initialized.

        Raises:
            KafkaError: the errors of `GroupRuntime.enter`; GROUP_ID_NOT_FOUND; the error of the append.
        """
        self._groups.enter(group_id)
        initialized = dict(self._share_groups.group_or_new(group_id).initialized)
        for topic_id, (name, indexes) in altered.items():
            _, known = initialized.get(topic_id, (name, frozenset[int]()))
            initialized[topic_id] = name, known.union(indexes)
        self._run(group_id, Effects(records=[StatePartitionsRecord(group_id, initialized)]))

    def _after(self, act: Callable[[], object], error: KafkaError | None) -> KafkaError | None | Pending[KafkaError | None]:
        """Changes a group after the states elsewhere have changed; returns the error, once the change is committed."""
        if error is not None:
            return error

        def change(*_: object) -> KafkaError | None:
            try:
                act()
            except KafkaError as refusal:
                return refusal
            return None

        outcome: KafkaError | None | Pending[KafkaError | None] = self._gate.handle(change, None, None)
        return outcome

    def check_can_delete(self, group_id: str) -> ShareGroup:
        """Returns the share group of this id. Raises unless it has no members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        self._groups.enter(group_id)
        group = self._share_groups.group(group_id)
        group.check_delete()
        return group

    def delete_offsets(self, group_id: str, topic: HostedTopic) -> Work[bool | Pending[KafkaError | None]]:
        """Deletes the offsets of a group without members in a topic.

        Returns:
            False if the group has none there, True if they are deleted; in a cluster a Pending of the error, which is None if
            they are deleted.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; the error of an append.
        """
        group = self.check_can_delete(group_id)
        known = group.initialized.get(topic.topic_id)
        if known is None:
            return False
        keys = _keys(group_id, {topic.topic_id: known})
        if self._elsewhere is not None:
            deleting = self._elsewhere.delete(keys)
            return deleting.map(partial(self._after, lambda: self._note_deleted(group_id, topic.topic_id)))
        yield from self.states.delete(keys)
        self.partitions.unload_group(group_id)
        self._forget_topic(self._share_groups.group(group_id), topic.topic_id)
        return True

    def _note_deleted(self, group_id: str, topic_id: bytes) -> None:
        self._groups.enter(group_id)
        self._forget_topic(self._share_groups.group(group_id), topic_id)

    def delete_states_elsewhere(self, group_ids: Iterable[str]) -> Pending[dict[str, KafkaError | None]] | None:
        """Deletes the states of share groups without members in a cluster, before `delete_state`.

        Returns:
            A Pending of the errors by group, None for a group whose states are deleted. None if there is nothing to delete.
        """
        deleting: dict[str, Pending[KafkaError | None]] = {}
        for group_id in dict.fromkeys(group_ids) if self._elsewhere is not None else ():
            with suppress(KafkaError):
                self._groups.enter(group_id)
                group = self._share_groups.find(group_id)
                if group is not None and group.is_empty:
                    keys = {*_keys(group_id, group.initialized), *group.initializing}
                    assert self._elsewhere is not None, "a cluster"
                    deleting[group_id] = self._elsewhere.delete(keys)
        return gather(deleting) if deleting else None

    def delete_state(self, group_id: str, *, is_deleted_elsewhere: bool = False) -> Work[None]:
        """Deletes the state of a share group before the group is deleted. Does nothing unless the group exists and is empty.

        Args:
            is_deleted_elsewhere: in a cluster, `delete_states_elsewhere` has deleted the state.

        Raises:
            KafkaError: The error of an append.
        """
        self._groups.enter(group_id)
        group = self._share_groups.find(group_id)
        if self._elsewhere is not None:
            if is_deleted_elsewhere and group is not None and group.members:
                # A member has joined meanwhile: the next heartbeat initializes the partitions again.
                self._run(group_id, Effects(records=[StatePartitionsRecord(group_id, {})]))
            return
        if group is not None and group.is_empty:
            yield from self.states.delete(_keys(group_id, group.initialized))
            self.partitions.unload_group(group_id)
            joined = self._share_groups.find(group_id)
            if joined is not None and joined.members:
                # A member has joined between two steps: the next heartbeat initializes the partitions again.
                self._forget_lost(joined)

    def _on_features_changed(self) -> None:
        """Ends all sessions if the feature was disabled, and completes the fetches that wait for records.

        Source: SharePartitionManager.onShareVersionToggle.
        """
        if not self._topics.features.level(SHARE_VERSION):
            for session in self.sessions.clear():
                self._let_go(session)

    def _offset(self, group_id: str, name: str, index: int) -> ShareOffset:
        topic = self._topics.find(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return ShareOffset(index)
        key = ShareKey(group_id, topic.topic_id, index)
        try:
            self.states.enter(key)
        except KafkaError as error:
            return ShareOffset(index, error=error)
        state = self.states.get(key)
        if state is None or state.start_offset is None:
            return ShareOffset(index)
        lag = None
        if state.delivery_complete_count is not None:
            if topic.partitions[index].is_offline:
                message = "There is no leader for this topic-partition."
                return ShareOffset(index, error=KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, message))
            lag = topic.partitions[index].log.high_watermark - state.start_offset - state.delivery_complete_count
        return ShareOffset(index, state.start_offset, state.leader_epoch, lag)

    def _offset_elsewhere(self, group_id: str, name: str, index: int, looked_up: LookedUp) -> ShareOffset:
        """Returns the progress of a share partition whose state another broker may have."""
        topic = self._topics.find(name)
        summary = None if topic is None else looked_up.summaries.get(ShareKey(group_id, topic.topic_id, index))
        if isinstance(summary, KafkaError):
            return ShareOffset(index, error=summary)
        if summary is None or summary.start_offset is None:
            return ShareOffset(index)
        lag = None
        if summary.delivery_complete_count is not None:
            latest = looked_up.latest[TopicPartition(name, index)]
            if isinstance(latest, KafkaError):
                return ShareOffset(index, error=latest)
            lag = latest - summary.start_offset - summary.delivery_complete_count
        return ShareOffset(index, summary.start_offset, summary.leader_epoch, lag)

    def _forget_topic(self, group: ShareGroup, topic_id: bytes) -> None:
        left = {each: known for each, known in group.initialized.items() if each != topic_id}
        self._run(group.group_id, Effects(records=[StatePartitionsRecord(group.group_id, left)]))

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        self.partitions.unload_topic(topic.topic_id)
        is_state = topic.name == SHARE_STATE_TOPIC
        if self._elsewhere is not None:
            self._on_topic_deleted_in_cluster(topic)
            return
        for group in self._share_groups.all():
            if is_state:
                self.partitions.unload_group(group.group_id)
            if is_state or topic.topic_id in group.initialized:
                self._forget_lost(group)

    def _on_topic_deleted_in_cluster(self, topic: HostedTopic) -> None:
        """Removes the partitions of a deleted topic, or all if the states are lost, from the groups of this broker."""
        is_state = topic.name == SHARE_STATE_TOPIC
        for group in self._share_groups.all():
            left = {} if is_state else {each: known for each, known in group.initialized.items() if each != topic.topic_id}
            if len(left) < len(group.initialized):
                with suppress(KafkaError):  # the executor has logged it; a topic id is never used again
                    self._run(group.group_id, Effects(records=[StatePartitionsRecord(group.group_id, left)]))

    def _forget_lost(self, group: ShareGroup) -> None:
        """Removes the partitions that were deleted, or have lost their state, from the group's initialized partitions.

        The state of a partition that still exists is then initialized again. If the append fails, the next start repeats it.
        """
        left: InitializedTopics = {}
        for topic_id, (name, partitions) in group.initialized.items():
            kept = frozenset(each for each in partitions if self._has_state(ShareKey(group.group_id, topic_id, each)))
            if kept:
                left[topic_id] = name, kept
        if left == group.initialized:
            return
        try:
            self._run(group.group_id, Effects(records=[StatePartitionsRecord(group.group_id, left)]))
        except KafkaError as error:
            log.error("Cannot remove deleted partitions from a share group", group=group.group_id, error=str(error))

    def _has_state(self, key: ShareKey) -> bool:
        """Whether a share partition has state. A state that cannot be read at present counts as existing."""
        if self._topics.find_by_id(key.topic_id) is None:
            return False
        return self.states.get(key) is not None or not (self.states.is_active(key) and self.states.is_available(key))

    def _run(self, group_id: str, effects: Effects) -> None:
        error = self._groups.run(group_id, effects)
        if error is not None:
            raise KafkaError(append_error(error))


def _keys(group_id: str, topics: InitializedTopics) -> Iterable[ShareKey]:
    for topic_id, (_, partitions) in topics.items():
        for index in sorted(partitions):
            yield ShareKey(group_id, topic_id, index)
