"""The settings of one broker, each with its value and the source of the value.

How it works: a setting has up to four layers. The topmost layer that sets it counts: the value that IncrementalAlterConfigs set
for this broker, the value that it set for all brokers, the value in server.properties or on the command line, Kafka's default.
The file and the command line are read once. The two dynamic layers may change while the broker runs.

Source: org.apache.kafka.server.config.DynamicBrokerConfig (layers and their order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from functools import partial
from pathlib import Path

import structlog

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import (
    CLUSTER_SETTINGS,
    KRAFT_SETTINGS,
    MEMBER_DEFAULTS,
    MUST_BE_FALSE,
    ZOOKEEPER_CONNECT,
    release_of,
)
from wirekafka.config.consumer_table import CONSUMER_ORDER
from wirekafka.config.definition import ConfigError, Setting, Value
from wirekafka.config.endpoints import (
    Listener,
    check_addresses,
    check_advertised,
    check_protocols,
    parse_connection_overrides,
    parse_listeners,
    parse_protocols,
)
from wirekafka.config.properties import parse_properties
from wirekafka.config.share_table import SHARE_ORDER
from wirekafka.config.unsupported_settings import REPLACED, accepted_of_refused, is_secret, reason_without_effect

log = structlog.get_logger(__name__)

_MEMBER_SETTINGS = BROKER_SETTINGS | CLUSTER_SETTINGS


class ConfigSource(IntEnum):
    """The source of a value, by the numbers of DescribeConfigs.

    Source: DescribeConfigsResponse.ConfigSource.
    """

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Origin:
    """One layer's value for one setting."""

    name: str
    value: Value
    source: ConfigSource


class BrokerConfig:
    """The settings of one broker.

    Args:
        overrides: the honoured settings of server.properties and the command line, as text.
        without_effect: the settings given there that have no effect in wirekafka, each with the reason.

    Attributes:
        settings: the settings that have an effect in this broker, by name: more for a member of a cluster.
        revision: how often settings have changed while the broker runs.

    Raises:
        ConfigError: a value is malformed, or two contradict each other.
    """

    def __init__(self, overrides: Mapping[str, str] | None = None, without_effect: Mapping[str, str] | None = None) -> None:
        self.overrides = dict(overrides or {})
        self.without_effect = dict(without_effect or {})
        self.settings = settings_of(self.overrides)
        self._static = {name: _MEMBER_SETTINGS[name].parse(text) for name, text in self.overrides.items()}
        self._dynamic: dict[str, Value] = {}
        self._dynamic_default: dict[str, Value] = {}
        self._values = self._resolve(self._dynamic_default, self._dynamic)
        self.revision = 0
        self._check(self._values)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Reads server.properties, replaces its settings by `overrides`, and logs settings without effect in one line.

        Raises:
            ConfigError: a setting is unknown, malformed, not supported yet, or contradicts another.
            OSError: the file cannot be read.
        """
        given = parse_properties(Path(path).read_bytes()) if path is not None else {}
        given.update(overrides or {})
        honoured: dict[str, str] = {}
        without_effect: dict[str, str] = {}
        settings = settings_of(given)
        for name, text in given.items():
            if name in settings:
                honoured[name] = text
            elif (reason := check_other(name, text, is_member=settings is _MEMBER_SETTINGS)) is not None:
                without_effect[name] = reason
        if without_effect:
            log.warning("Settings without effect in wirekafka, see `wirekafka config list`", settings=sorted(without_effect))
        return cls(honoured, without_effect)

    @classmethod
    def problems(cls, given: Mapping[str, str]) -> tuple[list[ConfigError], dict[str, str]]:
        """Returns every error of these settings, and the settings without effect, each with its reason.

        A setting that is wrong by itself takes no part when settings are checked against each other.
        """
        errors: list[ConfigError] = []
        honoured: dict[str, str] = {}
        without_effect: dict[str, str] = {}
        settings = settings_of(given)
        for name, text in given.items():
            try:
                if name in settings:
                    settings[name].parse(text)
                    honoured[name] = text
                elif (reason := check_other(name, text, is_member=settings is _MEMBER_SETTINGS)) is not None:
                    without_effect[name] = reason
            except ConfigError as error:
                errors.append(error)
        config = cls()
        config._static = {name: settings[name].parse(text) for name, text in honoured.items()}
        errors += config._contradictions(config._resolve({}, {}))
        return errors, without_effect

    def get(self, name: str) -> Value:
        """Returns the value; None if nothing sets it and it has no default."""
        return self._values[name]

    def integer(self, name: str) -> int:
        """Returns the value of a setting that is an integer and has a value."""
        value = self._values[name]
        assert type(value) is int, f"{name} is not an integer"
        return value

    def number(self, name: str) -> float:
        """Returns the value of a setting that is a double and has a value."""
        value = self._values[name]
        assert isinstance(value, float), f"{name} is not a double"
        return value

    def boolean(self, name: str) -> bool:
        """Returns the value of a setting that is true or false."""
        value = self._values[name]
        assert isinstance(value, bool), f"{name} is not a boolean"
        return value

    def text(self, name: str) -> str:
        """Returns the value of a setting that is a text and has a value."""
        value = self._values[name]
        assert isinstance(value, str), f"{name} is not a text"
        return value

    def items(self, name: str) -> list[str]:
        """Returns the value of a setting that is a list; empty if nothing sets it."""
        value = self._values[name]
        assert value is None or isinstance(value, list), f"{name} is not a list"
        return value or []

    @property
    def node_id(self) -> int:
        """The broker's id: node.id, or its older name broker.id."""
        broker_id = self.integer("broker.id")
        return broker_id if broker_id >= 0 else self.integer("node.id")

    @property
    def is_member(self) -> bool:
        """Whether the broker is a member of a cluster with ZooKeeper."""
        return bool(self._values[ZOOKEEPER_CONNECT])

    @property
    def inter_broker_release(self) -> str:
        """The release of `inter.broker.protocol.version`, such as 3.9."""
        return release_of(self.text("inter.broker.protocol.version"))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener at which the brokers of a cluster reach each other."""
        return str(self._values["inter.broker.listener.name"] or "PLAINTEXT").upper()

    @property
    def rack(self) -> str | None:
        """The rack that Metadata reports to consumers; None if the broker has none."""
        return None if self._values["broker.rack"] is None else self.text("broker.rack")

    @property
    def log_dirs(self) -> list[str]:
        """The data directories. The first one also holds the list of topics."""
        return self.items("log.dirs") or self.items("log.dir")

    @property
    def listeners(self) -> list[Listener]:
        """The addresses to listen on, without those for controllers."""
        return self._without_controllers("listeners", self._values)

    @property
    def advertised_listeners(self) -> dict[str, Listener]:
        """The addresses that Metadata tells clients, by listener name. A listener may have no entry."""
        return {listener.name: listener for listener in self._without_controllers("advertised.listeners", self._values)}

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """The limit of connections of each address that has a limit of its own, in place of `max.connections.per.ip`."""
        setting = "max.connections.per.ip.overrides"
        return parse_connection_overrides(setting, self.text(setting))

    def origins(self, name: str) -> list[Origin]:
        """Returns every layer that sets the setting or one of its fallbacks. The layer that counts comes first."""
        names = (name, *_MEMBER_SETTINGS[name].fallbacks)
        layers = (
            (self._dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self._dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._static, ConfigSource.STATIC_BROKER_CONFIG),
            ({each: self._default(each) for each in names}, ConfigSource.DEFAULT_CONFIG),
        )
        found = [Origin(each, layer.get(each), source) for layer, source in layers for each in names]
        return [origin for origin in found if origin.value is not None]

    def check_dynamic(self, for_all: Mapping[str, str], for_this: Mapping[str, str]) -> None:
        """Raises unless `set_dynamic` would accept these layers.

        Raises:
            ConfigError: a setting is malformed, or contradicts another.
        """
        self._check(self._resolve(_parse_all(for_all), _parse_all(for_this)))

    def set_dynamic(self, for_all: Mapping[str, str], for_this: Mapping[str, str]) -> None:
        """Replaces both dynamic layers, which have settings with `is_dynamic` only.

        Raises:
            ConfigError: as `check_dynamic`; nothing has changed then.
        """
        dynamic_default, dynamic = _parse_all(for_all), _parse_all(for_this)
        values = self._resolve(dynamic_default, dynamic)
        self._check(values)
        self._dynamic_default, self._dynamic, self._values = dynamic_default, dynamic, values
        self.revision += 1

    def _resolve(self, dynamic_default: dict[str, Value], dynamic: dict[str, Value]) -> dict[str, Value]:
        defaults = {name: self._default(name) for name in _MEMBER_SETTINGS}
        return defaults | self._static | dynamic_default | dynamic

    def _default(self, name: str) -> Value:
        if self.settings is _MEMBER_SETTINGS and name in MEMBER_DEFAULTS:
            return MEMBER_DEFAULTS[name]
        return _MEMBER_SETTINGS[name].default

    def _without_controllers(self, name: str, values: dict[str, Value]) -> list[Listener]:
        controllers = {controller.upper() for controller in _list(values["controller.listener.names"])}
        listeners = parse_listeners(name, _list(values[name]))
        return [listener for listener in listeners if listener.name not in controllers]

    def _check(self, values: dict[str, Value]) -> None:
        for contradiction in self._contradictions(values):
            raise contradiction

    def _contradictions(self, values: dict[str, Value]) -> Iterator[ConfigError]:
        """Yields the violated rules between settings, and the violated rules that bounds cannot express."""
        listeners: list[Listener] = []

        def check_listeners() -> None:
            listeners.extend(self._without_controllers("listeners", values))
            if not listeners:
                given = ",".join(_list(values["listeners"]))
                raise ConfigError("listeners", given, "at least one listener that controller.listener.names does not name")
            check_addresses(listeners)
            setting = "listener.security.protocol.map"
            check_protocols(listeners, parse_protocols(setting, str(values[setting])))

        def check_connections() -> None:
            setting = "max.connections.per.ip.overrides"
            parse_connection_overrides(setting, str(values[setting]))

        checks: list[Callable[[], None]] = [
            check_listeners,
            lambda: check_advertised(self._without_controllers("advertised.listeners", values), listeners),
            check_connections,
            *(partial(check, values) for check in _CHECKS),
            partial(_check_ids, self._static),
            partial(_check_member, self._static, values, listeners),
        ]
        for check in checks:
            try:
                check()
            except ConfigError as error:
                yield error


def settings_of(given: Mapping[str, str]) -> Mapping[str, Setting]:
    """Returns the settings that have an effect in a broker to which these are given, by name."""
    return _MEMBER_SETTINGS if given.get(ZOOKEEPER_CONNECT, "").strip() else BROKER_SETTINGS


def check_other(name: str, text: str, *, is_member: bool = False) -> str | None:
    """Checks a setting that wirekafka does not honour.

    Args:
        is_member: The broker is a member of a cluster with ZooKeeper.

    Returns:
        Why the setting has no effect; None if its value means the same as leaving the setting out.

    Raises:
        ConfigError: the setting is unknown, replaced by another setting, or not supported yet. The error shows the value only
            if the setting is known not to be a secret.
    """
    replacement = REPLACED.get(name)
    if replacement is not None:
        raise ConfigError(name, None, replacement, "Apache Kafka 3 dropped this setting")
    accepted = accepted_of_refused(name)
    if accepted is not None:
        if text.strip() in accepted:
            return None
        shown = "[hidden]" if is_secret(name) else text
        instead = " or ".join(repr(value) for value in accepted) or "only to leave the setting out"
        raise ConfigError(name, shown, instead, "it is not supported yet")
    if is_member and name in KRAFT_SETTINGS and text.strip():
        either = "only to leave the setting out, or to leave zookeeper.connect out"
        raise ConfigError(name, text, either, "zookeeper.connect is set, and the setting is for clusters of KRaft")
    if is_member and name in MUST_BE_FALSE and text.strip().lower() != "false":
        raise ConfigError(name, text, "false", "it is not supported yet")
    reason = reason_without_effect(name)
    if reason is None:
        similar = get_close_matches(name, _MEMBER_SETTINGS, 1)
        hint = f", perhaps {similar[0]}" if similar else ""
        raise ConfigError(name, None, f"the settings of `wirekafka config list`{hint}", "there is no such setting")
    return reason


def _list(value: Value) -> list[str]:
    return value if isinstance(value, list) else []


def _parse_all(layer: Mapping[str, str]) -> dict[str, Value]:
    parsed: dict[str, Value] = {}
    for name, text in layer.items():
        setting = _MEMBER_SETTINGS[name]
        assert setting.is_dynamic, f"{name} is fixed while the broker runs"
        parsed[name] = setting.parse(text)
    return parsed


def _check_ids(given: Mapping[str, Value]) -> None:
    if {"node.id", "broker.id"} <= given.keys() and given["node.id"] != given["broker.id"]:
        raise _refusal("broker.id", given, "the same value as node.id")


def _check_member(given: Mapping[str, Value], values: Mapping[str, Value], listeners: list[Listener]) -> None:
    """Raises unless a member of a cluster has an id of its own, the listener for other brokers, and servers of ZooKeeper.

    Source: kafka.server.KafkaConfig.validateValues. Differs from Apache Kafka: broker ids are not generated.
    """
    connect = values[ZOOKEEPER_CONNECT]
    if not connect:
        return
    from wirekafka.config.zookeeper_connect import split_connect

    try:
        split_connect(str(connect))
    except ValueError as error:
        accepted = "HOST:PORT,HOST:PORT/CHROOT, without a slash at the end"
        raise ConfigError(ZOOKEEPER_CONNECT, str(connect), accepted, str(error)) from None
    if not {"node.id", "broker.id"} & given.keys() or given.get("broker.id") == -1:
        accepted = "an id that no other broker of the cluster has, or the node.id in meta.properties; ids are not generated"
        raise ConfigError("broker.id", None, accepted, "a broker with zookeeper.connect needs an id, and none is set")
    name = str(values["inter.broker.listener.name"] or "PLAINTEXT").upper()
    if all(listener.name != name for listener in listeners):
        names = ", ".join(listener.name for listener in listeners)
        raise ConfigError("inter.broker.listener.name", name, f"one of listeners ({names})", "there is no such listener")


def _check_retention(name: str, values: Mapping[str, Value]) -> None:
    if values[name] == 0:
        raise _refusal(name, values, "-1 for no limit, or at least 1")


def _check_cleaner_memory(values: Mapping[str, Value]) -> None:
    threads, memory = values["log.cleaner.threads"], values["log.cleaner.dedupe.buffer.size"]
    assert isinstance(threads, int)
    assert isinstance(memory, int)
    if threads and memory // threads <= 1024**2:
        raise _refusal("log.cleaner.dedupe.buffer.size", values, "more than 1048576 for each of log.cleaner.threads")


def _check_connections_per_ip(values: Mapping[str, Value]) -> None:
    if values["max.connections.per.ip"] == 0 and not values["max.connections.per.ip.overrides"]:
        raise _refusal("max.connections.per.ip", values, "0 only together with max.connections.per.ip.overrides")


def _check_queued_bytes(values: Mapping[str, Value]) -> None:
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    assert isinstance(queued, int)
    assert isinstance(largest, int)
    if 0 < queued < largest:
        raise _refusal("queued.max.request.bytes", values, f"at least socket.request.max.bytes, {largest}, or -1")


def _check_order(lower: str, upper: str, values: Mapping[str, Value]) -> None:
    least, most = values[lower], values[upper]
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise _refusal_of_pair(lower, upper, values, "at most", "at least")


def _check_less(lower: str, upper: str, values: Mapping[str, Value]) -> None:
    if values[lower] == values[upper]:
        raise _refusal_of_pair(lower, upper, values, "less than", "more than")
    _check_order(lower, upper, values)


def _refusal_of_pair(lower: str, upper: str, values: Mapping[str, Value], below: str, above: str) -> ConfigError:
    """Returns the error for the setting that was set; if both were set, for the lower one."""
    if values[lower] == BROKER_SETTINGS[lower].default:
        return _refusal(upper, values, f"{above} the value of {lower}, {values[lower]}")
    return _refusal(lower, values, f"{below} the value of {upper}, {values[upper]}")


def _refusal(name: str, values: Mapping[str, Value], accepted: str) -> ConfigError:
    setting: Setting = BROKER_SETTINGS[name]
    return ConfigError(name, setting.show(values[name]), accepted)


_ORDERS = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    *CONSUMER_ORDER,
    *SHARE_ORDER,
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
_CHECKS: tuple[Callable[[Mapping[str, Value]], None], ...] = (
    *(partial(_check_retention, f"log.retention.{unit}") for unit in ("ms", "minutes", "hours")),
    *(partial(_check_order, *pair) for pair in _ORDERS),
    *(
        partial(_check_less, f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms")
        for kind in ("consumer", "share")
    ),
    _check_cleaner_memory,
    _check_connections_per_ip,
    _check_queued_bytes,
)
"""The rules between settings, and the rules that bounds cannot express."""
