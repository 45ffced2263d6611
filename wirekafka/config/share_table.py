"""The broker's settings for share groups.

Source: GroupCoordinatorConfig, ShareGroupConfig, ShareCoordinatorConfig of Apache Kafka 4.3.
"""

from __future__ import annotations

from wirekafka.config.definition import Check, Setting, Type, at_least, between

SHARE_SETTINGS = (
    Setting(
        "group.share.delivery.count.limit",
        Type.INT,
        5,
        "How often a record is delivered to the consumers of a share group before it is archived.",
        between(2, 10),
    ),
    Setting(
        "group.share.min.delivery.count.limit",
        Type.INT,
        2,
        "The least share.delivery.count.limit that a group may set.",
        between(2, 5),
    ),
    Setting(
        "group.share.max.delivery.count.limit",
        Type.INT,
        10,
        "The greatest share.delivery.count.limit that a group may set.",
        between(5, 25),
    ),
    Setting(
        "group.share.record.lock.duration.ms",
        Type.INT,
        30000,
        "How long a consumer of a share group holds the acquisition lock of a record.",
        between(1000, 3600000),
    ),
    Setting(
        "group.share.min.record.lock.duration.ms",
        Type.INT,
        15000,
        "The least share.record.lock.duration.ms that a group may set.",
        between(1000, 30000),
    ),
    Setting(
        "group.share.max.record.lock.duration.ms",
        Type.INT,
        60000,
        "The greatest share.record.lock.duration.ms that a group may set.",
        between(30000, 3600000),
    ),
    Setting(
        "group.share.partition.max.record.locks",
        Type.INT,
        2000,
        "The most records of a partition that may be in flight in a share group.",
        between(100, 10000),
    ),
    Setting(
        "group.share.min.partition.max.record.locks",
        Type.INT,
        100,
        "The least share.partition.max.record.locks that a group may set.",
        between(100, 2000),
    ),
    Setting(
        "group.share.max.partition.max.record.locks",
        Type.INT,
        4000,
        "The greatest share.partition.max.record.locks that a group may set.",
        between(2000, 10000),
    ),
    Setting("group.share.max.share.sessions", Type.INT, 2000, "The most share sessions that the broker keeps.", at_least(1)),
    Setting("group.share.max.size", Type.INT, 200, "The most members that a share group may have.", between(1, 1000)),
    Setting(
        "group.share.session.timeout.ms",
        Type.INT,
        45000,
        "A member of a share group without a heartbeat for this long is removed.",
        at_least(1),
    ),
    Setting(
        "group.share.min.session.timeout.ms",
        Type.INT,
        45000,
        "The least share.session.timeout.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.share.max.session.timeout.ms",
        Type.INT,
        60000,
        "The greatest share.session.timeout.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.share.heartbeat.interval.ms",
        Type.INT,
        5000,
        "How often members of share groups are told to send heartbeats.",
        at_least(1),
    ),
    Setting(
        "group.share.min.heartbeat.interval.ms",
        Type.INT,
        5000,
        "The least share.heartbeat.interval.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.share.max.heartbeat.interval.ms",
        Type.INT,
        15000,
        "The greatest share.heartbeat.interval.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.share.assignment.interval.ms",
        Type.INT,
        1000,
        "The least time between two assignments of a share group.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "group.share.min.assignment.interval.ms",
        Type.INT,
        0,
        "The least share.assignment.interval.ms that a group may set.",
        at_least(0),
    ),
    Setting(
        "group.share.max.assignment.interval.ms",
        Type.INT,
        15000,
        "The greatest share.assignment.interval.ms that a group may set.",
        at_least(0),
    ),
    Setting(
        "group.share.assignors",
        Type.LIST,
        ["simple"],
        "The assignor of share groups. Only simple exists.",
        Check("just simple", lambda value: value == ["simple"]),
    ),
    Setting(
        "share.coordinator.state.topic.num.partitions",
        Type.INT,
        50,
        "The number of partitions of __share_group_state. It is fixed when the topic is created.",
        at_least(1),
    ),
    Setting(
        "share.coordinator.state.topic.segment.bytes",
        Type.INT,
        104857600,
        "segment.bytes of __share_group_state.",
        at_least(1),
    ),
    Setting(
        "share.coordinator.state.topic.min.isr",
        Type.SHORT,
        2,
        "min.insync.replicas of __share_group_state. A value above the number of replicas counts as that number.",
        at_least(1),
    ),
    Setting(
        "share.coordinator.state.topic.compression.codec",
        Type.INT,
        0,
        "The codec of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    ),
    Setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        Type.INT,
        500,
        "After how many updates a snapshot of a share partition's state is written.",
        between(0, 500),
    ),
    Setting(
        "share.coordinator.state.topic.prune.interval.ms",
        Type.INT,
        300000,
        "How often records before the oldest needed snapshot are deleted from __share_group_state.",
        at_least(1),
        is_internal=True,
    ),
    Setting(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        Type.INT,
        300000,
        "How long a share partition's state may be unused before its snapshot is written, so that older records can be deleted.",
        at_least(1),
        is_internal=True,
    ),
)

SHARE_ORDER = tuple(
    pair
    for subject in (
        "delivery.count.limit",
        "record.lock.duration.ms",
        "partition.max.record.locks",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "assignment.interval.ms",
    )
    for pair in (
        (f"group.share.min.{subject}", f"group.share.{subject}"),
        (f"group.share.{subject}", f"group.share.max.{subject}"),
    )
) + (("group.share.max.size", "group.share.max.share.sessions"),)
"""Pairs of settings of which the first is at most the second."""
