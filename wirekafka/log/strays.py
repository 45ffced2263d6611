"""Stray partitions: folders of partitions that the cluster does not assign to this broker.

A broker of a cluster finds them, for example, after it was down while a topic was deleted or reassigned. Their folders are
renamed and kept, because they may hold the last copy of the records.

Rules of this file: pure.

Source: KAFKA-14616; kafka.log.LogManager.findStrayReplicas and isStrayKraftReplica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wirekafka.names import TopicPartition, format_topic_id

REMEDY = (
    "Delete the folder once nobody needs its records. To use it again, stop the broker, and remove everything after the number "
    "of the partition from its name"
)


def find_strays(
    found: Iterable[tuple[TopicPartition, bytes | None]], assigned: Mapping[TopicPartition, bytes]
) -> dict[TopicPartition, str]:
    """Returns the partitions that do not belong to this broker, each with the reason.

    Args:
        found: the partitions with folders, and the topic ids in the folders; a folder from before Kafka 2.8 has no topic id, and
            belongs to the topic of its name.
        assigned: all partitions that the cluster assigns to this broker, and their topic ids.
    """
    strays = {}
    for name, topic_id in found:
        assigned_id = assigned.get(name)
        if assigned_id is None:
            strays[name] = "the cluster does not assign the partition to this broker"
        elif topic_id is not None and topic_id != assigned_id:
            strays[name] = f"the folder has topic id {format_topic_id(topic_id)}, and the topic {format_topic_id(assigned_id)}"
    return strays
