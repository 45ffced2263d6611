"""The APIs whose responses wait for the commit of coordinator state.

Rule of this file: every API of the group, share and transaction coordinators is in `GATED`. Produce waits by itself, because it
appends to other partitions too, and so does WriteTxnMarkers.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from wirekafka.broker import Broker

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
        90,  # DescribeShareGroupOffsets
        91,  # AlterShareGroupOffsets
        92,  # DeleteShareGroupOffsets
    }
)
"""By API key."""


def gated(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler of an API of a coordinator, with responses that are held as `ReplyGate.handle` says."""

    @wraps(handler)
    def handle(broker: Broker, call: Any) -> Any:
        return broker.reply_gate.handle(handler, broker, call)

    return handle
