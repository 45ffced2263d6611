"""The settings of a group, and the broker's settings that apply where a group sets none.

Rules of this file: a group's setting replaces one of the broker's settings, and is within bounds that the broker sets. A value
out of bounds is refused. If the bounds change later, the value is clipped to them.

Source: org.apache.kafka.coordinator.group.GroupConfig, ShareGroupAutoOffsetResetStrategy of Apache Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.definition import Check, ConfigError, Setting, Type, Value, at_least, one_of, table_of

if TYPE_CHECKING:
    from wirekafka.config.broker import BrokerConfig

T = TypeVar("T")

BY_DURATION = "by_duration:"

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


MOST_DURATION_CHARACTERS = 100
MOST_DURATION_MS = (1 << 63) - 1
"""A long of Java. Python converts no number of thousands of digits."""


def duration_ms(text: str) -> int | None:
    """Returns the ms of a duration in the ISO 8601 form of java.time.Duration; None if it is malformed, negative or too long."""
    found = _DURATION.fullmatch(text) if len(text) <= MOST_DURATION_CHARACTERS else None
    if found is None or found["time"] == "T" or found["time"] == "t":
        return None
    if not any(found[name] for name in ("days", "hours", "minutes", "seconds")):
        return None
    hours = int(found["days"] or 0) * 24 + int(found["hours"] or 0)
    seconds = (hours * 60 + int(found["minutes"] or 0)) * 60
    duration = seconds * 1000 + int(float((found["seconds"] or "0").replace(",", ".")) * 1000)
    return duration if duration <= MOST_DURATION_MS else None


def _is_reset(value: Value) -> bool:
    if value in ("earliest", "latest"):
        return True
    return isinstance(value, str) and value.startswith(BY_DURATION) and duration_ms(value.removeprefix(BY_DURATION)) is not None


_RESET = Check("earliest, latest, or by_duration:PnDTnHnMn.nS", _is_reset)


class GroupBounds(NamedTuple):
    """The broker's settings that belong to a setting of a group.

    Attributes:
        synonym: the setting of the broker that applies to groups without a setting of their own.
        least, most: the settings of the broker that bound the group's setting.
    """

    synonym: str
    least: str
    most: str


def _bounds(kind: str, subject: str) -> GroupBounds:
    return GroupBounds(f"group.{kind}.{subject}", f"group.{kind}.min.{subject}", f"group.{kind}.max.{subject}")


GROUP_BOUNDS: dict[str, GroupBounds] = {
    f"{kind}.{subject}": _bounds(kind, subject)
    for kind, subjects in {
        "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
        "share": (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "assignment.interval.ms",
            "record.lock.duration.ms",
            "delivery.count.limit",
            "partition.max.record.locks",
        ),
    }.items()
    for subject in subjects
}
"""The bounds of each setting of a group that replaces a setting of the broker, by name."""

GROUP_SETTINGS: dict[str, Setting] = table_of(
    *(
        Setting(name, Type.INT, BROKER_SETTINGS[bounds.synonym].default, BROKER_SETTINGS[bounds.synonym].documentation, check)
        for name, bounds in GROUP_BOUNDS.items()
        for check in (at_least(0 if name.endswith("assignment.interval.ms") else 1),)
    ),
    Setting(
        "share.auto.offset.reset",
        Type.STRING,
        "latest",
        "Where a share group begins in a partition: at the earliest record, at the latest, or at the records of the given "
        "duration before now.",
        _RESET,
    ),
    Setting(
        "share.isolation.level",
        Type.STRING,
        "read_uncommitted",
        "Whether a share group gets records of transactions that are not committed.",
        one_of("read_committed", "read_uncommitted"),
    ),
    Setting(
        "share.renew.acknowledge.enable",
        Type.BOOLEAN,
        True,
        "Whether the consumers of a share group may renew the acquisition lock of a record (KIP-1222).",
    ),
)
"""Every setting of a group, by name."""

_LONGER_THAN = tuple((f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms") for kind in ("consumer", "share"))


class GroupConfig:
    """The settings of one group.

    Args:
        overrides: the group's own settings; `check_group` has accepted them.
    """

    __slots__ = ("_broker", "_derived", "_own", "_revision")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self._broker = broker
        self._own = {name: GROUP_SETTINGS[name].parse(text) for name, text in overrides.items()}
        self._derived: dict[Callable[[GroupConfig], Any], Any] = {}
        self._revision = broker.revision

    def derive(self, make: Callable[[GroupConfig], T]) -> T:
        """Returns what a function makes of the settings. The result is kept until the broker's settings change."""
        if self._revision != self._broker.revision:
            self._revision = self._broker.revision
            self._derived.clear()
        made: T | None = self._derived.get(make)
        if made is None:
            made = self._derived[make] = make(self)
        return made

    def integer(self, name: str) -> int:
        """Returns the value of a setting that is a number."""
        bounds = GROUP_BOUNDS[name]
        value = self._own.get(name)
        if value is None:
            return self._broker.integer(bounds.synonym)
        assert isinstance(value, int)
        return max(self._broker.integer(bounds.least), min(value, self._broker.integer(bounds.most)))

    def text(self, name: str) -> str:
        """Returns the value of a setting that is a text."""
        value = self._own.get(name, GROUP_SETTINGS[name].default)
        assert isinstance(value, str)
        return value

    def boolean(self, name: str) -> bool:
        """Returns the value of a setting that is true or false."""
        return bool(self._own.get(name, GROUP_SETTINGS[name].default))


def check_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raises unless a group may have these settings of its own.

    Raises:
        ConfigError: one is unknown, malformed or out of bounds, or they contradict each other.

    Source: GroupConfig.validate.
    """
    for name, text in overrides.items():
        setting = GROUP_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(name, text, "the settings of a group", f"Unknown group config name: {name}")
        value = setting.parse(text)
        bounds = GROUP_BOUNDS.get(name)
        if bounds is None:
            continue
        assert isinstance(value, int)
        if value < broker.integer(bounds.least):
            raise setting.refusal(text, f"{name} must be greater than or equal to {bounds.least}")
        if value > broker.integer(bounds.most):
            raise setting.refusal(text, f"{name} must be less than or equal to {bounds.most}")
    resolved = GroupConfig(broker, overrides)
    for longer, shorter in _LONGER_THAN:
        if resolved.integer(longer) <= resolved.integer(shorter):
            raise GROUP_SETTINGS[longer].refusal(overrides.get(longer, ""), f"{longer} must be greater than {shorter}")
