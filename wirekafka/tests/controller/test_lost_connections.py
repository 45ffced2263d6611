"""Controllers whose connection to ZooKeeper breaks at any operation, with any effect on the operation."""

from __future__ import annotations

import pytest

from wirekafka.names import TopicPartition
from wirekafka.tests.controller.controllers import Broker, Cluster
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Operation

COUNT = 3
TOPIC = "t"
MOST_OPERATIONS = 400
"""More than a controller does in these tests."""


def _fail_at(broker: Broker, number: int, fault: Fault) -> list[int]:
    """Breaks the connection at the operation with this number; returns a list whose length counts the operations."""
    seen: list[int] = []

    def choose(operation: Operation[object]) -> Fault | None:
        seen.append(len(seen))
        return fault if len(seen) - 1 == number else None

    broker.client.choose_fault = choose
    return seen


def _play(number: int, fault: Fault) -> int:
    """Lets brokers live, die and return, with one fault; returns how many operations the controller has done.

    At the end every partition has a leader that is live, all brokers know it, and no request of tools is left.
    """
    cluster = Cluster(1, 2, 3)
    seen = _fail_at(cluster.brokers[1], number, fault)
    for broker in cluster.brokers.values():
        # The registration is not the subject: the tool's client does it for the session of the broker.
        broker.register()
    names = [TopicPartition(TOPIC, index) for index in range(COUNT)]
    cluster.create_topic(TOPIC, {name.partition: (2, 3, 1) for name in names})
    cluster.create_topic("gone", {0: (3, 2)})
    cluster.stage.do(Create(paths.deleted_topic("gone"), None))
    cluster.brokers[2].expire()
    cluster.brokers[2].register()
    cluster.pass_time(1_000)

    assert cluster.controller_id == 1
    assert cluster.epoch == b"1"
    assert cluster.stage.children(paths.TOPICS) == (TOPIC,)
    controller = cluster.brokers[1]
    for name in names:
        state = cluster.state(name)
        assert state.leader == 3
        assert state.isr == (3, 1)
        assert controller.context.states[name].state == state
        for broker_id in (1, 2, 3):
            told = controller.leaders_told(broker_id)[name], controller.metadata_told(broker_id)[name]
            assert [(each.leader, each.leader_epoch) for each in told] == [(3, state.leader_epoch)] * 2
    return len(seen)


@pytest.mark.parametrize("fault", [*Fault])
def test_lost_connection_at_any_operation_leaves_all_partitions_with_leaders(fault: Fault) -> None:
    number, operations = 1, MOST_OPERATIONS
    while number < operations:
        operations = _play(number, fault)
        number += 1
    assert number < MOST_OPERATIONS
