"""The faults of a run, at random times.

How it works: at random times a random fault begins. Most faults end by themselves after a random time. `heal` ends all faults.

Rules of this file:
    No fault may make Apache Kafka lose acknowledged records. So without a sync of each append, a broker loses its power only
    while all partitions have the other brokers in sync and these brokers are well, and no other broker fails until this broker is
    in sync again.
"""

from __future__ import annotations

from collections.abc import Callable

from wirekafka.names import TopicPartition
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.events import MS
from wirekafka.simulation.machine import Machine
from wirekafka.simulation.operations import EXTRA_TOPICS, Operator
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.session import Delete, ZooKeeperError

CHECK_US = 100 * MS
SHORTEST_MS = 10
CHANGES_IN_STALL = 3
MOST_WORK_US = 20 * MS
"""How long the controller works for one event."""


class Faults:
    """The faults of one run."""

    def __init__(self, cluster: Cluster, machines: list[Machine], operator: Operator) -> None:
        self._cluster = cluster
        self._machines = machines
        self._operator = operator
        self._options = cluster.options
        self._dice = cluster.dice.fork("faults")
        self._events = cluster.events
        self._is_healed = False
        self._without_power: Machine | None = None
        self._to_restart: list[Machine] = []
        self._kinds: tuple[Callable[[], None], ...] = (
            self._crash,
            self._crash,
            self._lose_power,
            self._pause,
            self._block_one_way,
            *[self._stall] * self._options.stall_weight,
            self._isolate,
            self._lose_connection,
            self._cut_from_zookeeper,
            self._expire_session,
            self._depose_controller,
            self._overthrow_controller,
            self._elect,
            self._elect,
            self._fill_disk,
            self._jump_clock,
            *(self._reassign, self._cancel, self._shut_down, self._create_topic, self._delete_topic)
            * self._options.operation_weight,
        )
        self._next()

    def _next(self) -> None:
        delay_us = self._dice.between(0, 2 * self._options.fault_interval_ms * MS)
        self._events.call_later(delay_us, self._strike)

    def _strike(self) -> None:
        if self._is_healed:
            return
        if self._without_power is None:
            self._dice.choose(self._kinds)()
        self._next()

    def _note(self, what: str) -> None:
        self._events.note("fault", what)

    def _duration_us(self) -> int:
        """Returns how long a fault lasts: often so long that sessions expire and replicas lag."""
        longest_ms = 2 * max(self._options.session_timeout_ms, self._options.replica_lag_time_max_ms)
        return self._dice.between(SHORTEST_MS, longest_ms) * MS

    def _machine(self) -> Machine:
        return self._dice.choose(self._machines)

    # Brokers

    def _crash(self) -> None:
        machine = self._machine()
        machine.crash()
        self._events.call_later(self._duration_us(), machine.start)

    def _lose_power(self) -> None:
        machine = self._machine()
        if self._options.flush_messages == 1:
            machine.lose_power()
            self._events.call_later(self._duration_us(), lambda: self._restore_power(machine))
        elif machine.broker is not None and self._is_spare(machine.broker_id):
            session_id = machine.broker.registration.client.session_id
            self._without_power = machine
            machine.lose_power()
            restarts = (self._wait_until_removed, self._restart_without_records, lambda: self._restart_unnoticed(session_id))
            self._events.call_later(self._duration_us(), self._dice.choose(restarts))

    def _restart_unnoticed(self, session_id: int | None) -> None:
        """Starts a broker without its records. The controller pauses until the broker has registered again in a new session."""
        for machine in self._machines:
            if machine.broker is not None and machine.broker.controller.is_active:
                machine.broker.process.pause(self._options.session_timeout_ms * MS // 3)
        if session_id is not None:
            self._cluster.zookeeper.expire_session(session_id)
        self._restart_without_records()

    def _restore_power(self, machine: Machine) -> None:
        if not self._is_healed:
            machine.restore_power()

    def _is_spare(self, broker_id: int) -> bool:
        """Whether all other brokers are well, and in-sync replicas of all partitions."""
        others = [machine for machine in self._machines if machine.broker_id != broker_id]
        return all(map(self._is_well, others)) and all(
            {machine.broker_id for machine in others}.issubset(self._cluster.in_sync_replicas(name))
            for name in self._cluster.partitions
        )

    def _is_well(self, machine: Machine) -> bool:
        """Whether a broker runs, and no fault that goes on can make the controller take it for dead."""
        broker = machine.broker
        return (
            broker is not None
            and not machine.disk.is_full
            and not broker.process.is_paused
            and not broker.registration.client.is_cut
            and broker.registration.epoch == self._cluster.broker_epoch(machine.broker_id)
        )

    def _wait_until_removed(self) -> None:
        """Starts a broker without its records when it is no in-sync replica any more."""
        machine = self._without_power
        if machine is None:
            return
        if any(machine.broker_id in self._cluster.in_sync_replicas(name) for name in self._cluster.partitions):
            self._events.call_later(CHECK_US, self._wait_until_removed)
            return
        self._restart_without_records()

    def _restart_without_records(self) -> None:
        """Starts a broker without its records; the controller may take it for an in-sync replica until it registers again."""
        machine = self._without_power
        if machine is not None:
            machine.restore_power()
            self._events.call_later(CHECK_US, self._wait_until_in_sync)

    def _wait_until_in_sync(self) -> None:
        machine = self._without_power
        if machine is None:
            return
        if all(self._is_in_sync(machine, name) for name in self._cluster.partitions):
            self._without_power = None
        else:
            self._events.call_later(CHECK_US, self._wait_until_in_sync)

    def _is_in_sync(self, machine: Machine, name: TopicPartition) -> bool:
        """Whether a broker is in sync since it was told its role, or has no replica of the partition any more."""
        if machine.broker_id not in self._cluster.assignment_of(name).replicas:
            return True
        has_role = machine.broker is not None and machine.broker.replicas.find(name) is not None
        return has_role and machine.broker_id in self._cluster.in_sync_replicas(name)

    def _pause(self) -> None:
        process = self._machine().process
        if process is not None:
            duration_us = self._duration_us()
            self._note(f"{process.name} pauses for {duration_us // MS} ms")
            process.pause(duration_us)

    def _fill_disk(self) -> None:
        machine = self._machine()
        self._note(f"the disk of machine {machine.broker_id} is full")
        machine.disk.is_full = True
        self._events.call_later(self._duration_us(), lambda: self._free_disk(machine))

    def _free_disk(self, machine: Machine) -> None:
        """Frees the disk, and starts the broker again: followers that could not write have stopped."""
        if machine.disk.is_full:
            self._note(f"the disk of machine {machine.broker_id} has room")
            machine.disk.is_full = False
            if self._without_power is None:
                machine.crash_and_restart()
            else:
                self._to_restart.append(machine)

    def _jump_clock(self) -> None:
        machine = self._machine()
        machine.clock_offset_ms = self._dice.choose((-3_600_000, -1_000, 0, 1_000, 3_600_000))
        self._note(f"the clock of machine {machine.broker_id} is off by {machine.clock_offset_ms} ms")

    # The network

    def _block_one_way(self) -> None:
        source, target = self._dice.sample(self._cluster.addresses, 2)
        self._note(f"nothing arrives from {source} at {target}")
        self._cluster.network.block(source, target)
        self._events.call_later(self._duration_us(), self._cluster.network.unblock_all)

    def _stall(self) -> None:
        """Holds back messages of other brokers to a broker, until later requests over new connections overtake them.

        Meanwhile leaders change or the broker registers again, so that the messages are out of date when they arrive.
        """
        machine = self._machine()
        stalled = self._cluster.address_of(machine.broker_id)
        self._note(f"what other brokers send to {stalled} over their present connections stalls")
        for address in self._cluster.addresses:
            self._cluster.network.stall(address, stalled)
        duration_us = self._dice.between(1, 4) * self._options.request_timeout_ms * MS
        self._events.call_later(duration_us, lambda: self._cluster.network.end_stalls(stalled))
        changes = (self._elect, self._elect, lambda: self._expire_session_of(machine))
        for _ in range(CHANGES_IN_STALL):
            self._later(self._dice.between(0, duration_us), self._dice.choose(changes))

    def _later(self, delay_us: int, strike: Callable[[], None]) -> None:
        """Lets a fault strike later, unless no fault may strike then."""

        def act() -> None:
            if not self._is_healed and self._without_power is None:
                strike()

        self._events.call_later(delay_us, act)

    def _isolate(self) -> None:
        isolated = self._cluster.address_of(self._machine().broker_id)
        self._note(f"{isolated} is isolated from the other brokers")
        for address in self._cluster.addresses:
            if address != isolated:
                self._cluster.network.block(isolated, address)
                self._cluster.network.block(address, isolated)
        self._events.call_later(self._duration_us(), self._cluster.network.unblock_all)

    # ZooKeeper

    def _lose_connection(self) -> None:
        broker = self._machine().broker
        if broker is not None:
            self._note(f"the connection of broker {broker.broker_id} to ZooKeeper breaks")
            broker.registration.client.lose_connection()

    def _cut_from_zookeeper(self) -> None:
        broker = self._machine().broker
        if broker is None:
            return
        requests, replies = self._dice.choose(((True, True), (True, False), (False, True)))
        self._note(f"broker {broker.broker_id} is cut from ZooKeeper: requests {requests}, replies {replies}")
        client = broker.registration.client
        client.cut(requests=requests, replies=replies)
        self._events.call_later(self._duration_us(), client.heal)

    def _expire_session(self) -> None:
        self._expire_session_of(self._machine())

    def _expire_session_of(self, machine: Machine) -> None:
        broker = machine.broker
        if broker is not None and broker.registration.client.session_id is not None:
            self._note(f"the session of broker {broker.broker_id} expires")
            self._cluster.zookeeper.expire_session(broker.registration.client.session_id)

    def _depose_controller(self) -> None:
        self._note("an operator deletes /controller")
        try:
            self._cluster.operator.request(Delete(paths.CONTROLLER))
        except ZooKeeperError as error:
            self._note(str(error))

    def _overthrow_controller(self) -> None:
        """Deposes a controller that does not notice it while it works."""
        strikes = (self._elect, self._reassign, self._expire_session)
        self._dice.choose(strikes)()

        def strike() -> None:
            for machine in self._machines:
                if machine.broker is not None and machine.broker.controller.is_active:
                    machine.broker.process.pause(self._dice.between(1, self._options.session_timeout_ms) * MS)
            self._depose_controller()

        self._later(self._dice.between(0, MOST_WORK_US), strike)

    def _elect(self) -> None:
        name = self._dice.choose(self._cluster.partitions)
        leader = self._dice.choose(self._cluster.broker_ids)
        self._operator.elect(name, leader)

    # Operators

    def _reassign(self) -> None:
        target = self._dice.sample(self._cluster.broker_ids, self._dice.choose((2, 3)))
        self._operator.reassign(self._dice.choose(self._cluster.partitions), target)

    def _cancel(self) -> None:
        self._operator.reassign(self._dice.choose(self._cluster.partitions), None)

    def _shut_down(self) -> None:
        machine = self._machine()
        self._operator.shut_down(machine, lambda: self._events.call_later(self._duration_us(), machine.start))

    def _create_topic(self) -> None:
        replicas = [
            self._dice.sample(self._cluster.broker_ids, self._dice.between(1, 3)) for _ in range(self._dice.between(1, 2))
        ]
        self._operator.create_topic(self._dice.choose(EXTRA_TOPICS), replicas)

    def _delete_topic(self) -> None:
        self._operator.delete_topic(self._dice.choose(EXTRA_TOPICS))

    # The end

    @property
    def without_records(self) -> int | None:
        """The broker that may lack records although it is an in-sync replica; None if there is none."""
        return None if self._without_power is None else self._without_power.broker_id

    def heal(self, machines: list[Machine]) -> None:
        """Ends all faults of these machines. The brokers of the other machines are killed and stay down."""
        self._is_healed = True
        self._note(f"all is well for {[machine.broker_id for machine in machines]}")
        self._cluster.network.unblock_all()
        self._cluster.network.end_stalls()
        self._operator.end_shutdowns()
        self._cluster.network.options.loss_probability = self._cluster.network.options.slow_probability = 0
        for machine in self._machines:
            if machine not in machines:
                self._remove(machine)
                continue
            if machine.disk.is_full or machine in self._to_restart:
                machine.disk.is_full = False
                machine.crash()
            if machine.has_power or machine is not self._without_power:
                machine.restore_power()
            if machine.broker is not None:
                machine.broker.registration.client.heal()
                machine.broker.registration.client.choose_fault = lambda operation: None

    def _remove(self, machine: Machine) -> None:
        """Kills a broker, which is not started again."""
        machine.crash()
        machine.has_power = False
        if machine is self._without_power:
            self._without_power = None
