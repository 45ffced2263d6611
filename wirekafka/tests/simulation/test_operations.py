"""What operators do with a simulated cluster that has no faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wirekafka.names import TopicPartition
from wirekafka.simulation.events import MS
from wirekafka.simulation.operations import EXTRA_TOPICS, Operator
from wirekafka.simulation.world import Mode, World
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.session import Exists

TOPIC = EXTRA_TOPICS[0]
NAME = TopicPartition(TOPIC, 0)


class Stage:
    """Brokers without faults and clients, and an operator."""

    def __init__(self) -> None:
        self.world = World(0, Mode.SAFETY)
        self.operator = Operator(self.world, self.world.machines)
        for machine in self.world.machines:
            machine.start()
        self.run(2_000)

    def run(self, duration_ms: int) -> None:
        self.world.events.run_until(self.world.events.now_us + duration_ms * MS)

    def hosts_of(self, name: TopicPartition) -> set[int]:
        """Returns the brokers that have a log of a partition."""
        brokers = [machine.broker for machine in self.world.machines if machine.broker is not None]
        return {broker.broker_id for broker in brokers if broker.logs.get(name) is not None}


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.world.close()


def test_topic_that_is_created_is_whole_on_its_replicas(stage: Stage) -> None:
    stage.operator.create_topic(TOPIC, [(1, 3)])
    assert stage.operator.faults() == [f"{NAME} is not online and in sync"]

    stage.run(2_000)

    assert stage.operator.faults() == []
    assert stage.hosts_of(NAME) == {1, 3}


def test_topic_that_is_deleted_leaves_no_log_and_no_znode(stage: Stage) -> None:
    stage.operator.create_topic(TOPIC, [(1, 2, 3)])
    stage.run(2_000)
    stage.operator.delete_topic(TOPIC)
    assert stage.operator.faults() == [f"{TOPIC} is not deleted"]

    stage.run(2_000)

    assert stage.operator.faults() == []
    assert stage.hosts_of(NAME) == set()
    assert stage.world.operator.request(Exists(paths.topic(TOPIC))) is None


def test_topic_that_is_created_again_has_another_id(stage: Stage) -> None:
    stage.operator.create_topic(TOPIC, [(1,)])
    stage.run(2_000)
    stage.operator.delete_topic(TOPIC)
    stage.run(2_000)
    stage.operator.create_topic(TOPIC, [(1,)])
    stage.run(2_000)

    assert stage.operator.faults() == []
    assert len([topic for topic in stage.world.topic_names.values() if topic == TOPIC]) == 2


def test_log_without_an_assignment_is_a_fault(stage: Stage) -> None:
    broker = stage.world.machines[1].broker
    assert broker is not None
    broker.logs.create(NAME, b"the topic's id..", next(iter(broker.logs)).reader.config)
    assert stage.operator.faults() == [f"broker 2 has a log of {NAME}"]


def test_broker_of_a_reassigned_partition_deletes_its_log(stage: Stage) -> None:
    name = stage.world.partitions[0]
    stage.operator.reassign(name, [2, 3])
    stage.run(2_000)

    assert stage.world.assignment_of(name).replicas == (2, 3)
    assert stage.hosts_of(name) == {2, 3}
    assert {*stage.world.in_sync_replicas(name)} == {2, 3}


def test_replica_that_shall_lead_becomes_the_preferred_leader(stage: Stage) -> None:
    name = stage.world.partitions[0]
    stage.operator.elect(name, 3)
    stage.run(2_000)

    assert stage.world.assignment_of(name).replicas[0] == 3
    assert stage.world.state_of(name).leader == 3


def test_broker_that_shuts_down_gives_up_its_leaderships_before_it_stops(stage: Stage) -> None:
    name = stage.world.partitions[0]
    leader = stage.world.state_of(name).leader
    machine = stage.world.machines[leader - 1]
    stopped: list[int] = []
    stage.operator.shut_down(machine, lambda: stopped.append(stage.world.state_of(name).leader))
    stage.run(2_000)

    assert machine.broker is None
    assert stopped != [leader]
    assert leader not in stage.world.in_sync_replicas(name)


def test_shutdown_that_is_in_progress_is_ended_by_a_kill(stage: Stage) -> None:
    machine = stage.world.machines[0]
    stopped: list[None] = []
    stage.operator.shut_down(machine, lambda: stopped.append(None))
    stage.operator.end_shutdowns()
    stage.run(2_000)

    assert machine.broker is None
    assert stopped == []
