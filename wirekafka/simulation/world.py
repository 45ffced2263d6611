"""One run: a cluster, its clients, and the faults.

How it works: the cluster starts, and clients and faults begin. After `duration_ms` all is healed. Then all partitions must be
online, in sync and writable within `CONVERGENCE_MS`; after that, consumers read everything once more.

In the safety mode all brokers are healed. In the liveness mode only two are, with an in-sync replica of each partition; the third
one stays down, unless it becomes the last in-sync replica of a partition, which without it could not be online again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import combinations

from wirekafka.names import TopicPartition
from wirekafka.simulation.broker import Broker
from wirekafka.simulation.checker.files import Replica, read_replica
from wirekafka.simulation.clients import Client, Consumer, EndOffsetReader, Producer, Writer
from wirekafka.simulation.cluster import TOPIC, Cluster
from wirekafka.simulation.events import MS
from wirekafka.simulation.faults import Faults
from wirekafka.simulation.history import TopicCreated
from wirekafka.simulation.machine import Machine
from wirekafka.simulation.operations import Operator
from wirekafka.simulation.transactions import TransactionalProducer
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import read_controller_epoch
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.session import Data, GetData

STEP_MS = 100
CONVERGENCE_MS = 60_000
READING_MS = 30_000
LAST_WRITES_MS = 1_000
WRITERS_CHECK_US = 20 * MS
LAST_PRODUCER = 999
"""The number of the producer that shows that the healed cluster is writable."""


class Mode(Enum):
    """Which brokers are healed at the end of a run."""

    SAFETY = "safety"
    LIVENESS = "liveness"


class NotConvergedError(AssertionError):
    """The cluster is not online, in sync and writable in time."""


class DeposedWriterError(AssertionError):
    """A controller has written the state of a partition although another one had the next epoch."""


class World(Cluster):
    """One run."""

    def __init__(self, seed: int, mode: Mode, read: Callable[[str], object] | None = None) -> None:
        super().__init__(seed, f"{seed} {mode.value}", read)
        self.mode = mode
        self.machines = [Machine(self, broker_id) for broker_id in self.broker_ids]
        self._operator = Operator(self, self.machines)
        self._clients: list[Client] = []
        self._looked_at: dict[TopicPartition, int] = {}
        """The transaction that had written each partition's state at the last look."""

    def run(self) -> list[Replica]:
        """Runs from the beginning to the end, and returns the files of the brokers that run at the end.

        Raises:
            NotConvergedError: the cluster did not get well in time.
            DeposedWriterError: ZooKeeper has a state that a deposed controller has written.
        """
        options = self.options
        self._check_writers()
        self.record(TopicCreated(TOPIC, options.partition_count, options.min_insync_replicas))
        for machine in self.machines:
            machine.start()
        producers = self._start_clients()
        faults = Faults(self, self.machines, self._operator)
        self.events.run_until(options.duration_ms * MS)
        faults.heal(self._chosen_to_heal(faults.without_records))
        self._finish(producers, "the producers end")
        self._wait_for(self._is_whole, "online and in sync", CONVERGENCE_MS)
        last = Producer(self, LAST_PRODUCER, is_idempotent=True)
        self._clients.append(last)
        self.events.run_until(self.events.now_us + LAST_WRITES_MS * MS)
        self._finish([last], "writable")
        self._wait_for(self._is_whole, "in sync after the last writes", CONVERGENCE_MS)
        self._read_all()
        self._wait_for(self._is_whole, "in sync after the reads, if a machine has started meanwhile", CONVERGENCE_MS)
        return [_files_of(machine, name) for machine in self.machines if machine.broker for name in self.partitions]

    def close(self) -> None:
        """Frees the memory of the disks."""
        for machine in self.machines:
            machine.disk.free()

    def _check_writers(self) -> None:
        """Looks repeatedly which controllers have written the states of partitions."""
        epoch: Data = self.operator.request(GetData(paths.CONTROLLER_EPOCH))
        current = read_controller_epoch(epoch.data)
        for name in self.partitions:
            found: Data = self.operator.request(GetData(paths.partition_state(name)))
            if found.stat.mzxid <= max(epoch.stat.mzxid, self._looked_at.get(name, 0)):
                continue
            self._looked_at[name] = found.stat.mzxid
            writer = PartitionState.read(name, found.data).controller_epoch
            if writer < current:
                raise DeposedWriterError(f"the controller of epoch {writer} has written the state of {name} in epoch {current}")
        self.events.call_later(WRITERS_CHECK_US, self._check_writers)

    def _start_clients(self) -> list[Writer]:
        """Starts the clients, and returns the producers; the second one, if there is one, sends with acks=1."""
        options = self.options
        producers: list[Writer] = [Producer(self, number, is_idempotent=number != 1) for number in range(options.producer_count)]
        producers += [TransactionalProducer(self, number) for number in range(options.transactional_producer_count)]
        consumers = [
            Consumer(
                self,
                f"consumer {number}",
                self.dice.between(0, options.partition_count - 1),
                is_read_committed=self.dice.chance(0.5),
            )
            for number in range(options.consumer_count)
        ]
        self._clients = [*producers, *consumers, EndOffsetReader(self)]
        return producers

    def _finish(self, producers: Sequence[Writer], what: str) -> None:
        for producer in producers:
            producer.finish()
        self._wait_for(lambda: all(producer.is_idle for producer in producers), what, CONVERGENCE_MS)

    def _chosen_to_heal(self, without_records: int | None) -> list[Machine]:
        if self.mode is Mode.SAFETY:
            return self.machines
        choices = list(combinations(self.machines, 2))
        first = self.dice.fork("quorum").between(0, len(choices) - 1)
        for quorum in choices[first:] + choices[:first]:
            ids = {machine.broker_id for machine in quorum} - {without_records}
            if all(ids.intersection(self.in_sync_replicas(name)) for name in self.partitions):
                return list(quorum)
        return self.machines

    def _wait_for(self, condition: Callable[[], bool], what: str, limit_ms: int) -> None:
        end_us = self.events.now_us + limit_ms * MS
        while not condition():
            self._start_last_in_sync_replicas()
            self._spread_partitions()
            if self.events.now_us >= end_us:
                raise NotConvergedError(f"not {what} within {limit_ms} ms: {self._describe()}")
            self.events.run_until(self.events.now_us + STEP_MS * MS)

    def _start_last_in_sync_replicas(self) -> None:
        for name in self.partitions:
            isr = self.in_sync_replicas(name)
            if all(machine.broker is None for machine in self.machines if machine.broker_id in isr):
                for machine in self.machines:
                    if machine.broker_id in isr:
                        machine.restore_power()

    def _spread_partitions(self) -> None:
        """Lets the operator move partitions to all running brokers that have no replica, or end a move to others."""
        ids = {broker.broker_id for broker in self._running()}
        for name in self.partitions:
            assignment = self.assignment_of(name)
            target = {*assignment.replicas} - {*assignment.removing_replicas}
            is_moving = bool(assignment.adding_replicas or assignment.removing_replicas)
            if not ids <= target or (is_moving and ids != target):
                self._operator.reassign(name, sorted(ids))

    def _running(self) -> list[Broker]:
        return [machine.broker for machine in self.machines if machine.broker is not None]

    def _is_whole(self) -> bool:
        """Whether every partition has a leader that all running brokers follow, with equal ends and high watermarks."""
        running = self._running()
        ids = {broker.broker_id for broker in running}
        for name in self.partitions:
            state = self.state_of(name)
            hosted = [broker.replicas.find(name) for broker in running]
            leaders = [broker.broker_id for broker, each in zip(running, hosted, strict=True) if each is not None and each.leader]
            if leaders != [state.leader] or set(state.isr) != ids:
                return False
            readers = [each.log.reader for each in hosted if each is not None]
            end_offset = readers[0].log_end_offset
            if any(reader.log_end_offset != end_offset or reader.high_watermark != end_offset for reader in readers):
                return False
        return len(running) >= 2 and not self._operator.faults()

    def _describe(self) -> str:
        parts = []
        for name in self.partitions:
            state = self.state_of(name)
            replicas = []
            for broker in self._running():
                replica = broker.replicas.find(name)
                if replica is None:
                    replicas.append(f"broker {broker.broker_id} has no replica")
                    continue
                reader = replica.log.reader
                role = "leads" if replica.leader is not None else "follows" if replica.is_following else "has stopped"
                replicas.append(
                    f"broker {broker.broker_id} {role} epoch {replica.leader_epoch} "
                    f"high watermark {reader.high_watermark} end {reader.log_end_offset}"
                )
            parts.append(f"{name} leader {state.leader} epoch {state.leader_epoch} isr {state.isr}: {'; '.join(replicas)}")
        return " | ".join([*parts, *self._operator.faults()])

    def _read_all(self) -> None:
        """Reads every partition from its beginning to its end, with each isolation level."""
        readers = [
            Consumer(self, f"reader {name.partition}/{is_read_committed}", name.partition, is_read_committed=is_read_committed)
            for name in self.partitions
            for is_read_committed in (False, True)
        ]
        self._clients += readers
        logs = self._running()[0].logs
        end_offsets = {
            log.topic_partition.partition: log.reader.log_end_offset for log in logs if log.topic_partition.topic == TOPIC
        }

        def are_done() -> bool:
            return all(reader.position >= end_offsets[reader.partition] for reader in readers)

        self._wait_for(are_done, "readable", READING_MS)
        for client in self._clients:
            client.stop()


def _files_of(machine: Machine, name: TopicPartition) -> Replica:
    """Returns a broker's files of a partition at the end, with the offsets in memory instead of those in checkpoints."""
    assert machine.broker is not None, "the broker runs"
    log = machine.broker.logs.get(name)
    assert log is not None, "the broker is in sync"
    disk, reader = machine.disk, log.reader
    folder = reader.folder.path
    return read_replica(
        {file: disk.read_file(f"{folder}/{file}") for file in disk.files(folder)},
        machine.broker_id,
        (name.topic, name.partition),
        high_watermark=reader.high_watermark,
        log_start_offset=reader.log_start_offset,
    )
