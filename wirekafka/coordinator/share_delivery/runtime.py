"""Share groups as the broker has them: their members, their sessions, what they fetch, and where they are.

Theory of operation: membership is a matter of the group coordinator, whose runtime carries out the steps of `ShareGroups`;
fetching is one of sessions, which need not belong to members. What joins the two is the state of share partitions: a partition
is assigned once there is state of it, and is fetched from if there is.

Rules of this file:
    The state of share partitions is written before the group says that there is some, and deleted before it says that there is
    none, so that after a crash in between it is written, or deleted, again.

Source: GroupCoordinatorService (shareGroupHeartbeat, describeShareGroupOffsets, alterShareGroupOffsets,
deleteShareGroupOffsets), SharePartitionManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.effects import Effects, append_error
from wirekafka.coordinator.groups.share.groups import ShareGroups
from wirekafka.coordinator.groups.share.records import InitializedTopics, StatePartitionsRecord
from wirekafka.coordinator.groups.share.requests import DescribedShareGroup, ShareHeartbeat, ShareHeartbeatResult, ShareOffset
from wirekafka.coordinator.share_delivery.fetching import ShareFetches
from wirekafka.coordinator.share_delivery.partitions import SharePartitionManager
from wirekafka.coordinator.share_delivery.sessions import OnClose, PartitionKey, SessionKey, ShareSession, ShareSessions
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.share_state.state_log import ShareStateLog
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.names import SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.coordinator.groups.share.group import ShareGroup
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.purgatory import Purgatory
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

log = structlog.get_logger(__name__)


class ShareGroupRuntime:
    """The share groups of one broker.

    Args:
        groups: the groups of all types; this makes them know share groups, and has to before they are loaded.

    Attributes:
        assignor: the name of who assigns partitions to members (group.share.assignors).
        sessions: what members fetch, remembered.
        fetches: carries fetches out.
        partitions: the share partitions in use.
        states: what is written down of share partitions.
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
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._groups = groups
        (self.assignor,) = config.items("group.share.assignors")
        self.sessions = ShareSessions(config.integer("group.share.max.share.sessions"))
        self.states = ShareStateLog(config, clock, topics, gate)
        self.partitions = SharePartitionManager(clock, topics, self.states)
        self.fetches = ShareFetches(self.partitions, purgatory, clock)
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
        """Brings the state of share partitions back; to be called once, on the loop, before the broker listens.

        Raises:
            KafkaError: the log cannot be read.
        """
        self.states.load()
        self._topics.on_delete.append(self._on_topic_deleted)
        for group in self._share_groups.all():
            self._forget_lost(group)

    def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """ShareGroupHeartbeat: see `ShareGroups.heartbeat`.

        Raises:
            KafkaError: as that; as `GroupRuntime.enter`; or what an append ended with: the member is where it was then.
        """
        self._groups.enter(request.group_id)
        missing = self._share_groups.uninitialized(request)
        if missing:
            group = self._share_groups.group_or_new(request.group_id)
            start_offsets = dict.fromkeys(_keys(request.group_id, missing))
            self.states.initialize(start_offsets, state_epoch=group.group_epoch + 1)
        result, effects = self._share_groups.heartbeat(request, missing, self._clock.now_ms())
        self._run(request.group_id, effects)
        return result

    def describe(self, group_id: str) -> DescribedShareGroup:
        """A group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND; as `GroupRuntime.enter`.
        """
        self._groups.enter(group_id)
        return self._share_groups.describe(group_id)

    def acknowledge(
        self, key: SessionKey, said: Mapping[PartitionKey, list[Acknowledgement]]
    ) -> dict[PartitionKey, KafkaError | None]:
        """Takes a member's word for records that it has; for each partition, what is wrong with it."""
        errors: dict[PartitionKey, KafkaError | None] = {}
        for (topic_id, index), acknowledgements in said.items():
            errors[topic_id, index] = None
            try:
                self.partitions.acknowledge(ShareKey(key.group_id, topic_id, index), key.member_id, acknowledgements)
            except KafkaError as error:
                errors[topic_id, index] = error
        return errors

    def open_session(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> ShareSession:
        """A new session of a member, which keeps what it had in the former one; it ends with its connection.

        Args:
            on_close: what is to be done when that ends.

        Raises:
            KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        session = self.sessions.open(key, partitions, on_close)
        session.end_with_connection(partial(self.close_session, key))
        return session

    def close_session(self, key: SessionKey) -> None:
        """Ends a member's session, if it has one: what it has goes back. A group without any is let go of."""
        session = self.sessions.remove(key)
        if session is not None:
            self._let_go(session)

    def _let_go(self, session: ShareSession) -> None:
        group_id, member_id = session.key
        for topic_id, index in session.partitions:
            self.partitions.release(ShareKey(group_id, topic_id, index), member_id)
        if not self.sessions.has_members(group_id):
            self.partitions.unload_group(group_id)

    def describe_offsets(self, group_id: str, wanted: Mapping[str, list[int]] | None) -> dict[str, list[ShareOffset]]:
        """Where a group is, in the partitions of topics by name; None for all that it ever was assigned.

        Raises:
            KafkaError: as `GroupRuntime.enter`.

        Source: GroupCoordinatorService.describeShareGroupOffsets, describeShareGroupAllOffsets.
        """
        self._groups.enter(group_id)
        if wanted is not None:
            return {name: [self._offset(group_id, name, index) for index in indexes] for name, indexes in wanted.items()}
        group = self._share_groups.find(group_id)
        offsets: dict[str, list[ShareOffset]] = {}
        for topic_id, (_, partitions) in group.initialized.items() if group is not None else ():
            topic = self._topics.find_by_id(topic_id)
            if topic is not None:
                offsets[topic.name] = [self._offset(group_id, topic.name, index) for index in sorted(partitions)]
        return offsets

    def alter_offsets(self, group_id: str, start_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Makes a group without members go on elsewhere, in partitions that exist; without any, only checks the group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND for a group of another type; NON_EMPTY_GROUP; what an append ended with.
        """
        self._groups.enter(group_id)
        group = self._share_groups.group_or_new(group_id)
        group.check_delete()
        if not start_offsets:
            return
        keys: dict[ShareKey, int | None] = {}
        initialized = dict(group.initialized)
        for name, offsets in start_offsets.items():
            topic = self._topics.find(name)
            assert topic is not None, "the topic was checked"
            for index, start_offset in offsets.items():
                keys[ShareKey(group_id, topic.topic_id, index)] = start_offset if start_offset >= 0 else None
            _, known = initialized.get(topic.topic_id, (name, frozenset[int]()))
            initialized[topic.topic_id] = name, known.union(offsets)
        self.states.initialize(keys, state_epoch=group.group_epoch)
        self.partitions.unload_group(group_id)
        self._run(group_id, Effects(records=[StatePartitionsRecord(group_id, initialized)]))

    def check_can_delete(self, group_id: str) -> ShareGroup:
        """The share group of this id, if it has no members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        self._groups.enter(group_id)
        group = self._share_groups.group(group_id)
        group.check_delete()
        return group

    def delete_offsets(self, group_id: str, topic: HostedTopic) -> bool:
        """Makes a group without members forget where it is in a topic; False if it knows nothing of that.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; what an append ended with.
        """
        group = self.check_can_delete(group_id)
        known = group.initialized.get(topic.topic_id)
        if known is None:
            return False
        self.states.delete(_keys(group_id, {topic.topic_id: known}))
        self.partitions.unload_group(group_id)
        self._forget_topic(group, topic.topic_id)
        return True

    def delete_state(self, group_id: str) -> None:
        """Deletes the state of a share group that is about to be deleted; does nothing if there is no such group to delete.

        Raises:
            KafkaError: what an append ended with.
        """
        self._groups.enter(group_id)
        group = self._share_groups.find(group_id)
        if group is not None and group.is_empty:
            self.states.delete(_keys(group_id, group.initialized))
            self.partitions.unload_group(group_id)

    def _on_features_changed(self) -> None:
        """If the feature is switched off, all sessions end; who waits for records is answered.

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

    def _forget_topic(self, group: ShareGroup, topic_id: bytes) -> None:
        left = {each: known for each, known in group.initialized.items() if each != topic_id}
        self._run(group.group_id, Effects(records=[StatePartitionsRecord(group.group_id, left)]))

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        self.partitions.unload_topic(topic.topic_id)
        is_state = topic.name == SHARE_STATE_TOPIC
        for group in self._share_groups.all():
            if is_state:
                self.partitions.unload_group(group.group_id)
            if is_state or topic.topic_id in group.initialized:
                self._forget_lost(group)

    def _forget_lost(self, group: ShareGroup) -> None:
        """Partitions that are gone, or whose state is: for those that come back, or are there, it is to be made anew.

        If that cannot be written now, it is at the next start.
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
            log.error("A group does not forget partitions that are gone", group=group.group_id, error=str(error))

    def _has_state(self, key: ShareKey) -> bool:
        """Whether there is state of a share partition, as far as anybody can say."""
        if self._topics.find_by_id(key.topic_id) is None:
            return False
        return self.states.get(key) is not None or not self.states.is_available(key)

    def _run(self, group_id: str, effects: Effects) -> None:
        error = self._groups.run(group_id, effects)
        if error is not None:
            raise KafkaError(append_error(error))


def _keys(group_id: str, topics: InitializedTopics) -> Iterable[ShareKey]:
    for topic_id, (_, partitions) in topics.items():
        for index in sorted(partitions):
            yield ShareKey(group_id, topic_id, index)
