"""Where each API is, and its versions: written by `python docs/generate.py` from what the modules say.

So that a broker starts without importing all of them: each is imported when a client first asks for its API.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One API: Kafka's name for it, its module in this package, and the versions served, from the first to the last."""

    name: str
    module: str
    first: int
    last: int


INDEX = {
    0: Entry("Produce", "produce.handler", 0, 13),
    1: Entry("Fetch", "fetch.handler", 0, 18),
    2: Entry("ListOffsets", "list_offsets", 0, 11),
    3: Entry("Metadata", "metadata", 0, 13),
    8: Entry("OffsetCommit", "offset_commit", 0, 10),
    9: Entry("OffsetFetch", "offset_fetch", 0, 10),
    10: Entry("FindCoordinator", "find_coordinator", 0, 6),
    11: Entry("JoinGroup", "join_group", 0, 9),
    12: Entry("Heartbeat", "heartbeat", 0, 4),
    13: Entry("LeaveGroup", "leave_group", 0, 5),
    14: Entry("SyncGroup", "sync_group", 0, 5),
    15: Entry("DescribeGroups", "describe_groups", 0, 6),
    16: Entry("ListGroups", "list_groups", 0, 5),
    18: Entry("ApiVersions", "api_versions", 0, 4),
    19: Entry("CreateTopics", "create_topics", 0, 7),
    20: Entry("DeleteTopics", "delete_topics", 0, 6),
    21: Entry("DeleteRecords", "delete_records", 0, 2),
    22: Entry("InitProducerId", "init_producer_id", 0, 6),
    23: Entry("OffsetForLeaderEpoch", "offset_for_leader_epoch", 0, 4),
    24: Entry("AddPartitionsToTxn", "add_partitions_to_txn", 0, 5),
    25: Entry("AddOffsetsToTxn", "add_offsets_to_txn", 0, 4),
    26: Entry("EndTxn", "end_txn", 0, 5),
    27: Entry("WriteTxnMarkers", "write_txn_markers", 0, 2),
    28: Entry("TxnOffsetCommit", "txn_offset_commit", 0, 5),
    29: Entry("DescribeAcls", "describe_acls", 0, 3),
    30: Entry("CreateAcls", "create_acls", 0, 3),
    31: Entry("DeleteAcls", "delete_acls", 0, 3),
    32: Entry("DescribeConfigs", "describe_configs", 0, 4),
    33: Entry("AlterConfigs", "alter_configs", 0, 2),
    34: Entry("AlterReplicaLogDirs", "alter_replica_log_dirs", 0, 2),
    35: Entry("DescribeLogDirs", "describe_log_dirs", 0, 5),
    37: Entry("CreatePartitions", "create_partitions", 0, 3),
    42: Entry("DeleteGroups", "delete_groups", 0, 2),
    43: Entry("ElectLeaders", "elect_leaders", 0, 2),
    44: Entry("IncrementalAlterConfigs", "incremental_alter_configs", 0, 1),
    45: Entry("AlterPartitionReassignments", "alter_partition_reassignments", 0, 1),
    46: Entry("ListPartitionReassignments", "list_partition_reassignments", 0, 0),
    47: Entry("OffsetDelete", "offset_delete", 0, 0),
    57: Entry("UpdateFeatures", "update_features", 0, 2),
    60: Entry("DescribeCluster", "describe_cluster", 0, 2),
    61: Entry("DescribeProducers", "describe_producers", 0, 0),
    65: Entry("DescribeTransactions", "describe_transactions", 0, 0),
    66: Entry("ListTransactions", "list_transactions", 0, 2),
    68: Entry("ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1),
    69: Entry("ConsumerGroupDescribe", "consumer_group_describe", 0, 1),
    74: Entry("ListConfigResources", "list_config_resources", 0, 1),
    75: Entry("DescribeTopicPartitions", "describe_topic_partitions", 0, 0),
    76: Entry("ShareGroupHeartbeat", "share_group_heartbeat", 1, 1),
    77: Entry("ShareGroupDescribe", "share_group_describe", 1, 1),
    78: Entry("ShareFetch", "share_fetch", 1, 2),
    79: Entry("ShareAcknowledge", "share_acknowledge", 1, 2),
    90: Entry("DescribeShareGroupOffsets", "describe_share_group_offsets", 0, 1),
    91: Entry("AlterShareGroupOffsets", "alter_share_group_offsets", 0, 0),
    92: Entry("DeleteShareGroupOffsets", "delete_share_group_offsets", 0, 0),
}
"""By key."""
