"""What the short ways past handlers share; see `registry.Shortcut`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.metadata.topics import Topic

NO_OFFSETS = (-0x5A5A5A5A5A5A5A5B,) * 3
"""What stands in an answer where each request has three numbers of its own, such as offsets; a name of a topic cannot hold
these bytes, and an id is too short for them."""


def finder_of_topic(broker: Broker, name: str, topic_id: bytes, *, is_by_id: bool) -> Callable[[], Topic | None]:
    """Looks a topic up, as it may be another one each time."""
    return partial(broker.topics.find_by_id, topic_id) if is_by_id else partial(broker.topics.find, name)
