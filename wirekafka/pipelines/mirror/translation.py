"""From source offsets to target offsets, exactly: by the runs that the sink writes with the records themselves.

A run says that `count` records with consecutive offsets from `source_offset` on have consecutive offsets from `target_offset` on
at the target. Between two runs, the source has a gap (compaction, markers of transactions, aborted records), or the target has
one (markers of the sink's transactions). The runs of a partition are sorted, and rise in both offsets.

A group that committed source offset `c` has seen every record before `c`. Its place in the target is therefore the offset of the
first mirrored record whose source offset is `c` or later.

MirrorMaker 2 writes one pair of offsets now and then, and translates only downwards to the nearest pair it remembers, so a group
there reads records again after it has moved. Source: KIP-382, KIP-545, org.apache.kafka.connect.mirror.OffsetSyncStore.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from wirekafka.names import TopicPartition
from wirekafka.pipelines.transactional_sink.progress import Run


class Action(Enum):
    """What happens with a group's offset for a partition; the value is what the table shows."""

    COMMIT = "commit"
    KEEP = "keep: already there"
    BACKWARDS = "keep: the target is ahead"
    WAIT = "wait: not mirrored yet"
    IN_USE = "keep: the group has members at the target"


@dataclass(slots=True)
class Translation:
    """One group's offset of one partition, at the source and at the target.

    Attributes:
        source: the partition at the source.
        target: the partition at the target.
        source_offset: what the group committed at the source.
        target_offset: the offset that it means at the target; None if that is not known yet.
        committed_offset: what the group has committed at the target; None if nothing.
        metadata: the metadata of the commit at the source.
    """

    group: str
    source: TopicPartition
    target: TopicPartition
    source_offset: int
    target_offset: int | None
    committed_offset: int | None
    metadata: str
    action: Action


@dataclass(slots=True)
class Places:
    """What a mirror knows of the offsets of one source partition.

    Attributes:
        runs: sorted. Invariant: both offsets rise, and no two runs overlap.
        next_source_offset: every record before it is mirrored.
    """

    runs: Sequence[Run]
    next_source_offset: int

    def target_offset(self, source_offset: int, *, mirrored_until: int | None = None) -> int | None:
        """Returns the target offset of the first mirrored record at `source_offset` or later.

        If there is none, but every record before `source_offset` is mirrored, that is the offset after the last mirrored record.

        Args:
            source_offset: what a group committed at the source.
            mirrored_until: no record from `next_source_offset` to this offset exists at the source.

        Returns:
            None if records before `source_offset` are not mirrored yet.
        """
        following = bisect_right(self.runs, source_offset, key=_end_of)
        if following < len(self.runs):
            run = self.runs[following]
            return run.target_offset + max(0, source_offset - run.source_offset)
        if source_offset > max(self.next_source_offset, mirrored_until or 0):
            return None
        return self.runs[-1].target_offset + self.runs[-1].count if self.runs else 0


def _end_of(run: Run) -> int:
    return run.source_offset + run.count


def action_for(
    target_offset: int | None, committed_offset: int | None, *, is_in_use: bool, allows_backwards: bool = False
) -> Action:
    """Returns what is done with a group's offset of one partition.

    Args:
        target_offset: the translated offset, None if records are missing at the target.
        committed_offset: what the group has committed at the target, None if nothing.
        is_in_use: the group has members at the target.
        allows_backwards: an offset may be set back to an earlier record.
    """
    if target_offset is None:
        return Action.WAIT
    if target_offset == committed_offset:
        return Action.KEEP
    if is_in_use:
        return Action.IN_USE
    if committed_offset is not None and target_offset < committed_offset and not allows_backwards:
        return Action.BACKWARDS
    return Action.COMMIT
