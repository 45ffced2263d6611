"""Faults of a running cluster of wirekafka, chosen by a seed. After each of them the cluster must heal by itself."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from kazoo.client import KazooClient

from compat_tests.harness.mixed_cluster import MixedCluster
from compat_tests.harness.networks import CLIENTS, ZOOKEEPER, Network
from compat_tests.harness.waiting import wait_until

HEAL_TIMEOUT_S = 90.0
REPLICA_COUNT = 3
DISK_MIB = 256
_ZOOKEEPER_SECRET = 0xB3415C00


def password_of(session_id: int) -> bytes:
    """Returns the password that ZooKeeper gives a session: 16 bytes of java.util.Random, seeded with the id and a constant.

    Source: SessionTracker, ZooKeeperServer.generatePasswd.
    """
    state = ((session_id ^ _ZOOKEEPER_SECRET) ^ 0x5DEECE66D) & ((1 << 48) - 1)
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        password += (state >> 16).to_bytes(4, "little")
    return password


@contextlib.contextmanager
def small_disks(cluster_directory: Path, broker_ids: list[int]) -> Iterator[str | None]:
    """Gives the data directory of each broker a small file system of its own; yields why it cannot, or None."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        yield "mounting a file system needs root"
        return
    mounted: list[Path] = []
    reason = None
    try:
        for broker_id in broker_ids:
            path = cluster_directory / str(broker_id) / "data"
            path.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(path)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                reason = f"cannot mount a tmpfs here: {made.stderr.strip()}"
                break
            mounted.append(path)
        yield reason
    finally:
        for path in mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)


@dataclass
class ClusterFaults:
    """The faults. Each method that is a fault ends when its cause has ended, and returns what it did, for the log of the test.

    Attributes:
        network: None where namespaces cannot be made.
        has_small_disks: whether the disk of a broker can be filled.
        moved_topic: the topic whose partitions are reassigned.
    """

    cluster: MixedCluster
    dice: random.Random
    session_timeout_s: float
    moved_topic: str
    partition_count: int
    network: Network | None = None
    has_small_disks: bool = False
    _topic_count: int = 0
    _deck: list[Callable[[], str]] = field(default_factory=list)

    def next(self) -> Callable[[], str]:
        """Returns the next fault: each kind comes once before one comes again."""
        if not self._deck:
            self._deck = self._kinds()
            self.dice.shuffle(self._deck)
        return self._deck.pop()

    def _kinds(self) -> list[Callable[[], str]]:
        kinds = [
            self.kill,
            self.kill_two,
            self.stop,
            self.pause,
            self.restart_zookeeper,
            self.expire_session,
            self.elect,
            self.reassign,
            self.kill_controller_in_the_middle,
        ]
        if self.network is not None:
            kinds += [self.cut, self.cut_one_way]
        if self.has_small_disks:
            kinds.append(self.fill_disk)
        return kinds

    # Faults of processes.

    def kill(self) -> str:
        """Kills a broker, and starts it before or after its session has expired."""
        broker_id, down_s = self._any_broker(), self._around_session_s()
        self.cluster.brokers[broker_id].kill()
        time.sleep(down_s)
        self.cluster.brokers[broker_id].start()
        return f"broker {broker_id} for {down_s:.1f} s"

    def kill_two(self) -> str:
        """Kills two brokers at once: partitions with a replica on both have too few in-sync replicas for a while."""
        broker_ids, down_s = self.dice.sample(list(self.cluster.brokers), 2), self._around_session_s()
        for broker_id in broker_ids:
            self.cluster.brokers[broker_id].kill()
        time.sleep(down_s)
        for broker_id in broker_ids:
            self.cluster.brokers[broker_id].start()
        return f"brokers {broker_ids} for {down_s:.1f} s"

    def stop(self) -> str:
        """Stops a broker in order, and starts it."""
        broker_id = self._any_broker()
        assert self.cluster.brokers[broker_id].terminate(60) == 0
        self.cluster.brokers[broker_id].start()
        return f"broker {broker_id}"

    def pause(self) -> str:
        """Stops the process of a broker with SIGSTOP, for less or more than its session."""
        broker_id, paused_s = self._any_broker(), self._around_session_s()
        os.kill(self.cluster.brokers[broker_id].pid, signal.SIGSTOP)
        time.sleep(paused_s)
        os.kill(self.cluster.brokers[broker_id].pid, signal.SIGCONT)
        return f"broker {broker_id} for {paused_s:.1f} s"

    def restart_zookeeper(self) -> str:
        """Kills ZooKeeper, and starts it before or after the time of a session."""
        down_s = self._around_session_s()
        self.cluster.zookeeper.kill()
        time.sleep(down_s)
        self.cluster.zookeeper.start()
        return f"down for {down_s:.1f} s"

    def expire_session(self) -> str:
        """Closes the session of a broker, which then hears that the session has expired."""
        broker_id = self._any_broker()
        with self._zookeeper_client() as client:
            _, stat = client.get(f"/brokers/ids/{broker_id}")
        session = stat.ephemeralOwner, password_of(stat.ephemeralOwner)
        with self._zookeeper_client(client_id=session) as client:
            assert client.client_id[0] == session[0], "the password of the session is wrong"
        return f"broker {broker_id}{self._if_controller(broker_id)}"

    # Faults of the network and of disks.

    def cut(self) -> str:
        """Cuts a broker from the other brokers, from ZooKeeper, or from all, both ways."""
        broker_id, others, cut_s = self._any_broker(), self._choose_others(), self._around_session_s()
        return self._cut(broker_id, others, cut_s, outward=True, inward=True)

    def cut_one_way(self) -> str:
        """Loses what a broker sends to others, or what others send to it."""
        broker_id, others, cut_s = self._any_broker(), self._choose_others(), self._around_session_s()
        outward = self.dice.random() < 0.5
        return self._cut(broker_id, others, cut_s, outward=outward, inward=not outward)

    def _choose_others(self) -> str:
        return self.dice.choice(("brokers", ZOOKEEPER, "all"))

    def _cut(self, broker_id: int, others: str, cut_s: float, *, outward: bool, inward: bool) -> str:
        assert self.network is not None
        brokers = [str(each) for each in self.cluster.brokers if each != broker_id]
        names = {"brokers": brokers, ZOOKEEPER: [ZOOKEEPER], "all": [*brokers, ZOOKEEPER, CLIENTS]}[others]
        try:
            for name in names:
                if outward:
                    self.network.cut(str(broker_id), name)
                if inward:
                    self.network.cut(name, str(broker_id))
            time.sleep(cut_s)
        finally:
            self.network.heal()
        way = {(True, True): "from", (True, False): "one way, to", (False, True): "one way, of"}[outward, inward]
        return f"broker {broker_id} {way} {others} for {cut_s:.1f} s"

    def fill_disk(self) -> str:
        """Fills the disk of a broker, and makes room again."""
        broker_id, full_s = self._any_broker(), self._around_session_s()
        ballast = self.cluster.brokers[broker_id].data_dir / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            until = time.monotonic() + full_s
            while time.monotonic() < until:
                with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                    file.write(bytes(1 << 16))  # what the broker has freed meanwhile
                time.sleep(0.02)
        finally:
            ballast.unlink()
        return f"of broker {broker_id} for {full_s:.1f} s"

    # Operations.

    def elect(self) -> str:
        """Elects the preferred leaders of all partitions."""
        admin = self.cluster.admin()
        self._persistently(lambda: admin.elect_leaders(ElectionType.PREFERRED).result(15))
        return "all partitions"

    def reassign(self) -> str:
        """Moves the partitions of a topic twice; in between they may have one replica less."""
        first = self._choose_replicas(least=2)
        second = self._choose_replicas()
        for replicas in (first, second):
            self._begin_reassignment(replicas)
            self._until_reassigned()
        return f"to {first}, then to {second}"

    def kill_controller_in_the_middle(self) -> str:
        """Creates a topic, deletes another and reassigns partitions, and kills the controller meanwhile."""
        delay_s, down_s, replicas = self.dice.uniform(0, 0.1), self._around_session_s(), self._choose_replicas()
        admin = self.cluster.admin()
        former, name = self._name_of_topic(), self._name_of_next_topic()
        controller = self.cluster.controller_id()
        self._begin_reassignment(replicas)
        self._create(admin, name)
        admin.delete_topics([former])
        admin.poll(0)
        time.sleep(delay_s)
        self.cluster.brokers[controller].kill()
        time.sleep(down_s)
        self.cluster.brokers[controller].start()
        self._persistently(lambda: self._finish(name, former))
        self._until_reassigned()
        return f"broker {controller} after {delay_s * 1000:.0f} ms, for {down_s:.1f} s"

    def _create(self, admin: AdminClient, name: str) -> Any:
        return admin.create_topics([NewTopic(name, 3, REPLICA_COUNT)])[name]

    def _finish(self, created: str, deleted: str) -> None:
        """Creates and deletes what the former controller has not."""
        admin = self.cluster.admin()
        topics = admin.list_topics(timeout=10).topics
        if created not in topics:
            self._create(admin, created).result(10)
        if deleted in topics:
            admin.delete_topics([deleted])[deleted].result(10)
        wait_until(
            lambda: deleted not in admin.list_topics(timeout=10).topics, timeout_s=15, what="the topic is deleted", poll_s=0.2
        )

    def _name_of_topic(self) -> str:
        return f"churn-{self._topic_count}"

    def _name_of_next_topic(self) -> str:
        self._topic_count += 1
        return self._name_of_topic()

    def _choose_replicas(self, least: int = REPLICA_COUNT) -> list[list[int]]:
        count = self.dice.randint(least, REPLICA_COUNT)
        return [self.dice.sample(list(self.cluster.brokers), count) for _ in range(self.partition_count)]

    def _begin_reassignment(self, replicas: list[list[int]]) -> None:
        wanted = {TopicPartition(self.moved_topic, index): each for index, each in enumerate(replicas)}
        with self._kafka_python() as admin:
            self._persistently(lambda: admin.alter_partition_reassignments(wanted, timeout_ms=15_000))

    def _until_reassigned(self) -> None:
        with self._kafka_python() as admin:
            self._persistently(lambda: _refuse_any(admin.list_partition_reassignments(timeout_ms=15_000)))

    @contextlib.contextmanager
    def _kafka_python(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap.split(","), reconnect_backoff_max_ms=500)
        try:
            yield admin
        finally:
            admin.close()

    # What the faults have in common.

    def _any_broker(self) -> int:
        return self.dice.choice(list(self.cluster.brokers))

    def _around_session_s(self) -> float:
        """Returns a time shorter than a session, so that nobody notices, or longer."""
        return self.session_timeout_s + self.dice.choice((-0.75 * self.session_timeout_s, 2.0))

    def _if_controller(self, broker_id: int) -> str:
        return ", the controller" if self.cluster.controller_id() == broker_id else ""

    @contextlib.contextmanager
    def _zookeeper_client(self, **settings: Any) -> Iterator[KazooClient]:
        client = KazooClient(f"{self.cluster.zookeeper.address}/kafka", timeout=self.session_timeout_s, **settings)
        client.start(30)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def _persistently(self, act: Callable[[], object]) -> None:
        """Repeats an operation until it succeeds."""
        failure: list[Exception] = []

        def succeeds() -> bool:
            try:
                act()
            except (KafkaException, KafkaError, AssertionError, TimeoutError) as error:
                failure[:] = [error]
                return False
            return True

        try:
            wait_until(succeeds, timeout_s=HEAL_TIMEOUT_S, what="the operation succeeds", poll_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}: {failure}") from None

    def until_in_sync(self) -> None:
        """Waits until each broker says that all replicas of all partitions are in sync."""
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while unhealed := self._unhealed():
            assert time.monotonic() < deadline, f"not in sync within {HEAL_TIMEOUT_S} s: {unhealed}"
            time.sleep(0.2)

    def _unhealed(self) -> list[str]:
        found = []
        for broker_id in self.cluster.brokers:
            try:
                metadata = self.cluster.admin(broker_id).list_topics(timeout=5)
            except KafkaException as error:
                return [f"broker {broker_id}: {error}"]
            if metadata.brokers.keys() != self.cluster.brokers.keys():
                found.append(f"broker {broker_id} lists {list(metadata.brokers)}")
            found += [
                f"broker {broker_id}: {name}-{index} {each.leader} {each.replicas} {each.isrs}"
                for name, topic in metadata.topics.items()
                for index, each in topic.partitions.items()
                if each.leader not in each.isrs or set(each.isrs) != set(each.replicas)
            ]
        return found


def _refuse_any(reassignments: dict[Any, Any]) -> None:
    assert not any(reassignments.values()), f"not finished: {reassignments}"
