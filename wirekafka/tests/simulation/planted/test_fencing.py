"""What brokers with the known bugs of fencing do with a request that is out of date."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from wirekafka.simulation.broker import Broker
from wirekafka.simulation.events import MS, Process
from wirekafka.simulation.exchange import Peer
from wirekafka.simulation.operations import Operator
from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.planting import plant
from wirekafka.simulation.world import Mode, World
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)

OLD_LEADER = 1
"""The leader of the first partition in leader epoch 0."""


@pytest.fixture
def world() -> Iterator[World]:
    """Brokers without faults and clients, of which broker 2 leads the first partition in leader epoch 3."""
    world = World(0, Mode.SAFETY)
    for machine in world.machines:
        machine.start()
    world.events.run_until(2_000 * MS)
    Operator(world, world.machines).elect(world.partitions[0], 2)
    world.events.run_until(4_000 * MS)
    yield world
    world.close()


def old_leader(world: World) -> Broker:
    broker = world.machines[OLD_LEADER - 1].broker
    assert broker is not None
    return broker


def request_of_epoch_0(world: World, *, controllers_before: int, registrations_before: int) -> LeaderAndIsrRequest:
    """Returns the first request to broker 1, of an earlier controller or for an earlier registration of the broker."""
    broker = old_leader(world)
    state = LeaderAndIsrPartitionState(
        partition_index=0, leader=OLD_LEADER, leader_epoch=0, isr=[1, 2, 3], partition_epoch=0, replicas=[1, 2, 3]
    )
    return LeaderAndIsrRequest(
        controller_id=3,
        controller_epoch=broker.replicas.controller_epoch - controllers_before,
        broker_epoch=broker.sent_epoch - registrations_before,
        topic_states=[LeaderAndIsrTopicState(topic_name=world.topic, topic_id=world.topic_id, partition_states=[state])],
    )


def leads_after(world: World, request: LeaderAndIsrRequest) -> tuple[bool, int]:
    """Delivers a request after all others; returns whether broker 1 leads then, and in which leader epoch."""
    operator = Process(world.events, "operator")
    peer = Peer(world.network, operator, "operator", world.address_of(OLD_LEADER), count(0))
    peer.ask(LEADER_AND_ISR, request, lambda response: None, timeout_us=1_000 * MS)
    world.events.run_until(world.events.now_us + 1_000 * MS)
    replica = old_leader(world).replicas.find(world.partitions[0])
    assert replica is not None
    return replica.leader is not None, replica.leader_epoch


@pytest.mark.parametrize(
    ("name", "controllers_before", "registrations_before"),
    [("accept-stale-controller-epoch", 1, 0), ("accept-stale-broker-epoch", 0, 1), ("accept-overtaken-requests", 0, 0)],
)
def test_planted_broker_goes_back_to_an_older_leader_epoch(
    world: World, name: str, controllers_before: int, registrations_before: int
) -> None:
    request = request_of_epoch_0(world, controllers_before=controllers_before, registrations_before=registrations_before)

    assert leads_after(world, request) == (False, 3)
    with plant(PLANTED[name]):
        assert leads_after(world, request) == (True, 0)
