"""The APIs of a member of a cluster with ZooKeeper, and their newest versions: those of brokers of Apache Kafka 3.9, and more
once features are finalized.

Clients choose a protocol by what one broker serves, and use it with all brokers. So a member hides what the other brokers may not
have: the groups of KIP-848 and KIP-932, transactions of version 2 (KIP-890), and what a broker serves with KRaft only. A
finalized feature says that all brokers have what it needs, and then every member serves it.

Source: the messages of Apache Kafka 3.9 with the listener `zkBroker`, and their `validVersions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wirekafka.metadata.features import GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION

CONTROLLER_REQUESTS = frozenset({4, 5, 6})
"""LeaderAndIsr, StopReplica and UpdateMetadata, by API key."""

SHARE_STATE_REQUESTS = frozenset({83, 84, 85, 86, 87})
"""The requests by which brokers use the state of share groups, by API key."""

MEMBERS_ONLY = CONTROLLER_REQUESTS | SHARE_STATE_REQUESTS | {7, 56, 67}
"""The requests between brokers that only a member of a cluster serves, by API key; also ControlledShutdown, AlterPartition and
AllocateProducerIds, which a broker sends to the one that it takes for the controller."""

MANY_PARTITIONS = frozenset({1, 23, 24, 27, 56})
"""The requests of other brokers that may name all partitions of a broker, by API key: Fetch, OffsetForLeaderEpoch,
AddPartitionsToTxn, WriteTxnMarkers and AlterPartition. Apache Kafka puts all that waits for a broker into one request."""

MANY_REPLICAS = frozenset({19, 37, 45})
"""The requests of administrators that may name all partitions of a cluster with their replicas, by API key: CreateTopics,
CreatePartitions and AlterPartitionReassignments. Apache Kafka's tools send one request for all partitions."""

CLUSTER_VERSIONS = {
    0: 11,  # Produce
    1: 17,  # Fetch
    2: 9,  # ListOffsets
    3: 12,  # Metadata
    4: 7,  # LeaderAndIsr
    5: 4,  # StopReplica
    6: 8,  # UpdateMetadata
    7: 3,  # ControlledShutdown
    8: 9,  # OffsetCommit
    9: 9,  # OffsetFetch
    10: 6,  # FindCoordinator
    11: 9,  # JoinGroup
    12: 4,  # Heartbeat
    13: 5,  # LeaveGroup
    14: 5,  # SyncGroup
    15: 5,  # DescribeGroups
    16: 5,  # ListGroups
    18: 4,  # ApiVersions
    19: 7,  # CreateTopics
    20: 6,  # DeleteTopics
    21: 2,  # DeleteRecords
    22: 5,  # InitProducerId
    23: 4,  # OffsetForLeaderEpoch
    24: 5,  # AddPartitionsToTxn
    25: 4,  # AddOffsetsToTxn
    26: 4,  # EndTxn
    27: 1,  # WriteTxnMarkers
    28: 4,  # TxnOffsetCommit
    29: 3,  # DescribeAcls
    30: 3,  # CreateAcls
    31: 3,  # DeleteAcls
    32: 4,  # DescribeConfigs
    33: 2,  # AlterConfigs
    34: 2,  # AlterReplicaLogDirs
    35: 4,  # DescribeLogDirs
    37: 3,  # CreatePartitions
    42: 2,  # DeleteGroups
    43: 2,  # ElectLeaders
    44: 1,  # IncrementalAlterConfigs
    45: 0,  # AlterPartitionReassignments
    46: 0,  # ListPartitionReassignments
    47: 0,  # OffsetDelete
    56: 3,  # AlterPartition
    57: 1,  # UpdateFeatures
    60: 1,  # DescribeCluster
    61: 0,  # DescribeProducers
    65: 0,  # DescribeTransactions
    66: 1,  # ListTransactions
    67: 0,  # AllocateProducerIds
}
"""The newest version of each API of a member without features, by API key."""

FEATURE_VERSIONS: dict[str, dict[int, dict[int, int]]] = {
    GROUP_VERSION: {
        1: {
            68: 1,  # ConsumerGroupHeartbeat
            69: 1,  # ConsumerGroupDescribe
        }
    },
    SHARE_VERSION: {
        1: {
            76: 1,  # ShareGroupHeartbeat
            77: 1,  # ShareGroupDescribe
            78: 2,  # ShareFetch
            79: 2,  # ShareAcknowledge
            83: 0,  # InitializeShareGroupState
            84: 0,  # ReadShareGroupState
            85: 1,  # WriteShareGroupState
            86: 0,  # DeleteShareGroupState
            87: 1,  # ReadShareGroupStateSummary
            90: 1,  # DescribeShareGroupOffsets
            91: 0,  # AlterShareGroupOffsets
            92: 0,  # DeleteShareGroupOffsets
        }
    },
    TRANSACTION_VERSION: {
        2: {
            0: 12,  # Produce
            26: 5,  # EndTxn
            27: 2,  # WriteTxnMarkers
            28: 5,  # TxnOffsetCommit
        }
    },
}
"""For the levels of features from which on a member serves more: the newest version of each API, by API key."""


def no_features(name: str) -> int:
    """Returns the level of every feature in a cluster that has finalized none."""
    return 0


def newest_versions(level: Callable[[str], int]) -> Mapping[int, int]:
    """Returns the newest version of each API of a member, by API key.

    Args:
        level: returns the finalized level of a feature.
    """
    newest = dict(CLUSTER_VERSIONS)
    for feature, by_level in FEATURE_VERSIONS.items():
        for least, versions in by_level.items():
            if level(feature) >= least:
                newest |= versions
    return newest
