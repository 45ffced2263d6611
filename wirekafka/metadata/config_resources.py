"""The resources whose settings clients can change while the broker runs: topics, this broker, all brokers, and groups.

How it works: a resource has settings of its own, as text. A list of operations computes the new settings, from an empty set for
AlterConfigs, from the current ones for IncrementalAlterConfigs. Then `check` validates the result as a whole, and `replace`
stores it in the journal and applies it.

Source: kafka.server.ConfigAdminManager, org.apache.kafka.controller.ConfigurationControlManager (rules and their errors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.definition import Setting, Type, format_value, parse_text
from wirekafka.config.group_table import GROUP_SETTINGS
from wirekafka.config.topic_table import TOPIC_SETTINGS
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Resource
from wirekafka.metadata.topic_names import check_topic_name
from wirekafka.metadata.topic_table import Topic, TopicTable
from wirekafka.metadata.topics import Topics

MOST_VALUE_BYTES = 32_767
"""The most bytes of a value. No text of a request or a response is longer, so a longer value could not be described."""


class ResourceType(IntEnum):
    """The types of resources that have settings, by Kafka's numbers.

    Source: org.apache.kafka.common.config.ConfigResource.Type.
    """

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class AlterConfigOp(IntEnum):
    """The operation of IncrementalAlterConfigs on one setting.

    Source: org.apache.kafka.clients.admin.AlterConfigOp.OpType (KIP-339).
    """

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def protected_resource(resource_type: int, name: str) -> Resource:
    """Returns the resource that a client needs permission for to see or change these settings.

    Source: kafka.server.AuthHelper, ConfigHelper.handleDescribeConfigsRequest.
    """
    match resource_type:
        case ResourceType.TOPIC:
            return Resource.topic(name)
        case ResourceType.GROUP:
            return Resource.group(name)
        case _:
            return CLUSTER


class Change(NamedTuple):
    """One operation on one setting; `value` is None for DELETE."""

    name: str
    operation: int
    value: str | None


class ChangedResource(NamedTuple):
    """The changes that a request makes to the settings of one resource.

    Attributes:
        keeps_others: settings that no change names keep their values.
        validate_only: the changes are only checked.
    """

    resource_type: int
    name: str
    changes: Sequence[Change]
    keeps_others: bool
    validate_only: bool


class OwnConfigs(Protocol):
    """The settings that a resource has."""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting that a resource of this type can have."""

    @property
    def own(self) -> dict[str, str]:
        """The settings that the resource sets itself, as text."""


class ConfigResource(OwnConfigs, Protocol):
    """A topic, a broker or a group, as a holder of settings."""

    def check(self, configs: Mapping[str, str]) -> None:
        """Raises unless the resource may set these settings itself.

        Raises:
            KafkaError: INVALID_CONFIG for a topic or a group, INVALID_REQUEST for a broker.
        """

    def replace(self, configs: Mapping[str, str]) -> None:
        """Replaces the settings that the resource sets itself.

        Raises:
            KafkaError: as `check`; KAFKA_STORAGE_ERROR if the journal cannot be written.

        Durability: on disk when it returns.
        """


class TopicResource:
    """A topic's settings."""

    __slots__ = ("_topic", "_topics")

    def __init__(self, topics: Topics[Any], topic: Topic[Any]) -> None:
        self._topics = topics
        self._topic = topic

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting of a topic."""
        return TOPIC_SETTINGS

    @property
    def own(self) -> dict[str, str]:
        """The settings that this topic sets itself, as text."""
        return dict(self._topic.overrides)

    def check(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.check`."""
        self._topics.resolve(configs)

    def replace(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.replace`."""
        self._topics.alter(self._topic, configs)


class BrokerResource:
    """The dynamic settings of this broker, or with the name "" those of all brokers."""

    __slots__ = ("_name", "_topics")

    def __init__(self, topics: Topics[Any], name: str) -> None:
        self._topics = topics
        self._name = name

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting of a broker."""
        return BROKER_SETTINGS

    @property
    def own(self) -> dict[str, str]:
        """The dynamic settings of this broker or of all brokers, as text."""
        return self._topics.broker_configs(self._name)

    def check(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.check`.

        Kafka answers INVALID_REQUEST for a setting of a broker that is invalid (KAFKA-13609).
        """
        fixed = [name for name in configs if name not in BROKER_SETTINGS or not BROKER_SETTINGS[name].is_dynamic]
        if fixed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
        try:
            self._topics.check_broker_configs(self._name, configs)
        except KafkaError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None

    def replace(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.replace`."""
        self.check(configs)
        self._topics.alter_broker_configs(self._name, configs)


class GroupResource:
    """A group's settings; the group need not exist."""

    __slots__ = ("_group_id", "_topics")

    def __init__(self, topics: Topics[Any], group_id: str) -> None:
        self._topics = topics
        self._group_id = group_id

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting of a group."""
        return GROUP_SETTINGS

    @property
    def own(self) -> dict[str, str]:
        """The settings that this group sets itself, as text."""
        return self._topics.group_configs.own(self._group_id)

    def check(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.check`."""
        self._topics.group_configs.check(configs)

    def replace(self, configs: Mapping[str, str]) -> None:
        """See `ConfigResource.replace`."""
        self._topics.group_configs.alter(self._group_id, configs)


def find_resource(topics: Topics[Any], node_id: int, type_: int, name: str) -> ConfigResource:
    """Returns the resource with this type and name.

    Raises:
        KafkaError: INVALID_REQUEST for a type without settings, for a topic or group without a name, or for another broker;
            INVALID_TOPIC_EXCEPTION; UNKNOWN_TOPIC_OR_PARTITION.
    """
    if type_ == ResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        return TopicResource(topics, find_topic(topics, name))
    if type_ == ResourceType.BROKER:
        check_broker_name(name, node_id)
        return BrokerResource(topics, name)
    if type_ == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        return GroupResource(topics, name)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {type_}")


def find_topic(topics: TopicTable[Any], name: str) -> Topic[Any]:
    """Returns the topic with this name.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
    """
    check_topic_name(name)
    topic = topics.find(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def check_broker_name(name: str, node_id: int) -> None:
    """Raises unless the name is "", which stands for all brokers, or this broker's id.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if not name:
        return
    if not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")


def check_changes(changes: Iterable[Change]) -> None:
    """Raises unless the changes follow the rules that all types of resources share.

    Raises:
        KafkaError: INVALID_REQUEST for a setting that is named twice, or that lacks the value that its operation needs.
    """
    names: set[str] = set()
    nulls: list[str] = []
    for name, operation, value in changes:
        if name in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        names.add(name)
        if value is None and operation != AlterConfigOp.DELETE:
            nulls.append(name)
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def apply_changes(resource: OwnConfigs, changes: Iterable[Change], *, keeps_others: bool) -> dict[str, str]:
    """Returns the settings that the resource sets itself after the changes.

    Args:
        keeps_others: settings that no change names keep their values; otherwise they are removed.

    Raises:
        KafkaError: INVALID_CONFIG for APPEND or SUBTRACT on a setting that is not a list, and for a list that becomes longer than
            `MOST_VALUE_BYTES`; INVALID_REQUEST for an unknown operation.
    """
    configs = resource.own if keeps_others else {}
    for name, operation, value in changes:
        if operation == AlterConfigOp.DELETE:
            configs.pop(name, None)
        elif operation == AlterConfigOp.SET:
            assert value is not None, "check_changes was not called"
            configs[name] = value
        elif operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
            assert value is not None, "check_changes was not called"
            configs[name] = _combine(resource.settings.get(name), name, configs.get(name), AlterConfigOp(operation), value)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    return configs


def _combine(setting: Setting | None, name: str, current: str | None, operation: AlterConfigOp, value: str) -> str:
    if setting is None or setting.type is not Type.LIST:
        message = f"Can't {operation.name} to key {name} because its type is not LIST."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if current is None:
        current = setting.show(setting.default) or ""
    items = parse_text(Type.LIST, current)
    given = parse_text(Type.LIST, value)
    assert isinstance(items, list)
    assert isinstance(given, list)
    # A list in ZooKeeper may have 100,000 items.
    if operation is AlterConfigOp.APPEND:
        present = frozenset(items)
        items += [item for item in given if item not in present]
        if is_too_long(format_value(Type.LIST, items)):
            message = f"Can't append to key {name} because its value would be longer than {MOST_VALUE_BYTES} bytes."
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    else:
        removed = frozenset(given)
        items = [item for item in items if item not in removed]
    return format_value(Type.LIST, items)


def is_too_long(value: str) -> bool:
    """Whether a value is longer than a text of a response can be."""
    return len(value) > MOST_VALUE_BYTES or len(value.encode()) > MOST_VALUE_BYTES
