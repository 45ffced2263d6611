"""The order of keys is that of Scala 2.13 and Java 17. The expected orders were printed by them."""

from __future__ import annotations

import pytest

from wirekafka.zookeeper.layout.key_order import immutable_map_order, mutable_map_order, properties_order


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (3, "0 1 2"),
        (12, "11 0 1 2 3 4 5 6 7 8 9 10"),
        (
            30,
            "22 23 24 25 26 27 28 29 10 11 12 13 14 15 16 17 18 19 0 1 2 3 4 5 6 7 8 9 20 21",
        ),
    ],
)
def test_mutable_map_order_is_by_place_and_then_by_hash(count: int, order: str) -> None:
    assert mutable_map_order(map(str, range(count))) == order.split()


def test_immutable_map_order_is_that_of_the_additions_up_to_four_keys() -> None:
    names = ["PLAINTEXT", "SSL", "SASL_SSL", "CONTROLLER", "INTERNAL", "EXTERNAL"]
    assert immutable_map_order(names[:4]) == names[:4]
    assert immutable_map_order(names) == ["SSL", "INTERNAL", "EXTERNAL", "PLAINTEXT", "SASL_SSL", "CONTROLLER"]


def test_immutable_map_order_of_keys_with_one_hash_is_that_of_the_additions() -> None:
    assert [key for key in immutable_map_order(["Aa", "x", "BB", "y", "z"]) if len(key) == 2] == ["Aa", "BB"]


def test_properties_order_is_by_place_and_then_by_addition() -> None:
    names = ["retention.ms", "cleanup.policy", "segment.bytes", "min.insync.replicas", "compression.type", "max.message.bytes"]
    more = ["flush.ms", "flush.messages", "retention.bytes", "segment.ms", "index.interval.bytes"]
    assert properties_order([*names, *more]) == [
        "compression.type",
        "cleanup.policy",
        "flush.ms",
        "max.message.bytes",
        "min.insync.replicas",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
        "index.interval.bytes",
        "flush.messages",
        "retention.bytes",
    ]
