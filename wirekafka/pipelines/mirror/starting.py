"""Where a mirror goes on that has no checkpoint of Spark: at the progress that the target has. Pure decisions.

Spark begins at these offsets instead of at the beginning, so that it does not read again what the sink would skip.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError

EARLIEST = -2
"""Spark's word for the log start offset of a partition."""


def starting_offsets(
    ranges: Mapping[TopicPartition, range], progress: Mapping[TopicPartition, int], *, allows_data_loss: bool
) -> dict[TopicPartition, int]:
    """Returns the first source offset that is read of each partition.

    Args:
        ranges: the offsets that each partition of the source has now, up to its high watermark.
        progress: the next source offset of each partition that was mirrored before.
        allows_data_loss: what the source has deleted before it was mirrored may be missing.

    Raises:
        PipelineError: the source has deleted records that were not mirrored, or has lost records that were.
    """
    offsets = {}
    for partition, available in ranges.items():
        following = progress.get(partition)
        if following is None:
            offsets[partition] = EARLIEST
        elif following > available.stop:
            raise PipelineError(
                f"the source's partition {partition} ends at offset {available.stop}, but records up to {following} were "
                f"mirrored: its broker has lost records. Delete the mirror of the topic and begin again with --restart-topic "
                f"{partition.topic}, or leave the topic out"
            )
        elif following < available.start and not allows_data_loss:
            raise PipelineError(
                f"the source has deleted the offsets {following} to {available.start - 1} of {partition} before they were "
                "mirrored (retention, or DeleteRecords). Continue without them with --allow-data-loss, and raise retention.ms "
                "or retention.bytes at the source"
            )
        else:
            offsets[partition] = max(following, available.start)
    return offsets


def spark_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Returns the option `startingOffsets` of Spark's kafka source."""
    if not offsets:
        return "earliest"
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for partition, offset in offsets.items():
        by_topic[partition.topic][str(partition.partition)] = offset
    return json.dumps(by_topic)
