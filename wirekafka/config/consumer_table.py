"""The broker's settings for consumer groups (KIP-848).

Source: GroupCoordinatorConfig, ConsumerGroupMigrationPolicy of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from wirekafka.config.definition import INT_MAX, Check, Setting, Type, Value, at_least

ASSIGNORS = ("uniform", "range")
ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The classes of Apache Kafka's own assignors, by which a server.properties of 3.9 names them."""
PROTOCOLS = ("classic", "consumer", "share", "streams")
POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def _are_protocols(value: Value) -> bool:
    return isinstance(value, list) and set(value) <= set(PROTOCOLS) and "classic" in value


def _are_assignors(value: Value) -> bool:
    if not isinstance(value, list):
        return False
    names = assignor_names(value)
    return 0 < len(names) == len(set(names)) and set(names) <= set(ASSIGNORS)


def assignor_names(items: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of assignors; an assignor may be given by its name or by Apache Kafka's class."""
    return tuple(ASSIGNOR_CLASSES.get(item, item) for item in items)


def _is_policy(value: Value) -> bool:
    return isinstance(value, str) and value.lower() in POLICIES


CONSUMER_SETTINGS = (
    Setting(
        "group.coordinator.rebalance.protocols",
        Type.LIST,
        ["classic", "consumer", "streams"],
        "The protocols that groups may use. Share groups are served whether they are named or not. Streams groups are not "
        "served.",
        Check("of classic, consumer, share, streams, with classic among them", _are_protocols),
    ),
    Setting(
        "group.consumer.session.timeout.ms",
        Type.INT,
        45000,
        "A member of a consumer group without a heartbeat for this long is removed.",
        at_least(1),
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        Type.INT,
        45000,
        "The least consumer.session.timeout.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.consumer.max.session.timeout.ms",
        Type.INT,
        60000,
        "The greatest consumer.session.timeout.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        Type.INT,
        5000,
        "How often members of consumer groups are told to send heartbeats.",
        at_least(1),
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        Type.INT,
        5000,
        "The least consumer.heartbeat.interval.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        Type.INT,
        15000,
        "The greatest consumer.heartbeat.interval.ms that a group may set.",
        at_least(1),
    ),
    Setting(
        "group.consumer.assignment.interval.ms",
        Type.INT,
        1000,
        "The least time between two assignments of a consumer group, so that members that join together are assigned "
        "together (KIP-1263).",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms",
        Type.INT,
        0,
        "The least consumer.assignment.interval.ms that a group may set.",
        at_least(0),
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms",
        Type.INT,
        15000,
        "The greatest consumer.assignment.interval.ms that a group may set.",
        at_least(0),
    ),
    Setting("group.consumer.max.size", Type.INT, INT_MAX, "The most members that a consumer group may have.", at_least(1)),
    Setting(
        "group.consumer.assignors",
        Type.LIST,
        list(ASSIGNORS),
        "The assignors that members may ask for; the first one is used for members that ask for none.",
        Check("uniform, range, or both; Apache Kafka's classes of the same names too", _are_assignors),
    ),
    Setting(
        "group.consumer.migration.policy",
        Type.STRING,
        "bidirectional",
        "Whether a group with members may change from the classic to the consumer protocol, and back.",
        Check("one of " + ", ".join(POLICIES) + ", in any case", _is_policy),
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        Type.INT,
        600000,
        "The most time between two evaluations of a group's regular expressions.",
        at_least(10000),
        is_internal=True,
    ),
)

CONSUMER_ORDER = tuple(
    pair
    for subject in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
    for pair in (
        (f"group.consumer.min.{subject}", f"group.consumer.{subject}"),
        (f"group.consumer.{subject}", f"group.consumer.max.{subject}"),
    )
)
"""Pairs of settings: the first must be at most the second."""
