"""The paths of Kafka's znodes, below the chroot.

Source: kafka.zk.ZkData of Kafka 3.9; org.apache.kafka.common.utils.Sanitizer.
"""

from __future__ import annotations

import urllib.parse

from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout.content import MalformedZnodeError

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
MIGRATION = "/migration"
"""It exists while the cluster migrates to KRaft."""
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
MOVE = "/wirekafka_move"
"""It exists while a broker without ZooKeeper moves its topics into the chroot, or the last member moves them out of it."""
CONSUMERS = "/consumers"
"""The offsets of consumers of Kafka 0.8; nothing uses it any more."""

CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS}/log_dir_event_"
"""The prefixes of sequential znodes."""

CONFIG_TYPES = ("topics", "clients", "users", "brokers", "ips")
GROUP_CONFIGS = f"{CONFIG}/groups"
"""The parent of the configs of groups. Apache Kafka with ZooKeeper has none, so the znode exists only once a group has some."""
DEFAULT_ENTITY = "<default>"
"""The entity whose configs hold for all entities of its type that have no own ones."""

PERSISTENT = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    *(f"{CONFIG}/{entity_type}" for entity_type in CONFIG_TYPES),
)
"""The znodes that every broker creates when it starts, without data and with their parents, in this order."""


def broker(broker_id: int) -> str:
    """Returns the path of a broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    """Returns the path of a topic's assignment."""
    return f"{TOPICS}/{name}"


def topic_partitions(name: str) -> str:
    """Returns the path of the parent of a topic's partitions."""
    return f"{topic(name)}/partitions"


def partition(of: TopicPartition) -> str:
    """Returns the path of the parent of a partition's state."""
    return f"{topic_partitions(of.topic)}/{of.partition}"


def partition_state(of: TopicPartition) -> str:
    """Returns the path of a partition's state."""
    return f"{partition(of)}/state"


def deleted_topic(name: str) -> str:
    """Returns the path of the request to delete a topic. The znode has no data."""
    return f"{DELETE_TOPICS}/{name}"


def configs(entity_type: str, entity: str) -> str:
    """Returns the path of the configs of an entity.

    Args:
        entity_type: one of `CONFIG_TYPES`.
        entity: its name, which is sanitized for users and clients; `DEFAULT_ENTITY`; or `USER/clients/CLIENT`.
    """
    return f"{CONFIG}/{entity_type}/{entity}"


def group_entity(group_id: str) -> str:
    """Returns the name of a group's znode below `GROUP_CONFIGS`. ZooKeeper does not allow the names `.` and `..`."""
    name = sanitize(group_id)
    return name.replace(".", "%2E") if name in (".", "..") else name


def group_of_entity(entity: str) -> str:
    """Returns the id of the group whose znode has this name."""
    return desanitize(entity)


def parents(path: str) -> list[str]:
    """Returns the paths of the znodes above a znode, the uppermost first, without the root."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]


def sequence_number(path: str, prefix: str) -> int:
    """Returns the number of a sequential znode.

    Raises:
        MalformedZnodeError: the path is not the prefix and a number.
    """
    digits = path.removeprefix(prefix)
    if not path.startswith(prefix) or not digits.isdecimal() or not digits.isascii():
        raise MalformedZnodeError(path, f"its name is not {prefix} and a number")
    return int(digits)


def sanitize(name: str) -> str:
    """Returns the name of a user or a client as a part of a path: everything but letters, digits and `.-_` is percent-encoded."""
    return urllib.parse.quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    """Returns the name of a user or a client from a part of a path."""
    return urllib.parse.unquote(name)
