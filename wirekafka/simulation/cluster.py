"""What all parts of one run share: random numbers, time, the network, ZooKeeper, the history, and the partitions.

The initial znodes are those that Apache Kafka has after the creation of a topic.
"""

from __future__ import annotations

from collections.abc import Callable

from wirekafka.names import TopicPartition
from wirekafka.simulation.dice import Dice
from wirekafka.simulation.events import MS, Events, Transcript
from wirekafka.simulation.history import Event, History
from wirekafka.simulation.network import Network, NetworkOptions
from wirekafka.simulation.options import Options
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import write_controller_epoch
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import Create, Data, GetData, WatchEvent, ZooKeeperError, ZooKeeperErrorCode

FIRST_MS = 1_700_000_000_000
"""The wall clock at the beginning."""

EXPIRY_CHECK_US = 20 * MS

TOPIC = "topic"
TOPIC_ID = b"the topic's id.."


class Cluster:
    """What all parts of one run share.

    Args:
        title: the first line of the transcript, before the options.
        read: receives each line of the transcript.

    Attributes:
        history: the requests and responses of the clients.
        topic_names: all topics that ever existed, by their ids.
        operator: a connection to ZooKeeper that has no faults.
    """

    def __init__(self, seed: int, title: str, read: Callable[[str], object] | None) -> None:
        self.dice = Dice(f"{seed}")
        self.options = options = Options.draw(self.dice.fork("options"))
        self.events = Events(Transcript(read))
        self.events.note("seed", f"{title}: {options}")
        self.history = History()
        self.topic = TOPIC
        self.topic_id = TOPIC_ID
        self.topic_names = {TOPIC_ID: TOPIC}
        self.broker_ids = tuple(range(1, options.broker_count + 1))
        self.partitions = tuple(TopicPartition(TOPIC, index) for index in range(options.partition_count))
        network = NetworkOptions(options.least_delay_us, options.most_delay_us, options.slow_rate, options.loss_rate)
        self.network = Network(self.events, self.dice.fork("network"), network)
        self.zookeeper = ModelServer(lambda: self.events.now_ms)
        self.operator = self.zookeeper.connect(_Nobody(), 1 << 60)
        self._create_znodes()
        self._expire_sessions()

    @property
    def addresses(self) -> list[str]:
        """The addresses of all brokers."""
        return [self.address_of(broker_id) for broker_id in self.broker_ids]

    def address_of(self, broker_id: int) -> str:
        """Returns the address of a broker."""
        return f"broker-{broker_id}"

    def first_replicas(self, name: TopicPartition) -> tuple[int, ...]:
        """Returns the brokers that have a partition at the beginning; the first one is preferred."""
        start = name.partition % len(self.broker_ids)
        return self.broker_ids[start:] + self.broker_ids[:start]

    def wall_clock_ms(self) -> int:
        """Returns the true time, since 1970."""
        return FIRST_MS + self.events.now_ms

    def record(self, event: Event) -> None:
        """Adds an event to the history."""
        self.history.add(event, self.events.now_us / MS)
        self.events.note("history", str(event))

    def assignment_of(self, name: TopicPartition) -> ReplicaAssignment:
        """Returns the replicas of a partition, as ZooKeeper has them."""
        found: Data = self.operator.request(GetData(paths.topic(name.topic)))
        return TopicAssignment.read(name.topic, found.data).partitions[name.partition]

    def in_sync_replicas(self, name: TopicPartition) -> tuple[int, ...]:
        """Returns the in-sync replicas of a partition, as ZooKeeper has them."""
        return self.state_of(name).isr

    def state_of(self, name: TopicPartition) -> PartitionState:
        """Returns the state of a partition in ZooKeeper."""
        found: Data = self.operator.request(GetData(paths.partition_state(name)))
        return PartitionState.read(name, found.data)

    def broker_epoch(self, broker_id: int) -> int | None:
        """Returns the broker epoch of a broker's registration, by ZooKeeper; None if it is not registered."""
        try:
            found: Data = self.operator.request(GetData(paths.broker(broker_id)))
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            return None
        return found.stat.czxid

    # The beginning

    def _create_znodes(self) -> None:
        for path in paths.PERSISTENT:
            self._create(path, b"")
        self._create(paths.CONTROLLER_EPOCH, write_controller_epoch(0))
        assignment = {name.partition: ReplicaAssignment(self.first_replicas(name)) for name in self.partitions}
        self._create(paths.topic(TOPIC), TopicAssignment(TOPIC_ID, assignment).write())
        for name in self.partitions:
            replicas = self.first_replicas(name)
            self._create(paths.partition_state(name), PartitionState(replicas[0], 0, replicas, 0).write())

    def _create(self, path: str, data: bytes) -> None:
        for each in [*paths.parents(path), path]:
            try:
                self.operator.request(Create(each, data if each == path else b""))
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                    raise

    def _expire_sessions(self) -> None:
        self.zookeeper.expire_sessions()
        self.events.call_later(EXPIRY_CHECK_US, self._expire_sessions)


class _Nobody:
    """The listener of the operator's connection, which watches nothing."""

    def on_watch_event(self, event: WatchEvent) -> None:
        """Is never called."""

    def on_disconnect(self) -> None:
        """Is never called: the session never expires."""
