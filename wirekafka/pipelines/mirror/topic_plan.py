"""What has to be done at the target cluster so that each mirrored topic has its mirror: pure decisions.

A mirror has at least as many partitions as its topic, and the settings that were set on the topic itself, except for these:

- `message.timestamp.type`: a mirror has CreateTime, so that its records keep their timestamps, also those that the broker of the
  source has set (LogAppendTime).
- `message.timestamp.before.max.ms` and its predecessor `message.timestamp.difference.max.ms`: a record becomes older on its way,
  and must not be refused for it.
- `min.insync.replicas`, `unclean.leader.election.enable`, throttles and tiered storage belong to a cluster, not to the records.

MirrorMaker 2 sets the settings of the source every ten minutes, so a mirror cannot have a longer retention of its own. Here a
setting is set when it changes at the source.

Source: org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter, MirrorSourceConnector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NOT_COPIED = re.compile(
    r"(?:follower|leader)\.replication\.throttled\.replicas|message\.timestamp\.(?:type|difference\.max\.ms|before\.max\.ms)"
    r"|unclean\.leader\.election\.enable|min\.insync\.replicas|remote\..*|local\.retention\..*"
)

ALWAYS_COPIED = frozenset({"cleanup.policy", "max.message.bytes"})
"""Settings that are copied even if the topic has them from its broker: a mirror without them keeps others, or refuses some."""

TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME = "CreateTime"


@dataclass(slots=True)
class Topic:
    """A topic as its cluster describes it.

    Attributes:
        topic_id: its id; another one after the topic is deleted and created again.
        configs: its effective settings.
        own_configs: those of them that were set on the topic itself.
    """

    partition_count: int
    topic_id: str
    configs: Mapping[str, str] = field(default_factory=dict)
    own_configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicChange:
    """What is done with one mirror.

    Attributes:
        create: it does not exist yet; `partition_count` and `set_configs` are those of the new topic.
        partition_count: the number of partitions that it gets; None if it has enough.
        set_configs: settings to set.
        delete_configs: settings that fall back to the default of the target.
    """

    target: str
    create: bool = False
    partition_count: int | None = None
    set_configs: dict[str, str] = field(default_factory=dict)
    delete_configs: frozenset[str] = frozenset()

    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.create or self.partition_count is not None or bool(self.set_configs or self.delete_configs)


def copied_configs(source: Topic) -> dict[str, str]:
    """Returns the settings of a topic that its mirror gets too."""
    copied = {name: value for name, value in source.own_configs.items() if NOT_COPIED.fullmatch(name) is None}
    return copied | {name: source.configs[name] for name in ALWAYS_COPIED if name in source.configs}


def plan_topic(source: Topic, target_name: str, target: Topic | None, copied_before: Mapping[str, str] | None) -> TopicChange:
    """Returns what is done with the mirror of a topic.

    Args:
        source: the topic.
        target_name: the name of the mirror.
        target: the mirror; None if it does not exist.
        copied_before: the settings that were copied last; None if none ever were.
    """
    wanted = copied_configs(source)
    if target is None:
        return TopicChange(target_name, True, source.partition_count, wanted | {TIMESTAMP_TYPE: CREATE_TIME})
    before = copied_before or {}
    changed = {name: value for name, value in wanted.items() if before.get(name) != value and target.configs.get(name) != value}
    if target.configs.get(TIMESTAMP_TYPE, CREATE_TIME) != CREATE_TIME:
        changed[TIMESTAMP_TYPE] = CREATE_TIME
    dropped = frozenset(name for name in before if name not in wanted and name in target.own_configs)
    more = source.partition_count if source.partition_count > target.partition_count else None
    return TopicChange(target_name, False, more, changed, dropped)
