"""Notices that the target has lost records that were mirrored, so that a mirror does not go on after a hole.

The records, the progress and the mapped offsets of a mirror are in the same transactions, but a broker can lose the end of one
partition (an unclean leader election, a disk), or the whole target can be an older backup than the checkpoint of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError

ENDINGS_S = 30.0
"""A broker that was killed ends the transactions that it has answered for this long after its start."""

POLL_S = 1.0


def check_target_ends(written: Mapping[TopicPartition, int], ranges: Mapping[TopicPartition, range]) -> None:
    """Checks that the partitions of the target still have what was written to them.

    The high watermark is never behind a committed transaction, because a broker tells no offset from the time of its election
    until the high watermark is that of the leader before. Source: KIP-207.

    Args:
        written: one past the last offset that was written to each partition.
        ranges: the offsets that each partition has, up to its high watermark; partitions that do not exist are left out.

    Raises:
        PipelineError: a partition ends before what was written.
    """
    for partition, end in sorted(written.items()):
        if partition in ranges and ranges[partition].stop < end:
            raise PipelineError(
                f"the target's partition {partition} ends at offset {ranges[partition].stop}, but was written up to {end}: its "
                "broker has lost records. Restore them, or delete the topic there, and mirror it from its beginning with "
                "--restart-topic"
            )


def check_checkpoint(
    path: str,
    ends: Mapping[TopicPartition, int],
    read_progress: Callable[[], Mapping[TopicPartition, int]],
    has_records: Callable[[TopicPartition, int, int], bool],
) -> None:
    """Checks that the target has the progress which the checkpoint of Spark says it has.

    The progress is behind the checkpoint too if the last offsets of a batch were no records: markers, or aborted records.

    Args:
        path: the checkpoint, for the message.
        ends: the source offsets at which the completed batches of the checkpoint end.
        read_progress: reads the next source offset of each partition from the target.
        has_records: whether the source has a record of a partition from an offset up to another one, excluded.

    Raises:
        PipelineError: records that the checkpoint has passed are not at the target.
    """
    deadline_s = time.monotonic() + ENDINGS_S
    while True:
        progress = read_progress()
        behind = {partition: progress.get(partition, 0) for partition, end in ends.items() if progress.get(partition, 0) < end}
        missing = next((partition for partition, first in behind.items() if has_records(partition, first, ends[partition])), None)
        if missing is None:
            return
        if time.monotonic() >= deadline_s:
            break
        time.sleep(POLL_S)
    raise PipelineError(
        f"the checkpoint {path} says that {missing} is mirrored up to offset {ends[missing]}, but the target's progress is "
        f"{behind[missing]}: the target has lost records, or is an older backup. To go on from what the target has, give "
        "another --checkpoint"
    )
