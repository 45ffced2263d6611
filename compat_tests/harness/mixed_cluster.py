"""A cluster of brokers of Apache Kafka 3.9 and of wirekafka, or of wirekafka alone, with one ZooKeeper.

    with mixed_cluster(directory) as cluster:
        cluster.brokers[3].bootstrap

The brokers 1 and 2 are Apache Kafka, and 3 is wirekafka. Any of them may be the controller. At first it is one of Apache Kafka,
because they start first.

    with mixed_cluster(directory, kinds=ALONE) as cluster:

All brokers are wirekafka.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker, Wirekafka, random_loopback_host
from compat_tests.harness.networks import ZOOKEEPER, Machine, Network
from compat_tests.harness.waiting import wait_until
from compat_tests.harness.zookeeper import KafkaOfZooKeeper, ZooKeeper, zookeeper

JVM_IDS = (1, 2)
WIREKAFKA_ID = 3
IN_SYNC_TIMEOUT_S = 60.0

SETTINGS = {
    "zookeeper.session.timeout.ms": "10000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "500",
    "num.partitions": "2",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


def rack_of(broker_id: int) -> str:
    """Returns the rack of a broker; each has its own."""
    return f"rack-{broker_id}"


class JvmMember(KafkaOfZooKeeper):
    """Apache Kafka; several brokers that start at once on a busy machine take their time."""

    ready_timeout_s = 240.0


class Kafka28(JvmMember):
    """Apache Kafka 2.8."""

    profile = jars.PEER_2_8


class Kafka33(JvmMember):
    """Apache Kafka 3.3."""

    profile = jars.PEER_3_3


class Member(Wirekafka):
    """wirekafka with `zookeeper.connect`."""

    ready_timeout_s = 240.0

    def __init__(self, directory: Path, connect: str, broker_id: int, settings: Mapping[str, str] = {}) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, {"broker.id": str(broker_id), "zookeeper.connect": connect, **settings})


AnyMember = JvmMember | Member
KINDS: Mapping[int, type[AnyMember]] = {**dict.fromkeys(JVM_IDS, JvmMember), WIREKAFKA_ID: Member}
ALONE: Mapping[int, type[AnyMember]] = dict.fromkeys((1, 2, 3), Member)


@dataclass(frozen=True)
class PartitionView:
    """A partition, as one broker describes it."""

    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


class MixedCluster:
    """The running cluster.

    Attributes:
        brokers: by id; a broker that was stopped stays in the table.
    """

    def __init__(
        self,
        directory: Path,
        server: ZooKeeper,
        settings: Mapping[str, str],
        kinds: Mapping[int, type[AnyMember]],
        machines: Mapping[int, Machine] = {},
    ) -> None:
        self.zookeeper = server
        self._directory = directory
        self._settings = SETTINGS | dict(settings)
        self._machines = machines
        self.brokers: dict[int, Broker] = {number: self._make(number, kind) for number, kind in kinds.items()}

    def _make(self, number: int, kind: type[AnyMember], address: str = "") -> Broker:
        """Returns a broker that keeps its address when it is started again, so that clients find it.

        Args:
            address: HOST:PORT for the first start; the kernel chooses a port if it is empty.
        """
        made = kind(self._directory / str(number), f"{self.zookeeper.address}/kafka", number, self._settings)
        made.keeps_address = True
        made.settings = {**made.settings, "broker.rack": rack_of(number)}
        made.host = address.rpartition(":")[0] or random_loopback_host()
        if number in self._machines:
            made.host, made.prefix = self._machines[number].host, self._machines[number].prefix
        made.bootstrap = address
        return made

    def add(self, number: int, kind: type[AnyMember]) -> None:
        """Adds a broker to the table if it is not there. It does not start it."""
        if number not in self.brokers:
            self.brokers[number] = self._make(number, kind)

    def replace(self, number: int, kind: type[AnyMember]) -> None:
        """Stops a broker in order, and starts one of a kind on its data directory; waits until it is registered."""
        assert self.brokers[number].terminate(120) in (0, 143)
        self.brokers[number] = self._make(number, kind, self.brokers[number].bootstrap)
        self.brokers[number].start()

    @property
    def bootstrap(self) -> str:
        """The addresses of the running brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values() if broker.is_running())

    def admin(self, broker_id: int | None = None) -> AdminClient:
        """Returns a client of all running brokers, or of one."""
        return AdminClient({"bootstrap.servers": self.bootstrap if broker_id is None else self.brokers[broker_id].bootstrap})

    def create_topic(self, name: str, assignment: list[list[int]], configs: Mapping[str, str] = {}) -> None:
        """Creates a topic with these replicas of each partition, and waits until all are in sync."""
        topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=dict(configs))
        self._ask_controller(lambda admin: admin.create_topics([topic])[name].result(60), KafkaError.TOPIC_ALREADY_EXISTS)
        self.until_in_sync(name)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic; the brokers may delete its records later."""
        self._ask_controller(lambda admin: admin.delete_topics([name])[name].result(60), KafkaError.UNKNOWN_TOPIC_OR_PART)

    def _ask_controller(self, ask: Callable[[AdminClient], None], error_if_done: int) -> None:
        """Asks the controller, and asks the next one if another broker has become the controller.

        A request that waits at the former controller is answered NOT_CONTROLLER, and librdkafka does not repeat it.

        Args:
            error_if_done: the error of a repeated request if the first one was carried out.
        """
        is_repeated = False

        def is_done() -> bool:
            nonlocal is_repeated
            try:
                ask(self.admin())
            except KafkaException as failure:
                code = failure.args[0].code()
                if code == KafkaError.NOT_CONTROLLER:
                    is_repeated = True
                    return False
                if not (is_repeated and code == error_if_done):
                    raise
            return True

        wait_until(is_done, timeout_s=IN_SYNC_TIMEOUT_S, what="a broker is the controller", poll_s=0.2)

    def controller_id(self, broker_id: int | None = None) -> int:
        """Returns the broker that is the controller, as a broker says."""
        return int(self.admin(broker_id).list_topics(timeout=60).controller_id)

    def features(self, *options: str, broker_id: int = 1) -> dict[str, str]:
        """Returns the levels that `wirekafka cluster features` shows, by feature; with `--finalize` it finalizes the newest."""
        bootstrap = self.brokers[broker_id].bootstrap
        command = [sys.executable, "-m", "wirekafka", "cluster", "features", "--bootstrap-server", bootstrap, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines()]
        return {row[0]: row[1] for row in rows if row and row[0].endswith(".version")}

    def let_apache_kafka_rule(self) -> int:
        """Restarts wirekafka if it is the controller; returns the broker of Apache Kafka that is the controller now."""
        controller_id = self.controller_id(JVM_IDS[0])
        if controller_id not in JVM_IDS:
            assert self.brokers[controller_id].terminate() == 0
            self.brokers[controller_id].start()
        self.until_all_know_each_other()
        controller_id = self.controller_id(WIREKAFKA_ID)
        assert controller_id in JVM_IDS
        return controller_id

    def until_all_know_each_other(self) -> None:
        """Waits until every broker lists the controller and all brokers: a broker listens before the controller knows it."""

        def lists_all(broker_id: int) -> bool:
            found = self.admin(broker_id).list_topics(timeout=60)
            return found.brokers.keys() == self.brokers.keys() and found.controller_id in self.brokers

        for broker_id in self.brokers:
            wait_until(partial(lists_all, broker_id), timeout_s=120, what=f"broker {broker_id} lists all brokers", poll_s=0.1)

    def first_running(self) -> int:
        """Returns the running broker with the least id."""
        return next(number for number, broker in self.brokers.items() if broker.is_running())

    def describe(self, topic: str, broker_id: int | None = None) -> dict[int, PartitionView]:
        """Returns the partitions of a topic, as a broker describes them; empty while it does not know the topic.

        Args:
            broker_id: the broker that is asked; the first running one if it is None.
        """
        found = self.admin(broker_id or self.first_running()).list_topics(topic, timeout=60).topics[topic]
        if found.error is not None:
            return {}
        return {
            index: PartitionView(each.leader, tuple(each.replicas), tuple(sorted(each.isrs)))
            for index, each in found.partitions.items()
        }

    def until_in_sync(self, topic: str, broker_id: int | None = None, partition_count: int = 1) -> dict[int, PartitionView]:
        """Waits until all replicas of a topic are in sync and have leaders; returns the partitions.

        Args:
            broker_id: the broker that is asked; the first running one if it is None.
            partition_count: how many partitions the broker must know; it may learn added ones later than the controller.
        """
        asked = broker_id or self.first_running()

        def in_sync() -> dict[int, PartitionView]:
            views = self.describe(topic, asked)
            are_complete = len(views) >= partition_count and all(
                view.leader >= 0 and view.in_sync_replicas == tuple(sorted(view.replicas)) for view in views.values()
            )
            return views if are_complete else {}

        return wait_until(in_sync, timeout_s=IN_SYNC_TIMEOUT_S, what=f"all replicas of {topic} are in sync", poll_s=0.1)

    def until_leader(self, topic: str, index: int, *leaders: int, asked: int | None = None) -> None:
        """Waits until one of the brokers leads a partition, in the view of the broker that is asked: the first running one."""
        wait_until(
            lambda: (view := self.describe(topic, asked).get(index)) is not None and view.leader in leaders,
            timeout_s=IN_SYNC_TIMEOUT_S,
            what=f"{topic}-{index} is led by one of {leaders}",
            poll_s=0.1,
        )

    def elect_preferred_if_needed(self, topic: str, index: int) -> None:
        """Elects the first replica of a partition unless it leads."""
        view = self.describe(topic)[index]
        if view.leader != view.replicas[0]:
            self.elect_preferred(topic, index)
            self.until_leader(topic, index, view.replicas[0])

    def elect_preferred(self, topic: str, index: int) -> None:
        """Elects the first replica of a partition, as kafka-leader-election does; waits while it is not alive or not in sync."""
        partition = TopicPartition(topic, index)

        def is_elected() -> bool:
            admin = self.admin()  # without a name it would be destroyed while it waits
            try:
                error = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(15)[partition]
            except TimeoutError:
                # Apache Kafka may elect the leader and answer a minute later; then no election is needed any more.
                return False
            except KafkaException as failure:
                error = failure.args[0]
            if error is not None and error.code() in (KafkaError.PREFERRED_LEADER_NOT_AVAILABLE, KafkaError.NOT_CONTROLLER):
                return False
            assert error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED, error
            return True

        wait_until(is_elected, timeout_s=IN_SYNC_TIMEOUT_S, what=f"{topic}-{index} has its first replica elected", poll_s=0.2)

    def producer(self, **settings: Any) -> Producer:
        """Returns an idempotent producer with acks=all."""
        return Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, **settings})

    def produce(self, topic: str, index: int, values: list[bytes], producer: Producer | None = None, **settings: Any) -> None:
        """Produces values to one partition, and waits for all acknowledgements.

        Args:
            producer: a producer that has begun; a new one with the settings if it is None.
        """
        producer = producer or self.producer(**settings)
        errors = []
        for value in values:
            producer.produce(topic, value, partition=index, on_delivery=lambda error, message: error and errors.append(error))
        assert producer.flush(60) == 0
        assert errors == []

    def consume(self, topic: str, index: int, count: int) -> list[bytes]:
        """Returns the first values of a partition, read from its leader."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        consumer = Consumer(settings | {"enable.auto.commit": False})
        values: list[bytes] = []
        try:
            consumer.assign([TopicPartition(topic, index, 0)])

            def has_all() -> bool:
                for message in consumer.consume(count - len(values), timeout=1.0):
                    assert message.error() is None, message.error()
                    values.append(message.value())
                return len(values) >= count

            wait_until(has_all, timeout_s=60, what=f"{count} records of {topic}-{index}")
        finally:
            consumer.close()
        return values

    def transact(self, topic: str, indexes: list[int], values: list[bytes], *, is_aborted: bool = False) -> None:
        """Produces values to each of the partitions in one transaction of a new transactional id."""
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex}
        producer = Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            for index in indexes:
                producer.produce(topic, value, partition=index)
        assert producer.flush(60) == 0
        if is_aborted:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)

    def commit(self, group: str, topic: str, offsets: list[int]) -> None:
        """Commits an offset for each partition, as a group without members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False})
        try:
            partitions = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
            consumer.commit(offsets=partitions, asynchronous=False)
        finally:
            consumer.close()

    def committed_offsets(self, group: str, topic: str, partition_count: int) -> list[int]:
        """Returns the committed offset of each partition."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            found = consumer.committed([TopicPartition(topic, index) for index in range(partition_count)], timeout=60)
            return [each.offset for each in found]
        finally:
            consumer.close()

    def stored(self, broker_id: int, topic: str, index: int) -> bytes:
        """Returns the bytes of all segments of a replica."""
        folder = self.brokers[broker_id].data_dir / f"{topic}-{index}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def until_equal(self, topic: str, index: int) -> None:
        """Waits until all running replicas of a partition have the same bytes."""
        running = [number for number, broker in self.brokers.items() if broker.is_running()]

        def are_equal() -> bool:
            return len({self.stored(number, topic, index) for number in running}) == 1

        wait_until(are_equal, timeout_s=60, what=f"the replicas of {topic}-{index} have the same bytes")


@contextlib.contextmanager
def mixed_cluster(
    directory: Path,
    settings: Mapping[str, str] = {},
    kinds: Mapping[int, type[AnyMember]] = KINDS,
    *,
    starts_jvm_first: bool = True,
    network: Network | None = None,
) -> Iterator[MixedCluster]:
    """Runs a cluster, and kills all of it at the end.

    Args:
        kinds: the kind of each broker, by id.
        starts_jvm_first: whether the brokers of Apache Kafka start first, so that one of them is the controller.
        network: has a machine for ZooKeeper and for each broker, by id; without one all run on loopback.
    """
    machines = {} if network is None else {number: network.machines[str(number)] for number in kinds}
    with zookeeper(directory, None if network is None else network.machines[ZOOKEEPER]) as server:
        cluster = MixedCluster(directory, server, settings, kinds, machines)
        jvm = [broker for broker in cluster.brokers.values() if isinstance(broker, JvmMember)]
        others = [broker for broker in cluster.brokers.values() if broker not in jvm]
        try:
            for group in (jvm, others) if starts_jvm_first else (others, jvm):
                with ThreadPoolExecutor() as pool:
                    list(pool.map(lambda broker: broker.start(), group))
            cluster.until_all_know_each_other()
            yield cluster
        finally:
            for broker in cluster.brokers.values():
                if broker.is_running():
                    broker.kill()
