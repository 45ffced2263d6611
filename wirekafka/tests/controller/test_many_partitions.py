"""A cluster of 10,000 partitions: the controller does not hold the loop, and is economical with messages."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from wirekafka.controller.reassignment import alter_reassignments
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.controllers import Cluster
from wirekafka.wire.messages.leader_and_isr import LeaderAndIsrRequest

TOPICS = 100
PARTITIONS = 102
MOST_MS = 50
MOST_FAILOVER_MS = 3_000


class _Longest:
    """The longest turn, and all turns together, in CPU time."""

    def __init__(self) -> None:
        self.turn_ms = self.all_ms = 0.0


@contextmanager
def _measuring(cluster: Cluster) -> Iterator[_Longest]:
    """Measures each turn of the loop within the block, without garbage collection, which depends on the objects of all tests."""
    longest, steps = _Longest(), cluster.stage.steps

    def turn() -> None:
        while steps:
            step = steps.popleft()
            began = time.thread_time()
            step()
            took_ms = (time.thread_time() - began) * 1000
            longest.turn_ms = max(longest.turn_ms, took_ms)
            longest.all_ms += took_ms

    former, cluster.stage.turn = cluster.stage.turn, turn  # type: ignore[method-assign]
    gc.disable()
    try:
        yield longest
    finally:
        gc.enable()
        cluster.stage.turn = former  # type: ignore[method-assign]


def test_failover_with_many_partitions_is_short_and_does_not_hold_the_loop() -> None:
    cluster = Cluster(1, 2, 3)
    for broker in cluster.brokers.values():
        broker.peers.encodes = False
    cluster.start()
    for number in range(TOPICS):
        cluster.create_topic(f"t{number}", {index: (index % 3 + 1, (index + 1) % 3 + 1) for index in range(PARTITIONS)})

    with _measuring(cluster) as longest:
        cluster.brokers[1].expire()

    controller = cluster.brokers[2]
    assert len(controller.context.states) == TOPICS * PARTITIONS
    assert cluster.state(TopicPartition("t0", 0)).leader == 2
    assert sum(isinstance(request, LeaderAndIsrRequest) for request in controller.told(3)) == 1
    assert longest.turn_ms < MOST_MS
    assert longest.all_ms < MOST_FAILOVER_MS

    with _measuring(cluster) as longest:
        cluster.brokers[1].register()

    assert len(controller.leaders_told(1)) == TOPICS * PARTITIONS * 2 // 3
    assert longest.turn_ms < MOST_MS


def test_reassignment_of_many_partitions_in_one_request_does_not_hold_the_loop() -> None:
    cluster = Cluster(1, 2, 3, 4)
    for broker in cluster.brokers.values():
        broker.peers.encodes = False
    controller = cluster.start()
    targets = {TopicPartition(f"t{number}", index): (4, 1, 2) for number in range(TOPICS) for index in range(PARTITIONS)}
    for number in range(TOPICS):
        cluster.create_topic(f"t{number}", dict.fromkeys(range(PARTITIONS), (1, 2, 3)))
    outcomes: list[object] = []

    with _measuring(cluster) as longest:
        controller.controller.enter(lambda context, batch: alter_reassignments(context, batch, targets), outcomes.append)
        cluster.turn()

    assert outcomes == [dict.fromkeys(targets)]
    assert len(controller.context.reassigning) == TOPICS * PARTITIONS
    assert longest.turn_ms < 2 * MOST_MS
