"""Names that all layers share: partitions, topic ids, internal topics and the sentinels of the wire.

Rule of this file: sentinels exist on the wire only; inside the broker absence is None.
"""

from __future__ import annotations

import base64
import uuid
from typing import NamedTuple

NO_LEADER_ID = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

ZERO_TOPIC_ID = bytes(16)
"""The topic id that stands for no topic (org.apache.kafka.common.Uuid.ZERO_UUID)."""

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The topic in which Apache Kafka's controllers keep their records; clients never see it."""
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text is the name of its folder in Kafka: `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def new_topic_id() -> bytes:
    """Returns a random topic id: a version 4 UUID of 16 bytes, never zero, whose text never begins with `-`.

    Source: org.apache.kafka.common.Uuid.randomUuid.
    """
    while True:
        topic_id = uuid.uuid4().bytes
        if not format_topic_id(topic_id).startswith("-"):
            return topic_id


def format_topic_id(topic_id: bytes) -> str:
    """Returns the 22 characters in which Kafka prints a topic id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> bytes:
    """Returns the 16 bytes of a printed topic id.

    Raises:
        ValueError: the text is not 16 bytes in URL-safe base64.
    """
    topic_id = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(topic_id)}")
    return topic_id
