"""Which replica a consumer should read a partition from (KIP-392).

How it works: a Fetch has the rack of the consumer. If the leader is in another rack, it looks for an in-sync follower in the
consumer's rack that has the fetch offset, and names the most caught-up one in its response. The consumer then reads from that
follower, and returns to the leader after an error, or after `metadata.max.age.ms`.

Rules of this file: pure.

Source: KIP-392; kafka.server.ReplicaManager.findPreferredReadReplica,
org.apache.kafka.common.replica.{RackAwareReplicaSelector, ReplicaView}.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirekafka.replication.leadership import Follower, Leadership

RackOf = Callable[[int], str | None]
"""Returns the rack of a broker; None if the broker has none, or if the client cannot reach the broker."""


def preferred_read_replica(leadership: Leadership, rack: str, fetch_offset: int, rack_of: RackOf, now_ms: int) -> int | None:
    """Returns the follower that a consumer should read from; None if it should read from the leader.

    Args:
        rack: the rack of the consumer.
        now_ms: the time, by the clock of the leader.
    """
    if rack_of(leadership.broker_id) == rack:
        return None
    near = [
        (*_rank(follower, now_ms), broker_id)
        for broker_id, follower in leadership.followers.items()
        if broker_id in leadership.committed_isr and _has_offset(follower, fetch_offset) and rack_of(broker_id) == rack
    ]
    return max(near)[-1] if near else None


def _has_offset(follower: Follower, offset: int) -> bool:
    end_offset, start_offset = follower.log_end_offset, follower.log_start_offset
    return end_offset is not None and start_offset is not None and start_offset <= offset <= end_offset


def _rank(follower: Follower, now_ms: int) -> tuple[int, float]:
    """Returns how far a follower is caught up, for comparison (ReplicaView.comparator)."""
    caught_up_ms = follower.last_caught_up_ms
    lag_ms = inf if caught_up_ms is None else now_ms - caught_up_ms
    assert follower.log_end_offset is not None, "such a follower has no offset"
    return follower.log_end_offset, -lag_ms
