"""The znodes of configs, and the notifications that they have changed.

Source: kafka.zk.{ConfigEntityZNode, ConfigEntityChangeNotificationSequenceZNode}, kafka.server.ZkConfigManager of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.zookeeper.layout.content import JsonObject, in_order, write_object
from wirekafka.zookeeper.layout.key_order import properties_order

CONFIGS_VERSION = 1
CHANGE_VERSION = 2


@dataclass(frozen=True, slots=True)
class EntityConfigs:
    """The content of `/config/TYPE/ENTITY`.

    Attributes:
        values: the configs, by name.
        unknown: the keys that this version does not know.
    """

    values: Mapping[str, str]
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, data: bytes) -> EntityConfigs:
        """Reads the content; a znode without data has no configs.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        if not data:
            return cls({})
        content = JsonObject.parse(path, data)
        unknown = content.without(("version", "config"))
        if "config" not in content:
            return cls({}, unknown)
        return cls(content.texts_by_name("config"), unknown)

    def write(self) -> bytes:
        """Returns the content, in version 1."""
        values = in_order(properties_order(self.values), self.values)
        return write_object({"version": CONFIGS_VERSION, "config": values}, self.unknown)


def read_config_change(path: str, data: bytes) -> str:
    """Returns the entity whose configs have changed, as `TYPE/ENTITY`: its path below `/config`.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    values = JsonObject.parse(path, data)
    match values.integer("version"):
        case 1:
            entity = f"{values.text('entity_type')}/{values.text('entity_name')}"
        case 2:
            entity = values.text("entity_path")
        case version:
            values.refuse(f"the version of the notification is {version}, not 1 or 2")
    if not all(entity.split("/")) or "/" not in entity:
        values.refuse(f"the notification names no entity: {entity!r}")
    return entity


def write_config_change(entity_path: str) -> bytes:
    """Returns the content of a notification, in version 2.

    Args:
        entity_path: `TYPE/ENTITY`, the path below `/config`.
    """
    return write_object({"version": CHANGE_VERSION, "entity_path": entity_path}, {})
