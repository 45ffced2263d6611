from dataclasses import dataclass

import pytest

from wirekafka.coordinator.groups.modern.topics import topic_hash
from wirekafka.tests.coordinator.groups.consumer.world import MemoryImage


@dataclass
class FixedTopic:
    name: str
    topic_id: bytes
    partitions: range


@pytest.mark.parametrize(
    ("rack", "partition_count", "expected"),
    [
        (None, 1, 8963112548072796245),
        (None, 3, -8832753732432981234),
        (None, 100, 5925678804020720117),
        ("r1", 1, 7390536509235358340),
        ("r1", 100, -24388124717101940),
        ("eu-west-1a", 3, -1456288564343139346),
    ],
)
def test_topic_hash_is_what_kafkas_own_library_gives(rack: str | None, partition_count: int, expected: int) -> None:
    topic_id = bytes([1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18])
    assert topic_hash(FixedTopic("foo", topic_id, range(partition_count)), rack) == expected


def test_group_hash_is_that_of_the_topics_that_exist() -> None:
    image = MemoryImage()
    image.put("a", 1)
    one = image.hashes.of_topics({"a", "b"})
    assert image.hashes.of_topics({"b"}) == image.hashes.of_topics(()) == 0
    image.put("b", 1)
    both = image.hashes.of_topics({"a", "b"})
    assert len({0, one, both}) == 3
    assert image.hashes.of_topics(["b", "a"]) == both


def test_group_hash_follows_a_topic_that_grows() -> None:
    image = MemoryImage()
    image.put("a", 1)
    before = image.hashes.of_topics({"a"})
    image.put("a", 2)
    assert image.hashes.of_topics({"a"}) != before
