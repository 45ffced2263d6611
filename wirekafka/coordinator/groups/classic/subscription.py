"""The topics in a consumer's metadata. The coordinator of classic groups reads nothing else of the metadata.

Source: ConsumerProtocol.deserializeConsumerProtocolSubscription; all versions begin with the fields of version 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Returns the topics that at least one member subscribes to; None if some metadata is not that of a consumer."""
    topics: set[str] = set()
    try:
        for subscription in metadata:
            topics.update(_topics(subscription))
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def _topics(subscription: bytes) -> Iterable[str]:
    (version,) = _SHORT.unpack_from(subscription, 0)
    (count,) = _INT.unpack_from(subscription, _SHORT.size)
    if version < 0 or count < 0:
        raise ValueError("not a subscription")
    pos = _SHORT.size + _INT.size
    for _ in range(count):
        (length,) = _SHORT.unpack_from(subscription, pos)
        pos += _SHORT.size
        if not 0 <= length <= len(subscription) - pos:
            raise ValueError("a topic's name exceeds the subscription")
        yield subscription[pos : pos + length].decode()
        pos += length
