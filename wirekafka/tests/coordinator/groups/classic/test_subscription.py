import struct

import pytest

from wirekafka.coordinator.groups.classic.subscription import subscribed_topics


def subscription(*topics: str, version: int = 0, rest: bytes = b"\0\0\0\0") -> bytes:
    names = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + names + rest


def test_topics_of_all_members_are_joined() -> None:
    assert subscribed_topics([subscription("a", "b"), subscription("b", "ü", version=3, rest=b"anything")]) == {"a", "b", "ü"}


def test_topics_of_nobody_are_none_at_all() -> None:
    assert subscribed_topics([]) == frozenset()


@pytest.mark.parametrize(
    "broken",
    [b"", b"\0\0", subscription("topic")[:9], struct.pack(">hi", 0, -1), struct.pack(">hi", -1, 0), b"\0\0\0\0\0\1\0\2\xff\xff"],
)
def test_metadata_that_is_no_consumers_leaves_topics_unknown(broken: bytes) -> None:
    assert subscribed_topics([subscription("a"), broken]) is None
