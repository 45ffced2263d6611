"""The brokers that get the replicas of new partitions, spread evenly over brokers and racks.

How it works: the first replicas go round the brokers, from a random start. The other replicas of a partition go round the
brokers after its first one, at a random distance that grows by one after each round. If the brokers have racks, the list of
brokers alternates between the racks, and a replica skips brokers in racks that already have one as long as another rack has
none.

Rules of this file: pure. The caller throws the dice.

Source: org.apache.kafka.admin.AdminUtils (assignReplicasToBrokers, getRackAlternatedBrokerList).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from wirekafka.errors import ErrorCode, KafkaError

Racks = Mapping[int, str | None]
"""The rack of each broker by its id; None for a broker without a rack."""


def assign_replicas(
    racks: Racks, partition_count: int, replication_factor: int, *, start: int, shift: int, first_partition: int = 0
) -> Iterator[tuple[int, ...]]:
    """Returns the replicas of new partitions, one partition after the other.

    The arguments are checked at once; the replicas are found as they are read.

    Args:
        racks: the brokers that can have replicas.
        start: the place of the broker that has the first replica of partition 0, in the list of brokers.
        shift: the distance between the first two replicas of partition 0, less one.
        first_partition: the number of the first new partition.

    Raises:
        KafkaError: INVALID_PARTITIONS; INVALID_REPLICATION_FACTOR, more replicas than brokers or none; UNKNOWN_SERVER_ERROR,
            some brokers have racks and some have none.
    """
    if partition_count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor < 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        message = f"Replication factor: {replication_factor} larger than available brokers: {len(racks)}."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    brokers = alternating_brokers(racks)
    rack_count = len({*racks.values()})
    places = _places(len(brokers), partition_count, start, shift, first_partition)
    if rack_count == 1:
        # One rack, or none.
        return (_spread_over_brokers(brokers, first, shift, replication_factor) for first, shift in places)
    return (_spread_over_racks(brokers, racks, rack_count, first, shift, replication_factor) for first, shift in places)


def alternating_brokers(racks: Racks) -> list[int]:
    """Returns the brokers in the order in which partitions go round them: a broker of each rack, then the next of each rack.

    Brokers without racks are in the order of their ids.

    Raises:
        KafkaError: UNKNOWN_SERVER_ERROR, some brokers have racks and some have none.
    """
    by_rack: dict[str | None, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    if None in by_rack and len(by_rack) > 1:
        message = "Not all brokers have rack information for replica rack aware assignment."
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack, key=str)))
    return [broker_id for each in rounds for broker_id in each if broker_id is not None]


def _places(broker_count: int, partition_count: int, start: int, shift: int, first_partition: int) -> Iterator[tuple[int, int]]:
    """Returns for each partition the place of its first replica, and the shift of the others."""
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % broker_count == 0:
            shift += 1
        yield (partition + start) % broker_count, shift


def _spread_over_brokers(brokers: Sequence[int], first: int, shift: int, replication_factor: int) -> tuple[int, ...]:
    others = (brokers[_place(first, shift, number, len(brokers))] for number in range(replication_factor - 1))
    return brokers[first], *others


def _spread_over_racks(
    brokers: Sequence[int], racks: Racks, rack_count: int, first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    replicas = [brokers[first]]
    used_racks = {racks[brokers[first]]}
    number = 0
    while len(replicas) < replication_factor:
        broker_id = brokers[_place(first, shift * rack_count, number, len(brokers))]
        is_free = racks[broker_id] not in used_racks or len(used_racks) == rack_count
        if is_free and broker_id not in replicas:
            replicas.append(broker_id)
            used_racks.add(racks[broker_id])
        number += 1
    return tuple(replicas)


def _place(first: int, shift: int, number: int, broker_count: int) -> int:
    """Returns the place of a replica after the first one."""
    return (first + 1 + (shift + number) % (broker_count - 1)) % broker_count
