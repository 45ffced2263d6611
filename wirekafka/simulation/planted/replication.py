"""Known bugs in what leaders commit and show, what followers truncate, and what logs keep."""

from __future__ import annotations

from wirekafka.errors import ErrorCode
from wirekafka.log.flush import Flush, _Part
from wirekafka.log.log import Log
from wirekafka.log.positions import BatchPosition
from wirekafka.log.producer_state import Producers
from wirekafka.log.storage import FileRegion
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.replication.following import BecameFollower, Effects, Following, State
from wirekafka.replication.leadership import AdvanceHighWatermark, Follower, IsrChange, Leadership
from wirekafka.replication.leadership import Effects as LeaderEffects
from wirekafka.replication.partition import CommitWait, OnCommit, Partition
from wirekafka.simulation.planted.planting import PlantedBug, Replacement

_follow = Following._follow
_expand = Leadership._expand


def _follow_from_high_watermark(self: Following, event: BecameFollower) -> Effects:
    effects = _follow(self, event)
    if self.state is State.FETCHING and effects and event.high_watermark < event.log_end_offset:
        return self._truncate(event.high_watermark)
    return effects


def _truncate_to_leaders_end(self: Following, epoch: int, end_offset: int, now_ms: int) -> Effects:
    return self._truncate(end_offset)


def _find_no_divergence(self: Partition, leader_epoch: int, offset: int) -> tuple[int, int] | None:
    return None


def _know_no_epoch(self: Leadership, replica_id: int) -> int | None:
    return None


def _forget_change(self: Leadership, change: IsrChange, error: ErrorCode, now_ms: int) -> LeaderEffects:
    if self.pending is change:
        self.pending = None
    return ()


def _never_truncate(self: Following, epoch: int, end_offset: int, now_ms: int) -> Effects:
    return self._back_off(now_ms)


def _commit_alone(self: Leadership, now_ms: int) -> LeaderEffects:
    if self.log_end_offset <= self.high_watermark:
        return ()
    self.high_watermark = self.log_end_offset
    return [AdvanceHighWatermark(self.log_end_offset)]


def _committed_isr(self: Leadership) -> frozenset[int]:
    return self.committed_isr


def _proposed_isr(self: Leadership) -> frozenset[int]:
    return self.committed_isr if self.pending is None else self.pending.proposed


def _never_joins_soon(self: Leadership, replica_id: int, follower: Follower, now_ms: int) -> bool:
    return False


def _expand_from_high_watermark(self: Leadership, replica_id: int, follower: Follower) -> LeaderEffects:
    epoch_start_offset, self.epoch_start_offset = self.epoch_start_offset, 0
    try:
        return _expand(self, replica_id, follower)
    finally:
        self.epoch_start_offset = epoch_start_offset


def _commit_at_once(self: Partition, offset: int, callback: OnCommit) -> CommitWait:
    wait = CommitWait(offset, callback)
    wait.end(None)
    return wait


def _read_to_end(
    self: Partition, offset: int, *, max_bytes: int, min_one_batch: bool, only_stable: bool = False
) -> FileRegion | bytes:
    return self.log.read(offset, max_bytes=max_bytes, end_offset=self.log.log_end_offset, min_one_batch=min_one_batch)


def _note_nothing(self: Producers, first_offset: int, marker_offset: int) -> None:
    pass


def _forget_producer(self: Log, data: memoryview, place: BatchPosition) -> AbortedTransaction | None:
    self.reader.producers.end_offset = place.last_offset + 1
    return None


def _skip_sync(self: Flush, part: _Part) -> None:
    self.folder.ledger.sync(part.generations, part.written, lambda: None)


BUGS = (
    PlantedBug(
        "truncate-to-high-watermark",
        "a follower of a new leader truncates to its own high watermark, which may be older than the true one",
        "KIP-101",
        (Replacement(Following, "_follow", _follow_from_high_watermark),),
    ),
    PlantedBug(
        "truncate-to-end-of-unknown-epoch",
        "a follower truncates to the leader's end of an epoch that it does not have itself",
        "KIP-279",
        (Replacement(Following, "_diverge", _truncate_to_leaders_end),),
    ),
    PlantedBug(
        "diverge-unnoticed",
        "a leader does not compare the epoch of a follower's last record with its own log",
        "KIP-595",
        (Replacement(Partition, "find_divergence", _find_no_divergence),),
    ),
    PlantedBug(
        "keep-diverging-records",
        "a follower whose log diverges from the leader's does not truncate",
        "KIP-595",
        (Replacement(Following, "_diverge", _never_truncate),),
    ),
    PlantedBug(
        "commit-without-followers",
        "the high watermark waits for no follower",
        "Partition.maybeIncrementLeaderHW",
        (Replacement(Leadership, "_commit", _commit_alone),),
    ),
    PlantedBug(
        "high-watermark-over-committed-isr",
        "the high watermark does not wait for a replica that the controller may have added already",
        "KIP-497",
        (
            Replacement(Leadership, "maximal_isr", property(_committed_isr)),
            Replacement(Leadership, "_may_join_soon", _never_joins_soon),
        ),
    ),
    PlantedBug(
        "high-watermark-over-proposed-isr",
        "the high watermark does not wait for a replica whose removal the controller has not confirmed",
        "KIP-497",
        (Replacement(Leadership, "maximal_isr", property(_proposed_isr)),),
    ),
    PlantedBug(
        "join-isr-before-epoch-start",
        "a replica joins the in-sync replicas at the leader's high watermark, which a new leader may not know yet",
        "KAFKA-7128",
        (Replacement(Leadership, "_expand", _expand_from_high_watermark),),
    ),
    PlantedBug(
        "isr-without-broker-epochs",
        "a replica joins the in-sync replicas by a fetch that its broker sent before it started again",
        "KIP-903",
        (Replacement(Leadership, "_epoch_of", _know_no_epoch),),
    ),
    PlantedBug(
        "forget-change-of-unknown-outcome",
        "the high watermark does not wait for a replica if the controller has answered its addition with any error",
        "KAFKA-13112",
        (Replacement(Leadership, "_fail_change", _forget_change),),
    ),
    PlantedBug(
        "acknowledge-before-commit",
        "a record with acks=all is acknowledged when the leader has it",
        "DelayedProduce",
        (Replacement(Partition, "on_commit", _commit_at_once),),
    ),
    PlantedBug(
        "read-past-high-watermark",
        "consumers get records that are not committed",
        "KAFKA-263",
        (Replacement(Partition, "read", _read_to_end),),
    ),
    PlantedBug(
        "last-stable-offset-past-marker",
        "the last stable offset passes a transaction before its marker is committed",
        "KAFKA-5378",
        (Replacement(Producers, "_note_unreplicated", _note_nothing),),
    ),
    PlantedBug(
        "followers-forget-producers",
        "a follower does not note the sequences of producers, so that it accepts duplicates as the leader",
        "KIP-98",
        (Replacement(Log, "_replay", _forget_producer),),
    ),
    PlantedBug(
        "recovery-point-without-sync",
        "the recovery point moves although nothing was synced",
        "UnifiedLog.flush",
        (Replacement(Flush, "_sync", _skip_sync),),
    ),
)
"""The bugs, the switches of which are their names."""
