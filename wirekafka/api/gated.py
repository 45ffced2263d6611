"""The APIs whose responses wait for the commit of coordinator state: `ReplyGate.handle` calls their handlers.

Rule of this file: every API of the group, share and transaction coordinators is in `GATED`. Produce waits by itself, because it
appends to other partitions too, and so does WriteTxnMarkers.
"""

from __future__ import annotations

GATED = frozenset(
    {
        8,  # OffsetCommit
        9,  # OffsetFetch
        11,  # JoinGroup
        12,  # Heartbeat
        13,  # LeaveGroup
        14,  # SyncGroup
        15,  # DescribeGroups
        16,  # ListGroups
        22,  # InitProducerId
        24,  # AddPartitionsToTxn
        25,  # AddOffsetsToTxn
        26,  # EndTxn
        28,  # TxnOffsetCommit
        42,  # DeleteGroups
        47,  # OffsetDelete
        65,  # DescribeTransactions
        66,  # ListTransactions
        68,  # ConsumerGroupHeartbeat
        69,  # ConsumerGroupDescribe
        76,  # ShareGroupHeartbeat
        77,  # ShareGroupDescribe
        78,  # ShareFetch
        79,  # ShareAcknowledge
        83,  # InitializeShareGroupState
        84,  # ReadShareGroupState
        85,  # WriteShareGroupState
        86,  # DeleteShareGroupState
        87,  # ReadShareGroupStateSummary
        90,  # DescribeShareGroupOffsets
        91,  # AlterShareGroupOffsets
        92,  # DeleteShareGroupOffsets
    }
)
"""By API key."""
