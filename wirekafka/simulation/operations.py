"""What operators do with a cluster: they elect and reassign, create and delete topics, and stop brokers in a controlled way.

How it works: topics are created and deleted by their znodes, as old tools do. Elections and reassignments are events of the
active controller, as the handlers of requests enter them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.reassignment import alter_reassignments, is_reassigning
from wirekafka.controller.requested_elections import elect_leaders
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script
from wirekafka.names import TopicPartition
from wirekafka.simulation.broker import Broker
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.events import MS
from wirekafka.simulation.machine import Machine
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import Children, Create, Data, Exists, GetChildren, GetData, ZooKeeperError

SHUTDOWN_ATTEMPTS = 3
SHUTDOWN_PAUSE_US = 200 * MS
END_OF_SESSION_US = 50 * MS
"""How long a broker that stops waits until ZooKeeper knows it."""

EXTRA_TOPICS = ("extra-0", "extra-1")
"""The topics that are created and deleted. No client uses them."""


class Operator:
    """An operator of a cluster."""

    def __init__(self, cluster: Cluster, machines: Sequence[Machine]) -> None:
        self._cluster = cluster
        self._machines = machines
        self._created_count = 0
        self._shutdowns: list[_Shutdown] = []

    def _note(self, what: str) -> None:
        self._cluster.events.note("operator", what)

    def _ask_controller(self, event: Callable[[ControllerContext, RequestBatch], Script[Any]]) -> None:
        """Enters an event of each broker that takes itself for the controller."""
        for machine in self._machines:
            if machine.broker is not None:
                machine.broker.controller.enter(event, lambda result: self._note(f"is answered {result}"))

    # Partitions

    def elect(self, name: TopicPartition, leader: int) -> None:
        """Makes a replica the preferred one, unless the partition is being reassigned, and elects the preferred leader."""
        self._note(f"wants broker {leader} to lead {name}")
        self._ask_controller(lambda context, batch: _prefer(context, batch, name, leader))

    def reassign(self, name: TopicPartition, target: Sequence[int] | None) -> None:
        """Moves a partition to other brokers; None cancels."""
        self._note(f"moves {name} to {target}")
        self._ask_controller(lambda context, batch: alter_reassignments(context, batch, {name: target}))

    # Topics

    def create_topic(self, name: str, replicas: Sequence[Sequence[int]]) -> None:
        """Creates a topic, unless there is one; `replicas` are those of each partition."""
        if self._exists(paths.topic(name)) or self._exists(paths.deleted_topic(name)):
            return
        self._created_count += 1
        topic_id = f"extra topic {self._created_count:04}".encode()
        self._cluster.topic_names[topic_id] = name
        self._note(f"creates {name} with replicas {replicas}")
        assignments = {index: ReplicaAssignment(tuple(each)) for index, each in enumerate(replicas)}
        self._cluster.operator.request(Create(paths.topic(name), TopicAssignment(topic_id, assignments).write()))

    def delete_topic(self, name: str) -> None:
        """Asks for the deletion of a topic, if there is one."""
        if self._exists(paths.topic(name)) and not self._exists(paths.deleted_topic(name)):
            self._note(f"deletes {name}")
            self._cluster.operator.request(Create(paths.deleted_topic(name), b""))

    def _exists(self, path: str) -> bool:
        return self._cluster.operator.request(Exists(path)) is not None

    # Brokers

    def shut_down(self, machine: Machine, then: Callable[[], object]) -> None:
        """Stops a broker after a controlled shutdown, whatever that brings."""
        if machine.broker is not None:
            shutdown = _Shutdown(self._cluster, machine, machine.broker, then)
            self._shutdowns.append(shutdown)
            shutdown.begin()

    def end_shutdowns(self) -> None:
        """Kills the brokers that are about to stop."""
        for shutdown in self._shutdowns:
            shutdown.kill()

    # What shall be in the end

    def faults(self) -> list[str]:
        """Returns what is not yet as it shall be, in those topics that are created and deleted, on the brokers that run."""
        running = {machine.broker_id: machine.broker for machine in self._machines if machine.broker is not None}
        topics = self._extra_topics()
        found = [fault for name, each in topics.items() for fault in self._faults_of(name, each, running)]
        for broker_id, broker in running.items():
            names = [log.topic_partition for log in broker.logs if log.topic_partition.topic in EXTRA_TOPICS]
            strays = [name for name in names if broker_id not in _replicas(topics, name)]
            found += [f"broker {broker_id} has a log of {name}" for name in strays]
        return found

    def _extra_topics(self) -> dict[str, TopicAssignment]:
        children: Children = self._cluster.operator.request(GetChildren(paths.TOPICS))
        found: dict[str, TopicAssignment] = {}
        for name in children.names:
            if name in EXTRA_TOPICS:
                data: Data = self._cluster.operator.request(GetData(paths.topic(name)))
                found[name] = TopicAssignment.read(name, data.data)
        return found

    def _faults_of(self, name: str, topic: TopicAssignment, running: dict[int, Broker]) -> list[str]:
        replicas = {broker_id for each in topic.partitions.values() for broker_id in each.replicas}
        if not replicas <= running.keys():
            return []
        if self._exists(paths.deleted_topic(name)):
            return [f"{name} is not deleted"]
        return [
            f"{name}-{index} is not online and in sync"
            for index, each in topic.partitions.items()
            if not self._is_whole(TopicPartition(name, index), each, topic.topic_id, running)
        ]

    def _is_whole(
        self, name: TopicPartition, assignment: ReplicaAssignment, topic_id: bytes | None, running: dict[int, Broker]
    ) -> bool:
        try:
            state = self._cluster.state_of(name)
        except ZooKeeperError:
            return False
        hosted = {broker_id: running[broker_id].replicas.find(name) for broker_id in assignment.replicas}
        leaders = [broker_id for broker_id, each in hosted.items() if each is not None and each.leader is not None]
        has_logs = all(each is not None and each.topic_id == topic_id for each in hosted.values())
        return has_logs and leaders == [state.leader] and {*state.isr} == {*assignment.replicas}


def _replicas(topics: dict[str, TopicAssignment], name: TopicPartition) -> tuple[int, ...]:
    topic = topics.get(name.topic)
    assignment = None if topic is None else topic.partitions.get(name.partition)
    return () if assignment is None else assignment.replicas


def _prefer(context: ControllerContext, batch: RequestBatch, name: TopicPartition, leader: int) -> Script[Any]:
    assignment = context.assignment(name)
    if assignment is not None and leader in assignment.replicas and not is_reassigning(assignment):
        others = [broker_id for broker_id in assignment.replicas if broker_id != leader]
        yield from alter_reassignments(context, batch, {name: [leader, *others]})
    return (yield from elect_leaders(context, batch, [name], Election.PREFERRED))


class _Shutdown:
    """A controlled shutdown of a broker. Source: kafka.server.KafkaServer.controlledShutdown."""

    def __init__(self, cluster: Cluster, machine: Machine, broker: Broker, then: Callable[[], object]) -> None:
        self._cluster = cluster
        self._machine = machine
        self._broker = broker
        self._then = then
        self._attempts = 0

    def begin(self) -> None:
        """Asks the controller, again and again, and stops the broker in the end."""
        broker = self._broker
        if self._machine.broker is not broker:
            return
        controller_id = broker.controller_id
        if controller_id is None or self._attempts == SHUTDOWN_ATTEMPTS:
            self._end()
            return
        self._attempts += 1
        broker.note("asks for a controlled shutdown")
        request = ControlledShutdownRequest(broker_id=broker.broker_id, broker_epoch=broker.sent_epoch)
        peer = broker.new_peer(controller_id)
        peer.ask(CONTROLLED_SHUTDOWN, request, self._take, timeout_us=broker.options.request_timeout_ms * MS)

    def kill(self) -> None:
        """Kills the broker if it has not stopped yet."""
        if self._machine.broker is self._broker:
            self._machine.crash()

    def _take(self, response: ControlledShutdownResponse | None) -> None:
        if response is not None and not response.error_code and not response.remaining_partitions:
            self._end()
        else:
            self._broker.process.call_later(SHUTDOWN_PAUSE_US, self.begin)

    def _end(self) -> None:
        """Ends the session, and then the process."""
        self._broker.note("stops")
        self._broker.registration.client.close()
        self._cluster.events.call_later(END_OF_SESSION_US, self._stop)

    def _stop(self) -> None:
        if self._machine.broker is self._broker:
            self._machine.crash()
            self._then()
