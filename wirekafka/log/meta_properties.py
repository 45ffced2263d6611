"""The owner of a data directory, in `meta.properties`: a cluster and a broker.

Version 0 names the broker `broker.id`, and belongs to a member of a cluster with ZooKeeper. Version 1 names it `node.id`; KRaft
brokers write it, and so does a wirekafka broker without ZooKeeper.

Rules of this file: pure. A broker without ZooKeeper takes a directory of version 0 over and writes version 1. A member of a
cluster with ZooKeeper refuses version 1, because Apache Kafka would refuse the directory too.

Source: org.apache.kafka.metadata.properties.{MetaProperties, MetaPropertiesVersion, MetaPropertiesEnsemble.verify};
kafka.server.KafkaServer.startup.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.checkpoint import MalformedFileError, read_fields


class MetaPropertiesVersion(IntEnum):
    """The version of the file."""

    V0 = 0
    V1 = 1


class MetaProperties(NamedTuple):
    """The owner of a data directory.

    Attributes:
        version: the version of the file.
        cluster_id: the id of the broker's cluster; None only in files from before Kafka 0.10.1.
        node_id: the id of the broker.
        directory_id: the id of this directory among the broker's directories (KIP-858); None in version 0, which needs none.
    """

    version: MetaPropertiesVersion
    cluster_id: str | None
    node_id: int
    directory_id: str | None

    def write(self) -> bytes:
        """Returns the content of the file."""
        node_field = "broker.id" if self.version is MetaPropertiesVersion.V0 else "node.id"
        fields = {
            "cluster.id": self.cluster_id,
            "directory.id": self.directory_id,
            node_field: self.node_id,
            "version": int(self.version),
        }
        return "".join(f"{name}={value}\n" for name, value in fields.items() if value is not None).encode()


def read_meta_properties(data: bytes) -> MetaProperties:
    """Returns the owner of a data directory.

    Raises:
        MalformedFileError: the version is unknown; or the file has no node id, or has version 1 and no cluster id.
    """
    fields = read_fields(data, "=")
    number = fields.get("version", "0")
    if number not in ("0", "1"):
        raise MalformedFileError(f"it has format version {number}, which a newer release has written; this one reads 0 and 1")
    version = MetaPropertiesVersion(int(number))
    node_id = fields.get("node.id", fields.get("broker.id", ""))
    if not node_id.isdecimal() or (version is MetaPropertiesVersion.V1 and "cluster.id" not in fields):
        raise MalformedFileError("it has no cluster.id or no node.id")
    return MetaProperties(version, fields.get("cluster.id"), int(node_id), fields.get("directory.id"))


def owned(
    found: MetaProperties | None,
    *,
    path: str,
    version: MetaPropertiesVersion,
    cluster_id: str | None,
    node_id: int,
    new_id: Callable[[], str],
) -> MetaProperties:
    """Returns the content of the file under this broker, if the directory may belong to it.

    Args:
        found: the current content; None for a new directory.
        path: the path of the directory, for the messages.
        version: 0 for a member of a cluster with ZooKeeper, 1 for any other broker.
        cluster_id: the id of the cluster, from ZooKeeper or from the earlier directories; None if it is not known yet.
        new_id: makes an id for a new cluster or directory.

    Raises:
        KafkaError: INVALID_CONFIG, the directory belongs to another broker, or to a broker without ZooKeeper;
            INCONSISTENT_CLUSTER_ID, it belongs to another cluster.
    """
    is_member = version is MetaPropertiesVersion.V0
    if found is None:
        return MetaProperties(version, cluster_id or new_id(), node_id, None if is_member else new_id())
    if is_member and found.version is not MetaPropertiesVersion.V0:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{path} belongs to a broker without ZooKeeper: its meta.properties has version {found.version:d}, and a broker with "
            "zookeeper.connect needs version 0 in all log.dirs. Use another directory, or start without zookeeper.connect",
        )
    if found.node_id != node_id:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"node.id is {node_id}, and {path} belongs to broker {found.node_id}: set {'broker' if is_member else 'node'}.id="
            f"{found.node_id}, or use another directory",
        )
    if None not in (cluster_id, found.cluster_id) and found.cluster_id != cluster_id:
        known = f"zookeeper.connect leads to cluster {cluster_id}" if is_member else f"the directories before it to {cluster_id}"
        remedy = ": correct zookeeper.connect, most often its chroot, or use another directory" if is_member else ""
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"{path} belongs to cluster {found.cluster_id}, {known}{remedy}")
    directory_id = found.directory_id or (None if is_member else new_id())
    return MetaProperties(version, found.cluster_id or cluster_id or new_id(), node_id, directory_id)
