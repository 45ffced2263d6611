"""The versions of the requests of a follower and of a controller, by `inter.broker.protocol.version`.

All brokers of a cluster have at least that release, so a follower does not ask its leader for ApiVersions, and a controller does
not ask the brokers, as Kafka's brokers do not.

Source: org.apache.kafka.server.common.MetadataVersion (fetchRequestVersion, listOffsetRequestVersion);
kafka.controller.AbstractControllerBrokerRequestBatch.
"""

from __future__ import annotations

from typing import NamedTuple


class ReplicationVersions(NamedTuple):
    """The versions of Fetch and ListOffsets."""

    fetch: int
    list_offsets: int


VERSIONS: dict[str, ReplicationVersions] = {
    "2.8": ReplicationVersions(12, 6),
    "3.0": ReplicationVersions(12, 7),
    "3.1": ReplicationVersions(13, 7),
    "3.2": ReplicationVersions(13, 7),
    "3.3": ReplicationVersions(13, 7),
    "3.4": ReplicationVersions(13, 7),
    "3.5": ReplicationVersions(15, 8),
    "3.6": ReplicationVersions(15, 8),
    "3.7": ReplicationVersions(16, 8),
    "3.8": ReplicationVersions(16, 8),
    "3.9": ReplicationVersions(17, 9),
}
"""By the release. 2.8 is the first with topic ids, and 3.9 the last with ZooKeeper."""

NEWEST_VERSIONS = VERSIONS["3.9"]


class ControllerVersions(NamedTuple):
    """The versions of LeaderAndIsr, UpdateMetadata and StopReplica."""

    leader_and_isr: int
    update_metadata: int
    stop_replica: int


CONTROLLER_VERSIONS: dict[str, ControllerVersions] = {
    **dict.fromkeys(("2.8", "3.0", "3.1"), ControllerVersions(5, 7, 3)),
    **dict.fromkeys(("3.2", "3.3"), ControllerVersions(6, 7, 3)),
    **dict.fromkeys(("3.4", "3.5", "3.6", "3.7", "3.8", "3.9"), ControllerVersions(7, 8, 4)),
}
"""By the release."""
