"""The world of `tests.coordinator.world`, with topics and share groups in it."""

from __future__ import annotations

from wirekafka.config import BrokerConfig, GroupConfig
from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.records import CoordinatorRecord
from wirekafka.coordinator.groups.share.groups import ShareGroups
from wirekafka.coordinator.groups.share.records import (
    ShareCurrentRecord,
    ShareGroupEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitionsRecord,
)
from wirekafka.coordinator.groups.share.requests import ShareHeartbeat, ShareHeartbeatResult
from wirekafka.errors import KafkaError
from wirekafka.tests.coordinator.groups.consumer.world import MemoryImage
from wirekafka.tests.coordinator.groups.world import World, describe_record

SETTINGS = {
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "10000",
    "group.share.assignment.interval.ms": "0",
}


class ShareWorld(World):
    """Attributes: shares: the share groups."""

    def __init__(self, **settings: str) -> None:
        self.config = BrokerConfig({**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}})
        self.image = MemoryImage()
        super().__init__()

    def _new_coordinator(self) -> GroupCoordinator:
        coordinator = super()._new_coordinator()
        group_config = GroupConfig(self.config, {})
        self.shares = ShareGroups(
            coordinator.groups,
            self.image,
            self.image.hashes,
            lambda group_id: group_config,
            self.config.integer("group.share.max.size"),
            lambda group_id: 0,
            coordinator.forget,
        )
        coordinator.add_kind(self.shares)
        return coordinator

    def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Sends a heartbeat as the runtime does; the state of share partitions is not written."""
        missing = self.shares.uninitialized(request)
        result, effects = self.shares.heartbeat(request, missing, self.now_ms)
        error = self.run(effects)
        if error is not None:
            raise KafkaError(append_error(error))
        return result

    def names(self, partitions: Partitions) -> str:
        """Formats partitions as `topic-0,1`."""
        by_id = {topic_id: name for name, topic_id in self.image.last_ids.items()}
        shown = [
            f"{by_id.get(topic_id, 'former')}-{','.join(map(str, sorted(indexes)))}" for topic_id, indexes in partitions.items()
        ]
        return " ".join(sorted(shown)) or "nothing"

    def describe_record(self, record: CoordinatorRecord) -> str:
        match record:
            case ShareMemberRecord():
                return f"member {record.member_id}: {'gone' if record.member is None else _said(record.member)}"
            case ShareGroupEpochRecord():
                return "group: gone" if record.epoch is None else f"group epoch {record.epoch}"
            case ShareTargetEpochRecord():
                return "target: gone" if record.epoch is None else f"target epoch {record.epoch}"
            case ShareTargetRecord():
                return f"target of {record.member_id}: {'gone' if record.target is None else self.names(record.target)}"
            case ShareCurrentRecord():
                member = record.member
                has = "gone" if member is None else f"epoch {member.member_epoch}, has {self.names(member.assigned)}"
                return f"{record.member_id} now: {has}"
            case StatePartitionsRecord():
                if record.initialized is None:
                    return "state: gone"
                known = {topic_id: partitions for topic_id, (_, partitions) in record.initialized.items()}
                return f"state of {self.names(known)}"
        return describe_record(record)

    def state_of(self, group_id: str) -> str:
        group = self.shares.find(group_id)
        if group is None:
            return super().state_of(group_id)
        lines = [f"{group_id} is {group.state_name}, epoch {group.group_epoch}, target of epoch {group.assignment_epoch}"]
        lines += [
            f"    {member.member_id} at {member.member_epoch}, was at {member.previous_member_epoch}, {_said(member)}, "
            f"has {self.names(member.assigned)}"
            for member in group.members.values()
        ]
        return "\n  ".join(lines)


def _said(member: ShareMember) -> str:
    return f"subscribes to {','.join(sorted(member.subscribed_topic_names)) or 'nothing'}"
